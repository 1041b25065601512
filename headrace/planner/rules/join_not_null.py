"""Rows with a NULL join key have no match, and are removed from sides where only matches count.

Join[a = b](l, r)     = Join[a = b](Filter[a IS NOT NULL](l), Filter[b IS NOT NULL](r))
LeftJoin[a = b](l, r) = LeftJoin[a = b](l, Filter[b IS NOT NULL](r))

A semi-join is treated as an inner join, an anti-join as a left join.

Counter-examples: ``a IS NOT DISTINCT FROM b`` is true for two NULLs.  The preserved side of
an outer join keeps its NULL keys, and so do both sides of a full join.
"""

from __future__ import annotations

import dataclasses

from headrace.planner.logical.facts import column_equalities, entails
from headrace.planner.logical.nodes import FilterNode, JoinNode, Node, ids
from headrace.planner.logical.scalar import ARG, Call, Expr, Ref
from headrace.types import BOOL


def apply(node: Node) -> Node:
    """Add NOT NULL filters to the sides of a join ``node``."""
    if not isinstance(node, JoinNode) or node.kind == "full":
        return node
    pairs = list(column_equalities(node.condition))
    columns = [ref for pair in pairs for ref in (pair.left, pair.right)]
    left, right = node.left, _side(node.right, columns)
    if node.kind in ("inner", "semi"):
        left = _side(left, columns)
    if left is node.left and right is node.right:
        return node
    return dataclasses.replace(node, left=left, right=right)


def _side(node: Node, columns: list[Ref]) -> Node:
    new: list[Expr] = [
        test for ref in columns if ref.id in ids(node) and not entails(node, test := not_null(ref))
    ]
    return FilterNode(node, tuple(dict.fromkeys(new))) if new else node


def not_null(ref: Ref) -> Call:
    """Return ``ref IS NOT NULL``."""
    return Call(
        symbol="is_not_null",
        args=(ref,),
        oid=BOOL,
        typmod=-1,
        collation=0,
        sql=f"({ARG} IS NOT NULL)",
        show=f"{ARG} IS NOT NULL",
        native="is_not_null",
        raises=False,
    )
