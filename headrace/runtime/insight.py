"""Statistics of the worker: its queues, and its memory by use.

Everything here is read while the engine runs, even in a long batch, so each number may be slightly
out of date.  Units are given by ID; the caller must hide views that its user may not see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace import clock, events
from headrace.runtime.engine_state import EngineState
from headrace.runtime.gauges import BUCKETS_MS, ViewGauge
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
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
"""Fields of /proc/self/status, in kB, and the names shown for them."""

Table = Mapping[tuple[str, Hashable], Standing]
"""The shared table: rows by queue and successor."""


class QueueRow(msgspec.Struct, frozen=True):
    """A queue and one of its readers."""

    id: int
    """ID of the unit that sends the rows; 0: changes of the stream."""
    kind: str
    """``subplan``, or ``stream`` (the intake log)."""
    reader: int
    """ID of the unit that reads it; 0: the readers of the stream."""
    nodes: tuple[str, ...]
    """Nodes of the reader's plan that the rows go to."""
    views: tuple[int, ...] | None
    """IDs of the views that need the reader; a view needs itself.  None: all views."""
    rows: int
    bytes: int
    blocks: int
    contiguous: bool
    resident_bytes: int
    """Bytes of its blocks that are in memory."""
    base_txid: int
    front_txid: int
    tail_txid: int | None
    """Last txid that is durable in the reader; None: it has no position in the queue."""
    head_txid: int
    """Last txid that the reader has processed."""
    behind_bytes: int | None
    """Bytes after the reader's tail."""
    priority: int
    """How urgently the reader must read on (``queue_priority.py``)."""
    resident_pct: int
    """Percentage of the queued rows that was in memory at the last maintenance."""
    running: bool
    """Whether the reader is working on rows of the queue."""


class MemoryRow(msgspec.Struct, frozen=True):
    """One use of memory, or of disk."""

    part: str
    bytes: int
    limit: int | None = None
    """Maximum; None: there is none, or the row is part of another row."""
    views: tuple[int, ...] | None = None
    """IDs of the views that use it; None: all views."""


def queues(state: EngineState) -> list[dict[str, Any]]:
    """Return a ``QueueRow`` for each reader of each queue."""
    out: list[QueueRow] = []
    storage = state.storage
    if storage is None:
        return []
    table = storage.pool.table.rows()
    for shared in list(state.subplans.values()):
        if shared.queue is not None:
            out += _of_subplan(state, shared, shared.queue, storage, table)
    if state.retained.queue is not None:
        out += _of_stream(state, state.retained.queue, storage, table)
    return [msgspec.structs.asdict(row) for row in out]


def _of_subplan(
    state: EngineState, shared: Shared, queue: Queue, storage: Storage, table: Table
) -> list[QueueRow]:
    held = queue.contents()
    out = []
    for reader in state.readers(shared):
        nodes = tuple(sorted(node for node, unit in reader.feeds.items() if unit == shared.id))
        tail, behind = held.behind.get(reader.id, (None, None))
        out.append(
            QueueRow(
                shared.id,
                "subplan",
                reader.id,
                nodes,
                _views(state, reader),
                *_about(held, storage),
                tail,
                reader.processed,
                behind,
                *_standing(table, queue.name, reader.id),
            )
        )
    return out


def _of_stream(state: EngineState, queue: Queue, storage: Storage, table: Table) -> list[QueueRow]:
    """Return a row for the views that lead, and one for each position of views that lag."""
    held = queue.contents()
    reader = state.retained.READER
    tail, behind = held.behind.get(reader, (None, None))
    about, standing = _about(held, storage), _standing(table, queue.name, reader)
    leading = (0, "stream", 0, (), None, *about, tail, state.taken.txid, behind, *standing)
    out = [QueueRow(*leading)]
    lagging: dict[int, list[View]] = {}
    for view in state.lagging_views:
        lagging.setdefault(view.processed, []).append(view)
    for at, views in sorted(lagging.items()):
        ids = tuple(view.id for view in views)
        tail = min(view.durable.txid for view in views)
        rest = queue.bytes_after(tail) if state.retained.covers(tail) else None
        out.append(QueueRow(0, "stream", 0, (), ids, *about, tail, at, rest, *standing))
    return out


def _about(held: Contents, storage: Storage) -> tuple[int, int, int, bool, int, int, int]:
    return (
        *(held.rows, held.bytes, sum(run.size for run in held.blocks), len(held.blocks) < 2),
        *(storage.file.resident(held.blocks), held.base_txid, held.last_txid),
    )


def _standing(table: Table, queue: str, reader: Hashable) -> tuple[int, int, bool]:
    row = table.get((queue, reader), Standing())
    return round(row.priority), row.resident_pct, row.running


def links(state: EngineState) -> dict[str, dict[str, Any]]:
    """Return figures of the links to other workers that are up."""
    out = {}
    for host in list(state.hosts.values()):
        link = host.link
        if link is not None and link.up:
            figures = dataclasses.asdict(link.sender.figures())
            out[host.name] = {**figures, "packed": link.sender.compresses}
    return out


def cursors(state: EngineState) -> list[dict[str, Any]]:
    """Return the views whose cursor does not lead, with its state, in the order of their ids."""
    views = {view.id: view for view in (*state.index.standing, *state.index.catching_up)}
    return [
        {"view_id": view_id, "state": view.cursor}
        for view_id, view in sorted(views.items())
        if view.cursor is not None and not view.leads
    ]


def gauges(state: EngineState, *, whole: bool = True) -> dict[str, Any]:
    """Return each view's freshness (``gauges.ViewNumbers``), and numbers of the worker.

    ``whole``: include views without recent writes.
    """
    now = clock.monotonic()
    told = {}
    for view_id, known in list(state.gauges.views.items()):
        if whole or known.points:
            numbers = known.numbers(now)
            if whole or numbers.recent:
                told[view_id] = numbers
    rows = _states(state) if whole or told else _databases(state)
    states: dict[int, int] = {}
    for row in rows:
        for view_id in row.views or ():
            states[view_id] = states.get(view_id, 0) + row.bytes // len(row.views or (0,))
    views = {}
    for view in list(state.views.values()) if whole else filter(None, map(state.views.get, told)):
        numbers = told.get(view.id) or ViewGauge.empty().numbers(now)
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
        "reconnects": state.reconnects,
        "batches_total": state.batches,
        "workers": {MAIN: True, **{host.name: host.up for host in list(state.hosts.values())}},
        "memory_used_bytes": sum(
            row.bytes
            for row in (*rows, *_changes(state), *_queues(state))
            if row.limit is not None and row.part != "queues on disk"
        ),
        "totals": msgspec.to_builtins(state.gauges.totals()),
        "checkpoints": state.checkpoints.statistics(),
    }


def batches(state: EngineState) -> list[dict[str, Any]]:
    """Return the batches in flight, then the last committed ones, newest first."""
    done = [msgspec.structs.asdict(row) for row in reversed(list(state.gauges.batches))]
    flying = [
        {"txid": f.txid, "attempt": f.attempt, "state": f.state.value}
        for f in state.pipeline.flights()
    ]
    for row in done:
        names = (events.view_name(view_id) for view_id in row.pop("changed"))
        row["view_names"] = [name for name in names if name is not None]
    return [*reversed(flying), *({**row, "state": "committed"} for row in done)]


def memory(state: EngineState) -> list[dict[str, Any]]:
    """Return a ``MemoryRow`` for each use."""
    rows = [*_process(), *_states(state), *_changes(state), *_queues(state)]
    return [msgspec.structs.asdict(row) for row in rows]


def _process() -> list[MemoryRow]:
    """Return the process's resident memory, in total and by kind, as the kernel reports it."""
    out = []
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _RESIDENT:
            out.append(MemoryRow(_RESIDENT[name], int(value.split()[0]) * 1024))
    return out


def _databases(state: EngineState) -> list[MemoryRow]:
    """Return the memory of the whole state database."""
    database = state.opened
    if database is None:
        return []
    return [MemoryRow(part, *numbers) for part, numbers in database.memory().items()]


def _states(state: EngineState) -> list[MemoryRow]:
    """Return the memory of the state database, in total and by unit."""
    out = _databases(state)
    if not out:
        return []
    for unit in state.units:
        store = unit.store
        if isinstance(store, RocksStore):
            part = "shared states" if isinstance(unit, Shared) else "states"
            out.append(MemoryRow(part, store.memory_bytes, views=_views(state, unit)))
    for host in list(state.hosts.values()):
        views = tuple(sorted(host.units))
        out.append(MemoryRow(f'states on worker "{host.name}"', host.memory_bytes, views=views))
    return out


def _changes(state: EngineState) -> list[MemoryRow]:
    """Return the memory of the stream's changes, and of rows to be written."""
    out = []
    limit = state.settings.memory.changes
    stream = state.stream
    if stream is not None:
        numbers = stream.batcher.statistics()
        out.append(MemoryRow("changes received", numbers["buffered_bytes"], limit))
        in_memory, on_disk = stream.streamed
        out.append(MemoryRow("changes not committed", in_memory, state.settings.memory.transaction))
        out.append(MemoryRow("changes on disk", numbers["spooled_bytes"] + on_disk))
    out.append(MemoryRow("rows to be written", state.pipeline.waiting_bytes, limit))
    grants = state.grants
    out.append(MemoryRow("batches at work", grants.granted_bytes, grants.budget_bytes))
    out.append(MemoryRow("columns (Arrow)", pa.total_allocated_bytes()))
    return out


def _queues(state: EngineState) -> list[MemoryRow]:
    storage = state.storage
    if storage is None:
        return []
    held = [queue.contents() for queue in storage.queues]
    resident = sum(storage.file.resident(each.blocks) for each in held)
    limit = storage.file.blocks_max * storage.file.block_bytes
    return [
        MemoryRow("queues on disk", storage.file.backed * storage.file.block_bytes, limit),
        MemoryRow("queues in memory", resident, state.settings.memory.queues),
        MemoryRow("queues in use", sum(each.held_bytes for each in held)),
    ]


def _views(state: EngineState, unit: Unit) -> tuple[int, ...]:
    return tuple(sorted(view.id for view in state.views_of(unit)))
