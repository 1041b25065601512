"""Filters move towards the scans and merge there.

Filter[p](Filter[q](x))      = Filter[q and p](x)
Filter[p](Scan[q])           = Scan[q and p]
Filter[p](Project[e](x))     = Project[e](Filter[p(e)](x))
Filter[p](Join[c](l, r))     = Join[c](Filter[p](l), r)       if p reads l alone
Filter[p](Join[c](l, r))     = Join[c and p](l, r)            if p reads both
Filter[p](LeftJoin(l, r))    = LeftJoin(Filter[p](l), r)      if p reads l alone
Filter[p](LeftJoin(l, r))    = Filter[p](Join(l, r))          if p is not true of NULLs for r
Filter[p](FullJoin(l, r))    = Filter[p](LeftJoin(l, r))      if p is not true of NULLs for l
Filter[p](SemiJoin(l, r))    = SemiJoin(Filter[p](l), r)      also of an anti-join
Filter[p](Union(x, y))       = Union(Filter[p](x), Filter[p](y))
Filter[p](SetOp(x, y))       = SetOp(Filter[p](x), Filter[p](y))
Filter[p](Distinct(x))       = Distinct(Filter[p](x))
Filter[p](Aggregate[k](x))   = Aggregate[k](Filter[p](x))     if p reads keys alone
Filter[p](Window[k](x))      = Window[k](Filter[p](x))        the same; also of TopK
Filter[p](Functions(x))      = Functions(Filter[p](x))        if p reads x alone
Join[c and p](l, r)          = Join[c](Filter[p](l), r)       if p reads l alone
LeftJoin[c and p](l, r)      = LeftJoin[c](l, Filter[p](r))   if p reads r alone; also anti

Counter-examples: ``1 / b > 2`` over a join may fail on a row of ``b`` that never finds a
match, so a predicate that may fail stays above joins, unions and groups.  ``scale(n) = 2`` over
DISTINCT distinguishes equal rows, so only predicates over columns with one text per value move
below DISTINCT and GROUP BY.  A group without keys exists even for no rows, so no filter moves below
it, or below the empty set of GROUPING SETS.
``b.x IS NULL`` above LEFT JOIN b is true for rows that ``Filter[x IS NULL](b)`` would not
return.  ``ON a.y > 3`` of ``a LEFT JOIN b`` decides which rows have a match, not which stay.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from headrace.expressions import keys
from headrace.planner.logical import nodes
from headrace.planner.logical.facts import arm_columns, rejects
from headrace.planner.logical.scalar import (
    Const,
    Expr,
    Ref,
    native,
    parts,
    raises,
    refs,
    substitute,
)

_PARTS_MAX: Final = 1_000
"""Parts of a predicate over expressions of a projection that moves past it."""


def apply(node: nodes.Node) -> nodes.Node:
    """Move the filter or join condition of ``node`` down."""
    if isinstance(node, nodes.JoinNode):
        return _condition(node)
    return _push(node) if isinstance(node, nodes.FilterNode) else node


def _push(node: nodes.FilterNode) -> nodes.Node:
    match node.input:
        case nodes.FilterNode() as inner:
            return nodes.FilterNode(inner.input, merge(inner.predicates, node.predicates))
        case nodes.ScanNode() as scan:
            predicates = merge(scan.predicates, node.predicates)
            return dataclasses.replace(scan, predicates=predicates)
        case nodes.ProjectNode() as project:
            return _project(node, project)
        case nodes.JoinNode() as join:
            return _join(node, join)
        case nodes.UnionNode() as union:
            return _union(node, union)
        case nodes.DistinctNode() as distinct:
            low, high = _split(node.predicates, distinct, nodes.ids(distinct))
            return _above(nodes.DistinctNode(_filter(distinct.input, low)), high)
        case nodes.AggregateNode() as aggregate if aggregate.keys and not aggregate.always:
            mapping = {c.id: e for c, e in aggregate.keys}
            low, high = _split(node.predicates, aggregate, frozenset(mapping))
            moved = tuple(substitute(p, mapping) for p in low)
            below = _filter(aggregate.input, moved)
            return _above(dataclasses.replace(aggregate, input=below), high)
        case nodes.SetOpNode() as setop:
            return _setop(node, setop)
        case (nodes.TopKNode() | nodes.WindowNode()) as grouped if grouped.keys:
            low, high = _split(node.predicates, grouped, _ids(grouped.keys))
            below = _filter(grouped.input, low)
            return _above(dataclasses.replace(grouped, input=below), high)
        case nodes.FunctionsNode() as functions:
            low, high = _readers(node.predicates, nodes.ids(functions.input))
            below = _filter(functions.input, low)
            return _above(dataclasses.replace(functions, input=below), high)
    return node


def order(predicate: Expr) -> int:
    """Return the rank in a filter: cheap predicates that cannot fail go first."""
    if raises(predicate):
        return 3
    if not native(predicate):
        return 2
    return int(getattr(predicate, "symbol", "") != "is_not_null")


def merge(first: tuple[Expr, ...], second: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Merge both conjunctions, without repetition, in evaluation order.

    The sort is stable: predicates that may fail keep the order of the query.
    """
    return tuple(sorted(dict.fromkeys((*first, *second)), key=order))


def _filter(node: nodes.Node, predicates: tuple[Expr, ...]) -> nodes.Node:
    return nodes.FilterNode(node, merge(predicates, ())) if predicates else node


_above = _filter


def _project(node: nodes.FilterNode, project: nodes.ProjectNode) -> nodes.Node:
    mapping = {c.id: e for c, e in project.items}
    low: list[Expr] = []
    high: list[Expr] = []
    for predicate in node.predicates:
        moved = substitute(predicate, mapping)
        # Filtering earlier is not worth computing a remote expression twice.
        simple = all(isinstance(mapping[i], Ref | Const) for i in refs(predicate))
        small = parts(moved) <= max(_PARTS_MAX, parts(predicate))
        if simple or (small and native(moved) and not raises(moved)):
            low.append(moved)
        else:
            high.append(predicate)
    below = nodes.ProjectNode(_filter(project.input, tuple(low)), project.items)
    return _above(below, tuple(high)) if low else node


def _join(node: nodes.FilterNode, join: nodes.JoinNode) -> nodes.Node:
    if join.kind == "inner":
        low = tuple(p for p in node.predicates if not raises(p))
        high = tuple(p for p in node.predicates if raises(p))
        if not low:
            return node
        condition = merge(join.condition, low)
        return _above(dataclasses.replace(join, condition=condition), high)
    narrowed = _narrowed(node, join)
    if narrowed is not join:
        return _filter(narrowed, node.predicates)
    if join.kind == "full":
        return node
    low, high = _readers(node.predicates, nodes.ids(join.left))
    below = _filter(join.left, low)
    return _above(dataclasses.replace(join, left=below), high)


def _narrowed(node: nodes.FilterNode, join: nodes.JoinNode) -> nodes.Node:
    """Narrow an outer join if ``node`` would remove its padded rows."""
    if join.kind in nodes.LEFT_ONLY:
        return join
    there = frozenset().union(*(rejects(p) for p in node.predicates))
    left, right = (bool(there & nodes.ids(join.left)), bool(there & nodes.ids(join.right)))
    if right and (left or join.kind == "left"):
        return dataclasses.replace(join, kind="inner")
    if join.kind == "full" and left:
        return dataclasses.replace(join, kind="left")
    if join.kind == "full" and right:
        turned = nodes.JoinNode(join.right, join.left, join.condition, "left")
        return nodes.ProjectNode(turned, tuple((c, c.ref) for c in join.columns))
    return join


def _readers(
    predicates: tuple[Expr, ...], columns: frozenset[int]
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """Split into predicates that read only ``columns`` and cannot fail, and the rest."""
    low = tuple(p for p in predicates if refs(p) <= columns and not raises(p))
    return low, tuple(p for p in predicates if p not in low)


def _condition(join: nodes.JoinNode) -> nodes.Node:
    left: list[Expr] = []
    right: list[Expr] = []
    both: list[Expr] = []
    for predicate in join.condition:
        used = refs(predicate)
        if raises(predicate) or not used or join.kind == "full":
            both.append(predicate)
        elif used <= nodes.ids(join.left) and join.kind in ("inner", "semi"):
            left.append(predicate)
        elif used <= nodes.ids(join.right):
            right.append(predicate)
        else:
            both.append(predicate)
    if not left and not right:
        return join
    return dataclasses.replace(
        join,
        left=_filter(join.left, tuple(left)),
        right=_filter(join.right, tuple(right)),
        condition=tuple(both),
    )


def _setop(node: nodes.FilterNode, setop: nodes.SetOpNode) -> nodes.Node:
    low, high = _split(node.predicates, setop, nodes.ids(setop))
    arms = []
    for arm in (setop.left, setop.right):
        mapping = arm_columns(setop, arm)
        arms.append(_filter(arm, tuple(substitute(p, mapping) for p in low)))
    return _above(dataclasses.replace(setop, left=arms[0], right=arms[1]), high)


def _ids(keys: tuple[Ref, ...]) -> frozenset[int]:
    return frozenset(ref.id for ref in keys)


def _union(node: nodes.FilterNode, union: nodes.UnionNode) -> nodes.Node:
    low = tuple(p for p in node.predicates if not raises(p))
    high = tuple(p for p in node.predicates if raises(p))
    if not low:
        return node
    inputs = []
    for arm in union.inputs:
        mapping = arm_columns(union, arm)
        inputs.append(_filter(arm, tuple(substitute(p, mapping) for p in low)))
    return _above(dataclasses.replace(union, inputs=tuple(inputs)), high)


def _split(
    predicates: tuple[Expr, ...], node: nodes.Node, allowed: frozenset[int]
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    canonical = {c.id for c in node.columns if keys.is_canonical(c.oid)} & allowed
    low = tuple(p for p in predicates if refs(p) and refs(p) <= canonical and not raises(p))
    return low, tuple(p for p in predicates if p not in low)
