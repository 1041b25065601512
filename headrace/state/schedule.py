"""When the memory regulator looks at all states, which costs as much as there are states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace import clock
from headrace.state.regulator import Regulator
from headrace.state.tiers import Tier

_LOOKED_AT_FREELY: Final = 256
_LOOK_S: Final = 20e-6
"""A look at all states costs less than a microsecond for each.  Beyond ``_LOOKED_AT_FREELY`` states
each adds so much to the pause before the next look, which then takes at most a twentieth."""


class RegulatorSchedule:
    """Calls the regulator where states have been used since its last look, and not too often."""

    def __init__(self, regulator: Regulator) -> None:
        self._regulator: Final = regulator
        self.more = False
        """Whether the regulator has not done all that it has decided."""
        self._due = 0.0
        """When to look at all states again, on the monotonic clock."""
        self._touched = True
        """Whether states have been used since the last look."""

    def touch(self) -> None:
        """Note that states are used; from any thread."""
        self._touched = True

    def step(self, tiers: Callable[[], list[Tier]], worked_s: float) -> None:
        """Have the regulator look and work if that is due; see ``RocksDatabase.regulate``."""
        now = clock.monotonic()
        wanted = (self._touched or self._regulator.postponed) and now >= self._due
        if not (wanted or self.more or self._regulator.busy):
            return
        self._touched = False  # before the look: what is used meanwhile is for the next one
        found = tiers()
        self.more = self._regulator.step(found, worked_s)
        self._due = now + max(len(found) - _LOOKED_AT_FREELY, 0) * _LOOK_S

    def hurry(self) -> None:
        """Have the regulator decide at once: what could not be spilled may be now."""
        self._regulator.reconsider()
        self.more = True
