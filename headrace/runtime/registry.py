"""Registry of an engine's units by ID, which keeps an index up to date (``unit_index.py``)."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from headrace.runtime.unit_index import UnitIndex
from headrace.runtime.views import Unit

_Unit = TypeVar("_Unit", bound=Unit)


class Registry(dict[int, _Unit]):
    """Units by ID; only the engine's thread changes it."""

    def __init__(self, index: UnitIndex) -> None:
        """Create it; ``index`` follows its changes."""
        super().__init__()
        self._index: Final = index

    def __setitem__(self, unit_id: int, unit: _Unit) -> None:
        before = self.get(unit_id)
        super().__setitem__(unit_id, unit)
        if before is not None:
            before.listener = None
        unit.listener = self._index
        self._index.add(unit)

    def __delitem__(self, unit_id: int) -> None:
        self._part_with(self[unit_id])
        super().__delitem__(unit_id)

    def pop(self, unit_id: int, *default: Any) -> Any:
        """Remove a unit and return it."""
        self._part_with(self.get(unit_id))
        return super().pop(unit_id, *default)

    def update(self, *others: Any, **named: Any) -> None:
        """Add units or replace them."""
        for unit_id, unit in dict(*others, **named).items():
            self[unit_id] = unit

    def clear(self) -> None:
        """Remove all units."""
        for unit in self.values():
            self._part_with(unit)
        super().clear()

    def _part_with(self, unit: _Unit | None) -> None:
        if unit is not None:
            unit.listener = None
            self._index.remove(unit)
