"""What has come for the commit groups that are processed beside the others (``lane.py``).

One queue has the rows of every txid since some group is there, as the main lane has decoded them;
it may grow onto the disk.  It is nobody's only copy: what is not processed when the stream begins
anew comes again.

* Invariant: txids stand in it one after the other, without a gap.
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
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue
from headrace.storage.shelf import Damaged
from headrace.types import Diffs

_log = structlog.get_logger(__name__)

NAME: Final = "side lane"
"""Of the queue, and of who reads it."""
_PART_MAX: Final = 4
"""Of what all queues may hold, at most one part in so many: then the main lane waits."""
_TRAIN_BYTES: Final = 16 << 20
"""Of rows that are taken as one txid, at most, but for a single one's."""


@dataclass(frozen=True, slots=True)
class SideBatch:
    """A txid whose rows stand in the queue."""

    txid: int
    attempt: int
    end_lsn: int
    transactions: int
    instant: int
    """When it was committed, as recorded; microseconds since 2000-01-01 UTC."""
    oldest_us: int
    size: int
    """Bytes of its rows."""
    stopped: Mapping[int, HeadraceError]
    """Views that must not take them, by id."""


class TrainFrames(Frames):
    """The rows of txids that follow each other, as if they had come with the last of them."""

    def __init__(self, queue: Queue, train: list[SideBatch]) -> None:
        """``queue`` holds all of ``train``."""
        last = train[-1]
        oldest = min((kept.oldest_us for kept in train if kept.oldest_us), default=0)
        super().__init__(train[0].txid, last.txid, last.attempt, last.instant, oldest)
        for kept in train:
            self.stopped |= kept.stopped
        self._queue = queue
        self._train = train

    def __iter__(self) -> Iterator[list[TableDiffs]]:
        """A chunk for each txid that has rows."""
        for kept in self._train:
            if not kept.size:
                continue
            try:
                found = self._queue.sent(kept.txid)
            except (LookupError, Damaged) as error:
                raise TransientError(
                    "what waits for a slow view is damaged", detail=f"{error}."
                ) from error
            yield [
                TableDiffs(frame.header.table_oid, Diffs(self.txid, self.attempt, frame.batch))
                for frame in found
                if frame.batch is not None
            ]

    def all(self) -> list[TableDiffs] | None:
        """See ``Frames``; they are in the queue."""
        return [frame for chunk in self for frame in chunk]


class Side:
    """Of one engine; the engine's thread writes it."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max``: what all queues may hold together."""
        self._bytes_max: Final = bytes_max // _PART_MAX
        self.groups: set[str] = set()
        """The commit groups that are processed beside the others."""
        self.working: frozenset[int] = frozenset()
        """Units that are being worked on there just now, by id: nobody else may touch them."""
        self.left_out = False
        """Whether the last checkpoint left some out, because they were worked on."""
        self.kept: deque[SideBatch] = deque()
        self.queue: Queue | None = None
        self._size = 0
        self.overflowed = False
        """Whether there was no room for what should be kept."""

    @property
    def roomy(self) -> bool:
        """Whether more may come."""
        return self.queue is None or self.queue.queued_bytes < self._bytes_max

    def begin(self, storage: Storage, txid: int) -> None:
        """Keep what comes after ``txid``, and nothing else."""
        self.end(storage)
        self.queue = storage.make(NAME)
        self.queue.begin_after(txid)
        self.queue.open(NAME, txid)

    def end(self, storage: Storage) -> None:
        """Keep nothing."""
        self.queue = None
        self.kept.clear()
        self._size = 0
        self.overflowed = False
        storage.drop(NAME)

    def put(self, txid: int, attempt: int, oldest_us: int, chunk: list[TableDiffs] | None) -> None:
        """Keep rows of ``txid``, if there is room; None: these were all."""
        for frame in chunk or ():
            batch = frame.diffs.batch
            rows = batch.num_rows
            self._put(Header(Kind.DIFFS, txid, attempt, rows, oldest_us, frame.table_oid), batch)
            self._size += max(batch.nbytes, 1)

    def close(self, frames: Frames, end_lsn: int, transactions: int) -> None:
        """All rows of a txid are there."""
        txid, attempt = frames.txid, frames.attempt
        self._put(Header(Kind.TIME_END, txid, attempt, 0, frames.oldest_us))
        if self.overflowed:
            return
        self.kept.append(
            SideBatch(
                *(txid, attempt, end_lsn, transactions, frames.instant, frames.oldest_us),
                *(self._size, dict(frames.stopped)),
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
        """Nobody needs what came up to ``txid``."""
        while self.kept and self.kept[0].txid <= txid:
            self.kept.popleft()
        if self.queue is not None:
            self.queue.keep_after(NAME, min(txid, self.queue.last_txid))

    def train(self, last: int) -> list[SideBatch]:
        """What may be taken as one from the first on, up to txid ``last``: at least the first."""
        out: list[SideBatch] = []
        size = 0
        for kept in self.kept:
            size += kept.size
            if out and (kept.txid > last or size > _TRAIN_BYTES or kept.stopped):
                break
            out.append(kept)
            if kept.stopped:
                break
        return out
