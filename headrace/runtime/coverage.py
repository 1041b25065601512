"""How far a view's history is complete, for ``view_as_of()``.

The last change of a view says nothing of the time after it.  A session that asks for a later time
or position takes an advisory lock for the view and waits (``sql/await_history.sql``).  The sink
thread sees the lock when it checks its connection, and stores how far the view is.  So an idle
engine writes nothing.

* Invariant 1: the view's table had what is stored as covered before that was stored.
* Invariant 2: a time is stored with a WAL position that was read one look (about a second) later,
  because a transaction takes its timestamp just before it writes its commit record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headrace import clock
from headrace.runtime.engine_state import EngineState
from headrace.runtime.views import View
from headrace.sql import covered
from headrace.sql.covered import Covered
from headrace.types import format_lsn, record_end

_SAMPLES_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Passed:
    """Views that have all changes by time until ``instant`` once they have ``txid``."""

    instant: int = 0
    """Microseconds since 2000-01-01 UTC on the server's clock."""
    txid: int = 0
    views: frozenset[int] = frozenset()


class Coverage:
    """Coverage of one engine's views; for its sink thread."""

    def __init__(self, state: EngineState, passed: Callable[[], Passed]) -> None:
        """Create it; ``passed`` returns how far views that read the clock are, on any thread."""
        self._state: Final = state
        self._passed: Final = passed
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_MAX)
        """(server time, LSN): commits before the time are in the WAL before the LSN."""
        self._looked_at: float | None = None
        """Server time at the last look over this connection."""

    def restart(self) -> None:
        """Forget samples of the earlier connection: the server may be another one."""
        self._samples.clear()
        self._looked_at = None

    def look(self, conn: psycopg.Connection[Any], at: float, asked: frozenset[int]) -> None:
        """Store how far the views in ``asked`` are; ``at``: the server's time now."""
        before, self._looked_at = self._looked_at, at
        if not asked:
            self._samples.clear()
            return
        end = covered.wal_end(conn)
        if before is not None:
            lsn = record_end(end.lsn, end.block, end.segment)
            if self._samples and self._samples[-1][1] == lsn:
                self._samples.pop()
            self._samples.append((before, lsn))
        links = self._state.index.links
        views = [view for key in sorted(asked) for view in links.asked_as(key)]
        covered.put(conn, [told for view in views if (told := self._covered(view)) is not None])

    def _covered(self, view: View) -> Covered | None:
        progress, mark = view.progress, view.mark
        if not view.live or progress is None:
            return None
        # A view that reads the clock is complete only after the ticks until then.
        passed = self._passed()
        lsn = self._state.covered(mark)
        at = max((at for at, wal in self._samples if wal <= lsn), default=None)
        if view.temporal and at is not None:
            known = view.id in passed.views and mark.txid >= passed.txid
            until = clock.from_postgres(passed.instant).timestamp()
            at = min(at, until) if known else None
        return Covered(view.id, progress.epoch, format_lsn(lsn), at)
