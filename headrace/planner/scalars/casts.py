"""Casts as expressions, also casts of text to dates and times, which must not read the clock.

The value of ``'today'::date`` changes every day.  A text from a column is nearly always a plain
date, so a guard adds an invalid prefix only to texts with one of the four words.  The cast of such
a text then fails and stops the view with the text in the error, instead of storing a date that
becomes wrong::

    (CASE WHEN x ~* 'now|today|tomorrow|yesterday' THEN '…' || x ELSE x END)::date
"""

from __future__ import annotations

import dataclasses
from typing import Final

from headrace import types as t
from headrace.expressions.native import TypeRef, resolve_cast
from headrace.planner.logical.scalar import ARG, Call, Const, Expr
from headrace.planner.scalars import build, functions, typenames
from headrace.planner.scalars.build import Conduct
from headrace.planner.scalars.context import QueryContext

_STRINGS: Final = frozenset({t.TEXT, t.VARCHAR, t.NAME, t.BPCHAR})
_WORDS: Final = "now|today|tomorrow|yesterday"
_MESSAGE: Final = "a text that stands for the current time: "
_MATCHES, _CONCATENATED = 1228, 654
"""Operators ~* and || over texts."""
_C: Final = 950
_DEFAULT: Final = 100


def cast(context: QueryContext, arg: Expr, oid: int, typmod: int, collation: int) -> Expr:
    """Return ``arg::type`` for a cast that is binary or goes through text."""
    stable = False
    found = context.catalog.operators.cast(arg.oid, oid)
    through_text = found is None or found[1] == "i"
    name = typenames.named(context, arg, (oid, typmod, collation)) if oid in _STRINGS else None
    if name is not None:
        return name
    if through_text:
        clock = functions.clock_guarded(oid) and arg.oid in _STRINGS
        reason = functions.io_refusal(context.catalog, arg.oid, oid, guarded=clock)
        if reason is not None:
            context.refuse(reason)
        if clock:
            arg = _guarded(context, arg)
        stable = not functions.io_immutable(context.catalog, arg.oid, oid)
    source = context.types((arg,), 0)[0]
    kind = context.type_name(oid)
    read = context.catalog.functions[context.catalog.types[oid].input]
    return build.call(
        context,
        f"cast {kind}",
        (arg,),
        (oid, typmod, collation),
        build.Spelling(f"({ARG})::{kind}", f"{ARG}::{kind}"),
        resolve_cast(source, TypeRef(oid)),
        Conduct(
            raises=through_text and oid not in _STRINGS,
            stable=stable,
            strict=not through_text or read.strict,
        ),
    )


def whole(
    context: QueryContext,
    arg: Expr,
    name: str,
    result: build.Result,
    conduct: Conduct = build.HARMLESS,
) -> Expr:
    """Return ``arg::name`` of a whole row or array, evaluated by Postgres."""
    spelling = build.Spelling(f"(({ARG})::{name})", f"{ARG}::{name}")
    return build.call(context, f"cast {name}", (arg,), result, spelling, None, conduct)


def relabelled(expr: Expr, typmod: int, collation: int) -> Expr:
    """Return ``expr`` with another modifier and collation."""
    return dataclasses.replace(expr, typmod=typmod, collation=collation)


def _guarded(context: QueryContext, text: Expr) -> Expr:
    """Return ``text`` if it has no word for the current time, else an invalid date."""
    if isinstance(text, Const) or _is_guard(text):
        return text
    plain = text if text.oid == t.TEXT else cast(context, text, t.TEXT, -1, _DEFAULT)
    operators = context.catalog.operators
    words = (build.collate(context, plain, _C), Const(_WORDS, t.TEXT, -1, _DEFAULT))
    matches = build.operate(context, operators[_MATCHES], words, build.BOOLEAN, _C)
    result = (t.TEXT, -1, plain.collation)
    marked = (Const(_MESSAGE, t.TEXT, -1, _DEFAULT), plain)
    named = build.operate(context, operators[_CONCATENATED], marked, result, plain.collation)
    return build.choice(context, (matches, named, plain), result)


def _is_guard(expr: Expr) -> bool:
    if not isinstance(expr, Call) or expr.symbol != "case":
        return False
    named = expr.args[1]
    first = named.args[0] if isinstance(named, Call) and named.args else None
    return isinstance(first, Const) and first.text == _MESSAGE
