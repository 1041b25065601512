"""A shared subplan: its plan, its output queue, and its record in the state database.

``sharing.py`` decides which units read which subplans, and changes that.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa
import structlog

from headrace.collections import plan
from headrace.collections.base import cut
from headrace.collections.plan import kind
from headrace.errors import RESYNC, BugError, StateDamaged, TransientError
from headrace.runtime import positions
from headrace.runtime.positions import Meta
from headrace.runtime.views import Unit
from headrace.state.rocks import RocksDatabase
from headrace.storage.frame_cache import Damaged
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue
from headrace.storage.table import SharedTable

_log = structlog.get_logger(__name__)

_SUBPLAN: Final = b"subplan/"
_FEEDS: Final = b"feeds/"
_FRONT: Final = b"front/"
_QUEUE: Final = "subplan "
_OFFSET: Final = struct.Struct(">Q")
PER_VIEW_MAX: Final = 64
"""Maximum number of subplans that are created from one view."""


@dataclass(slots=True)
class Shared(Unit):
    """A shared subplan; its ID is negative."""

    signature: str
    """Signature of the node whose rows it sends."""
    queue: Queue | None = None
    """Its output, kept until every reader is durably beyond it; each reader has a tail there."""
    table: SharedTable | None = None
    """Where it records which readers are reading now."""
    awaited: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Views being created from its output, by job: ID, and the txid after which they need it.
    An entry is valid while the job has a hold."""
    owner: str = ""
    """For a part of a view on another worker: the view's owner."""
    coming: plan.PhysicalPlan | None = None
    """Its next plan, used once its readers' plans in the catalog read other members of a table; see
    ``subplan_members.py``."""

    @property
    def first(self) -> int:
        """ID of the view that it was created from; for a part, of the view that reads it."""
        return -self.id // PER_VIEW_MAX

    @property
    def shown(self) -> str:
        """Name of its last node's kind, for the log."""
        return kind(type(self.plan.node(self.plan.sink.input))).lower()

    @property
    def output(self) -> Queue:
        """Its output queue; REQUIRES: its state is restored."""
        assert self.queue is not None, "it was restored"
        return self.queue

    @property
    def written_txids(self) -> Collection[int]:
        """See ``UnitPosition``: the last txid in its output queue."""
        return () if self.queue is None else (self.queue.last_txid,)

    def send(
        self, first: int, txid: int, attempt: int, oldest_us: int, diffs: pa.RecordBatch
    ) -> None:
        """Queue the output ``diffs`` of ``txid``, unless a replay finds them there already.

        ``first``: they are those of all txids from here on (``batch_ends.py``).  ``oldest_us``:
        commit time of the first transaction that they result from.

        Raises:
            NoRoom: they cannot be stored now; nothing was.
        """
        queue, txids = self.output, txid - first + 1
        if txid <= queue.last_txid:
            return
        log2_txids = txids.bit_length() - 1
        if first <= queue.last_txid or txids != 1 << log2_txids or (first - 1) % txids:
            raise BugError(f"shared subplan {self.id} sends txids {first} to {txid} together")
        try:
            with queue.together():
                for piece in cut(diffs):
                    header = Header(Kind.DIFFS, txid, attempt, piece.num_rows, oldest_us)
                    queue.put(header, piece)
                end = Header(Kind.TIME_END, txid, attempt, diffs.num_rows, oldest_us)
                queue.put(msgspec.structs.replace(end, log2_txids=log2_txids))
        except OSError as error:
            raise TransientError(
                f"the output of a shared subplan cannot be stored now: {error}", sqlstate="58030"
            ) from error

    def sent(self, first: int, txid: int) -> list[pa.RecordBatch]:
        """Return the output of the txids from ``first`` up to ``txid``.

        Raises:
            StateDamaged: it is lost.
        """
        try:
            found = self.output.sent(txid, after=first - 1)
            return [frame.batch for frame in found if frame.batch is not None]
        except (LookupError, Damaged) as error:
            raise StateDamaged(
                "the output of a shared subplan is lost", detail=f"{error}.", hint=RESYNC
            ) from error

    def read_by(self, readers: Collection[int]) -> contextlib.AbstractContextManager[None]:
        """Mark ``readers`` as reading inside the context (A-37).  REQUIRES: it was opened."""
        assert self.table is not None, "it was opened"
        return self.table.running(self.queue_name, readers)

    def keep_for(self, readers: Mapping[int, int]) -> None:
        """Set the readers, each with the txid up to which it is durable; drop older output."""
        queue = self.output
        known = queue.successors.keys()
        # Nothing is dropped before every reader has its place.
        for reader in readers.keys() - known:
            # A reader that comes too late for some output gets an error when it needs that.
            with contextlib.suppress(LookupError):
                queue.open(reader, readers[reader])
        for gone in known - readers.keys():
            queue.leave(gone)
        for reader in readers.keys() & known:
            queue.keep_after(reader, readers[reader])

    def note(self, meta: Meta) -> None:
        """Add how far the output queue must reach; see ``Unit``."""
        meta[_FRONT + str(self.id).encode()] = _OFFSET.pack(self.output.front)

    @property
    def progress_mark(self) -> tuple[int, int, int]:
        """Txid, LSN, and how far the output queue must reach, in place of the sink's txid."""
        return self.mark.txid, self.mark.lsn, self.output.front

    def open(self, storage: Storage, front: int | None, last: int | None = None) -> None:
        """Open the output queue of an earlier process, or begin a new one after the mark.

        ``front``: how far the queue must reach; None: the subplan is new.  ``last``: output of
        later txids belongs to batches that may be cut differently now, and is sent again.
        """
        found = storage.get(self.queue_name)
        if front is not None and (found is None or found.front < front):
            _log.error("what a shared subplan has sent is lost", subplan=self.id)
        if found is not None and (front is None or found.front < front):
            storage.drop(self.queue_name)
            found = None
        if found is None:
            found = storage.make(self.queue_name)
            found.begin_after(self.mark.txid)
        elif last is not None and found.base_txid <= last < found.last_txid:
            found.begin_after(last)
        self.queue, self.table = found, storage.pool.table

    @property
    def queue_name(self) -> str:
        """Name of its output queue."""
        return f"{_QUEUE}{self.id}"


class _Record(msgspec.Struct):
    """Record of a shared subplan in the state database."""

    plan: dict[str, Any]
    settings: dict[str, str]
    start_lsn: int
    signature: str
    placed: str = ""
    owner: str = ""
    limits: dict[str, int] = {}
    coming: dict[str, Any] | None = None


_RECORDS: Final = msgspec.json.Decoder(_Record)


def read(
    db: RocksDatabase, storage: Storage, recorded: int
) -> tuple[dict[int, dict[str, int]], list[Shared]]:
    """Return the feeds of each unit by node, and the shared subplans with states and queues.

    Output after a subplan's mark is discarded.  That of a part on another worker, whose states may
    be further, is kept up to ``recorded``, the last txid with a batch record.

    Raises:
        StateDamaged: a record cannot be read.
    """
    marks = positions.views(db)
    fronts: dict[int, int | None] = {
        int(key[len(_FRONT) :]): int(_OFFSET.unpack(value)[0])
        for key, value in db.scan_meta(_FRONT)
    }
    feeds, found = stored(db)
    lower: Meta = {}
    for made in found:
        if made.id not in marks:
            raise _damaged(f"subplan {made.id} has no mark")
        mark = marks[made.id]
        made.restore(None if made.placed else db.view(made.id, mark.txid), mark)
        # A worker may have written its first checkpoint although this process has not.
        fronts.setdefault(made.id, 0 if made.placed else None)
        front, queue = fronts[made.id], storage.get(made.queue_name)
        if queue is not None and not made.placed and queue.base_txid <= mark.txid:
            after = queue.front - queue.bytes_after(mark.txid)
            if front is not None and after < front <= queue.front:
                fronts[made.id] = after
                lower[_FRONT + str(made.id).encode()] = _OFFSET.pack(after)
    if lower:  # before the output is discarded
        db.put_meta(lower, sync=True)
    for made in found:
        last = recorded if made.placed else min(made.mark.txid, recorded)
        made.open(storage, fronts[made.id], last)
    kept = {made.queue_name for made in found}
    for queue in storage.queues:
        if queue.name.startswith(_QUEUE) and queue.name not in kept:
            storage.drop(queue.name)
    return feeds, found


def stored(db: RocksDatabase) -> tuple[dict[int, dict[str, int]], list[Shared]]:
    """Return the feeds of each unit by node, and the shared subplans, without states and queues.

    Raises:
        StateDamaged: a record cannot be read.
    """
    found: list[Shared] = []
    try:
        feeds: dict[int, dict[str, int]] = {
            int(key[len(_FEEDS) :]): msgspec.json.decode(value, type=dict[str, int])
            for key, value in db.scan_meta(_FEEDS)
        }
        for key, value in db.scan_meta(_SUBPLAN):
            made = _made(int(key[len(_SUBPLAN) :]), value)
            made.feed_on(feeds.get(made.id, {}))
            found.append(made)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(repr(error)) from error
    return feeds, found


def _damaged(reason: str) -> StateDamaged:
    return StateDamaged("the record of shared subplans is damaged", detail=f"{reason}.")


def put(meta: Meta, shared: Shared) -> None:
    """Add the record of a subplan."""
    record = _Record(
        plan.to_json(shared.plan),
        shared.settings,
        shared.start_lsn,
        shared.signature,
        shared.placed,
        shared.owner,
        shared.limits,
        None if shared.coming is None else plan.to_json(shared.coming),
    )
    meta[_SUBPLAN + str(shared.id).encode()] = msgspec.json.encode(record)


def drop(meta: Meta, shared: Shared) -> None:
    """Remove the record of a subplan, and of what it reads."""
    meta[_SUBPLAN + str(shared.id).encode()] = None
    meta[_FRONT + str(shared.id).encode()] = None
    put_feeds(meta, shared.id, {})


def put_feeds(meta: Meta, unit_id: int, feeds: Mapping[str, int]) -> None:
    """Add the record of what a unit reads."""
    key = _FEEDS + str(unit_id).encode()
    meta[key] = msgspec.json.encode(dict(feeds)) if feeds else None


def _made(unit_id: int, value: bytes) -> Shared:
    found = _RECORDS.decode(value)
    return Shared(
        unit_id,
        plan.from_json(found.plan),
        found.settings,
        found.start_lsn,
        found.signature,
        owner=found.owner,
        placed=found.placed,
        limits=found.limits,
        coming=None if found.coming is None else plan.from_json(found.coming),
    )
