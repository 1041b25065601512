"""What the worker tells of itself: its queues, and what its memory goes to.

Everything here is read beside the engine, which goes on, also where it is inside of a long batch:
each number is that of some moment not long ago.  Units are told by their ids; whoever asks must
not show what is of views that its own caller may not see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace import clock, events
from headrace.runtime import side
from headrace.runtime.book import Book
from headrace.runtime.gauges import BUCKETS_MS, ViewGauge
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit
from headrace.sql.nodes import MAIN
from headrace.state.rocks import RocksStore
from headrace.storage.manager import Storage
from headrace.storage.queue import Contents, Queue
from headrace.storage.table import Standing

_STATUS: Final = Path("/proc/self/status")
_RESIDENT: Final = {
    "VmRSS": "process",
    "RssAnon": "process: its own",
    "RssFile": "process: files",
    "RssShmem": "process: shared",
}
"""What the system says of a process's memory, in kB, and what we call it."""

Table = Mapping[tuple[str, Hashable], Standing]
"""The shared table: rows by queue and successor."""


class QueueRow(msgspec.Struct, frozen=True):
    """A queue, and one who reads it."""

    id: int
    """Of the unit whose rows it has; 0: it has changes of the stream."""
    kind: str
    """``subplan``, ``stream`` (what is kept of it on our side), or ``lane`` (what has come for
    views that are processed beside the others)."""
    reader: int
    """The unit that reads it; 0: whoever reads the stream."""
    nodes: tuple[str, ...]
    """Those of the reader's plan whose rows they are."""
    views: tuple[int, ...] | None
    """The views that need what the reader reads: itself, if it is one; None: everybody."""
    rows: int
    bytes: int
    blocks: int
    contiguous: bool
    resident_bytes: int
    """Of its blocks, those that are in memory."""
    base_txid: int
    front_txid: int
    tail_txid: int | None
    """The last txid that is durable in the reader; None: it has no place in the queue."""
    head_txid: int
    """The last txid that it has processed."""
    behind_bytes: int | None
    """What came after its tail."""
    priority: int
    """How urgent it is that the reader reads on (``urgency.py``)."""
    resident_pct: int
    """How much of what is queued is in memory, when it was tended last."""
    running: bool
    """Whether the reader is being called with what stands there."""


class MemoryRow(msgspec.Struct, frozen=True):
    """What some memory, or disk, is used for."""

    part: str
    bytes: int
    limit: int | None = None
    """How much it may be; None: nothing says, or it is a part of another row."""
    views: tuple[int, ...] | None = None
    """The views it is for; None: it is everybody's."""


def queues(book: Book) -> list[dict[str, Any]]:
    """A ``QueueRow`` for each reader of each queue."""
    out: list[QueueRow] = []
    storage = book.storage
    if storage is None:
        return []
    table = storage.pool.table.rows()
    for shared in list(book.subplans.values()):
        if shared.queue is not None:
            out += _of_subplan(book, shared, shared.queue, storage, table)
    if book.retained.queue is not None:
        out.append(_of_stream(book, book.retained.queue, storage, table))
    if book.side.queue is not None:
        out.append(_of_lane(book, book.side.queue, storage, table))
    return [msgspec.structs.asdict(row) for row in out]


def _of_subplan(
    book: Book, shared: Shared, queue: Queue, storage: Storage, table: Table
) -> list[QueueRow]:
    held = queue.contents()
    out = []
    for reader in book.readers(shared):
        nodes = tuple(sorted(node for node, unit in reader.feeds.items() if unit == shared.id))
        tail, behind = held.behind.get(reader.id, (None, None))
        out.append(
            QueueRow(
                *(
                    shared.id,
                    "subplan",
                    reader.id,
                    nodes,
                    _views(book, reader),
                    *_about(held, storage),
                ),
                *(tail, reader.processed, behind),
                *_standing(table, queue.name, reader.id),
            )
        )
    return out


def _of_stream(book: Book, queue: Queue, storage: Storage, table: Table) -> QueueRow:
    held = queue.contents()
    reader = book.retained.READER
    tail, behind = held.behind.get(reader, (None, None))
    return QueueRow(
        *(0, "stream", 0, (), None, *_about(held, storage), tail, book.taken.txid, behind),
        *_standing(table, queue.name, reader),
    )


def _of_lane(book: Book, queue: Queue, storage: Storage, table: Table) -> QueueRow:
    held = queue.contents()
    tail, behind = held.behind.get(side.NAME, (None, None))
    views = book.aside
    processed = min((view.processed for view in views), default=held.last_txid)
    return QueueRow(
        *(0, "lane", 0, (), tuple(view.id for view in views), *_about(held, storage)),
        *(tail, processed, behind),
        *_standing(table, queue.name, side.NAME),
    )


def _about(held: Contents, storage: Storage) -> tuple[int, int, int, bool, int, int, int]:
    return (
        *(held.rows, held.bytes, sum(run.size for run in held.blocks), len(held.blocks) < 2),
        *(storage.file.resident(held.blocks), held.base_txid, held.last_txid),
    )


def _standing(table: Table, queue: str, reader: Hashable) -> tuple[int, int, bool]:
    row = table.get((queue, reader), Standing())
    return round(row.priority), row.resident_pct, row.running


def links(book: Book) -> dict[str, dict[str, Any]]:
    """What the links to other workers are like, of those that are up."""
    out = {}
    for host in list(book.hosts.values()):
        link = host.link
        if link is not None and link.up:
            figures = dataclasses.asdict(link.sender.figures())
            out[host.name] = {**figures, "packed": link.sender.compresses}
    return out


def gauges(book: Book, *, whole: bool = True) -> dict[str, Any]:
    """How fresh each view was of late (``gauges.ViewNumbers``), and what the worker does.

    ``whole``: also of views to which nothing was written of late.
    """
    now = clock.monotonic()
    told = {}
    for view_id, known in list(book.gauges.views.items()):
        if whole or known.points:
            numbers = known.told(now)
            if whole or numbers.recent:
                told[view_id] = numbers
    rows = _states(book) if whole or told else _databases(book)
    states: dict[int, int] = {}
    for row in rows:
        for view_id in row.views or ():
            states[view_id] = states.get(view_id, 0) + row.bytes // len(row.views or (0,))
    views = {}
    for view in list(book.views.values()) if whole else filter(None, map(book.views.get, told)):
        numbers = told.get(view.id) or ViewGauge.empty().told(now)
        views[view.id] = {
            **msgspec.structs.asdict(numbers),
            "state_bytes": states.get(view.id, 0),
            "visible": {
                "bounds": [ms / 1e3 for ms in BUCKETS_MS],
                "counts": numbers.counts,
                "sum_s": numbers.sum_ms / 1e3,
            },
            "worker": view.placed or MAIN,
        }
    return {
        "views": views,
        "reconnects": book.reconnects,
        "batches_total": book.batches,
        "workers": {MAIN: True, **{host.name: host.up for host in list(book.hosts.values())}},
        "memory_used_bytes": sum(
            row.bytes
            for row in (*rows, *_changes(book), *_queues(book))
            if row.limit is not None and row.part != "queues on disk"
        ),
        "totals": msgspec.to_builtins(book.gauges.totals()),
        "checkpoints": book.checkpoints.statistics(),
    }


def batches(book: Book) -> list[dict[str, Any]]:
    """The last batches that were committed, the newest first, behind those in flight."""
    done = [msgspec.structs.asdict(row) for row in reversed(list(book.gauges.batches))]
    flying = [
        {"txid": f.txid, "attempt": f.attempt, "state": f.state.value}
        for f in book.pipeline.flights()
    ]
    for row in done:
        names = (events.view_name(view_id) for view_id in row.pop("changed"))
        row["view_names"] = [name for name in names if name is not None]
    return [*reversed(flying), *({**row, "state": "committed"} for row in done)]


def memory(book: Book) -> list[dict[str, Any]]:
    """A ``MemoryRow`` for each use there is."""
    rows = [*_process(), *_states(book), *_changes(book), *_queues(book)]
    return [msgspec.structs.asdict(row) for row in rows]


def _process() -> list[MemoryRow]:
    """What the system says: all that the process has in memory, and of what kind that is."""
    out = []
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _RESIDENT:
            out.append(MemoryRow(_RESIDENT[name], int(value.split()[0]) * 1024))
    return out


def _databases(book: Book) -> list[MemoryRow]:
    """Of the state database, whole."""
    database = book.opened
    if database is None:
        return []
    return [MemoryRow(part, *numbers) for part, numbers in database.memory().items()]


def _states(book: Book) -> list[MemoryRow]:
    """Of the state database, whole and by what it is for."""
    out = _databases(book)
    if not out:
        return []
    for unit in book.units:
        store = unit.store
        if isinstance(store, RocksStore):
            part = "shared states" if isinstance(unit, Shared) else "states"
            out.append(MemoryRow(part, store.memory_bytes, views=_views(book, unit)))
    for host in list(book.hosts.values()):
        views = tuple(sorted(host.units))
        out.append(MemoryRow(f'states on worker "{host.name}"', host.memory_bytes, views=views))
    return out


def _changes(book: Book) -> list[MemoryRow]:
    """Of the stream's changes, and of rows on their way."""
    out = []
    limit = book.settings.memory.changes
    stream = book.stream
    if stream is not None:
        numbers = stream.batcher.statistics()
        out.append(MemoryRow("changes received", numbers["buffered_bytes"], limit))
        in_memory, on_disk = stream.streamed
        out.append(MemoryRow("changes not committed", in_memory, book.settings.memory.transaction))
        out.append(MemoryRow("changes on disk", numbers["spooled_bytes"] + on_disk))
    out.append(MemoryRow("rows to be written", book.pipeline.waiting_bytes, limit))
    grants = book.grants
    out.append(MemoryRow("batches at work", grants.granted_bytes, grants.budget_bytes))
    out.append(MemoryRow("columns (Arrow)", pa.total_allocated_bytes()))
    return out


def _queues(book: Book) -> list[MemoryRow]:
    storage = book.storage
    if storage is None:
        return []
    held = [queue.contents() for queue in storage.queues]
    resident = sum(storage.file.resident(each.blocks) for each in held)
    limit = storage.file.blocks_max * storage.file.block_bytes
    return [
        MemoryRow("queues on disk", storage.file.backed * storage.file.block_bytes, limit),
        MemoryRow("queues in memory", resident, book.settings.memory.queues),
        MemoryRow("queues in use", sum(each.held_bytes for each in held)),
    ]


def _views(book: Book, unit: Unit) -> tuple[int, ...]:
    return tuple(sorted(view.id for view in book.views_of(unit)))
