"""Rows that a moving window has passed for good when the view is planned.

    at > now() - interval '1 hour'
    is only true if   at >= (yesterday, 0:00 UTC) - interval '1 hour'

because the view's timestamp never lies before its planning.  The second comparison has no clock, so
rules move it to the sources, which omit all other rows (``physical/extraction.py``): a view of the
last hour does not read years of history.

The limit is of the day before, so that views of the same day have equal sources, which they share,
and so that a clock that is set back a little does no harm.  Views over small tables have none,
so that they share sources whenever they are created.

Counter-example: for ``at < now()``, every row becomes visible at some time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, LiteralString

from headrace import types as t
from headrace.expressions.native import resolve
from headrace.planner.logical.nodes import (
    FilterNode,
    JoinNode,
    Node,
    ScanNode,
    children,
    with_children,
)
from headrace.planner.logical.repeats import linked, named, scans_by_table
from headrace.planner.logical.scalar import Const, Expr, reads_clock
from headrace.planner.passes.temporal import LowerBound, lower_bound
from headrace.planner.scalars import build
from headrace.planner.scalars.lower import Lowering

BYTES_MIN: Final = 8 * 1024 * 1024
"""Size of a query's tables from which on there are limits."""
_NOW: Final = (
    "pg_catalog.date_trunc('day', pg_catalog.now() OPERATOR(pg_catalog.-)"
    " '1 day'::pg_catalog.interval, 'UTC')"
)
_ZONES: Final = "'8 days'::pg_catalog.interval"
"""More than two time zones differ, of which one may be that of the session."""
_SIZE: Final[LiteralString] = """
    SELECT COALESCE(pg_catalog.sum(pg_catalog.pg_relation_size(x.oid)), 0)
      FROM pg_catalog.unnest(%s::pg_catalog.oid[]) x(oid)
"""


def limited(plan: Node, lowering: Lowering) -> Node:
    """Return ``plan`` with the limits that follow from its comparisons with the clock."""
    return _Limits(plan, lowering).added(plan)


class _Limits:
    """Comparisons without the clock that follow from those with it, from now on."""

    def __init__(self, plan: Node, lowering: Lowering) -> None:
        self._lowering = lowering
        self._plan = plan
        self._large: bool | None = None

    def added(self, plan: Node) -> Node:
        changed = {
            n: made for n, node in named(plan).items() if (made := self._in(node)) is not node
        }
        made = self._in(plan)
        if not changed:
            return made
        return linked(made, named(plan) | changed)

    def _in(self, node: Node) -> Node:
        below = children(node)
        made = tuple(self._in(child) for child in below)
        if any(a is not b for a, b in zip(below, made, strict=True)):
            node = with_children(node, made)
        match node:
            case FilterNode() | ScanNode() if found := self._of(node.predicates):
                return replace(node, predicates=(*node.predicates, *found))
            case JoinNode() if node.kind != "full" and (found := self._of(node.condition)):
                return replace(node, condition=(*node.condition, *found))
        return node

    def _of(self, predicates: tuple[Expr, ...]) -> tuple[Expr, ...]:
        clocked = [p for p in predicates if reads_clock(p)]
        if not clocked or not self._is_large():
            return ()
        bounds = [b for p in clocked if (b := lower_bound(p, self._lowering))]
        limits = (self._limit(bound) for bound in bounds)
        return tuple(limit for limit in limits if limit is not None)

    def _is_large(self) -> bool:
        if self._large is None:
            scans = scans_by_table(self._plan).values()
            oids = ",".join(str(s[0].table.oid) for s in scans if not s[0].table.view)
            self._large = self._lowering.fetch(_SIZE, f"{{{oids}}}") >= BYTES_MIN
        return self._large

    def _limit(self, bound: LowerBound) -> Expr | None:
        lowering, column = self._lowering, bound.column
        if resolve(">=", lowering.types((column, column), 0)) is None:
            return None
        offset = f"{bound.offset}"
        if bound.bound.oid != t.DATE:
            offset = f"'{offset} microseconds'::pg_catalog.interval"
        value = lowering.sql(bound.bound, lambda _: _NOW)
        value = f"({value} OPERATOR(pg_catalog.+) ({offset}))"
        if column.oid != bound.bound.oid:
            value = f"({value} OPERATOR(pg_catalog.-) {_ZONES})"
            value += f"::{lowering.type_name(column.oid)}"
        [text] = lowering.computed(value) or [None]
        if text is None or not text[0].isdigit() or text.endswith("BC"):
            return None
        return build.comparison(lowering, ">=", column, Const(text, column.oid), 0)
