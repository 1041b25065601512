"""Schedule of the memory regulator: it inspects the states used since its last inspection."""

from __future__ import annotations

from typing import Final, Protocol

from headrace import clock
from headrace.state.regulator import Regulator
from headrace.state.tiers import Tier

_LOOKED_AT_FREELY: Final = 256
_LOOK_S: Final = 20e-6
"""To inspect a state costs about a microsecond.  Each state beyond ``_LOOKED_AT_FREELY`` adds this
pause before the next inspection.  So inspections take at most a twentieth of the time."""


class Store(Protocol):
    """States that are used together."""

    def listed(self) -> list[Tier]:
        """Return its current tiers."""


class RegulatorSchedule:
    """Calls the regulator for states used since its last inspection, and not too often."""

    def __init__(self, regulator: Regulator) -> None:
        self._regulator: Final = regulator
        self.more = False
        """Whether the regulator has work left."""
        self._due = 0.0
        """Time of the next inspection, on the monotonic clock."""
        self._touched: dict[Store, None] = {}
        """Stores used since the last inspection."""
        self._used: dict[Store, None] = {}
        """Stores used since the last checkpoint with all their writes."""
        self._gone = True
        """Whether states were removed since the last inspection, or there was none yet."""

    def touch(self, store: Store) -> None:
        """Note that states are used; from any thread."""
        self._touched[store] = self._used[store] = None

    def used(self) -> list[Store]:
        """Return the stores used since the last checkpoint with all their writes."""
        return list(self._used)

    def leave(self, store: Store) -> None:
        """Note that a checkpoint of a store begins, or that the store is closed."""
        self._used.pop(store, None)

    def touch_none(self) -> None:
        """Note that states were removed."""
        self._gone = True

    def step(self, worked_s: float) -> None:
        """Have the regulator inspect and work if that is due; see ``RocksDatabase.regulate``."""
        now = clock.monotonic()
        wanted = self._touched or self._gone or self._regulator.postponed
        if not ((wanted and now >= self._due) or self.more or self._regulator.busy):
            return
        self._gone = False
        found = [tier for store in self._take() for tier in store.listed()]
        self.more = self._regulator.step(found, worked_s)
        self._due = now + max(len(found) - _LOOKED_AT_FREELY, 0) * _LOOK_S

    def _take(self) -> list[Store]:
        """Take the used stores; a store used meanwhile by another thread is for the next call."""
        taken = list(self._touched)
        for store in taken:
            self._touched.pop(store, None)
        return taken

    def hurry(self) -> None:
        """Have the regulator decide at once, since more can be spilled now."""
        self._regulator.reconsider()
        self.more = True
