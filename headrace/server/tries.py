"""Limits how often one stopped view is refilled automatically, so that it cannot go on for ever.

A failed try is repeated after a pause that doubles.  If the tries are bounded, failed tries count,
and for ``WINDOW_S`` so do successful ones, because the view stopped again.  At the bound the view
stays stopped, until its catalog state (its *mark*) changes or a user refills it by a call.
Transient failures, such as a lost connection, do not count.

This is a state machine without a clock: the caller passes the time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 600.0
"""Seconds after which a successful try is forgotten."""
_PAUSE_S_MIN: Final = 2.0
_PAUSE_S_MAX: Final = 300.0


class Tries:
    """Tries of one view: at most ``bound`` that count at one time; None: no bound."""

    def __init__(self, bound: int | None = None) -> None:
        self.bound = bound
        self.view_id = 0
        """Id of the view when it was last seen; a refill gives it another one."""
        self._filled: deque[float] = deque()
        """End times of the successful tries that still count."""
        self._failed = 0
        self._pause_s = _PAUSE_S_MIN
        self._due = 0.0
        self._mark: str | None = None
        """Last mark from the catalog; None: the next mark is not compared."""
        self._altered = False
        """Whether the mark has changed since the last try."""
        self.over = False
        """Whether no more tries are made."""

    @property
    def spent(self) -> int:
        """Number of tries that count."""
        return self._failed + len(self._filled)

    def due(self, now: float, mark: str) -> bool:
        """Return whether to try now, with the view stopped and its catalog state ``mark``."""
        self.forget(now)
        if self._mark is not None and mark != self._mark:
            # The cause of failures may be gone; successful tries that did not last still count.
            self._failed, self._pause_s, self._due = 0, _PAUSE_S_MIN, now
            self._altered, self.over = True, False
        self._mark = mark
        if self.over:
            return False
        if self.bound is not None and self.spent >= self.bound:
            self.over = not self._altered
            return False
        return now >= self._due

    def filled(self, now: float) -> None:
        """Record a successful try; it counts if the view stops again."""
        self._failed, self._mark, self._altered = 0, None, False
        if self.bound is None:
            self._due, self._pause_s = now, _PAUSE_S_MIN
            return
        self._filled.append(now)
        self._pause(now)

    def failed(self, now: float, *, passing: bool) -> None:
        """Record a failed try; ``passing``: for a reason that has nothing to do with the view."""
        self._altered = False
        self._failed += not passing
        self._pause(now)

    def forget(self, now: float) -> bool:
        """Forget old successful tries; return whether none is left."""
        while self._filled and self._filled[0] <= now - WINDOW_S:
            self._filled.popleft()
        return not self._filled

    def _pause(self, now: float) -> None:
        self._due = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)
