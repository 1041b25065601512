"""Entry point of placement: assigns the operators of a plan to nodes of a topology by a strategy.

    expand ─► select paths ─► assign operators ─► insert network sinks and sources   (N-1, N-4)

The result depends on the arguments alone, the seed included: nothing else is read or measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.collections.plan import PhysicalPlan
from headrace.errors import UserError
from headrace.planner.placement.bottom_up import bottom_up
from headrace.planner.placement.cost import PlacementCost, cost_of, crossing, load
from headrace.planner.placement.exact import exact
from headrace.planner.placement.expansion import Pins, expand
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.ifcop import IfcopOptions, ifcop
from headrace.planner.placement.network import NodePart, parts
from headrace.planner.placement.operators import Costs, Operators
from headrace.planner.placement.paths import SelectedPaths, select_paths
from headrace.planner.placement.top_down import top_down
from headrace.planner.placement.topology import Topology
from headrace.planner.placement.ways import Ways

_SMALL: Final = 8
"""Operators of a plan for which a failure says whether there is a placement at all."""


class Strategy(StrEnum):
    """Strategy that assigns operators to nodes."""

    BOTTOM_UP = "bottom_up"
    TOP_DOWN = "top_down"
    IFCOP = "ifcop"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the operators of a plan run."""

    strategy: Strategy
    plan: PhysicalPlan
    """As it runs: with a chain per physical source."""
    operators: Operators
    nodes: Mapping[str, str]
    """The node of each operator of ``plan``."""
    ways: Ways
    """The way up that data takes from each node."""
    parts: Mapping[str, NodePart]
    """The part of each node that has one, relays included."""
    slots: Mapping[str, int]
    """Slots taken of each node."""
    crossing: Mapping[tuple[str, str], float]
    """Bytes per second over each link that is used."""
    cost: PlacementCost
    paths: SelectedPaths
    """How the ways were found; ``exact`` looks at all ways itself."""


def place(
    plan: PhysicalPlan,
    topology: Topology,
    strategy: Strategy,
    costs: Costs,
    pins: Pins,
    seed: int = 0,
    options: IfcopOptions = IfcopOptions(),  # noqa: B008  frozen
) -> Placement:
    """Place each operator of ``plan`` on a node; ``pins`` has the sources and the sink at least.

    Raises:
        UserError: there is no placement, or the strategy finds none (55000; the detail says which,
            and why); the plan is too large for ``exact`` (54001); or an argument is invalid.
        UnsupportedError: a source is in several databases that may have a key twice.
    """
    found = try_to_place(plan, topology, strategy, costs, pins, seed, options)
    if isinstance(found, Placement):
        return found
    other = _other(plan, topology, strategy, costs, pins)
    raise UserError(
        f'operator "{found.operator}" cannot be placed',
        detail=f"Strategy {strategy}: {found.reason}.{other}",
        hint="Add capacity, or a worker, or choose another strategy.",
        sqlstate="55000",
    )


def try_to_place(
    plan: PhysicalPlan,
    topology: Topology,
    strategy: Strategy,
    costs: Costs,
    pins: Pins,
    seed: int = 0,
    options: IfcopOptions = IfcopOptions(),  # noqa: B008  frozen
) -> Placement | PlacementFailed:
    """Place a plan like ``place``, but return the failure if there is no placement.

    Raises:
        UserError: an argument is invalid, or too large for ``exact`` (54001).
        UnsupportedError: a source is in several databases that may have a key twice.
    """
    expanded = expand(plan, pins)
    for node in expanded.pins.values():
        topology.node(node)
    operators = Operators(expanded, costs)
    paths = select_paths(operators, topology)
    if isinstance(paths, PlacementFailed):
        return paths
    ways = paths.ways
    found: dict[str, str] | PlacementFailed
    match strategy:
        case Strategy.BOTTOM_UP:
            found = bottom_up(operators, topology, ways)
        case Strategy.TOP_DOWN:
            found = top_down(operators, topology, ways)
        case Strategy.IFCOP:
            found = ifcop(operators, topology, ways, seed, options)
        case Strategy.EXACT:
            solved = exact(operators, topology)
            if isinstance(solved, PlacementFailed):
                return solved
            ways, found = solved
    if isinstance(found, PlacementFailed):
        return found
    nodes = found | {name: found[who] for name, who in expanded.constants.items()}
    return Placement(
        strategy,
        expanded.plan,
        operators,
        {node.id: nodes[node.id] for node in expanded.plan.nodes},
        ways,
        parts(operators, ways, nodes),
        {name: slots for name, slots in load(operators, found).items() if slots},
        crossing(operators, ways, found),
        cost_of(operators, topology, ways, found, options.weights),
        paths,
    )


def _other(
    plan: PhysicalPlan, topology: Topology, strategy: Strategy, costs: Costs, pins: Pins
) -> str:
    """Return the answer of the exact strategy after a failure, if the plan is small."""
    if strategy is Strategy.EXACT or len(plan.nodes) > _SMALL:
        return ""
    try:
        found = try_to_place(plan, topology, Strategy.EXACT, costs, pins)
    except UserError:
        return ""
    if isinstance(found, PlacementFailed):
        return " There is no placement at all."
    where = ", ".join(f"{name} on {node}" for name, node in found.nodes.items())
    return f" There is one of network cost {found.cost.network:g}, which exact finds: {where}."
