"""Aggregates of one query level that show the order of their input see it in one order.

``array_agg(a), array_agg(b)``: Postgres feeds both row by row, so the first elements come from one
row, and so do all others; ``unnest(as, bs)`` and ``jsonb_object(keys, vals)`` rely on it.
Postgres' order is none that could be known; ours is that of the rows of all such arguments of the
level, a function of the rows alone.  FILTER leaves rows out of it, ORDER BY puts it after its own
items.

DISTINCT and WITHIN GROUP sort by their own arguments: they are no part of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Final

from headrace.planner.analyse.pg_functions import Function
from headrace.planner.logical.nodes import Agg
from headrace.planner.logical.scalar import Expr

_ORDERED: Final = ("any_value", "array_agg", "json", "string_agg", "xmlagg")
"""Beginnings of the names of built-in aggregates that show the order of their input.

The sums of floats do so in their last digits only, which the query leaves open.
"""


def shows_order(function: Function) -> bool:
    """Return whether a plain call of the aggregate depends on the order of its rows."""
    return not function.builtin or function.name.startswith(_ORDERED)


def aligned(aggs: Iterable[Agg]) -> tuple[Agg, ...]:
    """``aggs`` of one level, with the row that gives their common order where several show one.

    Which of several forms of its keys a group shows (1.0, 1.00) comes from one row likewise, the
    first by these keys.
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
    """What those ``among`` the aggregates read; nothing if that is one alone."""
    arguments = [a.arguments for a in aggs if among(a)]
    every = dict.fromkeys(e for exprs in arguments for e in exprs)
    return tuple(every) if len(arguments) > 1 else ()


def _ordered(agg: Agg) -> bool:
    return agg.shows_order


def _shows_form(agg: Agg) -> bool:
    return agg.function == "any" and not agg.shows_order and agg.filter is None


def whole_row(agg: Agg, level: Iterable[Agg]) -> tuple[Expr, ...]:
    """What is kept of each row for ``agg`` and those of its ``level`` that share the row.

    The conditions of all of them come last: they tell whose row it is.
    """
    if not agg.row:
        return ()
    conditions = [a.filter for a in level if a.row == agg.row]
    more = [e for e in conditions if e is not None and e not in agg.row]
    return (*agg.row, *dict.fromkeys(more))
