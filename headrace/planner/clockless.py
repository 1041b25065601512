"""Casts of texts to dates and times that may not read the clock.

``'today'::date`` is another day tomorrow.  A text that comes out of a column is nearly always a
plain date: it is cast behind a guard that hands every text with one of the four words to the
type's input function with a prefix that no date has.  The cast fails then, which stops the view
with that text in the error, instead of freezing a moment::

    (CASE WHEN x ~* 'now|today|tomorrow|yesterday' THEN '…' || x ELSE x END)::date
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace import types as t
from headrace.planner.scalar import Call, Const, Expr

if TYPE_CHECKING:
    from headrace.planner.lower import Lowering

WORDS: Final = "now|today|tomorrow|yesterday"
MESSAGE: Final = "a text that stands for the current time: "
_MATCHES, _CONCATENATED = 1228, 654
"""Operators ~* and || over texts."""
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
