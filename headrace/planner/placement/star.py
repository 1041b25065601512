"""Placement on workers around ``main``, which both reads the tables and writes the result.

    main (intake of a table) ─► w1 ─┐
    main (intake of a table) ─► w2 ─┼─► main (sink)
                             └──────┘   and directly, within the process

Links of a topology lead from the sources up to the sink (``topology.py``), and here both are on
``main``.  So ``main`` appears twice: as an intake end for each table and reader, which runs only
that source, and as the end of the sink, where operators have room.  Rows go through one worker, or
directly, which costs nothing.  So an operator is on a worker exactly if all tables below it go
there, which is the rule that ``cuts.py`` has for parts.

Strategies that assign operators on one tree run for each assignment of tables to ways, and the best
result is taken.  For *bottom_up* that has most operators on workers, for *top_down* fewest, for
``ifcop`` the lowest cost.  ``exact`` searches all ways from the intake ends itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from headrace.collections import plan as p
from headrace.collections.subplans import over
from headrace.errors import UserError
from headrace.planner.placement import cuts
from headrace.planner.placement.bottom_up import bottom_up
from headrace.planner.placement.exact import exact
from headrace.planner.placement.expansion import expand
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.ifcop import IfcopOptions, ifcop
from headrace.planner.placement.operators import Costs, Operators
from headrace.planner.placement.place import Strategy
from headrace.planner.placement.top_down import top_down
from headrace.planner.placement.topology import Topology, TopologyLink, TopologyNode
from headrace.planner.placement.ways import Ways

_INSIDE: Final = 1e-9
"""Cost of moving a byte within a process, relative to an ordinary link: almost nothing."""
_WAYS_MAX: Final = 128
"""Ways of all tables that are tried; of more, those in which all tables go the same way."""


@dataclass(frozen=True, slots=True)
class Station:
    """A worker: its room, and the cost of moving a byte there or back."""

    name: str
    capacity: int
    """In collections."""
    taken: int = 0
    weight: float = 1.0
    """Beside an ordinary link; of that of ``main`` nothing is said."""


@dataclass(frozen=True, slots=True)
class StarPlacement:
    """Where the collections of a plan are to be."""

    strategy: Strategy
    nodes: Mapping[str, str]
    """The worker of each; a source is where its rows come from."""
    parts: Mapping[str, str]
    """See ``cuts``."""
    crossing: Mapping[tuple[str, str], float]
    """Bytes per second over each link that is used: from, to."""
    cost: float
    """The same, weighed, of all links together."""


def place_star(
    plan: p.PhysicalPlan,
    main: Station,
    others: Sequence[Station],
    strategy: Strategy,
    costs: Costs,
    seed: int = 0,
) -> StarPlacement | PlacementFailed:
    """Return the worker of each collection of ``plan``.

    Raises:
        UserError: the plan is too large for ``exact`` (54001).
    """
    star = _Star(plan, main, others, costs)
    return star.exactly() if strategy is Strategy.EXACT else star.best(strategy, seed)


class _Star:
    """A plan whose sources have one reader each, and the workers that it is placed on."""

    def __init__(
        self, plan: p.PhysicalPlan, main: Station, others: Sequence[Station], costs: Costs
    ) -> None:
        self._plan, self._main, self._others = plan, main, others
        self._apart, self._origins = _apart(plan)
        origins, known = self._origins, {node.id for node in self._apart.nodes}
        rates = {name: costs.rates[o] for name, o in origins.items() if o in costs.rates}
        rates |= {name: rate for name, rate in costs.rates.items() if name in known}
        # Sources come with who reads them, and the sink is where it is.
        slots = {name: count for name, count in costs.slots.items() if name in known}
        slots |= {**dict.fromkeys(origins, 0), plan.sink.id: 0}
        self._costs = Costs(rates, costs.factors, slots)

    def exactly(self) -> StarPlacement | PlacementFailed:
        """Return the cheapest placement on all ways from the intake ends."""
        main, ends = self._main, {name: f"{self._main.name} > {name}" for name in self._origins}
        links = [TopologyLink(other.name, main.name, other.weight) for other in self._others]
        for end in ends.values():
            links.append(TopologyLink(end, main.name, _INSIDE))
            links += [TopologyLink(end, other.name, other.weight) for other in self._others]
        nodes = (*self._nodes(), *(TopologyNode(end, 0) for end in ends.values()))
        operators = self._operators(ends)
        found = exact(operators, Topology(nodes, tuple(links)))
        if isinstance(found, PlacementFailed):
            return found
        return self._placed(Strategy.EXACT, operators, found[1])

    def best(self, strategy: Strategy, seed: int) -> StarPlacement | PlacementFailed:
        """Return the result of a strategy on the best of the ways."""
        main = self._main.name
        links = tuple(TopologyLink(other.name, main, other.weight) for other in self._others)
        topology = Topology(self._nodes(), links)
        failed: PlacementFailed | None = None
        tried: list[tuple[tuple[float, float, int], StarPlacement]] = []
        for number, by in enumerate(self._ways()):
            operators = self._operators(dict(zip(self._origins, by, strict=True)))
            ways = Ways(main, {worker: main for worker in by if worker != main})
            assigned = _assigned(strategy, operators, topology, ways, seed)
            if isinstance(assigned, PlacementFailed):
                failed = failed or assigned
                continue
            found = self._placed(strategy, operators, assigned)
            away = sum(at != main for at in found.nodes.values())
            prefers = {Strategy.BOTTOM_UP: -away, Strategy.TOP_DOWN: away}.get(strategy, 0)
            tried.append(((prefers, found.cost, number), found))
        if tried:
            return min(tried, key=lambda one: one[0])[1]
        assert failed is not None, "there is a way: straight on"
        return failed

    def _nodes(self) -> tuple[TopologyNode, ...]:
        stations = (self._main, *self._others)
        return tuple(TopologyNode(s.name, s.capacity, s.taken) for s in stations)

    def _operators(self, sources: Mapping[str, str]) -> Operators:
        """Return all operators, with each source pinned as ``sources`` says."""
        expanded = expand(self._apart, {**sources, self._plan.sink.id: self._main.name})
        return Operators(expanded, self._costs)

    def _ways(self) -> Iterator[tuple[str, ...]]:
        """Return ways for the tables: by the worker with most room first, directly last."""
        by_room = sorted(self._others, key=lambda other: other.taken - other.capacity)
        by = [*(other.name for other in by_room), self._main.name]
        count = len(self._origins)
        if len(by) ** count > _WAYS_MAX:
            return iter([(one,) * count for one in by])
        return itertools.product(by, repeat=count)

    def _placed(
        self, strategy: Strategy, operators: Operators, found: Mapping[str, str]
    ) -> StarPlacement:
        main = self._main.name
        everywhere = _with_constants(operators, found, main)
        nodes = {
            node.id: main if isinstance(node, p.SourceSpec) else everywhere[node.id]
            for node in self._plan.nodes
        }
        sends = {o.name: o.sends for o in operators.by_name.values()}
        sends |= {origin: sends[name] for name, origin in self._origins.items()}
        parts = cuts.tops(self._plan, nodes, main)
        crossing = cuts.received(self._plan, parts, sends, main)
        weights = {other.name: other.weight for other in self._others}
        cost = sum(
            sent * weights[low if high == main else high] for (low, high), sent in crossing.items()
        )
        return StarPlacement(strategy, nodes, parts, crossing, cost)


def _assigned(
    strategy: Strategy, operators: Operators, topology: Topology, ways: Ways, seed: int
) -> dict[str, str] | PlacementFailed:
    match strategy:
        case Strategy.BOTTOM_UP:
            return bottom_up(operators, topology, ways)
        case Strategy.TOP_DOWN:
            return top_down(operators, topology, ways)
        case _:
            return ifcop(operators, topology, ways, seed, IfcopOptions())


def _with_constants(operators: Operators, found: Mapping[str, str], main: str) -> dict[str, str]:
    """Add the nodes of constants: each is on its reader's node, or on ``main``."""
    out, constants = dict(found), operators.expanded.constants
    for name, reader in reversed(list(constants.items())):
        out[name] = out[reader]
    # A constant with several readers has a copy for each further one.
    for name in constants:
        origin = name.partition("~")[0]
        if out.get(origin) != out[name]:
            out[origin] = main
    return out


def _apart(plan: p.PhysicalPlan) -> tuple[p.PhysicalPlan, dict[str, str]]:
    """Return the plan with a copy of each source for each reader, and the original of each copy."""
    nodes: list[p.Node] = []
    origins: dict[str, str] = {}
    sources = {source.id: source for source in plan.sources}
    for node in plan.nodes:
        if node.id in sources:
            continue
        names: dict[str, str] = {}
        for name in dict.fromkeys(p.inputs(node)):
            if name in sources:
                names[name] = f"{name} > {node.id}"
                origins[names[name]] = name
                nodes.append(replace(sources[name], id=names[name]))
        nodes.append(over(node, names))
    return p.PhysicalPlan(tuple(nodes), plan.version), origins


def cheapest(found: Sequence[StarPlacement | PlacementFailed | UserError]) -> StarPlacement | None:
    """Return the cheapest of several placements; of equal ones the first with the fewest parts."""
    placed = [each for each in found if isinstance(each, StarPlacement)]
    return min(placed, key=lambda each: (each.cost, len(each.parts)), default=None)
