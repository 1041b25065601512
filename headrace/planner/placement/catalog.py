"""The topology as it is now, and what is taken of it: one request after the other (N-43)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from headrace.errors import UndefinedError, UserError
from headrace.planner.placement.place import Placement
from headrace.planner.placement.topology import Topology


class TopologyCatalog:
    """Keeps a topology and the placements of views; any thread may call it.

    Who places something sees the capacities that the one before has left.  What fails changes
    nothing.
    """

    def __init__(self, topology: Topology) -> None:
        """Nothing of ours is placed yet."""
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
        """What is placed, by name."""
        with self._lock:
            return dict(self._placed)

    def place(self, name: str, placing: Callable[[Topology], Placement]) -> Placement:
        """What ``placing`` makes of the topology as it is, and has its slots from now on.

        What has that name already gives its slots back for that, and keeps them if it fails.

        Raises:
            HeadraceError: what ``placing`` raises.
        """
        with self._lock:
            free = self._without(name)
            found = placing(free)
            self._topology = free.taking(found.slots)
            self._placed[name] = found
            return found

    def release(self, name: str) -> None:
        """Its slots are free again.

        Raises:
            UndefinedError: nothing of that name is placed.
        """
        with self._lock:
            if name not in self._placed:
                raise UndefinedError(f'"{name}" is not placed')
            self._topology = self._without(name)
            del self._placed[name]

    def change(self, change: Callable[[Topology], Topology]) -> Topology:
        """Another topology: a node more, a link, a node in maintenance; slots stay as they are.

        Raises:
            HeadraceError: what ``change`` raises.
            UserError: it changed what is taken, or left out a node that is in use.
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
