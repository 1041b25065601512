"""The current topology and the slots taken of it; requests are serialised (N-43)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from headrace.errors import UndefinedError, UserError
from headrace.planner.placement.place import Placement
from headrace.planner.placement.topology import Topology


class TopologyCatalog:
    """A topology and the placements of views; any thread may call it.

    Each placement sees the capacities that the previous one has left.  A failed call changes
    nothing.
    """

    def __init__(self, topology: Topology) -> None:
        self._lock = threading.Lock()
        self._topology = topology
        self._placed: dict[str, Placement] = {}

    @property
    def topology(self) -> Topology:
        """As it is now."""
        with self._lock:
            return self._topology

    @property
    def placed(self) -> Mapping[str, Placement]:
        """Placements by name."""
        with self._lock:
            return dict(self._placed)

    def place(self, name: str, placing: Callable[[Topology], Placement]) -> Placement:
        """Place by ``placing`` on the current topology, store the result and take its slots.

        An existing placement of that name frees its slots for the new one, and keeps them on
        failure.

        Raises:
            HeadraceError: ``placing`` raises it.
        """
        with self._lock:
            free = self._without(name)
            found = placing(free)
            self._topology = free.taking(found.slots)
            self._placed[name] = found
            return found

    def release(self, name: str) -> None:
        """Free the slots of a placement.

        Raises:
            UndefinedError: nothing of that name is placed.
        """
        with self._lock:
            if name not in self._placed:
                raise UndefinedError(f'"{name}" is not placed')
            self._topology = self._without(name)
            del self._placed[name]

    def change(self, change: Callable[[Topology], Topology]) -> Topology:
        """Replace the topology, as for a new node, a link or maintenance; slots stay as they are.

        Raises:
            HeadraceError: ``change`` raises it.
            UserError: ``change`` modified the taken slots, or left out a node that is in use.
        """
        with self._lock:
            changed = change(self._topology)
            before = {n.name: n.taken for n in self._topology.nodes if n.taken}
            if before != {n.name: n.taken for n in changed.nodes if n.taken}:
                raise UserError("slots of a topology are taken by placing alone")
            self._topology = changed
            return changed

    def _without(self, name: str) -> Topology:
        old = self._placed.get(name)
        if old is None:
            return self._topology
        return self._topology.taking({node: -slots for node, slots in old.slots.items()})
