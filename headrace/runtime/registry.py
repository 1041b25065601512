"""The units of an engine by id, and an index of which units read a shared subplan.

The index is built when it is first needed after a change, so a loop over all shared subplans costs
as much as one over all units.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

from headrace.runtime.unit_index import UnitIndex
from headrace.runtime.views import Unit

_Unit = TypeVar("_Unit", bound=Unit)


class Registry(dict[int, _Unit]):
    """Units by id; counts its changes.  The engine's thread alone changes it."""

    def __init__(self, index: UnitIndex) -> None:
        """``index`` has the units of this registry, too."""
        super().__init__()
        self.changes = 0
        self._index: Final = index

    def __setitem__(self, unit_id: int, unit: _Unit) -> None:
        """Add a unit or replace it."""
        before = self.get(unit_id)
        super().__setitem__(unit_id, unit)
        self.changes += 1
        if before is not None:
            before.listener = None
        unit.listener = self._index
        self._index.add(unit)

    def __delitem__(self, unit_id: int) -> None:
        """Remove a unit."""
        self._part_with(self[unit_id])
        super().__delitem__(unit_id)
        self.changes += 1

    def pop(self, unit_id: int, *default: Any) -> Any:
        """Remove a unit and return it."""
        self._part_with(self.get(unit_id))
        found = super().pop(unit_id, *default)
        self.changes += 1
        return found

    def update(self, *others: Any, **named: Any) -> None:
        """Add units or replace them."""
        for unit_id, unit in dict(*others, **named).items():
            self[unit_id] = unit

    def clear(self) -> None:
        """Remove all units."""
        for unit in self.values():
            self._part_with(unit)
        super().clear()
        self.changes += 1

    def _part_with(self, unit: _Unit | None) -> None:
        if unit is not None:
            unit.listener = None
            self._index.remove(unit)


class Readers:
    """Which units read a shared subplan directly; for any thread."""

    def __init__(self, *registries: Registry[Any]) -> None:
        self._registries: Final = registries
        self._index: tuple[tuple[int, ...], dict[int, list[Unit]]] = ((), {})

    def of(self, subplan_id: int) -> list[Unit]:
        """Return the units that read a subplan, views first."""
        at = (Unit.refeeds, *(registry.changes for registry in self._registries))
        built, index = self._index
        if built != at:
            index = {}
            for unit in self._units():
                for feeder in set(unit.feeds.values()):
                    index.setdefault(feeder, []).append(unit)
            self._index = at, index
        return list(index.get(subplan_id, ()))

    def _units(self) -> Iterator[Unit]:
        for registry in self._registries:
            yield from list(registry.values())
