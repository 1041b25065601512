"""Views whose worker is lost, and comes back; on the engine's thread.

Such a view stops, like one whose table is locked, and its changes are retained; other views are not
affected.  The worker comes back with its durable states, and later changes are replayed.  After
``worker_lost_s`` the worker is considered lost for good.  Its views then stop as if their states
were damaged, and the automatic refill (``server/resumer.py``) places them elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from headrace import clock
from headrace.errors import RESYNC, OutOfReach, StateDamaged
from headrace.runtime.engine_state import EngineState
from headrace.runtime.leaving import Leaving
from headrace.runtime.loading import Loading
from headrace.runtime.remote_worker import unreachable
from headrace.runtime.views import View
from headrace.sql.status import CursorState

_LOOK_S: Final = 0.25


class Reconnects:
    """Handling of lost workers for one engine; every method runs on its thread."""

    def __init__(
        self,
        state: EngineState,
        loading: Loading,
        leaving: Leaving,
        go_on: Callable[[View, str], None],
        lose: Callable[[str], None],
    ) -> None:
        """Create it; ``lose`` declares a worker lost."""
        self._state = state
        self._lose = lose
        self._loading = loading
        self._leaving = leaving
        self._go_on = go_on
        self.due = math.inf
        """When to call ``look`` again, on the monotonic clock."""
        self._since: dict[str, float] = {}
        """Since when workers that views wait for are out of reach, on the monotonic clock."""

    def look(self) -> None:
        """Stop views whose worker is gone, and let those go on whose worker is back."""
        if not self._state.hosts:
            return  # no view was ever placed elsewhere
        index = self._state.index
        read = (self._state.views.get(part.first) for part in index.parts)
        cut = (v for v in read if v is not None and v.owned and self._state.parts_of(v))
        placed = {view.id: view for view in (*index.placed, *cut)}
        for view in placed.values():
            worker = self._state.missing(view)
            if worker is not None and (view.live or view.cursor == CursorState.BLOCKED):
                self._leaving.fail(view, unreachable(worker or next(iter(view.parts.values()), "")))
        lost = [view for view in placed.values() if view.cursor == CursorState.LOST]
        if not lost:
            self._since.clear()
            self.due = math.inf
            return
        if clock.monotonic() < self.due < math.inf:
            return
        self.due = clock.monotonic() + _LOOK_S
        waiting = [view for view in lost if not view.suspended]
        for view in waiting:
            self._back(view)
        self._give_up([view for view in waiting if self._state.missing(view)])

    def _give_up(self, waiting: list[View]) -> None:
        """Stop views that have waited too long for a worker, and declare the worker lost."""
        patience_s, now = self._state.settings.worker_lost_s, clock.monotonic()
        away = {view.id: self._unreachable(view) for view in waiting}
        self._since = {w: self._since.get(w, now) for found in away.values() for w in found}
        over = {w for w, since in self._since.items() if patience_s and now - since >= patience_s}
        for worker in sorted(over):
            self._lose(worker)
            del self._since[worker]
        for view in waiting:
            if found := sorted(over & away[view.id]):
                self._leaving.fail(view, _lost_for_good(found[0], patience_s))

    def _unreachable(self, view: View) -> set[str]:
        """Return the workers that have states of a view and are out of reach."""
        units = (view, *self._state.parts_of(view))
        return {unit.placed for unit in units if unit.placed and not unit.reachable}

    def _back(self, view: View) -> None:
        try:
            self._loading.again(view)
        except OutOfReach:
            return
        if view.live:
            view.message = None
            self._state.gauges.went_on(view.id)
            self._go_on(view, "its worker is back")


def _lost_for_good(worker: str, patience_s: int) -> StateDamaged:
    return StateDamaged(
        f'worker "{worker}", which had states of the view, is considered lost',
        detail=f"It was out of reach for {patience_s} seconds (worker_lost_s).",
        hint=RESYNC,
    )
