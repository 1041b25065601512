"""Which view makes others late: for the owners of all of them, and for the log.

The views of a lane wait for each other: a batch is written when all are done with it, and those of
one commit group change in one transaction.  So a view that takes long holds up the others, and so
does one of which a large transaction changes many rows.  While the batch is under way
``list_views()`` names the view that is worked for (``holding.py``).  Afterwards the slow view and
those that waited have a note, until none was late for a minute; the log names the slow view once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from headrace import clock
from headrace.runtime.batches import Outcome
from headrace.runtime.book import Book
from headrace.runtime.jobs import Answer
from headrace.runtime.views import View
from headrace.sql import states

_log = structlog.get_logger(__name__)

LATE_S: Final = 2.0
"""Nobody is called late for less, whatever the views' latency is."""
OVER_S: Final = 60.0
"""After so long without another it is over."""
_NAMED_MAX: Final = 3
"""Views that are named to those who are late."""
_LISTED_MAX: Final = 20
"""Late views that the log names."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A view that others had to wait for."""

    view: View
    seconds: float
    what: str
    """What took so long, with its view as the subject."""


class Lateness:
    """Of one engine; every method runs on its thread."""

    def __init__(self, book: Book, now: Callable[[], float] = clock.monotonic) -> None:
        self._book = book
        self._now = now
        self._until: float | None = 0.0
        """When it is over if nobody is late again; None: nothing is noted."""
        self._named: frozenset[int] = frozenset()
        self._late: frozenset[int] = frozenset()

    def processed(
        self, outcome: Outcome, took_s: float, views: Iterable[View] | None = None
    ) -> None:
        """A batch was processed for ``views``, of which each waits for all others.

        By default for all that are not processed beside.
        """
        if took_s < LATE_S:
            return
        if views is None:
            aside = {view.id for view in self._book.aside}
            views = [view for view in self._book.views.values() if view.id not in aside]
        slow = []
        for unit_id in outcome.touched:
            unit = self._book.unit(unit_id)
            if unit is None or unit.bound is None:
                continue
            what = f"its part of a batch of {outcome.rows} changes"
            slow += [Slow(v, unit.bound.taken_s, what) for v in self._book.views_of(unit)]
        self._judge(slow, took_s, views)

    def wrote(self, answer: Answer) -> None:
        """A batch was written, group by group, over one connection."""
        took_s = sum(answer.seconds.values())
        if took_s < LATE_S:
            return
        parts = [part for part in answer.job.parts if part.diffs is not None]
        rows = sum(part.diffs.num_rows for part in parts if part.diffs is not None)
        slow = []
        for part in parts:
            view = self._book.views.get(part.view_id)
            if view is not None and part.diffs is not None and part.changes:
                share = part.diffs.num_rows / rows
                what = f"writing its {part.diffs.num_rows} changed rows"
                slow.append(Slow(view, took_s * share, what))
        waited = (self._book.views.get(part.view_id) for part in answer.job.parts)
        self._judge(slow, took_s, [view for view in waited if view is not None])

    def look(self) -> None:
        """Forget what was noted when it is over; each cycle of the engine comes by here."""
        if self._until is None or self._now() < self._until:
            return
        # An earlier process may have left something.
        states.end_late(self._book.owner.conn)
        if self._named:
            _log.info("views are not held up any more")
        self._until, self._named, self._late = None, frozenset(), frozenset()

    def _judge(self, slow: Iterable[Slow], took_s: float, views: Iterable[View]) -> None:
        longest = sorted(slow, key=lambda each: -each.seconds)
        # Of many that take a little each, the first is no worse than the others.
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
            self._book.owner.conn,
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
