"""Overload detection: whether the engine keeps up, and its report when it does not (A-43).

A unit that takes c seconds per row keeps up with at most 1/c rows a second.  All units share one
thread for processing and another one for writing, and each batch has fixed costs, which matter less
in large ones.  So overload is not computed from rates, but measured: in a second, the engine works
on the commits of s seconds.  If it never rested and s is below one, it falls behind, although its
batches have grown as large as they can.

Slow commit groups lag on purpose, and take turns on a thread of their own.  They are measured
likewise: by the time of this thread, and by how far the last one of them has come.

If no batch can be taken until memory has been written to disk, the disk is overloaded.

Views become less fresh under overload, but never lose rows (A-44).  This module reports it in
``list_views()`` and the log.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from headrace import clock
from headrace.runtime.batches import Outcome
from headrace.runtime.engine_state import EngineState
from headrace.runtime.views import Unit
from headrace.sql import states

_log = structlog.get_logger(__name__)

_WINDOW_S: Final = 10.0
"""Measured time: long enough to excuse one large transaction."""
_LOOK_S: Final = 1.0
HEADROOM: Final = 0.9
"""Busy share of the time above which nothing is left for a burst."""
_BEHIND: Final = 0.95
"""Source seconds per second; below this rate the engine falls behind."""
_HELD: Final = 0.5
"""Share of the time without taking batches above which the disk is reported."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Work done in some period."""

    passed_s: float
    """Length of the period."""
    covered_s: float
    """Source time covered by the commits that were worked on."""
    worked_s: float
    """Busy time of the busiest thread."""
    held_s: float = 0.0
    """Time in which no batch could be taken before a checkpoint was written."""

    @property
    def needed(self) -> float:
        """Seconds of work for a second of the source."""
        return self.worked_s / self.covered_s if self.covered_s else 0.0

    @property
    def overloaded(self) -> bool:
        """Whether the engine falls behind although it does not rest."""
        busy = self.worked_s >= HEADROOM * self.passed_s
        # In the middle of one batch nothing can be said.
        return busy and 0 < self.covered_s < _BEHIND * self.passed_s

    @property
    def disk_bound(self) -> bool:
        """Whether the engine falls behind because of the disk."""
        return self.held_s >= _HELD * self.passed_s

    def or_slow(self, slow: Workload) -> Workload:
        """Return the work to report: this of the leading views, or ``slow``, of slow groups."""
        return slow if slow.overloaded and not (self.overloaded or self.disk_bound) else self


@dataclass(slots=True)
class _Slice:
    """Work done between two looks."""

    began: float
    covered_s: float = 0.0
    processed_s: float = 0.0
    written_s: float = 0.0
    held_s: float = 0.0
    lagged_s: float = 0.0
    """Busy time of the views that lag."""
    slow_us: int | None = None
    """At its begin, the recorded time up to which all slow groups have come; None: there are
    none."""
    units: Counter[int] = field(default_factory=Counter)
    """Microseconds by unit ID."""


class OverloadDetector:
    """Overload detection of one engine; every method runs on its thread."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._slices: deque[_Slice] = deque([_Slice(clock.monotonic())])
        self._last_us = 0
        self._written_s = 0.0
        self._said: bool | None = None
        """Whether overload is reported; None: unknown, as an earlier process may have done so."""
        self.processing_limits = False
        """Whether processing, not writing or the disk, cannot keep up; read on any thread."""

    def worked(self, outcome: Outcome, seconds: float) -> None:
        """Count a processed batch."""
        now = self._slices[-1]
        now.processed_s += seconds
        instant = outcome.frames.instant
        if self._last_us:
            now.covered_s += max(instant - self._last_us, 0) / 1e6
        self._last_us = max(self._last_us, instant)
        for unit_id in outcome.touched:
            unit = self._state.unit(unit_id)
            if unit is not None and unit.bound is not None:
                now.units[unit_id] += round(unit.bound.taken_s * 1e6)

    def lagged(self, units: Sequence[Unit], seconds: float) -> None:
        """Count a batch of ``units`` that lag."""
        now = self._slices[-1]
        now.lagged_s += seconds
        if self._state.lagging.groups:
            longest = max(units, key=lambda unit: unit.bound.taken_s if unit.bound else 0.0)
            now.units[longest.id] += round(seconds * 1e6)

    def count_stall(self, seconds: float) -> None:
        """Count seconds in which no batch could be taken before a checkpoint was written."""
        self._slices[-1].held_s += seconds

    def rewind(self) -> None:
        """Restart the measurements, as batches are replayed and the source's time jumps back."""
        self._last_us = 0
        self._slices = deque([_Slice(clock.monotonic())])
        self.processing_limits = False

    def load(self) -> Workload:
        """Return the work done in the last seconds."""
        first = self._slices[0]
        return Workload(
            clock.monotonic() - first.began,
            sum(s.covered_s for s in self._slices),
            max(sum(s.processed_s for s in self._slices), sum(s.written_s for s in self._slices)),
            sum(s.held_s for s in self._slices),
        )

    def _slow_load(self, slow_us: int | None) -> Workload:
        """Return the work done for slow groups in the last seconds; ``slow_us``: see ``_Slice``."""
        first, covered_s = self._slices[0], 0.0
        if first.slow_us is not None and slow_us is not None:
            covered_s = (slow_us - first.slow_us) / 1e6
        passed_s = clock.monotonic() - first.began
        return Workload(passed_s, covered_s, sum(s.lagged_s for s in self._slices))

    def _slow_us(self) -> int | None:
        """Return the recorded time up to which all slow groups have come; None: none is slow."""
        state = self._state
        at = [v.processed for v in state.lagging_views if v.commit_group in state.lagging.groups]
        record = state.records.get(min(at)) if at else None
        return record.commit_time_us if record is not None else None

    def look(self, written_s: float) -> None:
        """Report the begin or end of an overload; called in each cycle of the engine.

        ``written_s``: total seconds of writing so far.
        """
        self._slices[-1].written_s += written_s - self._written_s
        self._written_s = written_s
        now = clock.monotonic()
        if now < self._slices[-1].began + _LOOK_S:
            return
        leading, slow_us = self.load(), self._slow_us()
        load = leading.or_slow(self._slow_load(slow_us))
        if load.passed_s >= _WINDOW_S or self._said is None:
            self._say(load, writes=load is leading and self._writes_longer())
        self._slices.append(_Slice(now, slow_us=slow_us))
        while now - self._slices[0].began > _WINDOW_S:
            self._slices.popleft()

    def _say(self, load: Workload, *, writes: bool) -> None:
        """Report ``load``; ``writes``: writing takes longer than processing."""
        over = (load.overloaded or load.disk_bound) and load.passed_s >= _WINDOW_S
        self.processing_limits = over and not load.disk_bound and not writes
        if over == self._said:
            return
        conn = self._state.owner.conn
        if not over:
            if not states.end_overload(conn):
                return
            if self._said:
                _log.info("overload has ended")
            self._said = False
            return
        if load.disk_bound:
            checkpoints = self._state.checkpoints
            why = checkpoints.error.message if checkpoints.error else "the load is too high"
            states.tell_overload(
                conn, f"nothing is taken before what is in memory is on disk: {why}"
            )
            _log.warning("disk overloaded", reason=why)
        else:
            view = "" if writes else self._costliest()
            text = f"changes take {load.needed:.1f} s of work per second" + (
                f", most of it view {view}" if view else ""
            )
            states.tell_overload(conn, text)
            _log.warning("overloaded", needed=round(load.needed, 2), costliest=view)
        self._said = True

    def _writes_longer(self) -> bool:
        written_s = sum(s.written_s for s in self._slices)
        return written_s > sum(s.processed_s for s in self._slices)

    def _costliest(self) -> str:
        """Return the name of the costliest view."""
        units: Counter[int] = Counter()
        for each in self._slices:
            units.update(each.units)
        for unit_id, _ in units.most_common(1):
            unit = self._state.unit(unit_id)
            views = self._state.views_of(unit) if unit is not None else []
            return views[0].target.shown if views else ""
        return ""
