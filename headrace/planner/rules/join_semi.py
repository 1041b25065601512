"""An inner join that only tests the rows of one side becomes a semi join.

Project[e](Join[k = k', x > y](l, r)) = Project[e](SemiJoin[k = k', x > y](l, r))

``e`` reads no column of ``r``, and each row of ``l`` meets at most one of ``r``, where ``k'`` is
unique; an aggregate likewise.  Such joins come from a comparison with a subquery.  A semi join with
one comparison keeps its rows in order, so that a change of ``y`` costs only the rows that gain or
lose their match (``collections.threshold``).

Counter-examples: two rows of ``r`` with one key show a row of ``l`` twice.  Without a comparison,
or with other conditions, a semi join costs more than the inner join.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from headrace.planner.logical.nodes import AggregateNode, JoinNode, Node, ProjectNode, ids
from headrace.planner.logical.scalar import Call, Expr, refs
from headrace.planner.logical.uniquekeys import one_match

_COMPARISONS: Final = ("<", "<=", ">", ">=")


def apply(node: Node) -> Node:
    """Replace the inner join below ``node``."""
    if not isinstance(node, ProjectNode | AggregateNode) or not isinstance(node.input, JoinNode):
        return node
    if isinstance(node, ProjectNode):
        read = _read(e for _, e in node.items)
    else:
        read = _read([*(e for _, e in node.keys), *(e for a in node.aggs for e in a.inputs)])
    semi = _narrowed(node.input, read)
    return node if semi is None else dataclasses.replace(node, input=semi)


def _narrowed(join: JoinNode, read: frozenset[int]) -> JoinNode | None:
    tests = [p for p in join.condition if not _of_symbols(p, ("=",))]
    if join.kind != "inner" or len(tests) != 1 or not _of_symbols(tests[0], _COMPARISONS):
        return None
    for side, other in ((join.left, join.right), (join.right, join.left)):
        if not read & ids(other):
            semi = dataclasses.replace(join, left=side, right=other, kind="semi")
            if one_match(semi):
                return semi
    return None


def _read(exprs: Iterable[Expr]) -> frozenset[int]:
    return frozenset().union(*map(refs, exprs))


def _of_symbols(predicate: Expr, symbols: tuple[str, ...]) -> bool:
    return isinstance(predicate, Call) and predicate.symbol in symbols
