"""When the memory regulator looks at states: at those that have been used since its last look."""

from __future__ import annotations

from typing import Final, Protocol

from headrace import clock
from headrace.state.regulator import Regulator
from headrace.state.tiers import Tier

_LOOKED_AT_FREELY: Final = 256
_LOOK_S: Final = 20e-6
"""A look at a state costs about a microsecond.  Beyond ``_LOOKED_AT_FREELY`` states each adds so
much to the pause before the next look, which then takes at most a twentieth."""


class Store(Protocol):
    """States that are used together."""

    def listed(self) -> list[Tier]:
        """Return its tiers as they are just now."""


class RegulatorSchedule:
    """Calls the regulator where states have been used since its last look, and not too often."""

    def __init__(self, regulator: Regulator) -> None:
        self._regulator: Final = regulator
        self.more = False
        """Whether the regulator has not done all that it has decided."""
        self._due = 0.0
        """When to look again, on the monotonic clock."""
        self._touched: dict[Store, None] = {}
        """Stores that have been used since the last look."""
        self._used: dict[Store, None] = {}
        """Stores that have been used since a checkpoint held them whole."""
        self._gone = True
        """Whether states have gone since then, or none has been looked at yet."""

    def touch(self, store: Store) -> None:
        """Note that states are used; from any thread."""
        self._touched[store] = self._used[store] = None

    def used(self) -> list[Store]:
        """Return the stores that have been used since a checkpoint held them whole."""
        return list(self._used)

    def leave(self, store: Store) -> None:
        """Note that a checkpoint begins to hold a store, or that it is gone."""
        self._used.pop(store, None)

    def touch_none(self) -> None:
        """Note that states have gone."""
        self._gone = True

    def step(self, worked_s: float) -> None:
        """Have the regulator look and work if that is due; see ``RocksDatabase.regulate``."""
        now = clock.monotonic()
        wanted = self._touched or self._gone or self._regulator.postponed
        if not ((wanted and now >= self._due) or self.more or self._regulator.busy):
            return
        self._gone = False
        found = [tier for store in self._take() for tier in store.listed()]
        self.more = self._regulator.step(found, worked_s)
        self._due = now + max(len(found) - _LOOKED_AT_FREELY, 0) * _LOOK_S

    def _take(self) -> list[Store]:
        """Forget what was used; what is used meanwhile, by another thread, is for the next look."""
        taken = list(self._touched)
        for store in taken:
            self._touched.pop(store, None)
        return taken

    def hurry(self) -> None:
        """Have the regulator decide at once: what could not be spilled may be now."""
        self._regulator.reconsider()
        self.more = True
