"""What the stream has sent, kept on our side until nobody needs it (``wal_retention = local``).

One queue (``storage/``) holds every batch by its txid, as the raw messages that it consists of, so
that it is decoded again exactly as it was.  One for all tables: what is replayed are whole batches,
over all tables in the order of their commits, and a table's messages mean nothing without them.

How a batch stands there is in ``packing.py``: it can be decoded without any batch before it.

* Invariant 1: batches stand in it one after the other, without a gap, each whole.
* Invariant 2: what the source is told that it may forget was synced here before, with the
  checkpoint that tells it; that checkpoint says how far the queue must be found again.
* Invariant 3: what is not as it was written is never a batch: who needs it is filled anew, unless
  the source still has it.
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
from headrace.runtime import packing, positions
from headrace.runtime.packing import Descriptions
from headrace.runtime.positions import BatchRecord, Meta, RetainedMark
from headrace.state.rocks import RocksDatabase
from headrace.storage.blocks import NoRoom
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue
from headrace.storage.shelf import Damaged, Frame

_log = structlog.get_logger(__name__)

_PREFIX: Final = "intake "
_RETRY_S: Final = 60.0
_NUMBERS: Final = 1 << 32
_PART_MAX: Final = 2
"""Of what all queues may hold, at most one part in so many: subplans must go on."""


class Retained:
    """The intake's queue of one engine; every method runs on its thread."""

    READER: Final = "views"
    """The one successor: what the least of all needs is what is kept."""

    def __init__(self, settings: Settings) -> None:
        self.local: Final = settings.wal_retention == "local"
        """Whether what the stream sends should be kept here."""
        self._bytes_max: Final = settings.queue_bytes_max // _PART_MAX
        self._storage: Storage | None = None
        self.queue: Queue | None = None
        """The queue, if there is one; other threads may look at it."""
        self._mark = RetainedMark(0, 0, 0, 0, 0)
        self._lsn = 0
        self._readable = 0
        """What came up to this txid is damaged."""
        self.damaged = False
        """Whether something was lost that somebody may have needed."""
        self._descriptions = Descriptions()
        self._full_at: float | None = None

    # --- what there is

    @property
    def taking(self) -> bool:
        """Whether what the stream sends is kept here, so that the source need not."""
        return self.local and self.queue is not None and self._full_at is None

    @property
    def exists(self) -> bool:
        """Whether there is a queue, be it empty."""
        return self.queue is not None

    @property
    def last(self) -> int:
        """The last txid that is here; 0: there is no queue."""
        return self.queue.last_txid if self.queue is not None else 0

    @property
    def lsn(self) -> int:
        """Where what follows ``last`` begins, or an earlier position."""
        return self._lsn

    def covers(self, txid: int) -> bool:
        """Whether everything that came after ``txid``, up to ``last``, can be read here."""
        queue = self.queue
        if queue is None or txid < self._readable:
            return False
        return queue.base_txid <= txid <= queue.last_txid

    def follows(self, txid: int, lsn: int) -> bool:
        """Whether all that came after ``txid`` is here, and came without a gap since ``lsn``.

        Where the stream was lost it goes on with the next txid, but further on.
        """
        return self.covers(txid) and lsn >= self._mark.begin

    def bytes_after(self, txid: int) -> int:
        """Bytes that are kept for somebody who has everything up to ``txid``."""
        if self.queue is None or not self.covers(txid):
            return 0
        return self.queue.bytes_after(txid)

    @property
    def full(self) -> bool:
        """Whether there was no room here for what should be kept."""
        return self.local and self._full_at is not None

    @property
    def roomy(self) -> bool:
        """Whether it was full and another try is worth it."""
        if self._full_at is None or clock.monotonic() < self._full_at + _RETRY_S:
            return False
        return self.queue is None or self.queue.queued_bytes < self._bytes_max * 3 // 4

    def statistics(self) -> dict[str, int | bool]:
        """Numbers for the status; from any thread."""
        queue = self.queue
        return {
            "taking": self.taking,
            "last_txid": self.last,
            "bytes": queue.queued_bytes if queue is not None else 0,
        }

    # --- coming and going

    def open(self, db: RocksDatabase, storage: Storage) -> None:
        """Take over what an earlier run has left, as far as it is whole."""
        self._storage, self.queue = storage, None
        self._readable, self._full_at = 0, None
        mark = positions.get_retained(db) or RetainedMark(secrets.randbits(32), 0, 0, 0, 0)
        self._mark = mark
        name = f"{_PREFIX}{mark.number}" if mark.lsn else None
        for queue in storage.queues:
            if queue.name.startswith(_PREFIX) and queue.name != name:
                storage.drop(queue.name)
        if name is None:
            return
        found = storage.get(name)
        if found is None and not mark.front:
            found = storage.make(name)
        if found is not None and not mark.front and found.last_txid < mark.txid:
            found.begin_after(mark.txid)
        lost = found is None or found.front < mark.front or found.last_txid < mark.txid
        # The state may have lost more than it should, and be older than what was given up here.
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
        """What no checkpoint has seen must be this queue's, one batch after the other.

        The power of the machine may have gone: what stands there then may be of any time.
        """
        damaged, last = self.damaged, self._mark.txid
        with contextlib.suppress(TransientError):
            while last < queue.last_txid:
                self._read(last + 1)
                last += 1
        self._readable, self.damaged = 0, damaged  # nobody was told to rely on what is gone
        queue.begin_after(last)

    def begin(self, db: RocksDatabase, txid: int, lsn: int) -> None:
        """Nobody needs what is here: begin anew, with what comes after ``txid``, from ``lsn`` on.

        If there is no room for it the source keeps all.
        """
        storage = self._storage
        assert storage is not None, "it was opened"
        old, self.queue = self.queue, None
        mark = RetainedMark((self._mark.number + 1) % _NUMBERS, 0, txid, lsn, lsn)
        meta: Meta = {}
        positions.put_retained(meta, mark)
        db.put_meta(meta, sync=True)
        if old is not None:
            storage.drop(old.name)
        self._mark, self._lsn, self._readable = mark, lsn, 0
        try:
            queue = storage.make(f"{_PREFIX}{mark.number}")
        except NoRoom as error:
            self._fill(txid, error.message)
            return
        queue.begin_after(txid)
        queue.open(self.READER, txid)
        self.queue = queue
        _log.info("the stream is kept here", after=txid)

    def lose(self, db: RocksDatabase) -> None:
        """What is here is of no use; nothing happens if there is nothing."""
        if not self._mark.lsn:
            return
        assert self._storage is not None, "it was opened"
        # The number stays: no other queue may be taken for this one.
        self.queue, self._mark = None, RetainedMark(self._mark.number, 0, 0, 0, 0)
        meta: Meta = {}
        positions.put_retained(meta, self._mark)
        db.put_meta(meta, sync=True)
        self._storage.drop(f"{_PREFIX}{self._mark.number}")

    def keep_after(self, db: RocksDatabase, txid: int) -> None:
        """Everybody has everything up to ``txid``, durably."""
        if self.queue is None:
            return
        if not self.local and txid >= self.queue.last_txid:
            self.lose(db)
            return
        self.queue.keep_after(self.READER, txid)

    def note(self, meta: Meta) -> None:
        """Add to a checkpoint how far it must be found again."""
        queue = self.queue
        if queue is not None:
            self._mark = RetainedMark(
                self._mark.number, queue.front, queue.last_txid, self._lsn, self._mark.begin
            )
            positions.put_retained(meta, self._mark)

    # --- putting

    def rewind(self) -> None:
        """The stream begins anew, and describes its tables again."""
        self._descriptions = Descriptions()
        self._full_at = None

    def put(self, record: BatchRecord, batch: Batch) -> bool:
        """Keep a batch; after a replay it stands here already.  Returns whether it does.

        What there is no room for is left to the source, with all that follows.
        """
        queue = self.queue
        if queue is None or not self.taking or record.txid <= queue.last_txid:
            return queue is not None and record.txid <= queue.last_txid
        if record.txid != queue.last_txid + 1:
            raise BugError(f"batch {record.txid} cannot be kept: the last is {queue.last_txid}")
        described = self._descriptions.relied_on(batch)
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
            return False
        self._lsn = max(self._lsn, record.end_lsn)
        return True

    def _fill(self, txid: int, reason: str) -> None:
        self._full_at = clock.monotonic()
        _log.warning("the source keeps its WAL again", from_txid=txid, reason=reason)

    # --- reading

    def records(self, after: int) -> list[BatchRecord]:
        """How the batches after ``after`` were cut that stand here."""
        return [self._record(txid) for txid in range(after + 1, self.last + 1)]

    def backlog(self, after: int) -> Backlog:
        """The batches after ``after``, to be taken in order.  REQUIRES: ``covers(after)``.

        More of them may be taken when more have been put.
        """
        return Backlog(self.last - after, self._batches(after))

    def _batches(self, after: int) -> Iterator[Batch]:
        told: dict[bytes, bytes] = {}
        for txid in itertools.count(after + 1):
            yield packing.unpack(txid, self._read(txid), told)

    def _record(self, txid: int) -> BatchRecord:
        return packing.record(txid, self._read(txid))

    def _read(self, txid: int) -> list[Frame]:
        """The frames of a batch.

        Raises:
            TransientError: they are not as they were written; ``covers`` knows from now on.
        """
        queue, storage = self.queue, self._storage
        assert queue is not None, "covers(txid - 1)"
        assert storage is not None, "it was opened"
        try:
            with storage.pool.table.running(queue.name, [self.READER]):
                frames = queue.sent(txid)
            if not frames or any(f.header.attempt != self._mark.number for f in frames):
                message = f"it does not hold txid {txid}"
                raise LookupError(message)
        except (LookupError, Damaged) as error:
            self._readable, self.damaged = txid, True
            _log.error("what was kept of the stream is damaged", txid=txid, reason=str(error))
            raise TransientError(
                "what was kept of the stream is damaged", detail=f"Batch {txid}: {error}."
            ) from error
        return frames
