"""``range @> now()``, whether a row's range contains the clock, as comparisons with its bounds.

    r @> c  =  NOT isempty(r)
               AND (lower(r) IS NULL OR lower(r) < c OR lower_inc(r) AND lower(r) = c)
               AND (upper(r) IS NULL OR c < upper(r) OR upper_inc(r) AND upper(r) = c)

``temporal`` then finds comparisons of a row's value with the clock.  A NULL range makes the first
part NULL and the others true, so the result is NULL as required.
"""

from __future__ import annotations

from typing import Final

from headrace import types as t
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.logical.scalar import Expr, reads_clock, refs
from headrace.planner.scalars import build
from headrace.planner.scalars.context import QueryContext

_CONTAINS: Final = {3858: (0, 1), 3860: (1, 0)}
"""Positions of range and element in range_contains_elem and elem_contained_by_range."""
_LOWER, _UPPER, _ISEMPTY, _LOWER_INC, _UPPER_INC = 3848, 3849, 3850, 3851, 3852
_BOUNDS: Final = {3908: t.TIMESTAMP, 3910: t.TIMESTAMPTZ, 3912: t.DATE}


def contains(context: QueryContext, function: Function, args: tuple[Expr, ...]) -> Expr | None:
    """Return the comparisons if ``function`` tests whether a range contains the clock, or None."""
    places = _CONTAINS.get(function.oid)
    if places is None:
        return None
    range_, clock = (args[p] for p in places)
    if not reads_clock(clock) or refs(clock) or reads_clock(range_):
        return None
    oid = _BOUNDS.get(range_.oid)
    if oid is None or clock.oid != oid:
        return None

    def call(number: int, result: int) -> Expr:
        return build.function_of(context, number, range_, (result, -1, 0))

    def side(bound: Expr, inclusive: Expr, *, lower: bool) -> Expr:
        pair = (bound, clock) if lower else (clock, bound)
        at_it = (inclusive, build.comparison(context, "=", bound, clock, 0))
        choices = (
            build.null_test(context, "is_null", bound),
            build.comparison(context, "<", *pair, 0),
            build.logic(context, "and", at_it),
        )
        return build.logic(context, "or", choices)

    return build.logic(
        context,
        "and",
        (
            build.logic(context, "not", (call(_ISEMPTY, t.BOOL),)),
            side(call(_LOWER, oid), call(_LOWER_INC, t.BOOL), lower=True),
            side(call(_UPPER, oid), call(_UPPER_INC, t.BOOL), lower=False),
        ),
    )
