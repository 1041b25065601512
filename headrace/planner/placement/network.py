"""Network sinks and sources, inserted last (N-4, N-21), and the part of a plan on each node.

An output that is read on another node goes there link by link.  Each link has one pair: a sink on
the child, a source on the parent.  A node without operators relays its input (N-38).  Sinks and
sources take no slot (N-35).  An output goes over a link once, however many readers it has above: on
each node it is one queue with several readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.collections import plan as p
from headrace.collections.subplans import over
from headrace.planner.placement.cost import highest_reader
from headrace.planner.placement.operators import Operators
from headrace.planner.placement.ways import Ways
from headrace.types import Schema


@dataclass(frozen=True, slots=True)
class NetworkSource:
    """Where rows of another node arrive: operators on this one read them under ``name``."""

    name: str
    output: str
    """The operator whose rows they are."""
    sender: str
    """The node that they come from; its sink has the same ``name``."""
    schema: Schema


@dataclass(frozen=True, slots=True)
class NetworkSink:
    """Where rows leave a node."""

    name: str
    output: str
    """The operator whose rows they are."""
    input: str
    """The producer of the rows on this node: the operator, or on a relay a network source."""
    receiver: str
    """The node that they go to; its source has the same ``name``."""
    schema: Schema


@dataclass(frozen=True, slots=True)
class NodePart:
    """Part of a plan that runs on one node."""

    receives: tuple[NetworkSource, ...]
    operators: tuple[p.Node, ...]
    """Inputs first; an input from another node is read by the name of a network source."""
    sends: tuple[NetworkSink, ...]


def parts(operators: Operators, ways: Ways, nodes: Mapping[str, str]) -> dict[str, NodePart]:
    """Return the part of each node that has one; ``nodes`` includes constants."""
    receives: dict[str, list[NetworkSource]] = {}
    sends: dict[str, list[NetworkSink]] = {}
    known: dict[tuple[str, str], str] = {}
    schemas = {node.id: node.schema for node in operators.expanded.plan.nodes}
    for name in operators.by_name:
        high = highest_reader(operators, ways, nodes, name)
        input_name = name
        for low, up in ways.hops(nodes[name], high):
            edge = f"{name}@{up}"
            sends.setdefault(low, []).append(NetworkSink(edge, name, input_name, up, schemas[name]))
            receives.setdefault(up, []).append(NetworkSource(edge, name, low, schemas[name]))
            known[name, up] = input_name = edge
    placed: dict[str, list[p.Node]] = {}
    for node in operators.expanded.plan.nodes:
        here = nodes[node.id]
        names = {i: known.get((i, here), i) for i in p.inputs(node)}
        placed.setdefault(here, []).append(over(node, names))
    return {
        name: NodePart(
            tuple(receives.get(name, ())), tuple(placed.get(name, ())), tuple(sends.get(name, ()))
        )
        for name in ways.nodes
        if name in receives or name in placed or name in sends
    }
