"""Views whose worker went away, and comes back, on the engine's thread.

Such a view stands still, like one whose table is locked, and what it lacks is kept for it; the
others do not notice.  Its worker begins with what it had made durable, and what came after that
comes again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from headrace import clock
from headrace.errors import OutOfReach
from headrace.runtime.away import lost
from headrace.runtime.book import Book
from headrace.runtime.leaving import Leaving
from headrace.runtime.loading import Loading
from headrace.runtime.views import View
from headrace.sql.status import Status

_LOOK_S: Final = 0.25


class Returning:
    """Of one engine; every method runs on its thread."""

    def __init__(
        self, book: Book, loading: Loading, leaving: Leaving, rewind_soon: Callable[[], None]
    ) -> None:
        self._book = book
        self._loading = loading
        self._leaving = leaving
        self._rewind_soon = rewind_soon
        self.due = math.inf
        """When to come by again (``look``), on the monotonic clock."""

    def look(self) -> None:
        """Stop views whose worker is gone, and let those go on whose worker is back."""
        if not self._book.hosts:
            return  # no view was ever placed elsewhere
        views = [view for view in self._book.views.values() if view.owned]
        placed = [v for v in views if v.placed or v.parts or self._book.parts_of(v)]
        found = ((view, self._book.missing(view)) for view in placed)
        missing = [(view, worker) for view, worker in found if worker is not None]
        if not missing:
            self.due = math.inf
            return
        for view, worker in missing:
            if view.live:
                self._leaving.fail(view, lost(worker or next(iter(view.parts.values()), "")))
        if clock.monotonic() < self.due < math.inf:
            return
        self.due = clock.monotonic() + _LOOK_S
        for view, _ in missing:
            if view.status == Status.SINK_ERROR and not view.suspended:
                self._back(view)

    def _back(self, view: View) -> None:
        try:
            self._loading.again(view)
        except OutOfReach:
            return
        if view.live:
            view.message = None
            self._book.gauges.went_on(view.id)
            self._rewind_soon()
