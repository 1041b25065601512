"""Queue of the batches for the commit groups in the side lane (``lagging_groups.py``).

One queue has the rows of every txid since a group is in the lane, as the main lane decoded them; it
may spill to disk.  It is not the only copy: batches that were not processed when the stream begins
anew are replayed.

* Invariant: its txids follow each other without a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import structlog

from headrace.errors import HeadraceError, TransientError
from headrace.runtime.edges import TableDiffs
from headrace.runtime.incoming import Frames
from headrace.storage.blocks import NoRoom
from headrace.storage.frame_cache import Damaged
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue
from headrace.types import Diffs

_log = structlog.get_logger(__name__)

NAME: Final = "side lane"
"""Name of the queue, and of its reader."""
_PART_MAX: Final = 4
"""Divisor of the size of all queues; if this queue is larger, the main lane waits."""
_TRAIN_BYTES: Final = 16 << 20
"""Maximum bytes of rows in a train, except for a single txid."""


@dataclass(frozen=True, slots=True)
class LaggingBatch:
    """A txid whose rows are in the queue."""

    txid: int
    attempt: int
    end_lsn: int
    transactions: int
    instant: int
    """Recorded commit time, in microseconds since 2000-01-01 UTC."""
    oldest_us: int
    size: int
    """Bytes of its rows."""
    stopped: Mapping[int, HeadraceError]
    """Views that must not take the rows, by ID."""


class CoalescedFrames(Frames):
    """Rows of consecutive txids, coalesced into the last one."""

    def __init__(self, queue: Queue, coalesced: list[LaggingBatch]) -> None:
        """Create frames; ``queue`` holds all of ``train``."""
        last = coalesced[-1]
        oldest = min((kept.oldest_us for kept in coalesced if kept.oldest_us), default=0)
        super().__init__(coalesced[0].txid, last.txid, last.attempt, last.instant, oldest)
        for kept in coalesced:
            self.stopped |= kept.stopped
        self._queue = queue
        self._train = coalesced

    def __iter__(self) -> Iterator[list[TableDiffs]]:
        """Iterate over the txids that have rows, one chunk each."""
        for kept in self._train:
            if not kept.size:
                continue
            try:
                found = self._queue.sent(kept.txid)
            except (LookupError, Damaged) as error:
                raise TransientError(
                    "the queue of a slow view is damaged", detail=f"{error}."
                ) from error
            yield [
                TableDiffs(frame.header.table_oid, Diffs(self.txid, self.attempt, frame.batch))
                for frame in found
                if frame.batch is not None
            ]

    def all(self) -> list[TableDiffs] | None:
        """See ``Frames``; they are in the queue."""
        return [frame for chunk in self for frame in chunk]


class LaggingQueue:
    """Side lane queue of one engine; only the engine's thread changes it."""

    def __init__(self, bytes_max: int) -> None:
        """Create it; ``bytes_max`` is the limit of all queues together."""
        self._bytes_max: Final = bytes_max // _PART_MAX
        self.groups: set[str] = set()
        """The commit groups in the side lane."""
        self.working: frozenset[int] = frozenset()
        """IDs of the units that the lane works on now; no other thread may touch them."""
        self.left_out = False
        """Whether the last checkpoint left out units that the lane worked on."""
        self.kept: deque[LaggingBatch] = deque()
        self.queue: Queue | None = None
        self._size = 0
        self.overflowed = False
        """Whether there was no room for a batch."""

    @property
    def roomy(self) -> bool:
        """Whether there is room for more."""
        return self.queue is None or self.queue.queued_bytes < self._bytes_max

    def begin(self, storage: Storage, txid: int) -> None:
        """Begin to queue the batches after ``txid``."""
        self.end(storage)
        self.queue = storage.make(NAME)
        self.queue.begin_after(txid)
        self.queue.open(NAME, txid)

    def end(self, storage: Storage) -> None:
        """Drop the queue."""
        self.queue = None
        self.kept.clear()
        self._size = 0
        self.overflowed = False
        storage.drop(NAME)

    def put(self, txid: int, attempt: int, oldest_us: int, chunk: list[TableDiffs] | None) -> None:
        """Queue rows of ``txid``, if there is room; None: there are no more."""
        for frame in chunk or ():
            batch = frame.diffs.batch
            rows = batch.num_rows
            self._put(Header(Kind.DIFFS, txid, attempt, rows, oldest_us, frame.table_oid), batch)
            self._size += max(batch.nbytes, 1)

    def close(self, frames: Frames, end_lsn: int, transactions: int) -> None:
        """End a txid: all its rows are in the queue."""
        txid, attempt = frames.txid, frames.attempt
        self._put(Header(Kind.TIME_END, txid, attempt, 0, frames.oldest_us))
        if self.overflowed:
            return
        self.kept.append(
            LaggingBatch(
                txid,
                attempt,
                end_lsn,
                transactions,
                frames.instant,
                frames.oldest_us,
                self._size,
                dict(frames.stopped),
            )
        )
        self._size = 0

    def _put(self, header: Header, batch: pa.RecordBatch | None = None) -> None:
        assert self.queue is not None, "somebody needs them"
        if self.overflowed:
            return
        try:
            self.queue.put(header, batch)
        except (NoRoom, OSError) as error:
            self.overflowed = True
            _log.warning("what waits for a slow view cannot be kept", reason=str(error))

    def passed(self, txid: int) -> None:
        """Drop the batches up to ``txid``."""
        while self.kept and self.kept[0].txid <= txid:
            self.kept.popleft()
        if self.queue is not None:
            self.queue.keep_after(NAME, min(txid, self.queue.last_txid))

    def coalesced(self, last: int) -> list[LaggingBatch]:
        """Return the next train: at least one batch, and none after txid ``last``."""
        out: list[LaggingBatch] = []
        size = 0
        for kept in self.kept:
            size += kept.size
            if out and (kept.txid > last or size > _TRAIN_BYTES or kept.stopped):
                break
            out.append(kept)
            if kept.stopped:
                break
        return out
