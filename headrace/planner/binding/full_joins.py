"""FULL JOIN with subqueries in its condition: each is computed for the rows of one side."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.logical import facts
from headrace.planner.logical.nodes import Node, free, ids
from headrace.planner.logical.scalar import Expr, conjuncts
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import Scope, Site, hung, joined


def full_join(
    lowering: Lowering,
    sites: tuple[Site, Site],
    tests: Sequence[Expr],
    hard: Sequence[Tree],
    scope: Scope,
) -> Node:
    """Return the FULL JOIN of the nodes at ``sites`` on ``tests`` and the conditions ``hard``.

    ``hard`` have subqueries; ``scope`` is over both sites.  Refuse a subquery that reads both
    sides, and one that may fail, which Postgres evaluates for some pairs of rows only.
    """
    left, right = sites[0].node, sites[1].node
    condition = [*tests]
    for part in hard:
        condition += conjuncts(lowering.lower(part, scope))
    if free(sites[0].node) & ids(right) or free(sites[1].node) & ids(left):
        lowering.refuse(
            "a subquery that reads both sides in the condition of a FULL JOIN",
            hint="Write a LEFT JOIN, and add the other side's rows without a match by"
            " UNION ALL and NOT EXISTS.",
        )
    added = [*hung(sites[0].node, left), *hung(sites[1].node, right)]
    if any(map(facts.serious, added)) or any(map(facts.fails, condition)):
        lowering.refuse(
            "a subquery that may fail in the condition of a FULL JOIN",
            hint="Compute it as a column of a subquery in FROM, and compare that column.",
        )
    return joined(sites[0].node, sites[1].node, tuple(condition), "full")
