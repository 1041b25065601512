"""One budget of memory for those who work side by side, given out as grants (E-24).

Who is about to make much of some rows says how many bytes that takes, and is told how many it may
have now: its share of what is free.  It works on as much as that allows, gives it back, and asks
again.  Nobody asks while he has one, so everybody who has one comes to his end: no deadlock.

    grant = the least of: what is asked, an equal share of what is free, half of all

* Invariant: grants never come to more than the budget.
* Who asks gets ``least`` (or what is asked, if that is less) in the end, in the order of asking.

What takes hardly any memory (an end of a txid, a small batch) does not ask.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

GRANT_BYTES_MIN: Final = 4 << 20
"""A grant of less is not worth the calls that its rows take."""
_LOOK_S: Final = 0.05
"""How often who waits asks whether he may go on waiting."""


class Grants:
    """A budget of ``budget_bytes``; for any number of threads."""

    def __init__(self, budget_bytes: int, least: int) -> None:
        """``least``: so many bytes are worth to go on with."""
        self.budget_bytes: Final = max(budget_bytes, 1)
        self._least: Final = min(max(least, 1), self.budget_bytes)
        self._turn: Final = threading.Condition()
        self._granted = 0
        self._waiting: list[object] = []
        """Those who wait, in the order in which they have asked."""

    @property
    def granted_bytes(self) -> int:
        """What is given out now; from any thread."""
        return self._granted

    @contextlib.contextmanager
    def ask(self, size: int, check: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Inside, so many bytes may be used as it gives: ``size``, or a part of that.

        ``check`` is called from time to time by who has to wait; what it raises ends the waiting.

        REQUIRES: this thread has no grant.
        """
        granted = self._take(max(size, 1), check)
        try:
            yield granted
        finally:
            with self._turn:
                self._granted -= granted
                self._turn.notify_all()

    def _take(self, size: int, check: Callable[[], None]) -> int:
        mine = object()
        with self._turn:
            self._waiting.append(mine)
            try:
                while self._waiting[0] is not mine or self._free < min(size, self._least):
                    if not self._turn.wait(_LOOK_S):
                        check()
                share = max(self._free // len(self._waiting), self._least)
                granted = min(size, share, max(self.budget_bytes // 2, self._least), self._free)
                self._granted += granted
                return granted
            finally:
                self._waiting.remove(mine)
                self._turn.notify_all()

    @property
    def _free(self) -> int:
        return self.budget_bytes - self._granted
