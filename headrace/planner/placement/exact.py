"""The exact solver (N-42): of all placements on all ways the one that moves the least data.

    least Σ sends(operator) · (weights of the links up to the highest of its readers)

with one node per operator, pins as they are, and slots for all.  Branch and bound from the sink
down; what is left is bounded by its optimum without slots, as a tree.  For small plans: it is what
other strategies are measured by, and it gives up rather than answer with less than the least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import UserError
from headrace.planner.placement.cost import highest_reader
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Operators, PlanOperator
from headrace.planner.placement.rooms import Rooms, Slots
from headrace.planner.placement.topology import Topology
from headrace.planner.placement.ways import Ways

_STEPS_MAX: Final = 200_000
"""Operators tried on a node, on all ways together."""
_WAYS_MAX: Final = 1_000
"""Trees that a topology may hold, before it is too large."""
_OPERATORS_MAX: Final = 200
_SAME: Final = 1e-12
"""What sums of floats may differ by, in relation to themselves."""


def exact(
    operators: Operators, topology: Topology
) -> tuple[Ways, dict[str, str]] | PlacementFailed:
    """The node of each operator, and the ways that data takes.

    Raises:
        UserError: the plan or the topology is too large for it (54001).
    """
    if len(operators.by_name) > _OPERATORS_MAX:
        raise _too_large()
    found: tuple[Ways, dict[str, str]] | None = None
    failed: PlacementFailed | None = None
    least, steps = math.inf, 0
    for number, ways in enumerate(_all_ways(operators, topology)):
        if number >= _WAYS_MAX:
            raise _too_large()
        slots = Slots(operators, topology, reserve=True)
        why = Rooms(operators, ways).unreachable() or slots.reserved()
        if why is not None:
            failed = failed or why
            continue
        branches = _Branches(operators, topology, ways, slots.free, least, steps)
        branches.run()
        steps = branches.steps
        if branches.best is not None:
            found, least = (ways, branches.best), branches.least
    if found is not None:
        return found
    sink = operators.sink
    return failed or PlacementFailed(
        sink.name, operators.pinned[sink.name], "no placement has slots for all operators"
    )


def _too_large() -> UserError:
    return UserError(
        "plan or topology is too large for the exact strategy",
        sqlstate="54001",
        hint="Choose another strategy.",
    )


def _all_ways(operators: Operators, topology: Topology) -> Iterator[Ways]:
    """Every tree in which all sources lead to the sink."""
    sink = operators.pinned[operators.sink.name]

    def grown(parents: dict[str, str], node: str, left: tuple[str, ...]) -> Iterator[Ways]:
        while node == sink or node in parents:
            if not left:
                yield Ways(sink, parents)
                return
            node, left = left[0], left[1:]
        for parent in topology.parents[node]:
            if sink in topology.above[parent]:
                yield from grown(parents | {node: parent}, parent, left)

    return grown({}, sink, tuple(operators.pinned[s] for s in operators.sources))


@dataclass(slots=True)
class _Branches:
    """The search on one tree."""

    operators: Operators
    topology: Topology
    ways: Ways
    free: dict[str, int]
    """Without what pinned operators need."""
    least: float
    """What a placement must be cheaper than; of the best one found, its cost."""
    steps: int
    best: dict[str, str] | None = None
    nodes: dict[str, str] = field(default_factory=dict)
    _order: list[PlanOperator] = field(init=False)
    _bounds: dict[str, dict[str, float]] = field(init=False)
    _low: dict[str, str] = field(init=False)
    _lead: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        """What is the same for all branches."""
        pinned, upstream = self.operators.pinned, self.operators.upstream
        self._order = list(reversed(self.operators.by_name.values()))
        self._low = {
            o.name: o.pin or self.ways.meeting(pinned[n] for n in pinned if n in upstream[o.name])
            for o in self._order
        }
        self._lead = {
            name: [i for i in o.inputs if self.operators.readers[i][0] == name]
            for name, o in self.operators.by_name.items()
        }
        self._bounds = {}
        for operator in self.operators.by_name.values():
            self._bounds[operator.name] = self._bounds_of(operator)

    def _bounds_of(self, operator: PlanOperator) -> dict[str, float]:
        """By the node of its first reader: the least cost of it, and of what it is the first of."""
        found: dict[str, float] = {}
        for high in self.ways.up(self._low[operator.name]):
            here = self.ways.between(self._low[operator.name], high)
            found[high] = min(
                operator.sends * self.ways.distance(self.topology, node, high)
                + self._below(operator, node)
                for node in (here if operator.pin is None else here[:1])
            )
        return found

    def _below(self, operator: PlanOperator, node: str) -> float:
        return sum(self._bounds[name][node] for name in self._lead[operator.name])

    def run(self) -> None:
        """Find the best placement that is cheaper than ``least``."""
        sink = self.operators.sink
        node = self.operators.pinned[sink.name]
        if sum(o.slots for o in self._order if o.pin is None) <= sum(self.free.values()):
            self.nodes[sink.name] = node
            self._branch(1, 0.0, self._below(sink, node))

    def _branch(self, number: int, spent: float, bound: float) -> None:
        """Try all nodes for the operator of that number; those before have theirs.

        ``bound``: the least cost of all that have none.
        """
        if number == len(self._order):
            self.least, self.best = spent, dict(self.nodes)
            return
        operator = self._order[number]
        readers = [self.nodes[name] for name in self.operators.readers[operator.name]]
        first = max(readers, key=lambda node: len(self.ways.up(node)))
        low = self._low[operator.name]
        bound -= self._bounds[operator.name][readers[0]]
        tried = []
        for node in self.ways.between(low, first) if operator.pin is None else (low,):
            self.nodes[operator.name] = node
            high = highest_reader(self.operators, self.ways, self.nodes, operator.name)
            cost = operator.sends * self.ways.distance(self.topology, node, high)
            tried.append((cost + self._below(operator, node), cost, node))
        for below, cost, node in sorted(tried, key=lambda t: t[0]):
            if (spent + bound + below) * (1 + _SAME) >= self.least:
                break
            slots = operator.slots if operator.pin is None else 0
            if self.free[node] < slots:
                continue
            self.steps += 1
            if self.steps > _STEPS_MAX:
                raise _too_large()
            self.free[node] -= slots
            self.nodes[operator.name] = node
            self._branch(number + 1, spent + cost, bound + below - cost)
            self.free[node] += slots
        del self.nodes[operator.name]
