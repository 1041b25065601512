"""Rows of a batch as another worker receives them: messages of one session, in order."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import structlog

from headrace import errors
from headrace.errors import BugError, HeadraceError, RowsLost
from headrace.network.messages import (
    AbortBatch,
    Alive,
    AskStats,
    BeginBatch,
    EndStage,
    Export,
    FeedRows,
    TableRows,
    ToWorker,
    WriteSnapshot,
)
from headrace.network.port import Ended
from headrace.runtime.edges import TableDiffs
from headrace.runtime.incoming import Frames
from headrace.types import Diffs

_log = structlog.get_logger(__name__)

SqlToken = tuple[ToWorker, pa.RecordBatch | None]

_KEPT_BYTES_MAX: Final = 64 << 20
"""Maximum bytes of a batch's rows that are kept to find the row that causes an error."""
_WAITING_MAX: Final = 64
_WAITING_BYTES_MAX: Final = 1 << 25
"""Maximum number of waiting messages, and bytes of their rows; then the coordinator waits."""


class Inbox:
    """Messages of one session, in order; ended when the coordinator is gone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._words: deque[SqlToken | None] = deque()
        self._bytes = 0
        self._over = False

    def put(self, word: SqlToken | None) -> None:
        """Add a message; None: it was the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._room)
            if not self._over:
                self._words.append(word)
                self._bytes += _size(word)
                self._changed.notify_all()

    @property
    def _room(self) -> bool:
        return len(self._words) < _WAITING_MAX and self._bytes < _WAITING_BYTES_MAX

    def get(self, timeout_s: float | None = None) -> SqlToken | None:
        """Return the next message; None: there was none for ``timeout_s``.

        Raises:
            Ended: there will be no more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._words, timeout_s)
            if not self._over and not self._words:
                return None
            found = None if self._over else self._words.popleft()
            self._bytes -= _size(found)
            self._over = found is None
            self._changed.notify_all()
        if found is None:
            raise Ended
        return found

    def next(self) -> SqlToken:
        """Wait for the next message and return it; see ``get``."""
        while (found := self.get()) is None or isinstance(found[0], Alive):
            pass
        return found

    def close(self) -> None:
        """Drop later messages, and wake threads that wait for one."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


class Latest:
    """Epoch of the coordinator that began last; earlier ones are refused, and may not know it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch = 0

    def begin(self, epoch: int) -> None:
        """Accept a coordinator with ``epoch``.

        Raises:
            Ended: a newer coordinator has begun.
        """
        with self._lock:
            if epoch < self._epoch:
                _log.warning("coordinator refused", epoch=epoch, newer=self._epoch)
                raise Ended("another coordinator has begun since")
            self._epoch = epoch


def _size(word: SqlToken | None) -> int:
    return 0 if word is None or word[1] is None else int(word[1].nbytes)


class SentFrames(Frames):
    """The rows of a batch as the coordinator sends them."""

    def __init__(
        self,
        begin: BeginBatch,
        inbox: Inbox,
        aside: Callable[[WriteSnapshot | AskStats | Export], None],
    ) -> None:
        """Create it; ``aside`` gets messages from other threads of the coordinator meanwhile."""
        super().__init__(begin.first, begin.txid, begin.attempt, begin.instant, begin.oldest_us)
        self._inbox = inbox
        self._aside = aside
        self._kept: list[TableDiffs] | None = []
        self._bytes = 0
        self._rows = 0
        self.ended = False
        """Whether all rows of the stage, or the end of the batch, have come."""
        self.fed: Final[dict[int, list[pa.RecordBatch]]] = {}
        """Output of other units that has come so far, by unit."""
        self.failed: Final[dict[int, HeadraceError]] = {}
        """Units whose output does not come, because they have failed."""

    def __iter__(self) -> Iterator[list[TableDiffs]]:
        """Iterate over chunks of frames.

        Raises:
            Interrupted: the coordinator gave up the batch.
            Ended: the coordinator is gone.
        """
        if self.ended:
            yield from [] if self._kept is None else [self._kept]
            return
        while (frame := self._next()) is not None:
            yield [frame]

    def _next(self) -> TableDiffs | None:
        """Return the next frame; None at the end of the stage."""
        while True:
            word, batch = self._inbox.next()
            match word:
                case WriteSnapshot() | AskStats() | Export():
                    self._aside(word)
                case TableRows() if batch is not None:
                    self._rows += batch.num_rows
                    frame = TableDiffs(word.table_oid, Diffs(self.txid, self.attempt, batch))
                    self._keep(frame)
                    return frame
                case FeedRows() if batch is not None:
                    self._rows += batch.num_rows
                    self.fed.setdefault(word.unit, []).append(batch)
                case EndStage():
                    self._end(word)
                    return None
                case AbortBatch():
                    self.ended = True
                    self._kept = None
                    raise GivenUp
                case _:
                    raise BugError(f"{word!r} amid a batch")

    def _end(self, word: EndStage) -> None:
        rows, self._rows, self.ended = self._rows, 0, True
        if (word.txid, word.rows) != (self.txid, rows):
            raise RowsLost(f"got {rows} of the {word.rows} rows of txid {word.txid}")
        self.failed.update({unit: errors.from_wire(e) for unit, e in word.failed.items()})

    def _keep(self, frame: TableDiffs) -> None:
        self._bytes += frame.diffs.batch.nbytes
        if self._bytes > _KEPT_BYTES_MAX:
            self._kept = None
        if self._kept is not None:
            self._kept.append(frame)

    def next_stage(self) -> None:
        """Read all of the next stage; it raises as the iterator does."""
        self.ended = False
        if self._next() is not None:
            raise BugError("rows of a table after the first stage of a batch")

    def rest(self) -> None:
        """Read the rest of the stage."""
        while not self.ended:
            with contextlib.suppress(RowsLost):
                self._next()

    def all(self) -> list[TableDiffs] | None:
        """Return every frame, or None when they are too many to keep."""
        return self._kept


class GivenUp(Exception):
    """The coordinator wants nothing of the batch any more."""
