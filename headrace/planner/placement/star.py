"""Placing a plan on workers around the one that reads and writes: both ends are that one.

    main (intake of a table) ─► w1 ─┐
    main (intake of a table) ─► w2 ─┼─► main (sink)
                             └──────┘   and straight on, within the process

Links of a topology lead from the sources up to the sink (``topology.py``), and here both are on
``main``.  So it is there twice: as an intake end for each table and reader, which holds nothing
but that source, and as the end of the sink, where operators have room.  Rows go by one worker, or
straight on, which costs nothing.  With that an operator is on a worker exactly if all tables below
it go there: what ``cuts.py`` says of parts.

Strategies that assign operators on one tree are asked for each way in which the tables may go, and
the best of what they say is taken: *bottom_up* has most operators on workers, *top_down* fewest, of
the others the cheapest wins; ``exact`` looks at all ways itself.
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
from headrace.planner.placement.cost import cost_of
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
"""What it costs to move a byte within a process, beside an ordinary link: all but nothing."""
_WAYS_MAX: Final = 128
"""Ways of all tables that are tried; of more, those in which all tables go the same way."""
_ITERATIONS: Final = 30
"""Of ``ifcop``, for each way."""


@dataclass(frozen=True, slots=True)
class Station:
    """A worker: what it has room for, and what it costs to move a byte there or back."""

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
    """Where each collection of ``plan`` is to be.

    Raises:
        UserError: the plan is too large for ``exact`` (54001).
    """
    star = _Star(plan, main, others, costs)
    found = star.exactly() if strategy is Strategy.EXACT else star.best(strategy, seed)
    if isinstance(found, PlacementFailed):
        return found
    nodes = {
        node.id: main.name if isinstance(node, p.SourceSpec) else found[node.id]
        for node in plan.nodes
    }
    parts = cuts.tops(plan, nodes, main.name)
    crossing = cuts.received(plan, parts, star.sends, main.name)
    weights = {station.name: station.weight for station in others}
    cost = sum(
        sent * weights[low if high == main.name else high] for (low, high), sent in crossing.items()
    )
    return StarPlacement(strategy, nodes, parts, crossing, cost)


class _Star:
    """A plan whose sources have one reader each, and the topology that it is placed on."""

    def __init__(
        self, plan: p.PhysicalPlan, main: Station, others: Sequence[Station], costs: Costs
    ) -> None:
        self._main, self._others = main, others
        apart, origins = _apart(plan)
        self._intakes = {name: f"{main.name} > {name}" for name in origins}
        weights = {other.name: other.weight for other in others}
        links = [TopologyLink(name, main.name, weight) for name, weight in weights.items()]
        for end in self._intakes.values():
            links.append(TopologyLink(end, main.name, _INSIDE))
            links += [TopologyLink(end, name, weight) for name, weight in weights.items()]
        self._topology = Topology(
            (
                TopologyNode(main.name, main.capacity, main.taken),
                *(TopologyNode(o.name, o.capacity, o.taken) for o in others),
                *(TopologyNode(end, 0) for end in self._intakes.values()),
            ),
            tuple(links),
        )
        rates = {name: costs.rates[o] for name, o in origins.items() if o in costs.rates}
        rates |= {name: rate for name, rate in costs.rates.items() if name not in origins.values()}
        # Sources come with who reads them, and the sink is where it is.
        slots = {**costs.slots, **dict.fromkeys(origins, 0), plan.sink.id: 0}
        slots = {name: n for name, n in slots.items() if name in {x.id for x in apart.nodes}}
        expanded = expand(apart, {**self._intakes, plan.sink.id: main.name})
        self._operators = Operators(expanded, Costs(rates, costs.factors, slots))
        self._constants = expanded.constants
        self.sends = {o.name: o.sends for o in self._operators.by_name.values()}
        """Bytes per second of each node of the plan."""
        self.sends |= {origin: self.sends[name] for name, origin in origins.items()}

    def exactly(self) -> dict[str, str] | PlacementFailed:
        """The cheapest of all."""
        found = exact(self._operators, self._topology)
        return found if isinstance(found, PlacementFailed) else self._with_constants(found[1])

    def best(self, strategy: Strategy, seed: int) -> dict[str, str] | PlacementFailed:
        """What a strategy finds on the best of the ways."""
        failed: PlacementFailed | None = None
        tried: list[tuple[tuple[float, float, int], dict[str, str]]] = []
        for number, ways in enumerate(self._ways()):
            found = self._assigned(strategy, ways, seed)
            if isinstance(found, PlacementFailed):
                failed = failed or found
                continue
            cost = cost_of(self._operators, self._topology, ways, found)
            away = sum(at != self._main.name for at in found.values()) - len(self._intakes)
            prefers = {Strategy.BOTTOM_UP: -away, Strategy.TOP_DOWN: away}.get(strategy, 0)
            tried.append(((prefers, cost.total, number), found))
        if not tried:
            assert failed is not None, "there is a way: straight on"
            return failed
        return self._with_constants(min(tried, key=lambda one: one[0])[1])

    def _assigned(
        self, strategy: Strategy, ways: Ways, seed: int
    ) -> dict[str, str] | PlacementFailed:
        operators, topology = self._operators, self._topology
        match strategy:
            case Strategy.BOTTOM_UP:
                return bottom_up(operators, topology, ways)
            case Strategy.TOP_DOWN:
                return top_down(operators, topology, ways)
            case _:
                return ifcop(operators, topology, ways, seed, IfcopOptions(_ITERATIONS))

    def _ways(self) -> Iterator[Ways]:
        """Ways that the tables may go: by the worker with most room first, last straight on."""
        main, ends = self._main.name, list(self._intakes.values())
        by_room = sorted(self._others, key=lambda other: other.taken - other.capacity)
        by = [*(other.name for other in by_room), main]
        choices: Iterator[tuple[str, ...]] = itertools.product(by, repeat=len(ends))
        if len(by) ** len(ends) > _WAYS_MAX:
            choices = ((one,) * len(ends) for one in by)
        for chosen in choices:
            up = {name: main for name in chosen if name != main}
            yield Ways(main, {**dict(zip(ends, chosen, strict=True)), **up})

    def _with_constants(self, found: Mapping[str, str]) -> dict[str, str]:
        """Also where those stand that follow from no table: beside who reads them, or on main."""
        out = dict(found)
        for name, reader in reversed(list(self._constants.items())):
            out[name] = out[reader]
        # One that several read has a copy for each of the others.
        for name in self._constants:
            origin = name.partition("~")[0]
            if out.get(origin) != out[name]:
                out[origin] = self._main.name
        return out


def _apart(plan: p.PhysicalPlan) -> tuple[p.PhysicalPlan, dict[str, str]]:
    """The plan with each source once for each of its readers, and of which each is."""
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
    """The cheapest of several placements; of equal ones the first, which keeps more together."""
    placed = [each for each in found if isinstance(each, StarPlacement)]
    return min(placed, key=lambda each: (each.cost, len(each.parts)), default=None)
