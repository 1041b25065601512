"""A cursor at the source: reads recorded batches that the intake log lacks once more from there.

Such a view lacks batches from before the log began (``wal_retention = source``), or from a time
when the log was full.  All these views share one copied stream (``copied_stream.py``).  It begins
where the furthest of them stands, and other views join when it comes by.  It ends where the log
begins, or where the last view leads again.  If a view comes that is even further back, the stream
begins anew there.  So the furthest view always reads, and none waits for ever.

The views wait, and no other view notices, while a copy cannot be made: the server has no free slot
or WAL sender, or cannot be reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from headrace import clock
from headrace.errors import RESYNC, BugError, HeadraceError, TransientError
from headrace.forwarder import policy
from headrace.forwarder.batcher import Batch
from headrace.forwarder.receiver import PositionGone
from headrace.runtime.copied_stream import Beginning, CopiedStream
from headrace.runtime.cursor import Cursor, OnEngine
from headrace.runtime.engine_state import EngineState
from headrace.runtime.positions import BatchRecord
from headrace.runtime.views import View
from headrace.runtime.watch import Watch
from headrace.sql import states

_log = structlog.get_logger(__name__)

_RETRY_S_MAX: Final = 10.0
"""Longest pause after an attempt that failed."""


class SourceCursor(Cursor):
    """A position in a copied stream.  REQUIRES: the stream has the batches that are read."""

    def __init__(self, stream: CopiedStream, after: int, watch: Watch, on_engine: OnEngine) -> None:
        """Stand after txid ``after``, where ``stream`` begins."""
        super().__init__(after, watch, on_engine)
        self.stream: Final = stream

    def _batches(self, last: int) -> Iterable[Batch]:
        return self.stream.take(last)


class SourceCursors:
    """The cursor at the source of one engine, while a view needs it; for the engine's thread."""

    def __init__(
        self,
        state: EngineState,
        watch: Watch,
        on_engine: OnEngine,
        fail: Callable[[View, HeadraceError], None],
        poke: Callable[[], None],
    ) -> None:
        """Create it; ``fail`` stops a view, and ``poke`` wakes the engine from any thread."""
        self._state = state
        self._watch = watch
        self._on_engine = on_engine
        self._fail = fail
        self._poke = poke
        self._cursor: SourceCursor | None = None
        self._closing: list[CopiedStream] = []
        """Streams that were told to end."""
        self._failures = 0
        """Attempts that failed since the last stream that was opened."""
        self._retry_at = -math.inf
        self._told: dict[int, str] | None = None
        """Notes in the catalog of views that wait, by ID; None: unknown."""

    @property
    def due(self) -> float:
        """When to call ``seek`` again at the latest, on the monotonic clock."""
        waits = self._cursor is None and self._retry_at > clock.monotonic()
        return self._retry_at if waits else math.inf

    def seek(self, lacking: Sequence[int], end: int) -> None:
        """Read on from the least of ``lacking``, as far as the log does not have the batches.

        ``lacking``: txids after which views lack batches that the log lacks, ascending; if there
        are none, the stream ends.  ``end``: the last batch that such views may process.
        """
        if not lacking:
            self.close()
            self._say("", lacking)
            return
        low, cursor = lacking[0], self._cursor
        if cursor is not None and cursor.stream.opened:
            self._failures = 0
            self._say("", lacking)
        if cursor is not None and cursor.txid != low:
            self.close()  # views have come, left, or gone back to an earlier position
        elif cursor is not None and cursor.stream.error and not cursor.stream.reach:
            self._failed(cursor.stream.error, lacking)
        if self._cursor is None and clock.monotonic() >= self._retry_at:
            self._cursor = self._begin(low)
        if self._cursor is not None:
            self._extend(self._cursor.stream, end)

    def reach(self, after: int) -> int:
        """Return the last batch that can be read at once after txid ``after``; itself if none."""
        cursor = self._cursor
        return max(cursor.stream.reach, after) if cursor and cursor.txid == after else after

    def at(self, after: int) -> SourceCursor:
        """Return the cursor that stands after txid ``after``.  REQUIRES: ``reach`` is further."""
        assert self._cursor is not None, "it reaches further"
        assert self._cursor.txid == after, "it stands there"
        return self._cursor

    def close(self, *, wait: bool = False) -> None:
        """End the stream, if there is one; with ``wait``, return when no connection is left."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.stream.close()
            self._closing.append(cursor.stream)
        self._closing = [s for s in self._closing if not s.ended]
        for stream in self._closing if wait else ():
            stream.close(wait=True)

    def rewind(self) -> None:
        """Prepare for another connection to the catalog.  REQUIRES: ``close`` was called."""
        self._failures, self._retry_at, self._told = 0, -math.inf, None

    # --- inside

    def _begin(self, low: int) -> SourceCursor:
        state = self._state
        stream = state.stream
        assert stream is not None, "no view catches up before there is a stream"
        begin = Beginning(low, self._record(low + 1).start_lsn, state.identity, stream.token)
        copied = CopiedStream(state.settings, begin, self._poke)
        return SourceCursor(copied, low, self._watch, self._on_engine)

    def _extend(self, stream: CopiedStream, end: int) -> None:
        """Let the stream read on: to the beginning of the log, or to ``end``."""
        log = self._state.retained
        if stream.known < log.base <= end:
            end = log.base
        elif log.covers(stream.known) and log.last > stream.known:
            return  # the log has the rest
        stream.extend(map(self._record, range(stream.known + 1, end + 1)))

    def _record(self, txid: int) -> BatchRecord:
        record = self._state.records.get(txid)
        if record is None:
            raise BugError(f"batch {txid} is needed, but its record is forgotten")
        return record

    def _failed(self, error: HeadraceError, lacking: Sequence[int]) -> None:
        """Try again later, or stop the views that the source cannot serve any more."""
        self.close()
        if isinstance(error, PositionGone):
            for view in self._waiting(lacking[:1]):
                self._fail(view, PositionGone(error.message, detail=error.detail, hint=RESYNC))
            return
        if not isinstance(error, TransientError):
            raise error
        self._failures += 1
        self._retry_at = clock.monotonic() + policy.backoff_s(self._failures, _RETRY_S_MAX)
        text = "; ".join(filter(None, (error.message, error.hint)))
        if self._say(text, lacking):
            _log.warning("views wait for the source", reason=error.message, code=error.code)

    def _waiting(self, lacking: Iterable[int]) -> list[View]:
        """Return the views that catch up, and that stand at a txid in ``lacking``."""
        state, at = self._state, set(lacking)
        return [
            view
            for view in state.lagging_views
            if any(unit.processed in at for unit in state.units_of(view))
        ]

    def _say(self, text: str, lacking: Iterable[int]) -> bool:
        """Note with each view that waits why it does; return whether that is news."""
        told = {view.id: text for view in self._waiting(lacking)} if text else {}
        if told == self._told:
            return False
        conn = self._state.owner.conn
        done = states.end_waiting(conn)
        if told:
            done &= states.tell_waiting(conn, list(told), text)
        if done:
            self._told = told
        return done
