"""Small plans and topologies, written as short texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headrace.collections import plan as p
from headrace.planner.placement.bottom_up import bottom_up
from headrace.planner.placement.expansion import Pins, expand
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Costs, Operators
from headrace.planner.placement.paths import SelectedPaths, select_paths
from headrace.planner.placement.place import Placement, Strategy, try_to_place
from headrace.planner.placement.top_down import top_down
from headrace.planner.placement.topology import Topology, TopologyLink, TopologyNode
from headrace.types import INT4, Field

SCHEMA = (Field("id", INT4),)
GREEDY = {Strategy.BOTTOM_UP: bottom_up, Strategy.TOP_DOWN: top_down}


def made_of(name: str, *inputs: str) -> p.Node:
    """Return a table, filter or join of that id, or an ``agg``, ``union`` or ``values`` node."""
    if name.startswith("values"):
        return p.ValuesSpec(name, (("1",),), SCHEMA)
    if not inputs:
        return p.SourceSpec(name, 1, "public", name, (), (), full_identity=True, schema=SCHEMA)
    if name.startswith("agg"):
        return p.ReduceSpec(name, inputs[0], (0,), (), SCHEMA)
    if name.startswith("union") or len(inputs) > 2:
        return p.UnionSpec(name, inputs, SCHEMA)
    if len(inputs) == 2:
        return p.JoinSpec(name, *inputs, (0,), (0,), schema=SCHEMA)
    return p.FilterSpec(name, inputs[0], (), SCHEMA)


def plan(text: str) -> p.PhysicalPlan:
    """Parse a plan such as ``A B f:A j:f,B``; a sink called ``Sink`` is over its last node."""
    nodes: list[p.Node] = []
    for word in text.split():
        name, _, inputs = word.partition(":")
        nodes.append(made_of(name, *filter(None, inputs.split(","))))
    return p.PhysicalPlan((*nodes, p.SinkSpec("Sink", nodes[-1].id, SCHEMA)))


def altered(where: Topology, name: str, **values: Any) -> Topology:
    """Return the topology with these values of a node."""
    nodes = tuple(replace(n, **values) if n.name == name else n for n in where.nodes)
    return replace(where, nodes=nodes)


def topology(
    capacities: Mapping[str, int] | Iterable[str], links: str, *, maintenance: Iterable[str] = ()
) -> Topology:
    """Return nodes with their slots (99 if none are given), and links as in ``1,2>0 7>4,5``."""
    slots = capacities if isinstance(capacities, Mapping) else dict.fromkeys(capacities, 99)
    gone = set(maintenance)
    nodes = tuple(TopologyNode(n, c, maintenance=n in gone) for n, c in slots.items())
    ends = (word.split(">") for word in links.split())
    joined = tuple(
        TopologyLink(low, high)
        for lows, highs in ends
        for low in lows.split(",")
        for high in highs.split(",")
    )
    return Topology(nodes, joined)


def operators(query: p.PhysicalPlan, pins: Pins, costs: Costs | None = None) -> Operators:
    return Operators(expand(query, pins), costs or Costs())


def selected(
    where: Topology, sources: Mapping[str, Iterable[str]], sink: str
) -> SelectedPaths | PlacementFailed:
    """Select paths for logical sources whose physical ones are on those nodes."""
    names = {(s, n): f"{s}_{n}" for s, nodes in sources.items() for n in nodes}
    query = plan(" ".join([*names.values(), f"union:{','.join(names.values())}"]))
    known = operators(query, {name: n for (_, n), name in names.items()} | {"Sink": sink})
    physical = {s: tuple(names[s, n] for n in nodes) for s, nodes in sources.items()}
    object.__setattr__(known.expanded, "physical", physical)
    return select_paths(known, where)


def assigned(
    strategy: Strategy, query: p.PhysicalPlan, where: Topology, pins: Pins, *, reserve: bool
) -> dict[str, str] | PlacementFailed:
    """Return the result of one greedy strategy, in the literal order or with reservation (R-7)."""
    known = operators(query, pins)
    paths = select_paths(known, where)
    assert isinstance(paths, SelectedPaths)
    return GREEDY[strategy](known, where, paths.ways, reserve=reserve)


def placed(
    strategy: Strategy,
    query: p.PhysicalPlan,
    where: Topology,
    pins: Pins,
    costs: Costs | None = None,
    seed: int = 0,
) -> Placement:
    found = try_to_place(query, where, strategy, costs or Costs(), pins, seed)
    assert isinstance(found, Placement), found
    return found


def hops(found: Placement) -> int:
    return sum(len(part.sends) for part in found.parts.values())
