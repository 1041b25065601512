"""Costs of a placement (N-31 … N-33, R-2, R-3): data over links, and operators beyond slots.

    crosses(link) = Σ sends(o) over operators o below the link with a reader above it
    network       = Σ crosses(link) · weight(link)  /  bytes that all sources send
    over          = Σ max(0, slots placed on a node - its free slots)
    total         = network_weight · network + over_weight · over

An output goes over a link once, however many readers it has above.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.planner.placement.operators import Operators
from headrace.planner.placement.topology import Topology
from headrace.planner.placement.ways import Ways


@dataclass(frozen=True, slots=True)
class CostWeights:
    """How much slots matter beside data: one slot too many, or all sources over one link."""

    network: float = 1.0
    over: float = 1.0


@dataclass(frozen=True, slots=True)
class PlacementCost:
    """The parts of a cost."""

    network: float
    """Data over links, weighed, in relation to what the sources send."""
    over: int
    """Slots that nodes do not have."""
    total: float


def highest_reader(operators: Operators, ways: Ways, nodes: Mapping[str, str], name: str) -> str:
    """Return the reader's node that is nearest to the sink; its own node without a reader."""
    reached = [nodes[reader] for reader in operators.readers[name]]
    return min(reached, key=lambda node: len(ways.up(node)), default=nodes[name])


def crossing(
    operators: Operators, ways: Ways, nodes: Mapping[str, str]
) -> dict[tuple[str, str], float]:
    """Return bytes per second over each link that is used: child, parent."""
    found: dict[tuple[str, str], float] = {}
    for name, operator in operators.by_name.items():
        high = highest_reader(operators, ways, nodes, name)
        for hop in ways.hops(nodes[name], high):
            found[hop] = found.get(hop, 0.0) + operator.sends
    return found


def load(operators: Operators, nodes: Mapping[str, str]) -> dict[str, int]:
    """Return the slots that a placement takes of each node."""
    found: dict[str, int] = {}
    for name, operator in operators.by_name.items():
        found[nodes[name]] = found.get(nodes[name], 0) + operator.slots
    return found


def cost_of(
    operators: Operators,
    topology: Topology,
    ways: Ways,
    nodes: Mapping[str, str],
    weights: CostWeights = CostWeights(),
) -> PlacementCost:
    """Return the cost of having each operator on its node."""
    moved = sum(
        sent * topology.weights[hop] for hop, sent in crossing(operators, ways, nodes).items()
    )
    received = operators.received
    network = moved / received if received else 0.0
    free = topology.free
    over = sum(max(0, n - free[node]) for node, n in load(operators, nodes).items())
    return PlacementCost(network, over, weights.network * network + weights.over * over)
