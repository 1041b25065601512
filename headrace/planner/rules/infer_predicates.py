"""A comparison with a constant holds for both sides of an equality.

Join[a = b](Filter[a > 30](l), r) = Join[a = b](Filter[a > 30](l), Filter[b > 30](r))

Join[(a = 1 and b = 2) or (a = 3 and b = 4)](l, r)
    = the same of Filter[a = 1 or a = 3](l) and Filter[b = 2 or b = 4](r)

For a LEFT JOIN or an anti-join, predicates of the left side are inferred for the right side only:
other rows of the right side have no match.  The same holds for predicates on one side in the arms
of a disjunction.

Counter-examples: for a LEFT JOIN nothing is inferred onto the preserved side.
``a::text < 'x'`` implies nothing for ``b`` if equal values may print differently.  Under another
collation ``b > 'x'`` is another predicate.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from headrace.planner.logical import scalar
from headrace.planner.logical.facts import Equality, column_equalities, entails, known
from headrace.planner.logical.nodes import FilterNode, JoinNode, Node, ids
from headrace.types import INT2, INT4, INT8

_COMPARISONS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})
_INTEGERS: Final = frozenset({INT2, INT4, INT8})


def apply(node: Node) -> Node:
    """Infer predicates for the sides of a join ``node``."""
    if not isinstance(node, JoinNode) or node.kind == "full":
        return node
    ways = ((0, 1), (1, 0)) if node.kind in ("inner", "semi") else ((0, 1),)
    sides = [node.left, node.right]
    for equality in column_equalities(node.condition):
        for source, target in ways:
            from_ref, to_ref = equality.side(ids(sides[source]))
            if from_ref is None or to_ref is None or to_ref.id not in ids(sides[target]):
                continue
            found = tuple(
                new
                for p in known(sides[source])
                if _comparison(p, from_ref, to_ref, equality)
                and not entails(sides[target], new := scalar.substitute(p, {from_ref.id: to_ref}))
            )
            if found:
                sides[target] = FilterNode(sides[target], found)
    for target in {target for _, target in ways}:
        told = [_of_side(p, ids(sides[target])) for p in node.condition]
        found = tuple(p for p in told if p and not entails(sides[target], p))
        if found:
            sides[target] = FilterNode(sides[target], found)
    if sides == [node.left, node.right]:
        return node
    return dataclasses.replace(node, left=sides[0], right=sides[1])


def _of_side(predicate: scalar.Expr, columns: frozenset[int]) -> scalar.Expr | None:
    """Return the predicate that a disjunction implies for the side with ``columns``."""
    if not isinstance(predicate, scalar.Call) or predicate.symbol != "or":
        return None
    arms = [
        [
            p
            for p in scalar.conjuncts(a)
            if scalar.refs(p) and scalar.refs(p) <= columns and _cheap(p)
        ]
        for a in predicate.args
    ]
    if not all(arms):
        return None
    return scalar.disjunction(predicate, [scalar.conjunction(predicate, arm) for arm in arms])


def _cheap(predicate: scalar.Expr) -> bool:
    return scalar.native(predicate) and not scalar.raises(predicate)


def _comparison(
    predicate: scalar.Expr, source: scalar.Ref, target: scalar.Ref, equality: Equality
) -> bool:
    """Return whether ``predicate`` compares ``source`` with constants and may be copied."""
    if scalar.refs(predicate) != {source.id} or scalar.raises(predicate):
        return False
    same = source.oid == target.oid or {source.oid, target.oid} <= _INTEGERS
    return same and _simple(predicate, source, equality.collation)


def _simple(predicate: scalar.Expr, source: scalar.Ref, collation: int) -> bool:
    if not isinstance(predicate, scalar.Call):
        return False
    if predicate.symbol in ("and", "or"):
        return all(_simple(a, source, collation) for a in predicate.args)
    if predicate.symbol not in _COMPARISONS or predicate.native is None:
        return False
    if predicate.input_collation != collation:
        return False
    left, right = (scalar.core(a) for a in predicate.args)
    return (isinstance(left, scalar.Ref) and isinstance(right, scalar.Const)) or (
        isinstance(left, scalar.Const) and isinstance(right, scalar.Ref)
    )
