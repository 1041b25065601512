"""Adjacent projections are merged; a projection that changes nothing is removed.

Project[e](Project[f](x)) = Project[e(f)](x)
Project[all columns of x in order](x) = x

Counter-example: when ``e`` uses a computed column of ``f`` twice, merging would compute it
twice; the two stay apart and are fused in the physical plan.
"""

from __future__ import annotations

from collections import Counter

from headrace.planner.logical.nodes import Node, ProjectNode
from headrace.planner.logical.scalar import Call, Expr, Ref, substitute


def apply(node: Node) -> Node:
    """Merge ``node`` with the projection below, or remove it."""
    if not isinstance(node, ProjectNode):
        return node
    if _identity(node):
        return node.input
    inner = node.input
    if not isinstance(inner, ProjectNode):
        return node
    mapping = {c.id: e for c, e in inner.items}
    uses: Counter[int] = Counter()
    for _, expr in node.items:
        _count(expr, uses)
    if any(isinstance(mapping.get(i), Call) and n > 1 for i, n in uses.items()):
        return node
    items = tuple((c, substitute(e, mapping)) for c, e in node.items)
    return ProjectNode(inner.input, items)


def _count(expr: Expr, uses: Counter[int]) -> None:
    if isinstance(expr, Ref):
        uses[expr.id] += 1
    elif isinstance(expr, Call):
        for arg in expr.args:
            _count(arg, uses)


def _identity(node: ProjectNode) -> bool:
    wanted = [c.id for c in node.input.columns]
    return [c.id for c, _ in node.items] == wanted and [
        e.id if isinstance(e, Ref) else None for _, e in node.items
    ] == wanted
