"""Common input order of the order-sensitive aggregates of one query level.

For ``array_agg(a), array_agg(b)`` Postgres feeds both row by row: elements at the same position
come from the same row.  ``unnest(as, bs)`` and ``jsonb_object(keys, vals)`` rely on that. The order
that Postgres uses cannot be known.  We use the order of the arguments of all such aggregates of the
level, which depends on the rows alone.  FILTER leaves rows out of it; ORDER BY items come before
it.

DISTINCT and WITHIN GROUP sort by their own arguments: such aggregates are not aligned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from headrace.collections.aggregate_traits import built_in
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.logical.nodes import Agg
from headrace.planner.logical.scalar import Expr


def shows_order(function: Function) -> bool:
    """Return whether a plain call of the aggregate depends on the order of its rows."""
    return not function.builtin or built_in(function.name).ordered


def aligned(aggs: Iterable[Agg]) -> tuple[Agg, ...]:
    """Return ``aggs`` of one level; order-sensitive ones get a common row to be ordered by.

    A group whose equal keys have several forms (1.0, 1.00) likewise takes the form from one row,
    the first by these keys.
    """
    whole = tuple(dataclasses.replace(a, row=()) for a in aggs)
    ordered, forms = _row(whole, _ordered), _row(whole, _shows_form)
    return tuple(
        dataclasses.replace(a, row=ordered)
        if _ordered(a)
        else dataclasses.replace(a, row=forms)
        if _shows_form(a)
        else a
        for a in whole
    )


def _row(aggs: tuple[Agg, ...], among: Callable[[Agg], bool]) -> tuple[Expr, ...]:
    """Return the arguments of the aggregates ``among`` selects; empty if it selects only one."""
    arguments = [a.arguments for a in aggs if among(a)]
    every = dict.fromkeys(e for exprs in arguments for e in exprs)
    return tuple(every) if len(arguments) > 1 else ()


def _ordered(agg: Agg) -> bool:
    return agg.shows_order


def _shows_form(agg: Agg) -> bool:
    return agg.function == "any" and not agg.shows_order and agg.filter is None


def whole_row(agg: Agg, level: Iterable[Agg]) -> tuple[Expr, ...]:
    """Return the expressions that ``agg`` and those of its ``level`` with its row store of a row.

    The filters of all these aggregates come last: they tell which aggregates the row belongs to.
    """
    if not agg.row:
        return ()
    conditions = [a.filter for a in level if a.row == agg.row]
    more = [e for e in conditions if e is not None and e not in agg.row]
    return (*agg.row, *dict.fromkeys(more))
