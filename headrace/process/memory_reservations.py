"""Memory reservation: one budget shared by concurrent work, handed out as grants (E-24).

A caller that is about to need much memory asks for a number of bytes, and gets its share of the
free part of the budget.  It works on as many rows as that allows, returns the grant, and asks
again.  A thread never asks while it has a grant, so that every grant is returned: no deadlock.

    grant = min(size asked for, equal share of the free bytes, half of the budget)

* Invariant: the grants never exceed the budget.
* Every caller gets ``least`` bytes (or its size, if smaller) in the end, first come, first served.

Work that takes hardly any memory (the end of a txid, a small batch) does not ask.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

GRANT_BYTES_MIN: Final = 4 << 20
"""Smallest useful grant: a smaller one is not worth the calls that its rows take."""
_LOOK_S: Final = 0.05
"""Interval at which a waiting thread calls ``check``."""


class Grants:
    """A budget of ``budget_bytes``; for any number of threads."""

    def __init__(self, budget_bytes: int, least: int) -> None:
        """``least``: the smallest number of bytes worth granting."""
        self.budget_bytes: Final = max(budget_bytes, 1)
        self._least: Final = min(max(least, 1), self.budget_bytes)
        self._turn: Final = threading.Condition()
        self._granted = 0
        self._waiting: list[object] = []
        """Waiting calls, in the order of asking."""

    @property
    def granted_bytes(self) -> int:
        """Bytes granted now; from any thread."""
        return self._granted

    @contextlib.contextmanager
    def ask(self, size: int, check: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Reserve memory during the block; yield the number of bytes granted, at most ``size``.

        A waiting thread calls ``check`` from time to time; an error that it raises ends the wait.

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
