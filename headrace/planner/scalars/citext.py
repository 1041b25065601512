"""Type citext of the extension of that name: case-insensitive text.

Its operators compare ``lower(x)`` under the default collation, regardless of the collation of
``x``, byte by byte.  So that text is the key of a value, and two values are equal if their keys
are:

    x = y               -> lower(x::text COLLATE "default") = lower(y::text COLLATE "default")
    NULLIF(x, y)        -> CASE WHEN x = y THEN NULL ELSE x END
    GROUP BY x, DISTINCT, PARTITION BY, DISTINCT ON: by the key, and one of the values is shown

Other operators and functions of the extension are evaluated by Postgres.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.logical.scalar import Const, Expr, Ref
from headrace.planner.scalars import build, casts
from headrace.planner.scalars.context import QueryContext
from headrace.types import TEXT

_DEFAULT_COLLATION: Final = 100
_LOWER: Final = 870
_COMPARISONS: Final = {"citext_eq": "=", "citext_ne": "<>"}


def is_citext(catalog: Catalog, oid: int) -> bool:
    """Return whether ``oid`` is the type of the extension."""
    return catalog.provenance.extension_of(catalog.types[oid]) == "citext"


def key(context: QueryContext, expr: Expr) -> Expr:
    """Return a text that is the same for equal values."""
    text: Expr
    if isinstance(expr, Const):
        text = Const(expr.text, TEXT, -1, _DEFAULT_COLLATION)
    else:
        if isinstance(expr, Ref):
            expr = dataclasses.replace(expr, collation=_DEFAULT_COLLATION)
        cast = casts.cast(context, expr, TEXT, -1, expr.collation)
        text = build.collate(context, cast, _DEFAULT_COLLATION)
    result = (TEXT, -1, _DEFAULT_COLLATION)
    return build.function_of(context, _LOWER, text, result, _DEFAULT_COLLATION)


def comparison(context: QueryContext, function: Function, args: tuple[Expr, ...]) -> Expr | None:
    """Compare ``args`` by ``function`` if it is ``=`` or ``<>`` of the extension, else None."""
    symbol = _COMPARISONS.get(function.name)
    if symbol is None or context.catalog.provenance.extension("pg_proc", function.oid) != "citext":
        return None
    left, right = (key(context, a) for a in args)
    return build.comparison(context, symbol, left, right, _DEFAULT_COLLATION)


def equality(
    context: QueryContext, function: Function, symbol: str, args: tuple[Expr, ...]
) -> Expr | None:
    """Return NULLIF or IS DISTINCT FROM if ``function`` is ``=`` of the extension, else None."""
    equal = comparison(context, function, args)
    if equal is None or function.name != "citext_eq":
        return None
    first = args[0]
    if symbol == "nullif":
        nothing = Const(None, first.oid, -1, first.collation)
        result = (first.oid, first.typmod, first.collation)
        return build.choice(context, (equal, nothing, first), result)
    return build.distinct(context, *(key(context, a) for a in args))
