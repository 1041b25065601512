"""Parts of plans: equal parts, parts that several plans may share, and the cut between them.

    plan = own part over feeds     feed = the rows of a shared subplan

Two nodes are equal if they differ only in the names of nodes and columns, and so do their inputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from headrace.collections import plan as p
from headrace.errors import BugError
from headrace.expressions import keys

_STATEFUL: Final = (
    p.JoinSpec,
    p.ReduceSpec,
    p.TopKSpec,
    p.WindowSpec,
    p.DistinctSpec,
    p.SetOpSpec,
    p.RecursiveSpec,
)
"""Nodes worth sharing: they keep state that is not just a copy of a table's columns."""


def over(node: p.Node, names: Mapping[str, str]) -> p.Node:
    """Return ``node`` with its inputs replaced as in ``names``."""
    wanted = tuple(names.get(name, name) for name in p.inputs(node))
    if isinstance(node, p.RecursiveSpec):
        # Its step may read one node under two names, which are now the same.
        wanted = (wanted[0], *dict.fromkeys(wanted[1:]))
    if wanted == p.inputs(node):
        return node
    new: Any = node
    match node:
        case p.UnionSpec():
            new = replace(node, inputs=wanted)
        case p.FusedSpec():
            steps = (replace(node.steps[0], input=wanted[0]),)
            new = replace(node, input=wanted[0], steps=steps + node.steps[1:])
        case _ if len(wanted) == 1 and hasattr(node, "input"):
            new = replace(new, input=wanted[0])
        case p.RecursiveSpec():
            step = tuple(over(n, names) for n in node.step)
            new = replace(node, base=wanted[0], outer=wanted[1:], step=step)
        case p.JoinSpec() | p.SetOpSpec():
            new = replace(node, left=wanted[0], right=wanted[1])
    if p.inputs(new) != wanted:
        raise BugError(f"inputs of {p.kind(type(node))} cannot be exchanged")
    made: p.Node = new
    return made


def meaning(node: p.Node) -> str:
    """Return the computation of a node as text, without its name and those of its columns."""
    return json.dumps(_meaning(p.to_json(node)), sort_keys=True)


def _meaning(data: Any, within: str = "") -> Any:
    """Drop the names from ``data``, a part of a node or value of kind ``within``."""
    if isinstance(data, list):
        return [_meaning(item, within) for item in data]
    if not isinstance(data, dict):
        return data
    kind = data["kind"]
    dropped: set[str] = set()
    if not within:
        # The stream numbers its columns: a table and its columns may have been renamed.
        dropped = {"id", "schema_name", "table_name"}
        if not data.get("start_lsn"):
            dropped.add("start_lsn")  # keeps stored signatures valid
    elif kind in ("Field", "SourceColumn"):
        dropped = {"name"}
    elif within == "Fused" and kind in ("Filter", "Map"):
        dropped = {"id", "input"}
    return {k: _meaning(v, kind) for k, v in data.items() if k not in dropped}


def signatures(whole: p.PhysicalPlan, settings: Mapping[str, str]) -> dict[str, str]:
    """Return a signature per node that may be shared, under session ``settings``.

    Nodes of any two plans are equal if their signatures are.  A node is excluded if it has no state
    worth sharing, or if it is not a function of the tables' rows alone.  Examples are the clock,
    and groups that show the first representation of a key (1.0 or 1.00), which depends on when the
    view was populated.
    """
    names = meanings(whole, settings)
    worth: set[str] = set()
    never: set[str] = set()
    for node in whole.nodes[:-1]:
        below = p.inputs(node)
        if isinstance(node, _STATEFUL) or not worth.isdisjoint(below):
            worth.add(node.id)
        if _depends_on_history(node, whole) or not never.isdisjoint(below):
            never.add(node.id)
    return {name: names[name] for name in worth - never}


def meanings(whole: p.PhysicalPlan, settings: Mapping[str, str]) -> dict[str, str]:
    """Return, per node but the sink, a hash of its computation with all nodes below it."""
    names: dict[str, str] = {}
    context = json.dumps(dict(sorted(settings.items())))
    for node in whole.nodes[:-1]:
        text = context + meaning(over(node, names))
        names[node.id] = hashlib.sha256(text.encode()).hexdigest()
    return names


def _depends_on_history(node: p.Node, whole: p.PhysicalPlan) -> bool:
    match node:
        case p.TemporalSpec() | p.CalendarSpec() | p.FeedSpec() | p.WorkTableSpec():
            return True
        case p.ReduceSpec():
            schema = whole.node(node.input).schema
            return not all(keys.is_canonical(schema[k].oid) for k in node.keys)
        case p.RecursiveSpec():
            fields = [f for n in node.step for f in n.schema]
            return not all(keys.is_canonical(f.oid) for f in fields)
    return False


def subplan(whole: p.PhysicalPlan, node_id: str) -> p.PhysicalPlan:
    """Return the plan whose result is the rows of a node."""
    needed = _needed(whole, [node_id], ())
    nodes = tuple(n for n in whole.nodes if n.id in needed)
    sink = p.SinkSpec(whole.sink.id, node_id, whole.node(node_id).schema)
    return p.PhysicalPlan((*nodes, sink))


def largest(whole: p.PhysicalPlan, wanted: Container[str]) -> list[str]:
    """Return the ``wanted`` nodes that the sink reaches without passing another one."""
    found: list[str] = []
    left = [whole.sink.input]
    seen: set[str] = set()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in wanted:
            found.append(name)
        else:
            left.extend(p.inputs(whole.node(name)))
    return found


def needed(whole: p.PhysicalPlan, top: str) -> set[str]:
    """Return a node and all nodes that its rows are computed from."""
    return _needed(whole, [top], ())


def over_feeds(whole: p.PhysicalPlan, feeds: Iterable[str]) -> p.PhysicalPlan:
    """Return the part of a plan that remains when the nodes ``feeds`` become ``FeedSpec``."""
    fed = set(feeds)
    needed = _needed(whole, [whole.sink.id], fed)
    nodes = [
        p.FeedSpec(n.id, n.schema) if n.id in fed else n for n in whole.nodes if n.id in needed
    ]
    return p.PhysicalPlan(tuple(nodes))


def feeds(whole: p.PhysicalPlan, parts: Mapping[str, str], top: str) -> list[str]:
    """Return the parts that the part with the last node ``top`` reads, by their last nodes.

    ``parts``: worker by last node.  A part computes nodes of other parts on its worker itself.
    """
    others = {node for node, worker in parts.items() if worker != parts[top]}
    return largest(subplan(whole, top), others)


def part(whole: p.PhysicalPlan, parts: Mapping[str, str], top: str) -> p.PhysicalPlan:
    """Return the plan that a part computes, over the parts that it reads."""
    return over_feeds(subplan(whole, top), feeds(whole, parts, top))


def _needed(whole: p.PhysicalPlan, tops: list[str], fed: Iterable[str]) -> set[str]:
    """Return ``tops`` and the nodes that they are computed from, not below ``fed``."""
    needed: set[str] = set()
    stop = set(fed)
    left = list(tops)
    while left:
        name = left.pop()
        if name in needed:
            continue
        needed.add(name)
        if name not in stop:
            left.extend(p.inputs(whole.node(name)))
    return needed


def keeps(part: p.PhysicalPlan, state: str) -> bool:
    """Return whether a state of that name (``id`` or ``id.part``) is of a node of ``part``."""
    return owner(state) in owners(part)


def owner(state: str) -> str:
    """Return the id of the node that a state of that name belongs to."""
    return state.partition(".")[0]


def owners(part: p.PhysicalPlan) -> set[str]:
    """Return the ids of the nodes that may have states, including those within a recursion."""
    found: set[str] = set()
    for node in part.nodes:
        if not isinstance(node, p.FeedSpec):
            found.add(node.id)
        if isinstance(node, p.RecursiveSpec):
            found |= {inner.id for inner in node.step}
    return found
