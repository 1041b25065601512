"""Batches that only advance time, for views that read the clock.

A view shows its query as of a stream position and a timestamp. A batch moves the timestamp of the
views that it touches to its last commit time. Between batches the ticker checks periodically
whether any row becomes due, and then makes a batch with nothing but a timestamp.

The timestamp is part of the batch's record, which is durable before the batch is processed. So a
replay repeats it exactly. It comes from the source's clock, as now() does in the source; the clock
is never read while a batch is processed.

A value of the calendar (``current_date``) changes in all rows at one timestamp.  The batch then has
this timestamp, not that of the tick.  If several have passed, it has the last one.

After a long pause, time advances in steps: each batch changes at most ``_ROWS_MAX`` rows, unless
more rows are due at a single timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import structlog

from headrace import clock
from headrace.collections.dataflow import Dataflow
from headrace.errors import DefiniteFailure, OutOfReach
from headrace.runtime.coverage import Passed
from headrace.runtime.engine_state import EngineState
from headrace.runtime.remote_worker import RemoteStore
from headrace.runtime.views import View

_log = structlog.get_logger(__name__)

_ROWS_MAX: Final = 5_000
_NOW_US: Final = """
    SELECT pg_catalog.floor(pg_catalog.date_part('epoch',
        pg_catalog.clock_timestamp() - '2000-01-01 00:00:00+00'::pg_catalog.timestamptz)
        * 1000000)::pg_catalog.int8
"""


_Question = Callable[[Dataflow | RemoteStore, int], int]


class Ticker:
    """The clock of one engine; every method runs on its thread."""

    def __init__(self, state: EngineState, pass_time: Callable[[int], None]) -> None:
        """Take the function ``pass_time``, which makes a batch with only the given timestamp."""
        self._state = state
        self._pass_time = pass_time
        self._next = 0.0
        self._forced = False
        self._unreachable: set[int] = set()
        """Views whose worker could not be asked during the current tick."""
        self.passed = Passed()
        """How far time has advanced for which views; readable from any thread."""

    def force(self) -> None:
        """Make a batch at the next tick, even if no row changes."""
        self._next, self._forced = 0.0, True

    @property
    def due(self) -> float:
        """Time of the next check, on the monotonic clock."""
        return self._next if self._views() else float("inf")

    def tick(self) -> None:
        """Advance time to now, if a check is due and any row changes by then."""
        if clock.monotonic() < self.due:
            return
        settings = self._state.settings
        self._next = clock.monotonic() + settings.clock_interval_ms / 1000
        row = self._state.owner.conn.execute(_NOW_US).fetchone()
        assert row is not None, "the time is a row"
        now = int(row[0])
        self._unreachable.clear()
        views = frozenset(view.id for view in self._views())
        if self._sum(now, _near) > _ROWS_MAX:
            # One step at a time: the engine does its other work in between.
            self._pass_time(self._step(now))
            self._next = 0.0
            return
        if changed := max(self._ask(now, _changed, now), default=0):
            self._pass_time(changed)
        if self._forced or self._sum(now, _crossing):
            self._forced = False
            self._pass_time(now)
            self._passed_to(now, views)
        else:
            self._passed_to(now, views)

    def _passed_to(self, now: int, views: frozenset[int]) -> None:
        self.passed = Passed(now, self._state.taken.txid, views - self._unreachable)

    def catch_up(self, instant: int) -> None:
        """Advance time until few rows are left to change at ``instant``, or the engine stops."""
        while self._sum(instant, _near) > _ROWS_MAX and not self._state.stopping:
            step = self._step(instant)
            if step >= instant:
                return
            self._pass_time(step)

    def _step(self, instant: int) -> int:
        """Return a timestamp up to which some rows change, but few."""
        known = [now for view in self._views() if (now := self._now(view))]
        low, high = min(known, default=instant), instant
        while high - low > 1:
            middle = (low + high) // 2
            near = self._sum(middle, _near)
            if near > _ROWS_MAX:
                high = middle
                continue
            low = middle
            if near > _ROWS_MAX // 2:
                break
        # If no row changes up to ``low``, many rows are due a microsecond later.
        return low if self._sum(low, _near) else high

    def _now(self, view: View) -> int:
        try:
            return self._flow(view).now or 0
        except OutOfReach:
            return 0

    def _views(self) -> list[View]:
        # Time passes for the views that lag as they read the log.
        return [view for view in self._state.index.clocked if view.leads]

    def _flow(self, view: View) -> Dataflow | RemoteStore:
        """Return the object that knows when rows of a view are due."""
        if isinstance(view.store, RemoteStore):
            return view.store
        return view.flow(self._state.settings, self._state.evaluators)

    def _sum(self, instant: int, count: _Question) -> int:
        return sum(self._ask(instant, count))

    def _ask(self, instant: int, question: _Question, failed: int = 1) -> Iterator[int]:
        """Yield the answer of each view; ``failed`` for a view that fails: a batch stops it."""
        for view in self._views():
            try:
                yield question(self._flow(view), instant)
            except DefiniteFailure as error:
                # The batch will meet the same error, and stop the view properly.
                _log.warning("view cannot take the time", view=view.id, why=str(error))
                yield failed
            except OutOfReach:
                self._unreachable.add(view.id)  # it is about to stop, and takes no part


def _near(who: Dataflow | RemoteStore, instant: int) -> int:
    return who.near(instant)


def _changed(who: Dataflow | RemoteStore, instant: int) -> int:
    return who.changed(instant)


def _crossing(who: Dataflow | RemoteStore, instant: int) -> int:
    return who.crossing(instant)
