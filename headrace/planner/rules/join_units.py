"""A join with one row of constants becomes a projection of the other side.

Join[c](x, Project[e](one row))     = Filter[c](Project[x, e](x))    either way round
LeftJoin(x, Project[e](one row))    = Project[x, e](x)
SemiJoin[c](x, Project[e](one row)) = Filter[c(e)](x)

``e`` reads no column, so it is the same for each row of ``x``: ``WITH c AS (SELECT now() AS t)``.

Counter-examples: a LEFT JOIN with a condition returns NULLs if the condition is not true.  If ``e``
may fail, the projection would compute it for rows of ``x`` that other joins of the query might
remove, so such a row stays a join.
"""

from __future__ import annotations

from typing import Final

from headrace.planner.logical.nodes import FilterNode, JoinNode, Node, ProjectNode, ValuesNode
from headrace.planner.logical.scalar import Const, Expr, raises, reads_clock, substitute
from headrace.types import BOOL

Items = dict[int, Expr]

_TRUE: Final = Const("t", BOOL)


def apply(node: Node) -> Node:
    """Replace a join with one row of constants."""
    if not isinstance(node, JoinNode) or node.kind not in ("inner", "left", "semi"):
        return node
    if node.kind == "left" and any(p != _TRUE for p in node.condition):
        return node
    items, other = _unit(node.right), node.left
    if items is None and node.kind == "inner":
        items, other = _unit(node.left), node.right
    if items is None:
        return node
    tests = tuple(substitute(p, items) for p in node.condition if p != _TRUE)
    kept = FilterNode(other, tests) if tests else other
    return ProjectNode(kept, tuple((c, items.get(c.id, c.ref)) for c in node.columns))


def _unit(node: Node) -> Items | None:
    """Return the columns of ``node`` if it is one row of constants."""
    if isinstance(node, ValuesNode) and node.rows == ((),):
        return {}
    below = _unit(node.input) if isinstance(node, ProjectNode) else None
    if below is None or not isinstance(node, ProjectNode):
        return None
    items = {c.id: substitute(e, below) for c, e in node.items}
    if any(raises(e) and not reads_clock(e) for e in items.values()):
        return None
    return items
