"""Rules for casts."""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from headrace.reading.forms.rule import ANY, Form, TranslationRule, TranslationRules, cast, only
from headrace.reading.forms.times import ISO
from headrace.reading.kinds import EXACT, INTEGERS, Kinds, ValueKind, cast_kind

_INTEGER_TYPES: Final = frozenset(("SMALLINT", "INT", "BIGINT"))
_ROUNDS_TO_INTEGER: Final = frozenset(("bigquery", "mysql", "oracle", "snowflake", "trino"))
"""Dialects whose cast of a decimal to an integer rounds half away from zero, as in Postgres."""
_ROUNDS_TO_DECIMAL: Final = ANY - {"redshift", "sqlite"}
"""Dialects whose cast to a smaller scale rounds half away from zero, as in Postgres."""
_CUTS_TEXT: Final = frozenset(("mysql", "oracle", "redshift", "trino", "tsql"))
"""Dialects whose cast truncates a text that is too long, as in Postgres."""
_TRUTH_IS_NUMBER: Final = frozenset(
    ("bigquery", "databricks", "duckdb", "redshift", "snowflake", "spark", "trino")
)
"""Dialects whose cast of a boolean to an integer gives 1 or 0."""
_DOUBLE: Final = {"DOUBLE": ANY, "FLOAT": frozenset(("redshift", "snowflake", "tsql"))}
"""Types that are a double, with their dialects; in others FLOAT has four bytes."""
_PLAIN: Final = re.compile(r"[+-]?\d+(\.\d*)?")


def _cast(node: exp.Cast, form: Form) -> exp.Expr:
    only(node, form, "this", "to", "_type")
    wanted, kind = node.to, form.kind(node.this)
    name = wanted.this.value if isinstance(wanted.this, exp.DType) else ""
    aim = cast_kind(wanted)
    if kind is ValueKind.NULL and aim is not None:
        return node
    if name in _INTEGER_TYPES:
        return _to_integer(node, form)
    if name == "DECIMAL":
        return _to_decimal(node, form)
    if form.dialect in _DOUBLE.get(name, ()):
        form.need(node.this, (*EXACT, ValueKind.FLOAT))
        return cast(node.this, "double precision")
    if aim is ValueKind.TEXT:
        return _to_text(node, form)
    if aim in (ValueKind.DATE, ValueKind.TIMESTAMP) and form.dialect not in ("oracle", "sqlite"):
        return _to_time(node, form, aim)
    if aim is ValueKind.BOOL and kind is ValueKind.BOOL:
        return node
    raise form.refusal(node, f"a cast to type {wanted.sql(form.dialect)} has no equivalent")


def _number_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and node.is_string and bool(_PLAIN.fullmatch(node.this))


def _to_integer(node: exp.Cast, form: Form) -> exp.Expr:
    kind = form.kind(node.this)
    if kind is ValueKind.BOOL and form.dialect in _TRUTH_IS_NUMBER:
        if node.to.this.value != "INT":  # Postgres casts a boolean to integer only.
            return cast(cast(node.this, "int"), node.to.sql("postgres"))
        return node
    if kind is ValueKind.NUMERIC and form.dialect not in _ROUNDS_TO_INTEGER:
        form.refuse(node, "it cuts the fraction there, and rounds in Postgres")
    form.need(node.this, EXACT)
    return node


def _to_decimal(node: exp.Cast, form: Form) -> exp.Expr:
    bare = not node.to.expressions
    if form.dialect not in _ROUNDS_TO_DECIMAL or (bare and form.dialect != "oracle"):
        form.refuse(
            node,
            "type DECIMAL without its precision is another in Postgres"
            if bare
            else "its rounding differs",
            "Write the type with its parameters." if bare else "",
        )
    if not _number_text(node.this):
        form.need(node.this, EXACT)
    return node


def _to_text(node: exp.Cast, form: Form) -> exp.Expr:
    """Translate casts to text, which give the same result for integers and dates only."""
    length = node.to.expressions
    name = node.to.this.value
    wanted = [ValueKind.TEXT, *INTEGERS]
    if form.dialect not in ("mysql", "oracle", "sqlite", "tsql"):
        wanted.append(ValueKind.DATE)
    form.need(node.this, wanted)
    if length and (form.dialect not in _CUTS_TEXT or form.kind(node.this) is not ValueKind.TEXT):
        form.refuse(node, "a text that is too long is not cut there as in Postgres")
    if name in ("CHAR", "NCHAR") and form.dialect != "mysql":
        form.refuse(node, "texts of a fixed length are padded by other rules")
    if not length and name != "TEXT" and form.dialect in ("oracle", "tsql"):
        form.refuse(
            node,
            f"type {name} without its length is another in Postgres",
            "Write the type with its parameters.",
        )
    limit = f"({length[0].this.sql()})" if length else ""
    return cast(node.this, f"varchar{limit}" if limit else "text")


def _to_time(node: exp.Cast, form: Form, aim: ValueKind) -> exp.Expr:
    zoned = form.dialect in ("databricks", "spark") and node.to.this.value == "TIMESTAMP"
    if zoned or (form.dialect == "tsql" and node.to.this.value == "DATETIME"):
        form.refuse(node, f"type {node.to.this.value} is another there")
    inner = node.this
    if isinstance(inner, exp.Literal) and inner.is_string:
        if not ISO.fullmatch(inner.this):
            form.refuse(
                node,
                f"the text '{inner.this}' is parsed by other rules",
                "Write it as year-month-day.",
            )
    else:
        form.need(inner, (ValueKind.DATE, ValueKind.TIMESTAMP))
    return cast(inner, aim.value)


def _try_cast(node: exp.TryCast, form: Form) -> exp.Expr:
    form.refuse(node, "Postgres has no cast that gives NULL where it fails")


def _cast_kind(node: exp.Cast, _kinds: Kinds) -> ValueKind | None:
    return cast_kind(node.to)


RULES: Final[TranslationRules] = {
    exp.Cast: TranslationRule(_cast, _cast_kind),
    exp.TryCast: TranslationRule(_try_cast, _cast_kind),
}
