"""Whether the engine keeps up, and what it says when it does not (A-43).

A unit that takes c seconds for a row keeps up with no more than 1/c rows a second.  All of them
share one thread's time for what is processed, and another's for what is written; and a batch has
costs of its own, which large ones make small.  So it is not added up from rates, but read off what
was done: in a second, the engine works on the commits of s seconds.  Where it had no rest meanwhile
and s is less than one, it falls behind, though batches have grown as far as they do.

And where nothing can be taken until what there is in memory is on disk, it is the disk that bears
no more.

What is shed is freshness, never rows (A-44): this says so, in ``list_views()`` and the log.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

import structlog

from headrace import clock
from headrace.runtime.batches import Outcome
from headrace.runtime.book import Book
from headrace.sql import states

_log = structlog.get_logger(__name__)

_WINDOW_S: Final = 10.0
"""Over which it is looked at: longer than what one large transaction is excused with."""
_LOOK_S: Final = 1.0
HEADROOM: Final = 0.9
"""The part of the time that may be worked: what is beyond leaves nothing for a burst."""
_BEHIND: Final = 0.95
"""Source seconds per second: who comes no further than that falls behind."""
_HELD: Final = 0.5
"""The part of the time in which nothing can be taken: what is beyond is worth a word."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What was done in some time."""

    passed_s: float
    """That time."""
    covered_s: float
    """How much of the source's time the commits cover that were worked on."""
    worked_s: float
    """For how long the busiest thread worked on them."""
    held_s: float = 0.0
    """For how long nothing could be taken, before a checkpoint was written."""

    @property
    def needed(self) -> float:
        """Seconds of work for a second of the source."""
        return self.worked_s / self.covered_s if self.covered_s else 0.0

    @property
    def overloaded(self) -> bool:
        """Whether it falls behind, though it has no rest."""
        busy = self.worked_s >= HEADROOM * self.passed_s
        # In the midst of one batch nothing can be said.
        return busy and 0 < self.covered_s < _BEHIND * self.passed_s

    @property
    def held(self) -> bool:
        """Whether it falls behind because the disk does."""
        return self.held_s >= _HELD * self.passed_s


@dataclass(slots=True)
class _Slice:
    """What was done between two looks."""

    began: float
    covered_s: float = 0.0
    processed_s: float = 0.0
    written_s: float = 0.0
    held_s: float = 0.0
    units: Counter[int] = field(default_factory=Counter)
    """Microseconds, by unit."""


class Capacity:
    """Of one engine; every method runs on its thread."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._slices: deque[_Slice] = deque([_Slice(clock.monotonic())])
        self._last_us = 0
        self._written_s = 0.0
        self._said: bool | None = None
        """Whether it is said; None: not known, an earlier process may have."""

    def worked(self, outcome: Outcome, seconds: float) -> None:
        """A batch was processed."""
        now = self._slices[-1]
        now.processed_s += seconds
        instant = outcome.frames.instant
        if self._last_us:
            now.covered_s += max(instant - self._last_us, 0) / 1e6
        self._last_us = max(self._last_us, instant)
        for unit_id in outcome.touched:
            unit = self._book.unit(unit_id)
            if unit is not None and unit.bound is not None:
                now.units[unit_id] += round(unit.bound.taken_s * 1e6)

    def held(self, seconds: float) -> None:
        """For so long nothing could be taken, before a checkpoint was written."""
        self._slices[-1].held_s += seconds

    def rewind(self) -> None:
        """Batches come again: the source's time begins elsewhere; what was done says nothing."""
        self._last_us = 0
        self._slices = deque([_Slice(clock.monotonic())])

    def load(self) -> Workload:
        """What was done in the last seconds."""
        first = self._slices[0]
        return Workload(
            clock.monotonic() - first.began,
            sum(s.covered_s for s in self._slices),
            max(sum(s.processed_s for s in self._slices), sum(s.written_s for s in self._slices)),
            sum(s.held_s for s in self._slices),
        )

    def look(self, written_s: float) -> None:
        """Say what there is to say; each cycle of the engine comes by here.

        ``written_s``: seconds that writing has taken, ever.
        """
        self._slices[-1].written_s += written_s - self._written_s
        self._written_s = written_s
        now = clock.monotonic()
        if now < self._slices[-1].began + _LOOK_S:
            return
        load = self.load()
        if load.passed_s >= _WINDOW_S or self._said is None:
            self._say(load)
        self._slices.append(_Slice(now))
        while now - self._slices[0].began > _WINDOW_S:
            self._slices.popleft()

    def _say(self, load: Workload) -> None:
        over = (load.overloaded or load.held) and load.passed_s >= _WINDOW_S
        if over == self._said:
            return
        conn = self._book.owner.conn
        if not over:
            states.end_overload(conn)
            if self._said:
                _log.info("overload has ended")
            self._said = False
            return
        if load.held:
            checkpoints = self._book.checkpoints
            why = checkpoints.error.message if checkpoints.error else "there is more than it bears"
            states.tell_overload(
                conn, f"nothing is taken before what is in memory is on disk: {why}"
            )
            _log.warning("disk overloaded", reason=why)
        else:
            view = self._costliest()
            text = f"changes take {load.needed:.1f} s of work per second" + (
                f", most of it view {view}" if view else ""
            )
            states.tell_overload(conn, text)
            _log.warning("overloaded", needed=round(load.needed, 2), costliest=view)
        self._said = True

    def _costliest(self) -> str:
        """The view that takes most, where it is processing that takes so long."""
        if sum(s.written_s for s in self._slices) > sum(s.processed_s for s in self._slices):
            return ""
        units: Counter[int] = Counter()
        for each in self._slices:
            units.update(each.units)
        for unit_id, _ in units.most_common(1):
            unit = self._book.unit(unit_id)
            views = self._book.views_of(unit) if unit is not None else []
            return views[0].target.shown if views else ""
        return ""
