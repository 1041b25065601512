"""An inner join that only tests the rows of one side becomes a semi join.

Project[e](Join[k = k', x > y](l, r)) = Project[e](SemiJoin[k = k', x > y](l, r))

``e`` reads no column of ``r``, and each row of ``l`` meets at most one of ``r`` (its keys are unique).
Such joins come from a comparison with a subquery.  A semi join with one comparison keeps its rows
in order, so that a change of ``y`` costs only the rows that gain or lose their match
(``collections.threshold``).

Counter-examples: two rows of ``r`` with one key show a row of ``l`` twice.  Without a comparison, or
with other conditions, a semi join costs more than the inner join.

``prune_columns``, which knows the columns that are read, applies it.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from headrace.planner.logical.nodes import JoinNode, ids
from headrace.planner.logical.scalar import Call, Expr
from headrace.planner.logical.uniquekeys import one_match

_COMPARISONS: Final = ("<", "<=", ">", ">=")


def narrowed(node: JoinNode, required: frozenset[int]) -> JoinNode:
    """Return ``node`` as a semi join if its reader needs only the columns ``required``."""
    tests = [p for p in node.condition if not _of_symbols(p, ("=",))]
    if node.kind != "inner" or len(tests) != 1 or not _of_symbols(tests[0], _COMPARISONS):
        return node
    for side, other in ((node.left, node.right), (node.right, node.left)):
        if not required & ids(other):
            semi = dataclasses.replace(node, left=side, right=other, kind="semi")
            if one_match(semi):
                return semi
    return node


def _of_symbols(predicate: Expr, symbols: tuple[str, ...]) -> bool:
    return isinstance(predicate, Call) and predicate.symbol in symbols
