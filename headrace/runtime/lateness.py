"""Views that make other views late: reports for their owners and for the log.

Views that lead wait for each other, and so do views that lag: a batch is written when all of them
have processed it, and the views of a commit group change in one transaction.  So a slow view delays
other views, as does a view with many changed rows.  During the batch, ``list_views()`` names the
view that is worked on (``activity.py``).  Afterwards the slow view and the delayed views have a
note, until no view was late for a minute; the log names the slow view once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from headrace import clock
from headrace.runtime.batches import Outcome
from headrace.runtime.engine_state import EngineState
from headrace.runtime.jobs import Answer
from headrace.runtime.views import View
from headrace.sql import states

_log = structlog.get_logger(__name__)

LATE_S: Final = 2.0
"""A view that is less late is not reported, even if its ``latency_ms`` is smaller."""
OVER_S: Final = 60.0
"""Seconds without a late view after which the notes are removed."""
_AGAIN_S: Final = 1.0
"""Seconds after which notes are tried again whose rows were locked."""
_NAMED_MAX: Final = 3
"""Maximum number of slow views named."""
_LISTED_MAX: Final = 20
"""Maximum number of late views in the log."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A view that other views had to wait for."""

    view: View
    seconds: float
    what: str
    """The slow operation, for a message with the view as its subject."""


class Lateness:
    """Lateness reports of one engine; every method runs on its thread."""

    def __init__(self, state: EngineState, now: Callable[[], float] = clock.monotonic) -> None:
        self._state = state
        self._now = now
        self._until: float | None = 0.0
        """Monotonic time at which the notes are removed; None: there are none."""
        self._named: frozenset[int] = frozenset()
        self._late: frozenset[int] = frozenset()

    def processed(
        self, outcome: Outcome, took_s: float, views: Iterable[View] | None = None
    ) -> None:
        """Check a batch processed for ``views``, which waited for each other.

        By default, these are all views that are not lagging.
        """
        if took_s < LATE_S:
            return
        if views is None:
            aside = {view.id for view in self._state.lagging_views}
            views = [view for view in self._state.views.values() if view.id not in aside]
        slow = []
        for unit_id in outcome.touched:
            unit = self._state.unit(unit_id)
            if unit is None or unit.bound is None:
                continue
            what = f"its part of a batch of {outcome.rows} changes"
            slow += [Slow(v, unit.bound.taken_s, what) for v in self._state.views_of(unit)]
        self._classify(slow, took_s, views)

    def wrote(self, answer: Answer) -> None:
        """Check a batch that was written, group by group, over one connection."""
        took_s = sum(answer.seconds.values())
        if took_s < LATE_S:
            return
        parts = [part for part in answer.job.parts if part.diffs is not None]
        rows = sum(part.diffs.num_rows for part in parts if part.diffs is not None)
        slow = []
        for part in parts:
            view = self._state.views.get(part.view_id)
            if view is not None and part.diffs is not None and part.changes:
                share = part.diffs.num_rows / rows
                what = f"writing its {part.diffs.num_rows} changed rows"
                slow.append(Slow(view, took_s * share, what))
        views = self._state.views
        ids = {part.view_id for part in answer.job.parts}
        if answer.job.began_s:  # leading views that it did not concern have waited, too
            ids |= {view.id for view in views.values() if view.leads}
        self._classify(slow, took_s, [views[view_id] for view_id in ids if view_id in views])

    def look(self) -> None:
        """Remove the notes when they have expired; called in each cycle of the engine."""
        if self._until is None or self._now() < self._until:
            return
        # An earlier process may have left notes.
        if not states.end_late(self._state.owner.conn):
            self._until = self._now() + _AGAIN_S
            return
        if self._named:
            _log.info("views are not held up any more")
        self._until, self._named, self._late = None, frozenset(), frozenset()

    def _classify(self, slow: Iterable[Slow], took_s: float, views: Iterable[View]) -> None:
        longest = sorted(slow, key=lambda each: -each.seconds)
        # If many views take a little time each, none of them is to blame.
        guilty = [each for each in longest if each.seconds >= LATE_S or each.seconds >= took_s / 2]
        guilty = guilty[:_NAMED_MAX]
        named = frozenset(each.view.id for each in guilty)
        late = frozenset(
            view.id
            for view in views
            if view.live and view.id not in named and took_s > view.latency_ms / 1000
        )
        if not guilty or not late:
            return
        self._until = self._now() + OVER_S
        if named <= self._named and late <= self._late:
            return
        self._named, self._late = self._named | named, self._late | late
        states.tell_late(
            self._state.owner.conn,
            {each.view.id: f"{each.what} took {each.seconds:.1f} s" for each in guilty},
            sorted(late),
        )
        for each in guilty:
            _log.warning(
                "view makes others late",
                view=each.view.id,
                what=each.what,
                took_s=round(each.seconds, 3),
                views=sorted(late)[:_LISTED_MAX],
                late=len(late),
            )
