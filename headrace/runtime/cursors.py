"""The cursors of the views that lag: in the intake log as far as it reaches, else at the source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from headrace.errors import HeadraceError
from headrace.forwarder import policy
from headrace.runtime.cursor import Cursor, OnEngine
from headrace.runtime.engine_state import EngineState
from headrace.runtime.log_cursor import LogCursor
from headrace.runtime.source_cursor import SourceCursors
from headrace.runtime.views import View
from headrace.runtime.watch import Watch


class Cursors:
    """The cursors of one engine; its thread calls every method.

    A position is the txid after which views lack batches.  ``end`` is always the last batch that
    such views may process now.
    """

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
        self._in_log: dict[int, LogCursor] = {}
        """By the txid after which each stands."""
        self._source: Final = SourceCursors(state, watch, on_engine, fail, poke)

    @property
    def due(self) -> float:
        """When to call ``reach`` again at the latest, on the monotonic clock."""
        return self._source.due

    def reach(self, positions: Sequence[int], end: int) -> dict[int, int]:
        """Return, by position, the last batch that can be read there without waiting.

        It is the position itself if there is none.  ``positions`` has all of them, ascending.
        """
        log = self._state.retained
        lacking = [at for at in positions if not self._logged(at, end)]
        self._source.seek(lacking, end)
        return {
            at: min(end, self._source.reach(at) if at in lacking else log.last) for at in positions
        }

    def logged(self, at: int) -> bool:
        """Return whether the log has the next batch after ``at``; REQUIRES: it can be read."""
        return self._logged(at, self._state.retained.last)

    def bounded(
        self, at: int, end: int, txids: int = policy.COALESCED_TXIDS, *, remote: bool
    ) -> int:
        """Return the last txid, up to ``end``, of a batch after ``at`` of a bounded size.

        ``txids``: maximum number of txids.  ``remote``: it goes to another worker.
        """
        if self._logged(at, end):
            size = self._state.retained.bytes_after
            return policy.last_coalesced(at, end, size, txids, remote=remote)
        return policy.last_coalesced(at, end, _none, txids)  # few batches of a copied stream wait

    def at(self, at: int, end: int) -> Cursor:
        """Return the cursor that stands at a position.  REQUIRES: it can read a batch."""
        if not self._logged(at, end):
            return self._source.at(at)
        known = self._in_log.pop(at, None)
        return known or LogCursor(self._state.retained, at, self._watch, self._on_engine)

    def moved(self, cursor: Cursor, positions: Collection[int]) -> None:
        """Keep a cursor that has read; forget those that stand at none of ``positions``."""
        if isinstance(cursor, LogCursor):
            self._in_log[cursor.txid] = cursor
        self._in_log = {txid: c for txid, c in self._in_log.items() if txid in positions}

    def lost(self, cursor: Cursor, after: int) -> bool:
        """Return whether a batch that ``cursor`` could not read can be read nowhere.

        The log is damaged then, and the source may have discarded the batch after ``after``.
        """
        log = self._state.retained
        return isinstance(cursor, LogCursor) and log.trusted and not log.covers(after)

    def leave(self) -> None:
        """Forget all cursors.  REQUIRES: no thread reads."""
        self._in_log.clear()
        self._source.close()

    def rewind(self) -> None:
        """Prepare for a new stream, and perhaps for new connections.  REQUIRES: no thread reads."""
        self.leave()
        self._source.rewind()

    def close(self) -> None:
        """Return when no connection is left."""
        self._source.close(wait=True)

    def _logged(self, at: int, end: int) -> bool:
        """Return whether the log has the next batch after ``at``."""
        log = self._state.retained
        return log.covers(at) and min(end, log.last) > at


def _none(_: int) -> int:
    """Return the bytes in the log of batches that it does not have."""
    return 0
