"""Constructors of expressions, with their SQL, native kernel and evaluation properties.

Every expression made from a tree or a plan is made here; casts are in ``casts``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace import types as t
from headrace.expressions.native import NativeOp, resolve
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.analyse.pg_operators import Operator
from headrace.planner.logical.scalar import ARG, Call, Const, Expr, immutable, refs, trusted
from headrace.planner.logical.simplify import simplified
from headrace.planner.scalars import functions, xml_values
from headrace.planner.scalars.context import QueryContext

COMPARISONS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})
BOOLEAN_TESTS: Final = {
    "is_true": "IS TRUE",
    "is_not_true": "IS NOT TRUE",
    "is_false": "IS FALSE",
    "is_not_false": "IS NOT FALSE",
    "is_unknown": "IS UNKNOWN",
    "is_not_unknown": "IS NOT UNKNOWN",
}
"""SQL of the tests, in the order of BoolTestType."""

Result = tuple[int, int, int]
"""Type, modifier, collation."""
BOOLEAN: Final = (t.BOOL, -1, 0)


class Spelling(NamedTuple):
    """Templates with one ``ARG`` per argument: exact SQL, and text for display."""

    sql: str
    show: str


def same(text: str) -> Spelling:
    """Return the spelling of a text that needs no parentheses, such as a function call."""
    return Spelling(text, text)


def enclosed(text: str) -> Spelling:
    """Return the spelling of a text that needs parentheses inside other expressions."""
    return Spelling(f"({text})", text)


@dataclass(frozen=True, slots=True)
class Conduct:
    """Properties of a call when Postgres evaluates it.

    ``raises``: it can fail on a row.  ``functions`` are the functions that it runs; ``stable`` and
    ``untrusted`` apply in addition to theirs.  ``declared`` is the domain that checks the result.
    ``strict``: the result is NULL without evaluation if an argument is NULL.
    """

    raises: bool = False
    collation: int = 0
    functions: tuple[Function, ...] = ()
    stable: bool = False
    untrusted: bool = False
    declared: int = 0
    strict: bool = False


HARMLESS: Final = Conduct()


def call(
    context: QueryContext,
    symbol: str,
    args: Sequence[Expr],
    result: Result,
    spelling: Spelling,
    native: NativeOp | None,
    conduct: Conduct = HARMLESS,
) -> Expr:
    """Return a call, folded if constant; a kernel of another result type is ignored."""
    oid, typmod, collation = result
    if native is not None and native.oid != oid:
        native = None
    users = [conduct.declared or oid, *(a.oid for a in args)]
    context.refuse_money(symbol, users)
    xml_values.check_call(context, symbol, args)
    made = Call(
        symbol=symbol,
        args=tuple(args),
        oid=oid,
        typmod=typmod,
        collation=collation,
        sql=spelling.sql,
        show=spelling.show,
        native=native.name if native else None,
        raises=native.may_raise if native else conduct.raises,
        input_collation=conduct.collation,
        immutable=not conduct.stable and all(f.volatility == "i" for f in conduct.functions),
        trusted=not conduct.untrusted
        and all(f.builtin for f in conduct.functions)
        and all(context.plain_type(u) for u in users),
        strict=conduct.strict,
    )
    return _fold(context, made)


def _fold(context: QueryContext, made: Call) -> Expr:
    simpler = simplified(made)
    if simpler is not made:
        return simpler
    if refs(made) or not immutable(made) or not trusted(made):
        return made
    if made.symbol == "collate":
        return made  # a Const does not record an explicit collation
    if context.catalog.types[made.oid].kind in ("c", "p") or made.oid == t.XML:
        return made  # a record has no text that can be read back; that of xml is not whole
    if any(not isinstance(a, Const) for a in made.args):
        return made  # an argument could not be folded because it raises
    computed = context.computed(context.sql(made, lambda _: ""))
    if computed is None:
        # It fails at run time if it is ever evaluated, or its SQL is refused later.
        return made
    return Const(computed[0], made.oid, made.typmod, made.collation)


def folded(context: QueryContext, expr: Expr) -> Expr:
    """Compute constant parts of ``expr``, after rules have replaced columns by constants."""
    if not isinstance(expr, Call):
        return expr
    args = tuple(folded(context, a) for a in expr.args)
    return _fold(context, dataclasses.replace(expr, args=args))


# -- operators


def operate(
    context: QueryContext,
    operator: Operator,
    args: tuple[Expr, ...],
    result: Result,
    collation: int,
) -> Expr:
    """Apply ``operator`` to ``args``."""
    function = context.catalog.functions[operator.function]
    infix = len(args) == 2
    # Postgres expands ``ROW(…) = ROW(…)`` into comparisons of the fields; a cast prevents that.
    mark = f"{ARG}::pg_catalog.record" if all(a.oid == t.RECORD for a in args) else ARG
    return call(
        context,
        operator.name,
        args,
        result,
        Spelling(
            f"({mark} {operator.quoted} {mark})" if infix else f"({operator.quoted} {ARG})",
            f"{ARG} {operator.name} {ARG}" if infix else f"{operator.name} {ARG}",
        ),
        kernel(context, operator, operator.name, args, collation),
        Conduct(
            raises=_operator_raises(context, operator.name, function, args),
            collation=collation,
            functions=(function,),
            strict=function.strict,
        ),
    )


def kernel(
    context: QueryContext, operator: Operator, name: str, args: tuple[Expr, ...], collation: int
) -> NativeOp | None:
    """Return the kernel ``name``, if ``operator`` is built in."""
    return resolve(name, context.types(args, collation)) if operator.builtin else None


def _operator_raises(
    context: QueryContext, name: str, function: Function, args: tuple[Expr, ...]
) -> bool:
    if function.builtin and name in COMPARISONS:
        # Rows and arrays look up the operators of their parts at run time.
        return any(comparison_raises(context, a.oid) for a in args)
    return functions.may_raise(function, args)


def comparison_raises(context: QueryContext, oid: int) -> bool:
    """Return whether comparing values of the type may turn out to be impossible."""
    kind = context.catalog.types[oid]
    if kind.kind in ("c", "p"):
        return True
    return bool(kind.element) and not context.catalog.types[kind.element].comparable


def comparison(context: QueryContext, name: str, left: Expr, right: Expr, collation: int) -> Expr:
    """Return ``left name right`` by a built-in operator that kernels compute."""
    args = (left, right)
    native = resolve(name, context.types(args, collation))
    assert native is not None, "asked by the caller"
    spelling = Spelling(f"({ARG} OPERATOR(pg_catalog.{name}) {ARG})", f"{ARG} {name} {ARG}")
    conduct = Conduct(collation=collation, strict=True)
    return call(context, name, args, BOOLEAN, spelling, native, conduct)


def distinct(context: QueryContext, left: Expr, right: Expr) -> Expr:
    """Return ``left IS DISTINCT FROM right``, for two values of one type."""
    symbol, args = "is_distinct_from", (left, right)
    native = resolve(symbol, context.types(args, left.collation))
    spelling = enclosed(f"{ARG} IS DISTINCT FROM {ARG}")
    conduct = Conduct(collation=left.collation)
    return call(context, symbol, args, BOOLEAN, spelling, native, conduct)


def logic(context: QueryContext, symbol: str, args: tuple[Expr, ...]) -> Expr:
    """Return ``and``, ``or`` or ``not`` of ``args``.

    Nested operators of the same kind are merged, as Postgres' grammar does with their SQL.
    """
    if symbol != "not":
        args = tuple(
            part
            for a in args
            for part in (a.args if isinstance(a, Call) and a.symbol == symbol else (a,))
        )
    word = symbol.upper()
    text = f"NOT {ARG}" if symbol == "not" else f" {word} ".join([ARG] * len(args))
    return _known(context, symbol, args, BOOLEAN, enclosed(text))


def null_test(context: QueryContext, symbol: str, arg: Expr, *, row: bool = False) -> Expr:
    """Return ``IS NULL`` or ``IS NOT NULL`` of ``arg``."""
    words = "IS NOT NULL" if symbol == "is_not_null" else "IS NULL"
    native = None if row else resolve(symbol, context.types((arg,), 0))
    return call(context, symbol, (arg,), BOOLEAN, enclosed(f"{ARG} {words}"), native)


def boolean_test(context: QueryContext, symbol: str, arg: Expr) -> Expr:
    """Return the test ``symbol`` (``is_true`` and so on) of ``arg``; it is never NULL."""
    spelling = enclosed(f"{ARG} {BOOLEAN_TESTS[symbol]}")
    return _known(context, symbol, (arg,), BOOLEAN, spelling)


# -- conditionals


def choice(context: QueryContext, args: tuple[Expr, ...], result: Result) -> Expr:
    """Return CASE: condition, value, condition, value, …, else."""
    whens = f" WHEN {ARG} THEN {ARG}" * (len(args) // 2)
    spelling = enclosed(f"CASE{whens} ELSE {ARG} END")
    return _known(context, "case", args, result, spelling)


def guarded(context: QueryContext, condition: Expr, value: Expr) -> Expr:
    """Return ``value`` if ``condition`` is true, else NULL without computing ``value``."""
    args = (condition, value, Const(None, value.oid, -1, value.collation))
    return choice(context, args, (value.oid, value.typmod, value.collation))


def coalesce(context: QueryContext, args: tuple[Expr, ...], result: Result) -> Expr:
    """Return the first of ``args`` that is not NULL."""
    spelling = same(f"COALESCE({', '.join([ARG] * len(args))})")
    return _known(context, "coalesce", args, result, spelling)


def _known(
    context: QueryContext, symbol: str, args: tuple[Expr, ...], result: Result, spelling: Spelling
) -> Expr:
    """Return a call that fails on no row and does not depend on collations."""
    native = resolve(symbol, context.types(args, 0))
    return call(context, symbol, args, result, spelling, native)


def collate(context: QueryContext, arg: Expr, oid: int) -> Expr:
    """Return ``arg COLLATE`` the collation ``oid``."""
    if arg.collation == oid:
        return arg
    collation = context.catalog.collations.get(oid)
    assert collation is not None, "COLLATE names a collation"
    spelling = enclosed(f"{ARG} COLLATE {collation.quoted}")
    native = NativeOp("cast", arg.oid, arg.typmod)
    result = (arg.oid, arg.typmod, oid)
    return call(context, "collate", (arg,), result, spelling, native)


def function_of(
    context: QueryContext, oid: int, arg: Expr, result: Result, collation: int = 0
) -> Expr:
    """Return a call of the built-in function ``oid``, which fails on no row."""
    function = context.catalog.functions[oid]
    return call(
        context,
        function.quoted,
        (arg,),
        result,
        Spelling(f"{function.quoted}({ARG})", f"{function.name}({ARG})"),
        resolve(function.name, context.types((arg,), collation)),
        Conduct(collation=collation, functions=(function,), strict=function.strict),
    )
