"""Clock columns move up to the comparison with a row's value.

Filter[ts > c](Project[x, c = now()](x))      = Project[x, c = now()](Filter[ts > now()](x))
Join[ts > c](Project[x, c = now()](x), y)     = Project[x, c = now(), y](Join[ts > now()](x, y))
Project[ts > c](Project[x, c = now()](x))     = Project[ts > now()](x)
Aggregate[count where ts > c](Project[x, c = now()](x)) = Aggregate[count where ts > now()](x)

The clock is constant within a transaction, so it has the same value everywhere.

Counter-example: a column of the right side of a LEFT JOIN is NULL for a row without a match, so it
stays below.  The join's own condition, which reads only matches, may read the clock for it.
"""

from __future__ import annotations

import dataclasses

from headrace.planner.logical.nodes import (
    LEFT_ONLY,
    AggregateNode,
    FilterNode,
    JoinNode,
    Node,
    ProjectNode,
    over,
)
from headrace.planner.logical.scalar import Expr, reads_clock, refs, substitute

Clocks = dict[int, Expr]


def apply(node: Node) -> Node:
    """Replace columns of the clock in ``node`` by the clock itself."""
    match node:
        case FilterNode() if found := _clocks(node.input):
            tests = tuple(substitute(p, found) for p in node.predicates)
            return _back(node, FilterNode(_without(node.input, found), tests), found)
        case ProjectNode() if found := _clocks(node.input):
            items = tuple((c, substitute(e, found)) for c, e in node.items)
            return ProjectNode(_without(node.input, found), items)
        case AggregateNode() if found := _clocks(node.input):
            return _aggregate(node, found)
        case JoinNode():
            return _join(node)
    return node


def _clocks(node: Node) -> Clocks:
    """Return the columns of a projection that depend only on the clock."""
    if not isinstance(node, ProjectNode):
        return {}
    return {c.id: e for c, e in node.items if reads_clock(e) and not refs(e)}


def _without(node: Node, clocks: Clocks) -> Node:
    if not clocks:
        return node
    assert isinstance(node, ProjectNode), "only there clocks were found"
    return ProjectNode(node.input, tuple(i for i in node.items if i[0].id not in clocks))


def _back(node: Node, new: Node, clocks: Clocks) -> Node:
    """Return ``new`` with the columns of ``node``."""
    return ProjectNode(new, tuple((c, clocks.get(c.id, c.ref)) for c in node.columns))


def _aggregate(node: AggregateNode, clocks: Clocks) -> Node:
    aggs = over(node.aggs, lambda e: substitute(e, clocks))
    keys = tuple((c, substitute(e, clocks)) for c, e in node.keys)
    below = _without(node.input, clocks)
    return dataclasses.replace(node, input=below, keys=keys, aggs=aggs)


def _join(node: JoinNode) -> Node:
    left, right = _clocks(node.left), _clocks(node.right)
    condition = tuple(substitute(p, left | right) for p in node.condition)
    if node.kind == "full":
        left = {}
    if node.kind != "inner":
        right = right if node.kind in LEFT_ONLY else {}
    if not left and not right and condition == node.condition:
        return node
    new = JoinNode(_without(node.left, left), _without(node.right, right), condition, node.kind)
    return _back(node, new, left | right)
