"""Batches that only advance time, for views that read the clock.

A view shows its query as of a stream position and a timestamp. A batch moves the timestamp of the
views that it touches to its last commit time. Between batches the ticker checks periodically
whether any row becomes due, and then makes a batch with nothing but a timestamp.

The timestamp is part of the batch's record, which is durable before the batch is processed. So a
replay repeats it exactly. It comes from the source's clock, as now() does in the source; the clock
is never read while a batch is processed.

A value of the calendar (``current_date``) changes in all rows at one timestamp.  It changes in a
batch of its own with this timestamp, also if a commit follows before the next tick.  If several
have passed, the batch has the last one.

If a timestamp changes more than other views should wait for, the views that it changes lag for it
(``catching_up.py``): they take the same batch later, some at a time, and then lead again.

After a long pause, time advances in steps: each batch changes at most ``_ROWS_MAX`` rows, unless
more rows are due at a single timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from headrace import clock
from headrace.collections.dataflow import Dataflow
from headrace.errors import DefiniteFailure, OutOfReach
from headrace.forwarder import policy
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

    def __init__(
        self,
        state: EngineState,
        pass_time: Callable[[int], None],
        lag: Callable[[Sequence[View]], None],
    ) -> None:
        """Create it.

        ``pass_time`` makes a batch with only the given timestamp; ``lag``: ``SlowGroups.lag``.
        """
        self._state = state
        self._pass_time = pass_time
        self._lag = lag
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
        ticks = any(view.leads for view in self._state.index.clocked)
        return self._next if ticks else float("inf")

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
        views = {view.id for view in self._views()}
        due = self._due(now)
        if self._sum(due, now, _near) > _ROWS_MAX:
            # One step at a time: the engine does its other work in between.
            self._take_step(due, now)
            self._next = 0.0
            return
        due = self._change_calendars(due, now)
        if self._forced or self._sum(due, now, _crossing):
            self._forced = False
            self._advance(due, now)
        # A view that lags since then has the time only once it leads again.
        views &= {view.id for view in self._views()}
        taken = self._state.taken.txid
        self.passed = Passed(now, taken, frozenset(views - self._unreachable))

    def catch_up(self, instant: int) -> None:
        """Advance time until few rows are left to change at ``instant``, or the engine stops."""
        due = self._due(instant)
        while self._sum(due, instant, _near) > _ROWS_MAX and not self._state.stopping:
            if self._take_step(due, instant) >= instant:
                return
            due = self._due(instant)
        due = self._change_calendars(due, instant)
        if self._changes_much(due, instant):
            self._advance(due, instant)

    def _change_calendars(self, due: list[View], instant: int) -> list[View]:
        """Advance time to the last change of the calendar before ``instant``.

        ``due``: the views that are due at ``instant``; return those that still are.
        """
        changed = max(self._ask(due, instant, _changed, instant), default=0)
        if not changed:
            return due
        self._advance(due, changed)
        return self._due(instant)

    def _take_step(self, due: Sequence[View], instant: int) -> int:
        """Advance time by a step towards ``instant``; return the timestamp."""
        step = self._step(due, instant)
        # Views that lag take the rest in one step, so little may be left.
        if self._sum(due, instant, _near) - self._sum(due, step, _near) <= _ROWS_MAX:
            self._advance(due, step)
        else:
            self._pass_time(step)
        return step

    def _advance(self, due: Sequence[View], instant: int) -> None:
        """Make a batch with a timestamp; if it changes much, the views that it changes lag.

        ``due``: views that are due at ``instant`` or later.
        """
        changing = [v for v, due_now in self._each(due, instant, _due, 1) if due_now]
        if self._changes_much(changing, instant):
            self._lag(changing)
        self._pass_time(instant)

    def _changes_much(self, due: Sequence[View], instant: int) -> bool:
        """Return whether other views should not wait until ``due`` have taken a timestamp."""
        if policy.takes_together(len(due), 0):
            rows = self._sum(due, instant, _rows)
            return not policy.takes_together(len(due), rows)
        return True

    def _step(self, due: Sequence[View], instant: int) -> int:
        """Return a timestamp up to which some rows change, but few."""
        known = [now for now in self._ask(due, instant, _now, 0) if now]
        low, high = min(known, default=instant), instant
        while high - low > 1:
            middle = (low + high) // 2
            near = self._sum(due, middle, _near)
            if near > _ROWS_MAX:
                high = middle
                continue
            low = middle
            if near > _ROWS_MAX // 2:
                break
        # If no row changes up to ``low``, many rows are due a microsecond later.
        return low if self._sum(due, low, _near) else high

    def _views(self) -> list[View]:
        # Time passes for the views that lag as they read the log.
        return [view for view in self._state.index.clocked if view.leads]

    def _due(self, instant: int) -> list[View]:
        """Return the views in which rows may change at ``instant``."""
        return [view for view, due in self._each(self._views(), instant, _due, 1) if due]

    def _sum(self, views: Sequence[View], instant: int, count: _Question) -> int:
        return sum(self._ask(views, instant, count))

    def _ask(
        self, views: Sequence[View], instant: int, question: _Question, failed: int = 1
    ) -> Iterator[int]:
        """Yield the answers of ``views``; see ``_each``."""
        for _, answer in self._each(views, instant, question, failed):
            yield answer

    def _each(
        self, views: Sequence[View], instant: int, question: _Question, failed: int
    ) -> Iterator[tuple[View, int]]:
        """Yield the answer of each view; ``failed`` for a view that fails: a batch stops it."""
        state = self._state
        for view in views:
            try:
                yield view, question(view.clocked(state.settings, state.evaluators), instant)
            except DefiniteFailure as error:
                # The batch will meet the same error, and stop the view properly.
                _log.warning("view cannot take the time", view=view.id, why=str(error))
                yield view, failed
            except OutOfReach:
                self._unreachable.add(view.id)  # it is about to stop, and takes no part


def _due(who: Dataflow | RemoteStore, instant: int) -> int:
    return who.due(instant)


def _rows(who: Dataflow | RemoteStore, instant: int) -> int:
    return who.rows(instant)


def _near(who: Dataflow | RemoteStore, instant: int) -> int:
    return who.near(instant)


def _changed(who: Dataflow | RemoteStore, instant: int) -> int:
    return who.changed(instant)


def _crossing(who: Dataflow | RemoteStore, instant: int) -> int:
    return who.crossing(instant)


def _now(who: Dataflow | RemoteStore, instant: int) -> int:
    del instant
    return who.now or 0
