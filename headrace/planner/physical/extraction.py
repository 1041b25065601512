"""Rows of a table that a view needs: predicates pushed down into its source.

    Source(t) below Filter[p](Scan), Filter[q](Scan) = Source(t where p or q) below the same

A source omits all other rows, in the extraction and in the stream.  This requires that an UPDATE
which makes a row match has the whole row in the stream: no needed value can be stored out of line
(TOAST), or the stream has whole old rows.  Filters stay in place, so no result depends on this.

Counter-examples: a predicate that may fail on a row must not read rows that other predicates
remove.  A comparison with the clock may become true for every row.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from headrace.planner.analyse.tables import Table
from headrace.planner.logical.nodes import ScanNode
from headrace.planner.logical.scalar import Call, Expr, native, raises, substitute
from headrace.planner.scalars import build
from headrace.planner.scalars.context import QueryContext


def own(table: Table, attnum: int) -> int:
    """Return the id of a column of the table itself: lower than all others (OIDs exceed 16 383)."""
    return -(table.oid << 16) - attnum


def wanted(scans: list[ScanNode], context: QueryContext) -> tuple[Expr, ...]:
    """Return predicates true of all rows that any of a table's ``scans`` shows, over ``own``."""
    arms: dict[tuple[Expr, ...], None] = {}
    for scan in scans:
        fields = (*scan.fields, *scan.hidden)
        names: dict[int, Expr] = {
            c.id: replace(c.ref, id=own(scan.table, f.attnum)) for c, f in fields
        }
        mine = [p for p in scan.predicates if native(p) and not raises(p)]
        if not any(isinstance(p, Call) and p.symbol != "is_not_null" for p in mine):
            return ()  # hardly a row less
        arms[tuple(substitute(p, names) for p in mine)] = None
    if len(arms) == 1:
        return next(iter(arms))
    each = [build.logic(context, "and", a) if len(a) > 1 else a[0] for a in arms]
    return (build.logic(context, "or", tuple(each)),)


def pushdown(
    tests: tuple[Expr, ...], places: dict[int, int], context: QueryContext
) -> tuple[str, ...]:
    """Return ``tests`` as SQL: text, place of a column (``places``: by id), text and so on."""
    if not tests:
        return ()

    def text(mark: str) -> str:
        return " AND ".join(context.sql(e, lambda ref: mark.format(places[ref.id])) for e in tests)

    plain = text("")
    mark = next(m for i in itertools.count() if (m := f"column_{i}_") not in plain)
    return tuple(re.split(rf"{mark}(\d+)_", text(mark + "{}_")))
