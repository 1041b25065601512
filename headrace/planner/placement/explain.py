"""Explanation of a placement for people: operators and reasons, traffic over links, ways."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.collections import plan as p
from headrace.errors import UserError
from headrace.planner.placement.expansion import Pins
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Costs
from headrace.planner.placement.place import Placement, Strategy, try_to_place
from headrace.planner.placement.topology import Topology


def explain_placement(found: Placement) -> str:
    """Return lines for operators, links, relays, sources and ways; deterministic."""
    return "\n".join(
        [
            f"Strategy {found.strategy}: {_cost(found)}",
            "Operators",
            *(f"  {line}" for line in _operators(found)),
            "Links",
            *(f"  {line}" for line in _links(found)),
            "Occurrences",
            *(f"  {line}" for line in _occurrences(found)),
            "Ways",
            *(f"  {line}" for line in _ways(found)),
        ]
    )


def compare_strategies(
    plan: p.PhysicalPlan, topology: Topology, costs: Costs, pins: Pins, seed: int = 0
) -> str:
    """Return a line per strategy: the cost of its placement, or why it has none.

    Raises:
        UserError: an argument is invalid.
    """
    lines = []
    for strategy in Strategy:
        try:
            found = try_to_place(plan, topology, strategy, costs, pins, seed)
        except UserError as error:
            if strategy is not Strategy.EXACT:
                raise
            lines.append(f"{strategy}: {error.message}")
            continue
        if isinstance(found, PlacementFailed):
            where = f'operator "{found.operator}", worker "{found.node}"'
            lines.append(f"{strategy}: no placement: {where}: {found.reason}")
        else:
            lines.append(f"{strategy}: {_cost(found)}")
    return "\n".join(lines)


def _cost(found: Placement) -> str:
    moved = sum(found.crossing.values())
    hops = sum(len(part.sends) for part in found.parts.values())
    return (
        f"network cost {found.cost.network:.4g}, {moved:.4g} bytes/s over {len(found.crossing)}"
        f" links in {hops} streams, {sum(found.slots.values())} slots"
    )


def _operators(found: Placement) -> Iterable[str]:
    for node in found.plan.nodes:
        kind = p.kind(type(node))
        yield f"{node.id} {kind} on {found.nodes[node.id]}: {_reason(found, node)}"


def _reason(found: Placement, node: p.Node) -> str:
    """Return why the operator is on its node."""
    expanded = found.operators.expanded
    if node.id in expanded.constants:
        return f"constant, beside its reader {expanded.constants[node.id]}"
    if node.id in expanded.pins:
        return "pinned"
    here = found.nodes[node.id]
    match found.strategy:
        case Strategy.BOTTOM_UP:
            inputs = found.operators.by_name[node.id].inputs
            meeting = found.ways.meeting(found.nodes[name] for name in inputs)
            if here != meeting:
                return f"the first node above {meeting} with room"
            return "beside its input" if len(inputs) == 1 else "where its inputs meet"
        case Strategy.TOP_DOWN:
            readers = found.operators.readers[node.id]
            lowest = max((found.nodes[r] for r in readers), key=lambda n: len(found.ways.up(n)))
            if here != lowest:
                return f"the first node below {lowest} with room"
            return "beside its reader" if len(readers) == 1 else "beside the lowest of its readers"
        case Strategy.IFCOP:
            return "drawn, in the cheapest candidate"
        case Strategy.EXACT:
            return "the least data over links"


def _links(found: Placement) -> Iterable[str]:
    for (low, high), sent in found.crossing.items():
        outputs = [s.output for s in found.parts[low].sends if s.receiver == high]
        yield f"{low} to {high}: {sent:.4g} bytes/s of {', '.join(outputs)}"
    for name, part in found.parts.items():
        if not part.operators:
            yield f"{name}: relay"


def _occurrences(found: Placement) -> Iterable[str]:
    for source, row in found.paths.occurrences.items():
        yield f"{source}: " + ", ".join(f"{node} {count}" for node, count in row.items())


def _ways(found: Placement) -> Iterable[str]:
    for choice in found.paths.choices:
        weights = ", ".join(f"W({parent}) = {weight:.4g}" for parent, weight in choice.weights)
        yield f"{choice.node} to {choice.kept}: {weights}"
