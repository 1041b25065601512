"""Type citext of the extension of that name: text that is equal without regard to case.

Its operators compare ``lower(x)`` under the default collation, whatever the collation of ``x``, byte by
byte.  So that is the key of a value, and equality of two is that of their keys:

    x = y               -> lower(x::text COLLATE "default") = lower(y::text COLLATE "default")
    NULLIF(x, y)        -> CASE WHEN x = y THEN NULL ELSE x END
    GROUP BY x, DISTINCT, PARTITION BY, DISTINCT ON: by that text, and one of the values is shown

Other operators and functions of the extension are asked of Postgres.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from headrace.expressions.native import resolve
from headrace.planner.analyse.catalog import Catalog, Function
from headrace.planner.logical.scalar import ARG, Const, Expr, Ref
from headrace.types import TEXT

if TYPE_CHECKING:
    from headrace.planner.scalars.lower import Lowering

_DEFAULT_COLLATION: Final = 100
_LOWER: Final = 870
_COMPARISONS: Final = {"citext_eq": "=", "citext_ne": "<>"}


def is_citext(catalog: Catalog, oid: int) -> bool:
    """Whether ``oid`` is the type of the extension."""
    return catalog.extension_of(catalog.type(oid)) == "citext"


def key(lowering: Lowering, expr: Expr) -> Expr:
    """The text that is the same for equal values."""
    text: Expr
    if isinstance(expr, Const):
        text = Const(expr.text, TEXT, -1, _DEFAULT_COLLATION)
    else:
        if isinstance(expr, Ref):
            expr = dataclasses.replace(expr, collation=_DEFAULT_COLLATION)
        cast = lowering.cast(expr, TEXT, -1, expr.collation)
        text = lowering.collate(cast, _DEFAULT_COLLATION)
    function = lowering.catalog.function(_LOWER)
    return lowering.call(
        function.quoted,
        (text,),
        (TEXT, -1, _DEFAULT_COLLATION),
        f"{function.quoted}({ARG})",
        f"lower({ARG})",
        native=resolve("lower", lowering.types((text,), _DEFAULT_COLLATION)),
        remote_raises=False,
        input_collation=_DEFAULT_COLLATION,
        function=function,
    )


def comparison(
    lowering: Lowering, function: Function, args: tuple[Expr, ...]
) -> Expr | None:
    """``args`` compared by ``function``, if that is ``=`` or ``<>`` of the extension."""
    symbol = _COMPARISONS.get(function.name)
    if (
        symbol is None
        or lowering.catalog.extension("pg_proc", function.oid) != "citext"
    ):
        return None
    left, right = (key(lowering, a) for a in args)
    return lowering.comparison(symbol, left, right, _DEFAULT_COLLATION)


def equality(
    lowering: Lowering, function: Function, symbol: str, args: tuple[Expr, ...]
) -> Expr | None:
    """NULLIF or IS DISTINCT FROM of ``args``, if ``function`` is ``=`` of the extension."""
    equal = comparison(lowering, function, args)
    if equal is None or function.name != "citext_eq":
        return None
    first = args[0]
    if symbol == "nullif":
        nothing = Const(None, first.oid, -1, first.collation)
        result = (first.oid, first.typmod, first.collation)
        return lowering.choice((equal, nothing, first), result)
    return lowering.distinct(*(key(lowering, a) for a in args))
