"""A FULL JOIN on a condition that Postgres cannot execute is refused, as in Postgres.

This depends on operator families, so Postgres plans, but does not run, the condition over columns
of the same types.  Conditions that run user code are not checked, since planning may compute
constants.  Joins that the rules have narrowed are not full joins in Postgres either.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from headrace.errors import UnsupportedError
from headrace.planner.analyse import session
from headrace.planner.logical.nodes import JoinNode, Node, children, free, ids
from headrace.planner.logical.repeats import named
from headrace.planner.logical.scalar import Ref, quote, reads_clock, references, refs, trusted
from headrace.planner.scalars.context import QueryContext
from headrace.planner.scalars.scope import hung

_WORDS = r"\bfull\s+(outer\s+)?join\b"


def require_executable(context: QueryContext, bound: Node, optimised: Node) -> None:
    """Refuse full joins of ``bound`` that are still in ``optimised`` and that Postgres refuses."""
    left = [
        frozenset(join.condition)
        for plan in (optimised, *named(optimised).values())
        for join in _full(plan)
    ]
    for join in (j for plan in (bound, *named(bound).values()) for j in _full(plan)):
        mine = frozenset(join.condition)
        if not any(mine <= other for other in left) or not _known(join):
            continue
        try:
            with context.analysis.analysing() as conn:
                session.execute(conn, _query(context, join))
        except psycopg.errors.FeatureNotSupported as error:
            raise UnsupportedError(
                error.diag.message_primary or "this FULL JOIN is not supported",
                hint="Postgres refuses this query too.",
                position=context.find(_WORDS),
            ) from error
        except psycopg.Error:
            continue  # the check cannot be expressed for these types


def _full(node: Node) -> Iterator[JoinNode]:
    if isinstance(node, JoinNode) and node.kind == "full":
        yield node
    for child in children(node):
        yield from _full(child)


def _known(join: JoinNode) -> bool:
    """Return whether Postgres may plan the condition: it reads only the sides, no user code."""
    mine = ids(join.left) | ids(join.right)
    return all(trusted(e) and not reads_clock(e) and refs(e) <= mine for e in join.condition)


def _query(context: QueryContext, join: JoinNode) -> str:
    """Return SQL for the join over columns of the same types."""
    read = list({r.id: r for e in join.condition for r in references(e)}.values())
    # Subqueries of the condition that read no row: Postgres computes them before the join.
    once = frozenset(
        column.id
        for side in (join.left, join.right)
        for plan in hung(side)
        if not free(plan) & ids(side)
        for column in plan.columns
    )

    def value(ref: Ref) -> str:
        return quote(None, context.type_name(ref.oid))

    def column(ref: Ref) -> str:
        return f"(SELECT {value(ref)})" if ref.id in once else f"a{ref.id}"

    def shown(node: Node) -> str:
        columns = [f"{value(r)} AS a{r.id}" for r in read if r.id in ids(node)]
        # OFFSET prevents Postgres from treating the columns as constants.
        return f"(SELECT {', '.join(columns)} OFFSET 0)"

    tests = [context.sql(e, column) for e in join.condition]
    return (
        f"EXPLAIN SELECT FROM {shown(join.left)} l FULL JOIN {shown(join.right)} r"
        f" ON {' AND '.join(tests) or 'true'}"
    )
