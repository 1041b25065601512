"""Nodes where an operator may go, given the nodes already assigned, and free slots."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Operators, PlanOperator
from headrace.planner.placement.topology import Topology
from headrace.planner.placement.ways import Ways


class Rooms:
    """Operators that have a node, of one plan on one tree.

    Invariant: an operator is on the way up from all that it reads, directly or not; so there is
    always a way from what it reads, and to its readers.
    """

    def __init__(self, operators: Operators, ways: Ways) -> None:
        """Assign the pinned operators only; ``unreachable`` checks whether that is possible."""
        self._operators = operators
        self._ways = ways
        self.nodes = dict(operators.pinned)

    def unreachable(self) -> PlacementFailed | None:
        """Return a pinned operator that rows of another one do not reach, if there is one."""
        for name, node in self._operators.pinned.items():
            for below in sorted(self._operators.upstream[name] & self._operators.pinned.keys()):
                low = self._operators.pinned[below]
                if low not in self._ways.nodes or not self._ways.reaches(low, node):
                    reason = f'worker "{node}" is not on the way from worker "{low}" to the sink'
                    return PlacementFailed(name, node, reason)
        return None

    def legal(self, name: str) -> tuple[str, ...]:
        """Return the nodes where an unassigned operator may go, from the lowest up; never empty.

        The lowest is where all its inputs meet (N-19, R-4), the highest is the node of the lowest
        of its assigned readers.
        """
        below = [self.nodes[n] for n in self._operators.upstream[name] if n in self.nodes]
        above = [self.nodes[n] for n in self._operators.downstream[name] if n in self.nodes]
        low = self._ways.meeting(below)
        high = max(above, key=lambda node: len(self._ways.up(node)))
        return self._ways.between(low, high)

    def put(self, name: str, node: str) -> None:
        """Have an operator there."""
        self.nodes[name] = node


class Slots:
    """Free slots while a plan is placed; with ``reserve`` those of pinned operators are set aside.

    Without ``reserve`` slots are first come, first served: a pinned operator may find none (R-7).
    """

    def __init__(self, operators: Operators, topology: Topology, reserve: bool) -> None:
        self.free = topology.free
        """Of each node."""
        self._reserve = reserve
        self._operators = operators

    def reserved(self) -> PlacementFailed | None:
        """Reserve the slots of pinned operators, and return the first failure."""
        if self._reserve:
            for name in self._operators.pinned:
                if failed := self._take_pinned(self._operators.by_name[name]):
                    return failed
        return None

    def pinned(self, operator: PlanOperator) -> PlacementFailed | None:
        """Take the slots of a pinned operator, whose turn it is (N-13, N-20)."""
        return None if self._reserve else self._take_pinned(operator)

    def first(self, operator: PlanOperator, nodes: Iterable[str]) -> str | PlacementFailed:
        """Take slots on the first of ``nodes`` with room (N-3, N-15, N-16), and return it."""
        tried = []
        for node in nodes:
            if self.free[node] >= operator.slots:
                self.free[node] -= operator.slots
                return node
            tried.append(node)
        names = ", ".join(f'"{node}"' for node in tried)
        reason = f"there is no room for it (slots: {operator.slots}) on {names}"
        return PlacementFailed(operator.name, tried[-1], reason)

    def _take_pinned(self, operator: PlanOperator) -> PlacementFailed | None:
        node = operator.pin
        assert node is not None, "it is pinned"
        if self.free[node] < operator.slots:
            reason = (
                f'it is pinned, and worker "{node}" has no room for it (slots: {operator.slots})'
            )
            return PlacementFailed(operator.name, node, reason)
        self.free[node] -= operator.slots
        return None
