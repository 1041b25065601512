"""Exact solver (N-42): of all placements on all ways the one that moves the least data.

    least Σ sends(operator) · (weights of the links up to the highest of its readers)

Each operator gets one node, pins are respected, and no node exceeds its slots.  The search is
branch and bound from the sink down.  The lower bound of the remaining operators is their optimum
without slots; equal states are not searched twice.  The solver is for small plans and as a
reference for other strategies: it raises an error rather than return an approximation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import UserError
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
"""Relative tolerance for the comparison of sums of floats."""


def exact(
    operators: Operators, topology: Topology
) -> tuple[Ways, dict[str, str]] | PlacementFailed:
    """Return the node of each operator, and the ways that data takes.

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
    """Yield every tree in which all sources lead to the sink."""
    sink = operators.pinned[operators.sink.name]
    starts = tuple(operators.pinned[name] for name in operators.sources)
    begun: list[tuple[dict[str, str], tuple[str, ...]]] = [({}, starts)]
    while begun:
        parents, (*left,) = begun.pop()
        while left and (left[-1] == sink or left[-1] in parents):
            left.pop()
        if not left:
            yield Ways(sink, parents)
            continue
        low = left.pop()
        ups = [up for up in topology.parents[low] if sink in topology.above[up]]
        begun += [(parents | {low: up}, (*left, up)) for up in reversed(ups)]


@dataclass(slots=True)
class _Branches:
    """The search on one tree."""

    operators: Operators
    topology: Topology
    ways: Ways
    free: dict[str, int]
    """Without what pinned operators need."""
    least: float
    """Upper bound: the cost of the best placement found."""
    steps: int
    best: dict[str, str] | None = None
    nodes: dict[str, str] = field(default_factory=dict)
    _order: list[PlanOperator] = field(init=False)
    _bounds: dict[str, dict[str, float]] = field(init=False)
    _low: dict[str, str] = field(init=False)
    _lead: dict[str, list[str]] = field(init=False)
    """Of each operator the inputs that it is the first reader of: it has its node last of them."""
    _open: list[list[str]] = field(init=False)
    """By number: earlier operators that have a reader at or after that number."""
    _wanted: list[int] = field(init=False)
    """By number: slots that it and those after it take."""
    _spent: dict[tuple[int, tuple[str, ...], tuple[int, ...]], float] = field(default_factory=dict)
    _known: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Compute the data that all branches share."""
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
        places = {operator.name: place for place, operator in enumerate(self._order)}
        lowest = {
            o.name: max((places[i] for i in o.inputs), default=places[o.name]) for o in self._order
        }
        self._open = [
            [o.name for o in self._order[:number] if lowest[o.name] >= number]
            for number in range(len(self._order))
        ]
        loose = [0 if o.pin else o.slots for o in self._order]
        self._wanted = [sum(loose[number:]) for number in range(len(loose))]
        self._bounds = {}
        for operator in self.operators.by_name.values():
            self._bounds[operator.name] = self._bounds_of(operator)

    def _between(self, operator: PlanOperator, high: str) -> tuple[str, ...]:
        """Return the nodes an operator may be on, if ``high`` is the node of its lowest reader."""
        way = self.ways.between(self._low[operator.name], high)
        return way if operator.pin is None else way[:1]

    def _bounds_of(self, operator: PlanOperator) -> dict[str, float]:
        """Return lower bounds by the first reader's node, for it and inputs it reads first."""
        return {
            high: self._cheapest(operator, high, high)
            for high in self.ways.up(self._low[operator.name])
        }

    def _cheapest(self, operator: PlanOperator, first: str, high: str) -> float:
        """Return that bound for its lowest reader on ``first`` and its highest on ``high``."""
        return min(
            self._counted(operator, node, high)
            + sum(self._bounds[name][node] for name in self._lead[operator.name])
            for node in self._between(operator, first)
        )

    def _counted(self, operator: PlanOperator, node: str, high: str) -> float:
        """Return the cost of an operator on ``node``: its output, and shares of its pinned inputs.

        The node of a pinned input is known, so each of its readers accounts for a share of its
        cost.
        """
        own = 0.0 if operator.pin else self._cost(operator, node, high)
        return own + sum(self._part(name, node) for name in operator.inputs)

    def _part(self, name: str, node: str) -> float:
        """Return a reader's share of an output's cost; the sum is at most the cost."""
        sender = self.operators.by_name[name]
        if sender.pin is None:
            return 0.0
        return self._cost(sender, sender.pin, node) / len(self.operators.readers[name])

    def _cost(self, operator: PlanOperator, node: str, high: str) -> float:
        return operator.sends * self.ways.distance(self.topology, node, high)

    def _read_at(self, operator: PlanOperator) -> tuple[str, str]:
        """Return the lowest and highest nodes of its readers, which are already placed."""
        readers = {self.nodes[name] for name in self.operators.readers[operator.name]}
        ranked = sorted(readers, key=lambda node: len(self.ways.up(node)))
        return ranked[-1], ranked[0]

    def _least_of(self, operator: PlanOperator) -> float:
        """Return the lower bound for an operator with placed readers, and inputs it reads first."""
        first, high = self._read_at(operator)
        known = self._known.get((operator.name, first, high))
        if known is None:
            known = self._cheapest(operator, first, high)
            self._known[operator.name, first, high] = known
        return known

    def _was_here(self, number: int, spent: float) -> bool:
        """Return whether the remaining operators were tried before, after spending no more.

        The state consists of the nodes of their readers, and of the free slots as far as they can
        be used.
        """
        wanted = self._wanted[number]
        state = (
            number,
            tuple(self.nodes[name] for name in self._open[number]),
            tuple(min(free, wanted) for free in self.free.values()),
        )
        before = self._spent.get(state)
        if before is not None and before <= spent:
            return True
        self._spent[state] = spent
        return False

    def run(self) -> None:
        """Find the best placement that is cheaper than ``least``."""
        sink = self.operators.sink
        node = self.operators.pinned[sink.name]
        if sum(o.slots for o in self._order if o.pin is None) <= sum(self.free.values()):
            self.nodes[sink.name] = node
            lead = [self.operators.by_name[name] for name in self._lead[sink.name]]
            spent = self._counted(sink, node, node)
            self._branch(1, spent, sum(map(self._least_of, lead)))

    def _branch(self, number: int, spent: float, bound: float) -> None:
        """Try all nodes for the operator of that number; those before have theirs.

        ``bound``: the least cost of all that have none.
        """
        if number == len(self._order):
            self.least, self.best = spent, dict(self.nodes)
            return
        if self._was_here(number, spent):
            return
        operator = self._order[number]
        first, high = self._read_at(operator)
        bound -= self._least_of(operator)
        tried = []
        for node in self._between(operator, first):
            self.nodes[operator.name] = node
            cost = self._counted(operator, node, high)
            below = sum(
                self._least_of(self.operators.by_name[n]) for n in self._lead[operator.name]
            )
            if operator.pin is not None:
                cost += self._cost(operator, node, high) - sum(
                    self._part(operator.name, self.nodes[name])
                    for name in self.operators.readers[operator.name]
                )
            tried.append((cost + below, cost, node))
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
