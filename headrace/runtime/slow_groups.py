"""Views that lag on purpose, so that they do not delay the others.

If a single timestamp changes many views, these lag for it (``ticker.py``), and then lead again.
So do slow commit groups.

A group is slow if it takes most of the time of batches, and more than ``slow_batch_ms`` each,
whether it computes here or on another worker.  It lags for a while at least, and leads again once
it is fast.  Groups with views that read the clock do not lag for this reason, because time
passes for them without batches.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import structlog

from headrace import clock
from headrace.forwarder import policy
from headrace.runtime.batches import Outcome
from headrace.runtime.engine_state import EngineState
from headrace.runtime.views import View
from headrace.sql.status import CursorState

_log = structlog.get_logger(__name__)


class SlowGroups:
    """The slow groups of one engine (``Lagging.groups``); its thread calls every method."""

    def __init__(self, state: EngineState, connect: Callable[[], bool]) -> None:
        """Create it; ``connect`` returns whether views that lag can be written now."""
        self._state = state
        self._connect = connect
        self._scores: Counter[str] = Counter()
        self._scored_at = 0.0
        self._stays: dict[str, policy.Stay] = {}
        """How long slow groups lag, by group."""
        self._refused_until = 0.0

    def lag(self, views: Collection[View]) -> None:
        """Let views lag from the next batch on, which changes many of them, if they can.

        The views of a commit group with a name lag together.  REQUIRES: they lead.
        """
        state = self._state
        if not (state.retained.appending and state.suspects.quiet and self._connect()):
            return
        named = {view.commit_group for view in views} - {""}
        groups = [v for v in state.views.values() if v.commit_group in named and v.leads]
        leaving = {view.id: view for view in (*views, *groups)}
        if any(unit.store is None for v in leaving.values() for unit in state.units_of(v)):
            return
        for view in leaving.values():
            view.turn(CursorState.CATCHING_UP, "time changes many views", quietly=True)
        _log.info("views left their commit groups for a change of the time", views=len(leaving))

    @property
    def due(self) -> float:
        """When to call ``end``, on the monotonic clock."""
        return min((self._stays[group].until for group in self._fast()), default=math.inf)

    def end(self, now: float) -> None:
        """Let the groups lead that lack no batch, and have lagged for long enough."""
        for group in self._fast():
            if now >= self._stays[group].until:
                self._state.lagging.groups.discard(group)

    def prolong(self, views: Iterable[View]) -> None:
        """Let the slow groups of ``views``, whose batch was slow, stay for longer."""
        now = clock.monotonic()
        for group in {view.commit_group for view in views} & self._state.lagging.groups:
            self._stays[group] = self._stays[group].begin_again(now)

    def check_room(self) -> None:
        """Let no group lag if the log has no room."""
        if self._state.lagging.groups and not self._state.retained.appending:
            self._refuse()

    def classify(self, outcome: Outcome, worked_s: float, writes: Mapping[str, float]) -> None:
        """Let slow groups lag after a batch of the leading views.

        ``worked_s``: processing time of the batch.  ``writes``: seconds of writing, by group.
        """
        limit_s = self._state.settings.slow_batch_ms / 1000
        if not limit_s or max([worked_s, *writes.values()]) < limit_s:
            return
        seconds = defaultdict[str, float](float, writes)
        slowest: dict[str, tuple[float, str]] = {}
        """By group: the time of its slowest unit, and the views that need the unit."""
        for unit_id in outcome.touched:
            unit = self._state.unit(unit_id)
            if unit is None:
                continue
            views = self._state.views_of(unit)
            groups = {view.commit_group for view in views}
            if len(groups) == 1:
                here_s = unit.bound.taken_s if unit.bound is not None else 0.0
                group, took = groups.pop(), outcome.remote_s.get(unit_id, here_s)
                seconds[group] += took
                names = ", ".join(view.target.shown for view in views)
                slowest[group] = max(slowest.get(group, (0.0, "")), (took, names))
        now = clock.monotonic()
        if policy.counts_anew(self._scored_at, now):
            self._scores.clear()
            self._scored_at = now
        slow = policy.slow_group(seconds, limit_s)
        if slow is not None:
            self._scores[slow] += 1
            if policy.must_lag(self._scores[slow]) and self._may(slow):
                self._set_lagging(slow, *slowest.get(slow, (0.0, "")))

    def dissolve(self) -> None:
        """Let the views of slow groups lead, once they have caught up, that cannot lag on purpose.

        The log has no room, or they read the clock now.  REQUIRES: no thread works on their states.
        """
        self.check_room()
        groups = self._state.lagging.groups
        if groups:
            groups -= {v.commit_group for v in self._state.lagging_views if v.temporal}

    def _fast(self) -> list[str]:
        """Return the slow groups that lack no batch."""
        state = self._state
        views = state.lagging_views
        return [
            group
            for group in sorted(state.lagging.groups)
            if state.has_all(v for v in views if v.commit_group == group)
        ]

    def _may(self, group: str) -> bool:
        """Return whether a group can lag, and other groups benefit."""
        state, lagging = self._state, self._state.lagging
        if group in lagging.groups or not state.suspects.quiet:
            return False
        if clock.monotonic() < self._refused_until or not state.retained.appending:
            return False
        live = [view for view in state.views.values() if view.live]
        others = {view.commit_group for view in live} - lagging.groups - {group}
        mine = [view for view in live if view.commit_group == group]
        return bool(others) and not any(view.temporal for view in mine)

    def _set_lagging(self, group: str, took_s: float, slowest: str) -> None:
        """Let a group lag from the next batch on.

        ``slowest``: the views whose part took longest.  REQUIRES: its views have processed all that
        was taken, or lag.
        """
        if not self._connect():
            return
        self._state.lagging.groups.add(group)
        self._scores.pop(group, None)
        stay = self._stays[group] = policy.Stay.begin(self._stays.get(group), clock.monotonic())
        facts: dict[str, Any] = {
            "stays_s": stay.seconds,
            "slowest": slowest,
            "took_s": round(took_s, 3),
        }
        for view in list(self._state.views.values()):
            if view.commit_group == group and view.live:
                view.turn(CursorState.CATCHING_UP, "its commit group is slow", **facts)

    def _refuse(self) -> None:
        """Let no group lag for a while."""
        _log.warning("no room for what waits for slow commit groups")
        self._refused_until = policy.refused_until(clock.monotonic())
        self._state.lagging.groups.clear()
