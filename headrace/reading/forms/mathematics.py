"""Rules for functions of numbers."""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp

from headrace.reading.forms.rule import (
    ANY,
    Form,
    TranslationRule,
    TranslationRules,
    always,
    at_least,
    cast,
    numbers,
    only,
    same_as_argument,
)
from headrace.reading.kinds import INTEGERS, Kinds, ValueKind

_FRACTIONS: Final = (ValueKind.FLOAT, ValueKind.NUMERIC)
_DOMAIN_ERRORS: Final = frozenset(("bigquery", "redshift", "snowflake", "tsql"))
"""Dialects in which a root or logarithm outside of its domain is an error, as in Postgres."""


def _whole(node: exp.Expr, form: Form) -> exp.Expr:
    """Check CEIL and FLOOR."""
    only(node, form, "this")
    form.need(node.this, _FRACTIONS)
    return node


def _rounded(node: exp.Round, form: Form) -> exp.Expr:
    """Translate ROUND of decimals: half away from zero.  Postgres rounds doubles half to even."""
    only(node, form, "this", "decimals", "casts_non_integer_decimals")
    form.need(node.this, (ValueKind.NUMERIC,))
    places = node.args.get("decimals")
    if places is not None:
        at_least(places, 0, node, form)
    return exp.Round(this=node.this, decimals=places)


def _of_double(node: exp.Expr, form: Form) -> exp.Expr:
    only(node, form, "this")
    form.need(node.this, (*INTEGERS, ValueKind.FLOAT))
    return type(node)(this=cast(node.this, "double precision"))


def _power(node: exp.Pow, form: Form) -> exp.Expr:
    form.need(node.this, (ValueKind.FLOAT,))
    form.need(node.expression, (*INTEGERS, ValueKind.FLOAT))
    return node


def _sign(node: exp.Sign, form: Form) -> exp.Expr:
    form.need(node.this, (ValueKind.FLOAT, ValueKind.NUMERIC))
    return node


def _same(node: exp.Expr, _form: Form) -> exp.Expr:
    return node


def _rounded_kind(_node: Any, _kinds: Kinds) -> ValueKind | None:
    return ValueKind.NUMERIC


RULES: Final[TranslationRules] = {
    exp.Abs: TranslationRule(numbers, same_as_argument),
    exp.Ceil: TranslationRule(_whole, same_as_argument, ANY - {"sqlite"}),
    exp.Floor: TranslationRule(_whole, same_as_argument, ANY - {"sqlite"}),
    exp.Round: TranslationRule(_rounded, _rounded_kind, ANY - {"sqlite"}),
    exp.Sign: TranslationRule(_sign, same_as_argument),
    **dict.fromkeys(
        (exp.Sqrt, exp.Ln, exp.Exp),
        TranslationRule(_of_double, always(ValueKind.FLOAT), _DOMAIN_ERRORS),
    ),
    exp.Pow: TranslationRule(_power, always(ValueKind.FLOAT), _DOMAIN_ERRORS),
    exp.Pi: TranslationRule(_same, always(ValueKind.FLOAT), ANY - {"bigquery", "oracle", "sqlite"}),
}
