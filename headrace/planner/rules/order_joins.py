"""Joins are ordered so that no cross product is made that a condition could avoid.

Join[b.y = c.y](Join[](a, b), c), a.x = c.x = Join(Join[a.x = c.x](a, c), b)[b.y = c.y]

Within that, the order of the query is kept: from the first table on, always the next one
in the text that an equality connects with those already joined.

Counter-examples: ``FROM a, b`` without any condition is a cross product and stays one.
``(a LEFT JOIN b) JOIN c`` is not ``(a JOIN c) LEFT JOIN b`` where c's condition reads b:
outer, semi and anti joins stay where they are, as one table.
"""

from __future__ import annotations

from headrace.planner.logical import Join, Node, Project, ids
from headrace.planner.rules.push_filters import merge
from headrace.planner.scalar import Call, Expr, refs


def apply(node: Node) -> Node:
    """The join tree that starts at ``node``, ordered; its output columns stay."""
    if not isinstance(node, Join) or node.kind != "inner":
        return node
    leaves, conditions = _flatten(node)
    if not _has_cross_product(node):
        return node
    trees: list[Node] = []
    rest = list(leaves)
    while rest:
        tree = rest.pop(0)
        while (found := _next(tree, rest, conditions)) is not None:
            rest.remove(found)
            tree, conditions = _join(tree, found, conditions)
        trees.append(tree)
    result = trees[0]
    for tree in trees[1:]:
        result, conditions = _join(result, tree, conditions)
    assert not conditions, "every condition found its join"
    if result == node:
        return node
    if [c.id for c in result.columns] == [c.id for c in node.columns]:
        return result
    return Project(result, tuple((c, c.ref) for c in node.columns))


def _flatten(node: Node) -> tuple[list[Node], list[Expr]]:
    if not isinstance(node, Join) or node.kind != "inner":
        return [node], []
    left, first = _flatten(node.left)
    right, second = _flatten(node.right)
    return left + right, [*first, *second, *node.condition]


def _has_cross_product(node: Node) -> bool:
    if not isinstance(node, Join) or node.kind != "inner":
        return False
    connected = any(
        _connects(p, ids(node.left), ids(node.right)) for p in node.condition
    )
    return (
        not connected or _has_cross_product(node.left) or _has_cross_product(node.right)
    )


def _connects(predicate: Expr, left: frozenset[int], right: frozenset[int]) -> bool:
    """Whether ``predicate`` is an equality between the two sides."""
    if not isinstance(predicate, Call) or predicate.symbol != "=":
        return False
    first, second = (refs(a) for a in predicate.args)
    if not first or not second:
        return False
    return (first <= left and second <= right) or (first <= right and second <= left)


def _next(tree: Node, rest: list[Node], conditions: list[Expr]) -> Node | None:
    for leaf in rest:
        if any(_connects(p, ids(tree), ids(leaf)) for p in conditions):
            return leaf
    return None


def _join(left: Node, right: Node, conditions: list[Expr]) -> tuple[Node, list[Expr]]:
    columns = ids(left) | ids(right)
    mine = tuple(p for p in conditions if refs(p) <= columns)
    return (
        Join(left, right, merge(mine, ())),
        [p for p in conditions if p not in mine],
    )
