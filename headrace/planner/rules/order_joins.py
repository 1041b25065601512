"""Joins are ordered: cheap ones first, and no cross product that a condition could avoid.

Join[b.y = c.y](Join[](a, b), c), a.x = c.x = Join(Join[a.x = c.x](a, c), b)[b.y = c.y]

If all tables have been analysed, the two parts with the smallest expected join are joined next, as
long as the sum of all joins gets smaller; ties are in the order of the query.  Otherwise the order
of the query is kept: starting from the first table, the next table in the text that an equality
connects with the tables already joined.

Counter-examples: ``FROM a, b`` without any condition is a cross product and stays one.
``(a LEFT JOIN b) JOIN c`` is not ``(a JOIN c) LEFT JOIN b`` if c's condition reads b: outer, semi
and anti joins stay in place, as one table.  So does a join whose condition may fail on a row: it
must not read rows that other joins remove.
"""

from __future__ import annotations

from typing import Final, TypeGuard

from headrace.planner.logical.estimates import Estimates
from headrace.planner.logical.nodes import JoinNode, Node, ProjectNode, ids
from headrace.planner.logical.scalar import Call, Expr, raises, refs
from headrace.planner.rules.push_filters import merge

_LEAVES_MAX: Final = 24
"""Limit on tables: more are joined in the order of the query, as estimating takes time."""
_GAIN: Final = 0.99
"""Minimal improvement of a new order, so that two orders do not alternate."""


def apply(node: Node) -> Node:
    """Order the join tree that starts at ``node``; its output columns stay."""
    if not _movable(node):
        return node
    leaves, conditions = _flatten(node)
    sizes = Estimates()
    if len(leaves) <= _LEAVES_MAX and all(sizes.rows(leaf) is not None for leaf in leaves):
        result = _cheapest(leaves, conditions, sizes)
        if not _better(result, node, sizes):
            return node
    elif _crosses(node):
        result = _as_written(leaves, conditions)
    else:
        return node
    if result == node:
        return node
    if [c.id for c in result.columns] == [c.id for c in node.columns]:
        return result
    return ProjectNode(result, tuple((c, c.ref) for c in node.columns))


def _movable(node: Node) -> TypeGuard[JoinNode]:
    return (
        isinstance(node, JoinNode) and node.kind == "inner" and not any(map(raises, node.condition))
    )


def _as_written(leaves: list[Node], conditions: list[Expr]) -> Node:
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
    return result


def _cheapest(leaves: list[Node], conditions: list[Expr], sizes: Estimates) -> Node:
    """Join the two connected trees whose join is expected to be smallest, until one is left."""
    trees = list(leaves)
    while len(trees) > 1:
        every = [
            (sizes.rows(_join(x, y, conditions)[0]) or 0.0, i, j)
            for i, x in enumerate(trees)
            for j, y in enumerate(trees[i + 1 :], i + 1)
            if any(_connects(p, ids(x), ids(y)) for p in conditions)
        ]
        _, i, j = min(every, default=(0.0, 0, 1))
        trees[i], conditions = _join(trees[i], trees[j], conditions)
        del trees[j]
    assert not conditions, "every condition found its join"
    return trees[0]


def _better(new: Node, old: Node, sizes: Estimates) -> bool:
    """Return whether ``new`` has fewer cross products, or as many and clearly smaller joins."""
    if _crosses(new) != _crosses(old):
        return _crosses(new) < _crosses(old)
    return _total(new, sizes) < _GAIN * _total(old, sizes)


def _total(node: Node, sizes: Estimates) -> float:
    """Sum the rows of all joins of a tree."""
    if not _movable(node):
        return 0.0
    below = _total(node.left, sizes) + _total(node.right, sizes)
    return (sizes.rows(node) or 0.0) + below


def _flatten(node: Node) -> tuple[list[Node], list[Expr]]:
    if not _movable(node):
        return [node], []
    left, first = _flatten(node.left)
    right, second = _flatten(node.right)
    return left + right, [*first, *second, *node.condition]


def _crosses(node: Node) -> int:
    """Count the joins of a tree that have no equality."""
    if not _movable(node):
        return 0
    connected = any(_connects(p, ids(node.left), ids(node.right)) for p in node.condition)
    return int(not connected) + _crosses(node.left) + _crosses(node.right)


def _connects(predicate: Expr, left: frozenset[int], right: frozenset[int]) -> bool:
    """Return whether ``predicate`` is an equality between the two sides."""
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
    return (JoinNode(left, right, merge(mine, ())), [p for p in conditions if p not in mine])
