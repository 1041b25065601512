"""Simplification of expressions with constant arguments, by the rules of Postgres' planner.

``eval_const_expressions`` simplifies a call without evaluating its other arguments: a strict call
with a NULL is NULL, a constant decides AND and OR, a constant condition chooses the branch of CASE.
"""

from __future__ import annotations

import dataclasses

from headrace.planner.logical.scalar import (
    ARG,
    Call,
    Const,
    Expr,
    choice,
    conjunction,
    disjunction,
)
from headrace.types import BOOL, RECORD, RECORD_ARRAY


def simplify(expr: Expr) -> Expr:
    """Simplify all parts of ``expr``, for use after a constant has replaced a column."""
    if not isinstance(expr, Call):
        return expr
    args = tuple(map(simplify, expr.args))
    return simplified(expr if args == expr.args else dataclasses.replace(expr, args=args))


def simplified(made: Call) -> Expr:
    """Return what remains of ``made`` when its constant arguments decide; else ``made`` itself."""
    if made.strict and made.oid not in (RECORD, RECORD_ARRAY) and any(map(_is_null, made.args)):
        return Const(None, made.oid, made.typmod, made.collation)
    match made.symbol:
        case "and" | "or":
            return _logic(made)
        case "case":
            return _case(made)
        case "coalesce":
            return _coalesce(made)
        case "nullif" if any(map(_is_null, made.args)) and made.args[0].oid == made.oid:
            return made.args[0]
        case _:
            return made


def _is_null(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.text is None


def _logic(made: Call) -> Expr:
    neutral, decisive = ("t", "f") if made.symbol == "and" else ("f", "t")
    known = [a.text for a in made.args if isinstance(a, Const)]
    if decisive in known:
        return Const(decisive, BOOL)
    if neutral not in known and known.count(None) < 2:
        return made
    rest: list[Expr] = [a for a in made.args if not isinstance(a, Const)]
    if None in known:
        rest.append(Const(None, BOOL))
    if not rest:
        return Const(neutral, BOOL)
    join = conjunction if made.symbol == "and" else disjunction
    return join(made, rest)


def _case(made: Call) -> Expr:
    whens: list[tuple[Expr, Expr]] = []
    last = made.args[-1]
    for test, value in zip(made.args[:-1:2], made.args[1::2], strict=True):
        if isinstance(test, Const) and test.text == "t":
            last = value
            break
        if not isinstance(test, Const):
            whens.append((test, value))
    if 2 * len(whens) + 1 == len(made.args):
        return made
    if not whens:
        return last if last.oid == made.oid else made
    args = choice(whens, last)
    return dataclasses.replace(made, args=args.args, sql=args.sql, show=args.show)


def _coalesce(made: Call) -> Expr:
    rest: list[Expr] = []
    for arg in made.args:
        if not _is_null(arg):
            rest.append(arg)
            if isinstance(arg, Const):
                break
    if len(rest) == len(made.args) or any(a.oid != made.oid for a in rest):
        return made
    if not rest:
        return Const(None, made.oid, made.typmod, made.collation)
    if len(rest) == 1:
        return rest[0]
    text = f"COALESCE({', '.join([ARG] * len(rest))})"
    return dataclasses.replace(made, args=tuple(rest), sql=text, show=text)
