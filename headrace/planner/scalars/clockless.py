"""Casts of texts to dates and times that may not read the clock.

``'today'::date`` is another day tomorrow.  A text that comes out of a column is nearly always a
plain date: it is cast behind a guard that hands every text with one of the four words to the
type's input function with a prefix that no date has.  The cast fails then, which stops the view
with that text in the error, instead of freezing a moment::

    (CASE WHEN x ~* 'now|today|tomorrow|yesterday' THEN '…' || x ELSE x END)::date
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace import types as t
from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import CLOCK, Call, Const, Expr

if TYPE_CHECKING:
    from headrace.planner.scalars.lower import Lowering
    from headrace.planner.scalars.scope import Scope

WORDS: Final = "now|today|tomorrow|yesterday"
MESSAGE: Final = "a text that stands for the current time: "
_MATCHES, _CONCATENATED = 1228, 654
"""Operators ~* and || over texts."""
_CLOCK: Final = (
    *("current_date", "current_time", "current_time", "current_timestamp"),
    *("current_timestamp", "localtime", "localtime", "localtimestamp"),
    *("localtimestamp", "current_role", "current_user", "user", "session_user"),
    *("current_catalog", "current_schema"),
)
"""SQLValueFunctionOp in its order."""
_TIMES: Final = {0: t.DATE, 3: t.TIMESTAMPTZ, 7: t.TIMESTAMP}
"""Of these, the ones that are ``now()`` or a cast of it (``temporal.py``), by their number."""
_READER: Final = frozenset(
    {"current_role", "current_user", "user", "session_user", "current_schema"}
)
_C: Final = 950
_DEFAULT: Final = 100


def guard(lowering: Lowering, text: Expr) -> Expr:
    """``text`` where no word in it stands for the current time, else no date at all."""
    if isinstance(text, Const) or _is_guard(text):
        return text
    plain = text if text.oid == t.TEXT else lowering.cast(text, t.TEXT, -1, _DEFAULT)
    matches = _operate(
        lowering,
        _MATCHES,
        (_collated(lowering, plain), Const(WORDS, t.TEXT, -1, _DEFAULT)),
        (t.BOOL, -1, 0),
        _C,
    )
    named = _operate(
        lowering,
        _CONCATENATED,
        (Const(MESSAGE, t.TEXT, -1, _DEFAULT), plain),
        (t.TEXT, -1, plain.collation),
        plain.collation,
    )
    return lowering.choice((matches, named, plain), (t.TEXT, -1, plain.collation))


def _is_guard(expr: Expr) -> bool:
    if not isinstance(expr, Call) or expr.symbol != "case":
        return False
    named = expr.args[1]
    first = named.args[0] if isinstance(named, Call) and named.args else None
    return isinstance(first, Const) and first.text == MESSAGE


def _collated(lowering: Lowering, text: Expr) -> Expr:
    return lowering.collate(text, _C)


def _operate(
    lowering: Lowering,
    oid: int,
    args: tuple[Expr, ...],
    result: tuple[int, int, int],
    collation: int,
) -> Expr:
    operator = lowering.catalog.operator(oid)
    function = lowering.catalog.function(operator.function)
    return lowering.operate(operator, function, args, result, collation)


def _value_function(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    del scope
    if (kind := _TIMES.get(node.number("op"))) is not None:
        return lowering.convert(CLOCK, kind, 0)
    name = _CLOCK[node.number("op")]
    if name == "current_catalog":
        # The engine's own database: it cannot be renamed while the engine is connected.
        dbname = lowering.database
        return Const(dbname, t.NAME, -1, node.number("typcollation"))
    if name in _READER:
        lowering.refuse(
            f'"{name}" is not supported because it depends on who reads the view', node
        )
    return lowering.refuse(
        f'"{name}" depends on time or session and is not supported', node
    )


HANDLERS: Final[dict[str, Callable[[Lowering, Node, Scope], Expr]]] = {
    "SQLVALUEFUNCTION": _value_function,
}
