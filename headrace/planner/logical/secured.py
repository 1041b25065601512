"""The predicate that stands for the row security of a table in a logical plan.

The binder puts it above the table, the passes move it as any other predicate, and
``passes.row_security`` replaces it by a condition over the result.  Nothing evaluates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeGuard

from headrace.planner.analyse.policies import RowSecurity
from headrace.planner.logical.scalar import ARG, Call, Expr
from headrace.types import BOOL

_SYMBOL: Final = "row security "


def predicate(security: RowSecurity, columns: Mapping[int, Expr]) -> Call:
    """Return the predicate for a table over ``columns``, by number in the table."""
    args = tuple(columns[number] for number in security.columns)
    return Call(
        symbol=symbol(security),
        args=args,
        oid=BOOL,
        typmod=-1,
        collation=0,
        sql="",
        show=f'row security of "{security.table}"({", ".join([ARG] * len(args))})',
        native=None,
        raises=False,
    )


def symbol(security: RowSecurity) -> str:
    """Return the condition over the table itself: equal ones over equal columns are alike."""
    return f"{_SYMBOL}{security.condition(security.columns)}"


def is_predicate(expr: Expr) -> TypeGuard[Call]:
    """Return whether ``expr`` is such a predicate."""
    return isinstance(expr, Call) and expr.symbol.startswith(_SYMBOL)
