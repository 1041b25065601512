"""The intake log: the queue of all batches that some view still needs.

One queue (``storage/``) holds every batch by its txid, as the raw messages from the stream, so that
it can be decoded again.  There is one queue for all tables, because a replay needs whole batches,
over all tables in commit order.  For the format see ``packing.py``.  A view that stands further
back reads the log from its position on (``catching_up.py``); no other view notices.

With ``wal_retention = local`` the source may discard what the log has, so the log outlives the
process.  With ``source`` it is a cache: the source keeps the same changes, and a full log begins
anew.

* Invariant 1: batches follow each other without a gap, each whole.
* Invariant 2: everything that is confirmed to the source was synced here before, with the
  checkpoint that confirms it.  That checkpoint says how far the queue must reach.
* Invariant 3: damaged data is never taken for a batch.  A view that needs such a batch is refilled,
  unless the source still has the batch.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import BugError, TransientError
from headrace.forwarder.batcher import Backlog, Batch
from headrace.runtime import log_pins, packing, positions
from headrace.runtime.packing import Descriptions
from headrace.runtime.positions import BatchRecord, IntakeMark, Meta
from headrace.state.rocks import RocksDatabase
from headrace.storage.blocks import NoRoom
from headrace.storage.frame_cache import Damaged, Frame
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue

_log = structlog.get_logger(__name__)

PREFIX: Final = "intake "
"""Of the names of queues."""
_RETRY_S: Final = 60.0
_NUMBERS: Final = 1 << 32
_PART_MAX: Final = 2
"""Divisor of the size of all queues; the rest is for subplans."""
_PINNED_PART: Final = 4
"""Divisor of the log's maximum size, up to which pins of other processes count."""


def queue_name(number: int) -> str:
    """Return the name of the queue with the number of an ``IntakeMark``."""
    return f"{PREFIX}{number}"


class IntakeLog:
    """The intake's queue of one engine; its thread calls every method but ``read``."""

    READER: Final = "views"
    """The only successor; it stands for the view that is furthest behind."""

    def __init__(self, settings: Settings) -> None:
        self.local: Final = settings.wal_retention == "local"
        """Whether the source may discard what the log has."""
        self.trusted = self.local
        """Whether the source may have discarded what this log has."""
        self._bytes_max: Final = settings.queue_bytes_max // _PART_MAX
        self._pins: Final = settings.pins_dir
        self._storage: Storage | None = None
        self.queue: Queue | None = None
        """The queue, if there is one; other threads may read it."""
        self._mark = IntakeMark(0, 0, 0, 0, 0)
        self._lsn = 0
        self._readable = 0
        """Batches up to this txid are damaged."""
        self.damaged = False
        """Whether batches were lost that a view may have needed."""
        self._descriptions = Descriptions()
        self._full_at: float | None = None

    # --- what there is

    @property
    def taking(self) -> bool:
        """Whether batches are retained now, so that the source need not keep its WAL."""
        return self.local and self.queue is not None and self._full_at is None

    @property
    def appending(self) -> bool:
        """Whether the next batch will be put, as far as is known."""
        return self._full_at is None and (self.local or not self.trusted)

    @property
    def exists(self) -> bool:
        """Whether there is a queue, even an empty one."""
        return self.queue is not None

    @property
    def last(self) -> int:
        """Txid of the last batch; 0: there is no queue."""
        return self.queue.last_txid if self.queue is not None else 0

    @property
    def base(self) -> int:
        """Txid after which the first batch is; 0: there is no queue."""
        return self.queue.base_txid if self.queue is not None else 0

    @property
    def lsn(self) -> int:
        """LSN at which the changes after ``last`` begin, or a lower one."""
        return self._lsn

    def covers(self, txid: int) -> bool:
        """Return whether all batches after ``txid``, up to ``last``, can be read here."""
        queue = self.queue
        if queue is None or txid < self._readable:
            return False
        return queue.base_txid <= txid <= queue.last_txid

    def follows(self, txid: int, lsn: int) -> bool:
        """Return whether all batches after ``txid`` are here, without a gap since ``lsn``.

        After a loss of the stream, txids go on, but at a higher LSN.
        """
        return self.covers(txid) and lsn >= self._mark.begin

    def bytes_after(self, txid: int) -> int:
        """Return the bytes retained after ``txid``."""
        if self.queue is None or not self.covers(txid):
            return 0
        return self.queue.bytes_after(txid)

    @property
    def full(self) -> bool:
        """Whether there was no room for a batch."""
        return self.local and self._full_at is not None

    def renewable(self, least: int) -> bool:
        """Return whether it was full for a while, and no view needs it: all have ``least``."""
        return self.full and self._tried_enough and least >= self.last

    @property
    def _tried_enough(self) -> bool:
        return self._full_at is None or clock.monotonic() >= self._full_at + _RETRY_S

    def statistics(self) -> dict[str, int | bool]:
        """Return counters for the status; callable from any thread."""
        queue = self.queue
        return {
            "taking": self.taking,
            "last_txid": self.last,
            "bytes": queue.queued_bytes if queue is not None else 0,
        }

    # --- coming and going

    def open(self, db: RocksDatabase, storage: Storage) -> None:
        """Take over the batches of an earlier run, as far as they are whole."""
        self._storage, self.queue = storage, None
        self._readable, self._full_at = 0, None
        self.trusted = self.local
        mark = positions.get_intake_mark(db) or IntakeMark(secrets.randbits(32), 0, 0, 0, 0)
        self._mark = mark
        name = queue_name(mark.number) if mark.lsn else None
        for queue in storage.queues:
            if queue.name.startswith(PREFIX) and queue.name != name:
                storage.drop(queue.name)
        if name is None:
            return
        self.trusted = True
        found = storage.get(name)
        if found is None and not mark.front:
            found = storage.make(name)
        if found is not None and not mark.front and found.last_txid < mark.txid:
            found.begin_after(mark.txid)
        lost = found is None or found.front < mark.front or found.last_txid < mark.txid
        # An older copy of the state may lack batches that were dropped here.
        if found is None or lost or found.base_txid > mark.txid:
            _log.error("what was kept of the stream is lost", up_to=mark.txid)
            self.damaged = True
            self.lose(db)
            return
        self.queue = found
        self._lsn = mark.lsn
        self._check_end(found)
        if found.last_txid > mark.txid:
            self._lsn = self._record(found.last_txid).end_lsn
        found.open(self.READER, found.base_txid)

    def _check_end(self, queue: Queue) -> None:
        """Drop batches after the checkpoint unless they belong to this queue, without a gap.

        After a power failure, the file may contain data of any time.
        """
        damaged, last = self.damaged, self._mark.txid
        with contextlib.suppress(TransientError):
            while last < queue.last_txid:
                self.read(last + 1)
                last += 1
        self._readable, self.damaged = 0, damaged  # no checkpoint relies on these batches
        queue.begin_after(last)

    def begin(self, db: RocksDatabase, txid: int, lsn: int) -> None:
        """Begin a new queue with the batches after ``txid``, from ``lsn`` on; drop the old one.

        If there is no room for it, the source keeps all WAL.
        """
        storage = self._storage
        assert storage is not None, "it was opened"
        old, self.queue = self.queue, None
        mark = IntakeMark((self._mark.number + 1) % _NUMBERS, 0, txid, lsn, lsn)
        meta: Meta = {}
        positions.put_intake_mark(meta, mark)
        db.put_meta(meta, sync=True)
        if old is not None:
            storage.drop(old.name)
        self._mark, self._lsn, self._readable = mark, lsn, 0
        self._full_at = None
        try:
            queue = storage.make(queue_name(mark.number))
        except (NoRoom, OSError) as error:
            self._fill(txid, str(error))
            return
        queue.begin_after(txid)
        queue.open(self.READER, txid)
        self.queue = queue
        _log.info("intake log begun", after=txid)

    def lose(self, db: RocksDatabase) -> None:
        """Drop the queue, which is of no use any more; do nothing if there is none."""
        if not self._mark.lsn:
            self._end_cache()
            return
        assert self._storage is not None, "it was opened"
        # The number stays: no other queue may be taken for this one.
        self.queue, self._mark = None, IntakeMark(self._mark.number, 0, 0, 0, 0)
        meta: Meta = {}
        positions.put_intake_mark(meta, self._mark)
        db.put_meta(meta, sync=True)
        self._storage.drop(queue_name(self._mark.number))
        self.trusted = self.local

    def keep_after(self, db: RocksDatabase, txid: int) -> None:
        """Drop the batches up to ``txid``, which every view has durably, unless they are pinned."""
        if self.queue is None:
            return
        if self.queue.queued_bytes <= self._bytes_max // _PINNED_PART:
            txid = min(txid, log_pins.least(self._pins, txid))
        if self.trusted and not self.local and txid >= self.queue.last_txid:
            self.lose(db)
            return
        self.queue.keep_after(self.READER, txid)

    def note(self, meta: Meta) -> None:
        """Add to a checkpoint how far the queue must reach."""
        queue = self.queue
        if queue is not None and self.trusted:
            self._mark = IntakeMark(
                self._mark.number, queue.front, queue.last_txid, self._lsn, self._mark.begin
            )
            positions.put_intake_mark(meta, self._mark)

    # --- putting

    def rewind(self, lsn: int | None = None) -> None:
        """Prepare for a new stream, which describes its tables again.

        ``lsn``: where it has the changes after the last batch, if that is before ``self.lsn``.
        """
        if lsn is not None:
            self._lsn = min(self._lsn, lsn)
        self._descriptions = Descriptions()
        self._full_at = None

    def put(self, record: BatchRecord, batch: Batch) -> bool:
        """Retain a batch, unless a replay finds it there already; return whether it is there.

        If there is no room, the source keeps its WAL from this batch on.
        """
        described = self._descriptions.relied_on(batch)
        queue = self.queue if self.local or self.trusted else self._cache(record)
        if queue is None or record.txid <= queue.last_txid:
            return queue is not None
        if not self.appending:
            return False
        if record.txid != queue.last_txid + 1:
            if self.trusted:
                raise BugError(f"batch {record.txid} cannot be kept: the last is {queue.last_txid}")
            # No leading view needed the batches between, which the source has.
            self._end_cache()
            queue = self._cache(record)
            if queue is None:
                return False
        number, oldest = self._mark.number, batch.oldest_us
        try:
            with queue.together():
                for messages in packing.pack(record, batch, described):
                    body = pa.record_batch([pa.array(messages, pa.binary())], [packing.NAME])
                    header = Header(Kind.DIFFS, record.txid, number, len(messages), oldest)
                    queue.put(header, body)
                    if queue.queued_bytes > self._bytes_max:
                        raise NoRoom("half of queue_bytes_max is taken")
                queue.put(Header(Kind.TIME_END, record.txid, number, 0, oldest))
        except (NoRoom, OSError) as error:
            self._fill(record.txid, str(error))
            if not self.trusted:
                self._end_cache()
            return False
        self._lsn = max(self._lsn, record.end_lsn)
        return True

    def _fill(self, txid: int, reason: str) -> None:
        self._full_at = clock.monotonic()
        if self.local:
            _log.warning("the source keeps its WAL again", from_txid=txid, reason=reason)
        else:
            _log.info("the intake log begins anew", from_txid=txid, reason=reason)

    def _cache(self, record: BatchRecord) -> Queue | None:
        """Return the log that may be lost, which begins with ``record`` if there is none."""
        storage = self._storage
        if self.queue is not None or storage is None or not self._tried_enough:
            return self.queue
        self._full_at = None
        mark = self._mark
        # Another number than before, because readers may hold batches of the last log.
        self._mark = IntakeMark((mark.number + 1) % _NUMBERS, 0, 0, 0, record.start_lsn)
        try:
            queue = storage.make(queue_name(self._mark.number))
        except (NoRoom, OSError) as error:
            self._fill(record.txid, str(error))
            return None
        queue.begin_after(record.txid - 1)
        queue.open(self.READER, record.txid - 1)
        self._lsn, self._readable, self.queue = record.start_lsn, 0, queue
        return queue

    def _end_cache(self) -> None:
        """Drop the log, which the source has as well."""
        queue, self.queue = self.queue, None
        if queue is not None and self._storage is not None:
            self._storage.drop(queue.name)

    # --- reading

    def records(self, after: int) -> list[BatchRecord]:
        """Return the records of the batches after ``after``."""
        return [self._record(txid) for txid in range(after + 1, self.last + 1)]

    def backlog(self, after: int) -> Backlog:
        """Return the batches after ``after``, to be taken in order.  REQUIRES: ``covers(after)``.

        Later batches can be taken from it once they have been put.
        """
        return Backlog(self.last - after, self._batches(after))

    def _batches(self, after: int) -> Iterator[Batch]:
        told: dict[bytes, bytes] = {}
        for txid in itertools.count(after + 1):
            yield packing.unpack(txid, self.read(txid), told)

    def _record(self, txid: int) -> BatchRecord:
        return packing.record(txid, self.read(txid))

    def read(self, txid: int) -> list[Frame]:
        """Return the frames of a batch; callable from any thread.

        Raises:
            TransientError: they are damaged; ``covers`` is false from now on.
        """
        queue, storage = self.queue, self._storage
        assert storage is not None, "it was opened"
        if queue is None:
            raise TransientError("the intake log began anew")
        try:
            with storage.pool.table.running(queue.name, [self.READER]):
                frames = queue.sent(txid)
            if not frames or any(f.header.attempt != self._mark.number for f in frames):
                message = f"it does not hold txid {txid}"
                raise LookupError(message)
        except (LookupError, Damaged) as error:
            if self.queue is not queue:
                raise TransientError("the intake log began anew") from error
            self._readable, self.damaged = txid, True
            _log.error("what was kept of the stream is damaged", txid=txid, reason=str(error))
            raise TransientError(
                "the intake log is damaged", detail=f"Batch {txid}: {error}."
            ) from error
        return frames


def cut(db: RocksDatabase, storage: Storage, meta: Meta, last: int, lsn: int) -> None:
    """Discard the batches after txid ``last`` of a log that is not open.

    The next changes begin at ``lsn``, or later.  The caller syncs the queues and writes ``meta``.
    """
    mark = positions.get_intake_mark(db)
    queue = storage.get(queue_name(mark.number)) if mark is not None and mark.lsn else None
    if mark is None or queue is None:
        return  # ``open`` finds out whether that is a loss
    if queue.base_txid > last:
        # Every state is after the switch, so no view can use the log.
        positions.put_intake_mark(meta, IntakeMark(mark.number, 0, 0, 0, 0))
        return
    queue.begin_after(min(last, queue.last_txid))
    if mark.txid > last or mark.lsn > lsn:
        txid, front = min(mark.txid, last), min(mark.front, queue.front)
        kept = IntakeMark(mark.number, front, txid, min(mark.lsn, lsn), mark.begin)
        positions.put_intake_mark(meta, kept)
