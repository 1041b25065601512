"""Columns that nobody reads are not carried, down to the scans.

Project[e](x) = Project[e](Project[columns that e reads](x)), pushed through every node

Counter-examples: DISTINCT needs all its columns, read or not: without one of them other rows
become equal.  The keys of a group stay for the same reason.  One column at least stays
everywhere: ``count(*)`` counts rows, and rows need a shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from headrace.planner.logical import (
    Aggregate,
    Col,
    Distinct,
    Expand,
    Filter,
    Join,
    Node,
    Project,
    Scan,
    Union,
    Values,
    children,
    ids,
    with_children,
)
from headrace.planner.scalar import Expr, refs


def apply_root(node: Node) -> Node:
    """The whole plan, pruned; the root keeps exactly its columns."""
    return _exact(_prune(node, ids(node)), [c.id for c in node.columns])


def _all_refs(exprs: Iterable[Expr]) -> frozenset[int]:
    return frozenset().union(*(refs(e) for e in exprs))


def _exact(node: Node, wanted: list[int]) -> Node:
    """``node`` with the columns ``wanted`` and no others, in that order."""
    if [c.id for c in node.columns] == wanted:
        return node
    by_id = {c.id: c for c in node.columns}
    return Project(node, tuple((by_id[i], by_id[i].ref) for i in wanted))


def _some(columns: tuple[Col, ...], required: frozenset[int]) -> frozenset[int]:
    """``required``, or one column where nothing is required."""
    mine = required & {c.id for c in columns}
    return mine or frozenset(c.id for c in columns[:1])


def _prune(node: Node, required: frozenset[int]) -> Node:
    match node:
        case Scan():
            return _scan(node, required)
        case Values():
            return _values(node, required)
        case Filter():
            below = required | _all_refs(node.predicates)
            return dataclasses.replace(node, input=_prune(node.input, below))
        case Project():
            keep = _some(node.columns, required)
            items = tuple((c, e) for c, e in node.items if c.id in keep)
            below = _all_refs(e for _, e in items)
            return Project(_prune(node.input, below), items)
        case Join():
            below = required | _all_refs(node.condition)
            left, right = _side(node.left, below), _side(node.right, below)
            return dataclasses.replace(node, left=left, right=right)
        case Aggregate():
            return _aggregate(node, required)
        case Expand():
            below = required & ids(node.input) | _all_refs(e for _, e in node.keys)
            return dataclasses.replace(node, input=_prune(node.input, below))
        case Distinct():
            wanted = [c.id for c in node.input.columns]
            return Distinct(_exact(_prune(node.input, frozenset(wanted)), wanted))
        case Union():
            return _union(node, required)
        case _:
            # Reads all there is, until it has a case of its own.
            new = tuple(
                _exact(_prune(c, ids(c)), [x.id for x in c.columns])
                for c in children(node)
            )
            return with_children(node, new)


def _side(node: Node, below: frozenset[int]) -> Node:
    keep = _some(node.columns, below)
    pruned = _prune(node, keep)
    return _exact(pruned, [c.id for c in pruned.columns if c.id in keep])


def _scan(node: Scan, required: frozenset[int]) -> Node:
    # A key column is in the row store anyway.
    first = [c for c, f in node.fields if f.attnum in node.table.key[:1]]
    keep = required & ids(node) or {c.id for c in (*first, *node.columns)[:1]}
    used = _all_refs(node.predicates) - keep
    every = (*node.fields, *node.hidden)
    return dataclasses.replace(
        node,
        fields=tuple(f for f in node.fields if f[0].id in keep),
        hidden=tuple(f for f in every if f[0].id in used),
    )


def _values(node: Values, required: frozenset[int]) -> Node:
    keep = _some(node.columns, required)
    places = [i for i, c in enumerate(node.columns) if c.id in keep]
    return Values(
        tuple(node.columns[i] for i in places),
        tuple(tuple(row[i] for i in places) for row in node.rows),
    )


def _aggregate(node: Aggregate, required: frozenset[int]) -> Node:
    aggs = tuple(a for a in node.aggs if a.column.id in required)
    if not node.keys and not aggs:
        aggs = node.aggs[:1]
    exprs = [e for _, e in node.keys]
    exprs += [e for a in aggs for e in a.inputs]
    below = _prune(node.input, _all_refs(exprs))
    return dataclasses.replace(node, input=below, aggs=aggs)


def _union(node: Union, required: frozenset[int]) -> Node:
    keep = _some(node.columns, required)
    places = [i for i, c in enumerate(node.columns) if c.id in keep]
    inputs = []
    for arm in node.inputs:
        wanted = [arm.columns[i].id for i in places]
        inputs.append(_exact(_prune(arm, frozenset(wanted)), wanted))
    return Union(tuple(inputs), tuple(node.columns[i] for i in places))
