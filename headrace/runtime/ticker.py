"""Batches in which nothing happens but that time passes, for views that read the clock.

A view shows its query as of a position in the stream and an instant.  A batch moves the instant of
the views that it touches to the time of its last commit; between batches the ticker looks now and
then whether some row's time has come, and makes a batch of nothing but an instant.

The instant is part of the batch's record, which is durable before the batch is processed, so a
replay does what was done.  The source's clock decides, as for now() in the source; it is never
read while a batch is processed.

After a long time without one, time passes in steps: as many batches as it takes for each to
change no more than ``_ROWS_MAX`` rows, unless so many have their time at one instant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from headrace import clock
from headrace.collections.dataflow import Dataflow
from headrace.errors import DefiniteFailure, OutOfReach
from headrace.runtime.away import AwayStore
from headrace.runtime.book import Book
from headrace.runtime.coverage import Passed
from headrace.runtime.views import View

_log = structlog.get_logger(__name__)

_ROWS_MAX: Final = 5_000
_NOW_US: Final = """
    SELECT pg_catalog.floor(pg_catalog.date_part('epoch',
        pg_catalog.clock_timestamp() - '2000-01-01 00:00:00+00'::pg_catalog.timestamptz)
        * 1000000)::pg_catalog.int8
"""


class Ticker:
    """The clock of one engine; every method runs on its thread."""

    def __init__(self, book: Book, pass_time: Callable[[int], None]) -> None:
        """``pass_time`` makes a batch of nothing but an instant."""
        self._book = book
        self._pass_time = pass_time
        self._next = 0.0
        self._forced = False
        self._away: set[int] = set()
        """Views that could not be asked in the tick that is under way."""
        self.passed = Passed()
        """How far time has passed for views; for any thread."""

    def force(self) -> None:
        """Make a batch at once, whether anything changes or not."""
        self._next, self._forced = 0.0, True

    @property
    def due(self) -> float:
        """When to look again, on the monotonic clock."""
        return self._next if self._views() else float("inf")

    def tick(self) -> None:
        """Let time pass to now, if it is time to look and some row's time has come."""
        if clock.monotonic() < self.due:
            return
        settings = self._book.settings
        self._next = clock.monotonic() + settings.clock_interval_ms / 1000
        row = self._book.owner.conn.execute(_NOW_US).fetchone()
        assert row is not None, "the time is a row"
        now = int(row[0])
        self._away.clear()
        views = frozenset(view.id for view in self._views())
        if self._sum(now, _near) > _ROWS_MAX:
            # One step, then the engine looks at its other work, then at once the next step.
            self._pass_time(self._step(now))
            self._next = 0.0
        elif self._forced or self._sum(now, _crossing):
            self._forced = False
            self._pass_time(now)
            self._passed_to(now, views)
        else:
            self._passed_to(now, views)

    def _passed_to(self, now: int, views: frozenset[int]) -> None:
        self.passed = Passed(now, self._book.taken.txid, views - self._away)

    def catch_up(self, instant: int) -> None:
        """Let time pass until few rows are left to change at ``instant``, or the engine stops."""
        while self._sum(instant, _near) > _ROWS_MAX and not self._book.stopping:
            step = self._step(instant)
            if step >= instant:
                return
            self._pass_time(step)

    def _step(self, instant: int) -> int:
        """An instant up to which few rows change, but some do."""
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
        # If nothing changes up to ``low``, many rows have their time a microsecond later.
        return low if self._sum(low, _near) else high

    def _now(self, view: View) -> int:
        try:
            return self._flow(view).now or 0
        except OutOfReach:
            return 0

    def _views(self) -> list[View]:
        return [view for view in self._book.index.clocked if view.live]

    def _flow(self, view: View) -> Dataflow | AwayStore:
        """Who knows when rows of a view have their time."""
        if isinstance(view.store, AwayStore):
            return view.store
        return view.flow(self._book.settings, self._book.evaluators)

    def _sum(self, instant: int, count: Callable[[Dataflow | AwayStore, int], int]) -> int:
        total = 0
        for view in self._views():
            try:
                total += count(self._flow(view), instant)
            except DefiniteFailure as error:
                # The batch will meet it too, and stop the view in the proper way.
                _log.warning("view cannot take the time", view=view.id, why=str(error))
                total += 1
            except OutOfReach:
                self._away.add(view.id)  # it stops in a moment, and takes no part
        return total


def _near(who: Dataflow | AwayStore, instant: int) -> int:
    return who.near(instant)


def _crossing(who: Dataflow | AwayStore, instant: int) -> int:
    return who.crossing(instant)
