"""Signatures of the nodes of units, and an index of the units that have a node with a signature."""

from __future__ import annotations

from typing import Final

from headrace.collections import subplans
from headrace.collections.plan import PhysicalPlan
from headrace.runtime.views import Unit


class Signatures:
    """The signatures of one engine's units; one thread at a time uses it."""

    def __init__(self) -> None:
        self._signed: Final[dict[int, tuple[PhysicalPlan, dict[str, str]]]] = {}
        self._holders: Final[dict[str, set[int]]] = {}

    def of(self, unit: Unit) -> dict[str, str]:
        """Return the signatures of a unit's nodes that may be shared, by node."""
        known = self._signed.get(unit.id)
        if known is None or known[0] is not unit.plan:
            self.forget(unit.id)
            known = (unit.plan, subplans.signatures(unit.plan, unit.settings))
            self._signed[unit.id] = known
            for signature in known[1].values():
                self._holders.setdefault(signature, set()).add(unit.id)
        return known[1]

    def holders(self, signature: str) -> set[int]:
        """Return the units that have a node with that signature, shared or not."""
        return set(self._holders.get(signature, ()))

    def forget(self, unit_id: int) -> None:
        """Forget the signatures of a unit."""
        _, signed = self._signed.pop(unit_id, (None, {}))
        for signature in set(signed.values()):
            holders = self._holders[signature]
            holders.discard(unit_id)
            if not holders:
                del self._holders[signature]
