"""Rules for operators, conditionals and literals."""

from __future__ import annotations

import re
from typing import Any, Final

from sqlglot import exp

from headrace.reading.forms.rule import (
    ANY,
    Form,
    TranslationRule,
    TranslationRules,
    always,
    cast,
    filled_text,
    not_zero,
    null_for_zero,
    numbers,
    only,
    same_as_argument,
    unknown,
)
from headrace.reading.forms.times import ISO, shift_by_interval
from headrace.reading.kinds import EXACT, INTEGERS, NUMBERS, Kinds, ValueKind, widest

_BACKSLASH_ESCAPES: Final = frozenset(("bigquery", "databricks", "mysql", "redshift", "spark"))
"""Dialects in which a backslash in a LIKE pattern is the default escape, as in Postgres."""
_DAYS_ADDED: Final = frozenset(("bigquery", "duckdb", "redshift", "snowflake"))
"""Dialects in which an integer added to a date is a number of days, as in Postgres."""
_DAYS_BETWEEN: Final = frozenset(("duckdb", "redshift", "snowflake"))
"""Dialects in which the difference of two dates is a number of days, as in Postgres."""
_NULL_AT_ZERO: Final = frozenset(("mysql", "sqlite"))
"""Dialects in which a division by zero is NULL under all settings."""
_ERROR_AT_ZERO: Final = frozenset(("bigquery", "redshift", "snowflake", "tsql"))
"""Dialects in which every division by zero is an error, as in Postgres."""
_INTEGER_QUOTIENT: Final = frozenset(("redshift", "sqlite", "trino", "tsql"))
"""Dialects in which the quotient of integers is truncated to an integer, as in Postgres."""
_FLOAT_QUOTIENT: Final = frozenset(("bigquery", "databricks", "duckdb", "spark"))
"""Dialects in which the quotient of two integers is a double."""
_BINARY_FRACTIONS: Final = frozenset(("bigquery", "sqlite"))
"""Dialects in which a literal with a fraction is a double; in Postgres it is a numeric."""
_UNTIMED: Final = frozenset((*NUMBERS, ValueKind.TEXT, ValueKind.BOOL, ValueKind.NULL, None))
_PLAIN_NUMBER: Final = re.compile(r"\d+(\.\d+)?|\.\d+")


def _arithmetic(node: Any, kinds: Kinds) -> ValueKind | None:
    left, right = kinds.of(node.this), kinds.of(node.expression)
    if left in NUMBERS and right in NUMBERS:
        return widest((left, right))
    if left is ValueKind.DATE and isinstance(node, exp.Add | exp.Sub):
        if right is ValueKind.DATE:
            return ValueKind.INT
        return (
            ValueKind.DATE
            if right in INTEGERS or isinstance(node.expression, exp.Interval)
            else None
        )
    if isinstance(node.expression, exp.Interval) and left in (
        ValueKind.TIMESTAMP,
        ValueKind.TIMESTAMPTZ,
    ):
        return left
    return None


def _add(node: exp.Binary, form: Form) -> exp.Expr:
    left, right = form.kind(node.this), form.kind(node.expression)
    if isinstance(node.expression, exp.Interval):
        return shift_by_interval(node, form)
    if left is ValueKind.DATE and right in INTEGERS and form.dialect in _DAYS_ADDED:
        if right is ValueKind.BIGINT:
            form.refuse(node, "Postgres adds only integers of four bytes to a date")
        return node
    if (
        isinstance(node, exp.Sub)
        and left is right is ValueKind.DATE
        and form.dialect in _DAYS_BETWEEN
    ):
        return node
    return _both_numbers(node, form)


def _both_numbers(node: exp.Binary, form: Form) -> exp.Expr:
    form.need(node.this, NUMBERS)
    form.need(node.expression, NUMBERS)
    return node


def _divide(node: exp.Div, form: Form) -> exp.Expr:
    """Translate quotients of integers (an integer or a double, by dialect) and of doubles."""
    _both_numbers(node, form)
    left, right = node.this, node.expression
    kinds = {form.kind(left), form.kind(right)} - {ValueKind.NULL}
    integers = kinds <= INTEGERS
    if not (integers or kinds <= INTEGERS | {ValueKind.FLOAT}):
        form.refuse(node, "a quotient of type numeric has different digits in Postgres")
    if integers and form.dialect not in _INTEGER_QUOTIENT | _FLOAT_QUOTIENT:
        form.refuse(
            node,
            "the quotient of two integers has different digits in Postgres",
            "Cast one of them to a double, if that is meant.",
        )
    divisor = _divisor(node, form)
    if integers and form.dialect in _FLOAT_QUOTIENT:
        left = cast(left, "double precision")
    return exp.Div(this=left, expression=divisor, typed=True, safe=False)


def _divisor(node: exp.Binary, form: Form) -> exp.Expr:
    """Return the divisor such that zero gives the dialect's result; else refuse."""
    divisor: exp.Expr = node.expression
    if not_zero(divisor) or form.dialect in _ERROR_AT_ZERO:
        return divisor
    if form.dialect in _NULL_AT_ZERO:
        return null_for_zero(divisor)
    if form.dialect == "trino" and {form.kind(node.this), form.kind(divisor)} <= INTEGERS:
        return divisor  # Zero is an error for integers; doubles give infinity.
    raise form.refusal(
        node,
        "division by zero has another result in Postgres",
        "NULLIF(…, 0) around the divisor, or a literal divisor, is translated.",
    )


def _modulo(node: exp.Mod, form: Form) -> exp.Expr:
    """Translate remainders of integers, which have the dividend's sign in every dialect."""
    form.need(node.this, INTEGERS)
    form.need(node.expression, INTEGERS)
    return exp.Mod(this=node.this, expression=_divisor(node, form))


def _same(node: exp.Expr, _form: Form) -> exp.Expr:
    return node


def _connected(node: exp.Expr, form: Form) -> exp.Expr:
    """Check AND, OR and NOT: MySQL and SQLite also accept numbers and texts."""
    if form.dialect in ("mysql", "sqlite"):
        for one in node.iter_expressions():
            form.need(one, (ValueKind.BOOL,))
    return node


def _compared(node: exp.Expr, form: Form) -> exp.Expr:
    """Check comparisons: a text literal compared with a time is parsed by rules of the dialect."""
    sides = [one for one in node.iter_expressions() if not isinstance(one, exp.Query)]
    kinds = {form.kind(one) for one in sides}
    for side in sides:
        if not (isinstance(side, exp.Literal) and side.is_string):
            continue
        if ValueKind.TIMESTAMPTZ in kinds or not (
            kinds <= _UNTIMED or ISO.fullmatch(str(side.this))
        ):
            form.refuse(
                node,
                f"the text '{side.this}' is parsed as a time by other rules",
                "Cast it to the type that is meant, and write it as year-month-day.",
            )
    return node


def _like(node: exp.Binary, form: Form) -> exp.Expr:
    if node.args.get("negate"):
        only(node, form, "this", "expression", "negate")
    if isinstance(node.parent, exp.Escape):
        return node
    pattern = filled_text(node.expression, node, form)
    special = "[\\" if form.dialect == "tsql" else "\\"
    if form.dialect not in _BACKSLASH_ESCAPES and any(mark in pattern for mark in special):
        form.refuse(node, "a backslash or bracket in its pattern means something else in Postgres")
    return node


def _escape(node: exp.Escape, form: Form) -> exp.Expr:
    mark = filled_text(node.expression, node, form)
    pattern = filled_text(node.this.expression, node, form)
    if len(mark) != 1 or (form.dialect == "tsql" and "[" in pattern):
        form.refuse(node, "its pattern means something else in Postgres")
    return node


def _concatenate(node: exp.DPipe, form: Form) -> exp.Expr:
    form.need(node.this, (ValueKind.TEXT,))
    form.need(node.expression, (ValueKind.TEXT,))
    return exp.DPipe(this=node.this, expression=node.expression)


def _literal(node: exp.Literal, form: Form) -> exp.Expr:
    if node.is_string:
        return node
    text = str(node.this)
    if not _PLAIN_NUMBER.fullmatch(text):
        form.refuse(node, f"the number {text} is not written as in Postgres")
    if not text.isdigit() and form.dialect in _BINARY_FRACTIONS and not _exact(node, form):
        form.refuse(
            node,
            f"the number {text} is a double there, and a numeric in Postgres",
            "Cast it to the type that is meant.",
        )
    return node


def _exact(node: exp.Literal, form: Form) -> bool:
    """Return whether a literal fraction becomes a double in Postgres too, or is cast."""
    above = node.parent
    while isinstance(above, exp.Neg | exp.Paren):
        above = above.parent
    if isinstance(above, exp.Cast):
        return True
    if not isinstance(above, exp.Binary):
        return False
    return ValueKind.FLOAT in (form.kind(above.this), form.kind(above.expression))


def _boolean(node: exp.Boolean, form: Form) -> exp.Expr:
    if form.dialect in ("mysql", "oracle", "sqlite", "tsql") and not isinstance(
        node.parent, exp.Is | exp.Connector | exp.Not | exp.Where | exp.Having | exp.Join
    ):
        form.refuse(node, "there it is the number 1 or 0")
    return node


def _coalesce(node: exp.Coalesce, form: Form) -> exp.Expr:
    """Translate COALESCE; refuse ISNULL of T-SQL where its cast to the first type may lose data."""
    if node.args.get("is_null") and form.dialect == "tsql":
        first = form.kind(node.this)
        for other in node.expressions:
            if first not in EXACT - {ValueKind.NUMERIC} or form.kind(other) not in (
                first,
                ValueKind.NULL,
            ):
                form.refuse(
                    node,
                    "it casts to the type of its first argument",
                    "COALESCE is translated.",
                )
    _compared(node, form)
    return exp.Coalesce(this=node.this, expressions=node.expressions)


def _alternatives(node: Any, kinds: Kinds) -> ValueKind | None:
    if isinstance(node, exp.Coalesce):
        return widest([kinds.of(one) for one in (node.this, *node.expressions)])
    if isinstance(node, exp.If):
        return widest([kinds.of(node.args["true"]), _default(node.args.get("false"), kinds)])
    branches = [kinds.of(one.args["true"]) for one in node.args["ifs"]]
    return widest([*branches, _default(node.args.get("default"), kinds)])


def _default(node: exp.Expr | None, kinds: Kinds) -> ValueKind | None:
    return ValueKind.NULL if node is None else kinds.of(node)


def _decode(node: exp.DecodeCase, form: Form) -> exp.Expr:
    """Check DECODE, a CASE in which NULL matches NULL; the searched values must be literals."""
    for one in node.expressions[1:-1:2]:
        if not isinstance(one, exp.Literal | exp.Null | exp.Neg):
            form.refuse(node, "it is the same only for literals that are searched")
    return node


def _largest(node: Any, kinds: Kinds) -> ValueKind | None:
    return widest([kinds.of(one) for one in (node.this, *node.expressions)])


def _extreme(node: exp.Expr, form: Form) -> exp.Expr:
    """Check GREATEST and LEAST, which ignore NULL in these dialects as in Postgres."""
    for one in (node.this, *node.expressions):
        form.need(one, (*NUMBERS, ValueKind.DATE, ValueKind.TIMESTAMP))
    return node


_TRUTH: Final = always(ValueKind.BOOL)
_COMPARISONS: Final = (
    *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.Between, exp.In),
)
RULES: Final[TranslationRules] = {
    **dict.fromkeys(_COMPARISONS, TranslationRule(_compared, _TRUTH)),
    **dict.fromkeys((exp.And, exp.Or, exp.Not), TranslationRule(_connected, _TRUTH)),
    **dict.fromkeys((exp.Is, exp.Exists, exp.Any, exp.All), TranslationRule(_same, _TRUTH)),
    exp.Add: TranslationRule(_add, _arithmetic),
    exp.Sub: TranslationRule(_add, _arithmetic),
    exp.Mul: TranslationRule(_both_numbers, _arithmetic),
    exp.Div: TranslationRule(_divide, _arithmetic, ANY - {"oracle"}),
    exp.Mod: TranslationRule(_modulo, _arithmetic),
    exp.Neg: TranslationRule(numbers, same_as_argument),
    exp.Like: TranslationRule(_like, _TRUTH, ANY - {"sqlite"}),
    exp.ILike: TranslationRule(
        _like, _TRUTH, frozenset(("databricks", "duckdb", "redshift", "snowflake"))
    ),
    exp.Escape: TranslationRule(_escape, _TRUTH, ANY - {"sqlite"}),
    exp.DPipe: TranslationRule(
        _concatenate, always(ValueKind.TEXT), ANY - {"mysql", "oracle", "tsql"}
    ),
    exp.Literal: TranslationRule(_literal, unknown),
    exp.Boolean: TranslationRule(_boolean, _TRUTH),
    exp.Null: TranslationRule(_same, always(ValueKind.NULL)),
    exp.Case: TranslationRule(_same, _alternatives),
    exp.If: TranslationRule(_same, _alternatives),
    exp.Coalesce: TranslationRule(_coalesce, _alternatives),
    exp.Nullif: TranslationRule(_compared, same_as_argument),
    exp.DecodeCase: TranslationRule(_decode, unknown, frozenset(("oracle",))),
    **dict.fromkeys(
        (exp.Greatest, exp.Least),
        TranslationRule(
            _extreme, _largest, frozenset(("databricks", "duckdb", "redshift", "spark", "tsql"))
        ),
    ),
}
