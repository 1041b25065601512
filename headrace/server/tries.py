"""How often one stopped view is filled anew by itself: bounded, so that nobody is fought for ever.

What fails is tried again after a pause that doubles.  Where the tries are bounded, so many in a
while are all there are: those that failed, and those after which the view stopped again.  Then it
stays stopped, until something of it is altered in the catalog (its *mark* is another one), or
somebody fills it by a call.  What passes by itself (a lost connection) does not count.

A state machine without a clock: the time is told.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 600.0
"""A try that succeeded so long ago is forgotten."""
_PAUSE_S_MIN: Final = 2.0
_PAUSE_S_MAX: Final = 300.0


class Tries:
    """Those of one view, of which there are at most ``bound`` in a while; None: any number."""

    def __init__(self, bound: int | None = None) -> None:
        self.bound = bound
        self.view_id = 0
        """Of the view when it was last seen: filled anew, it gets another one."""
        self._filled: deque[float] = deque()
        """When those ended that succeeded, as long as that counts."""
        self._failed = 0
        self._pause_s = _PAUSE_S_MIN
        self._due = 0.0
        self._mark: str | None = None
        """What the catalog has said of the view; None: what it says next is nothing new."""
        self._altered = False
        """Whether the mark has changed since the last try."""
        self.over = False
        """No more are made."""

    @property
    def spent(self) -> int:
        """How many count."""
        return self._failed + len(self._filled)

    def due(self, now: float, mark: str) -> bool:
        """Whether to try now.  The view has stopped, and the catalog says ``mark`` of it."""
        self.forget(now)
        if self._mark is not None and mark != self._mark:
            # What stood against it may be gone.  That it did not last is not forgotten.
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
        """It succeeded; if the view stops again, that was no help."""
        self._failed, self._mark, self._altered = 0, None, False
        if self.bound is None:
            self._due, self._pause_s = now, _PAUSE_S_MIN
            return
        self._filled.append(now)
        self._pause(now)

    def failed(self, now: float, *, passing: bool) -> None:
        """It failed; ``passing``: for a reason that has nothing to do with the view."""
        self._altered = False
        self._failed += not passing
        self._pause(now)

    def forget(self, now: float) -> bool:
        """Forget what succeeded long ago; whether nothing of it is left."""
        while self._filled and self._filled[0] <= now - WINDOW_S:
            self._filled.popleft()
        return not self._filled

    def _pause(self, now: float) -> None:
        self._due = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)
