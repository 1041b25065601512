"""Rules for functions of texts."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from headrace.reading.forms.rule import (
    ANY,
    Form,
    TranslationRule,
    TranslationRules,
    always,
    at_least,
    filled_text,
    only,
)
from headrace.reading.kinds import ValueKind

_TEXT: Final = (ValueKind.TEXT,)
_SPACES_ONLY: Final = frozenset(("duckdb", "mysql", "redshift", "snowflake", "spark", "sqlite"))
"""Dialects whose TRIM removes only spaces, as in Postgres."""
_NULLS_LEFT_OUT: Final = frozenset(("duckdb", "tsql"))
"""Dialects whose CONCAT ignores NULL, as in Postgres."""
_NULL_OF_NULL: Final = ANY - _NULLS_LEFT_OUT - {"oracle", "sqlite"}
"""Dialects whose CONCAT of a NULL is NULL, as ``||`` in Postgres."""


def _of_text(node: exp.Expr, form: Form) -> exp.Expr:
    only(node, form, "this")
    form.need(node.this, _TEXT)
    return node


def _length(node: exp.Length, form: Form) -> exp.Expr:
    if node.args.get("binary") and form.dialect in ("mysql", "tsql"):
        form.refuse(node, "it counts bytes there", "CHAR_LENGTH counts characters.")
    only(node, form, "this", "binary")
    form.need(node.this, _TEXT)
    return exp.Length(this=node.this)


def _concat(node: exp.Concat, form: Form) -> exp.Expr:
    parts = node.expressions
    for one in parts:
        form.need(one, _TEXT)
    if form.dialect in _NULLS_LEFT_OUT:
        return exp.Anonymous(this="CONCAT", expressions=parts)
    whole = parts[0]
    for one in parts[1:]:
        whole = exp.DPipe(this=whole, expression=one)
    return exp.paren(whole, copy=False) if len(parts) > 1 else whole


def _substring(node: exp.Substring, form: Form) -> exp.Expr:
    """Translate SUBSTRING from a literal position of at least 1; dialects differ for the rest."""
    only(node, form, "this", "start", "length", "zero_start")
    form.need(node.this, _TEXT)
    at_least(node.args.get("start"), 1, node, form)
    if node.args.get("length") is not None:
        at_least(node.args["length"], 0, node, form)
    return exp.Substring(this=node.this, start=node.args["start"], length=node.args.get("length"))


def _side(node: exp.Expr, form: Form) -> exp.Expr:
    """Translate LEFT and RIGHT; a negative number has another meaning in Postgres."""
    form.need(node.this, _TEXT)
    at_least(node.expression, 0, node, form)
    return type(node)(this=node.this, expression=node.expression)


def _repeat(node: exp.Repeat, form: Form) -> exp.Expr:
    form.need(node.this, _TEXT)
    at_least(node.args["times"], 0, node, form)
    return node


def _trim(node: exp.Trim, form: Form) -> exp.Expr:
    only(node, form, "this", "expression", "position")
    form.need(node.this, _TEXT)
    if node.expression is not None and len(filled_text(node.expression, node, form)) > 1:
        form.refuse(node, "it is the same only for one character that is taken off")
    return node


def _replace(node: exp.Replace, form: Form) -> exp.Expr:
    only(node, form, "this", "expression", "replacement")
    form.need(node.this, _TEXT)
    filled_text(node.expression, node, form)
    if node.args.get("replacement") is None:
        form.refuse(node, "it has two arguments")
    form.need(node.args["replacement"], _TEXT)
    return node


def _pad(node: exp.Pad, form: Form) -> exp.Expr:
    form.need(node.this, _TEXT)
    at_least(node.expression, 1, node, form)
    filled_text(node.args.get("fill_pattern"), node, form)
    return node


def _place(node: exp.StrPosition, form: Form) -> exp.Expr:
    only(node, form, "this", "substr", "clamp_position")
    form.need(node.this, _TEXT)
    filled_text(node.args["substr"], node, form)
    return exp.StrPosition(this=node.this, substr=node.args["substr"])


def _part(node: exp.SplitPart, form: Form) -> exp.Expr:
    form.need(node.this, _TEXT)
    filled_text(node.args.get("delimiter"), node, form)
    at_least(node.args.get("part_index"), 1, node, form)
    return exp.SplitPart(
        this=node.this, delimiter=node.args["delimiter"], part_index=node.args["part_index"]
    )


def _starts(node: exp.StartsWith, form: Form) -> exp.Expr:
    form.need(node.this, _TEXT)
    form.need(node.expression, _TEXT)
    return exp.Anonymous(this="STARTS_WITH", expressions=[node.this, node.expression])


_IS_TEXT: Final = always(ValueKind.TEXT)
_NO_ORACLE: Final = ANY - {"oracle"}
RULES: Final[TranslationRules] = {
    exp.Upper: TranslationRule(_of_text, _IS_TEXT, _NO_ORACLE - {"sqlite"}),
    exp.Lower: TranslationRule(_of_text, _IS_TEXT, _NO_ORACLE - {"sqlite"}),
    exp.Length: TranslationRule(_length, always(ValueKind.INT), _NO_ORACLE - {"tsql"}),
    exp.Concat: TranslationRule(_concat, _IS_TEXT, _NULL_OF_NULL | _NULLS_LEFT_OUT),
    exp.Substring: TranslationRule(_substring, _IS_TEXT, _NO_ORACLE),
    exp.Left: TranslationRule(_side, _IS_TEXT, _NO_ORACLE - {"sqlite", "trino"}),
    exp.Right: TranslationRule(_side, _IS_TEXT, _NO_ORACLE - {"sqlite", "trino"}),
    exp.Repeat: TranslationRule(_repeat, _IS_TEXT, _NO_ORACLE - {"sqlite", "trino"}),
    exp.Reverse: TranslationRule(_of_text, _IS_TEXT, _NO_ORACLE - {"sqlite"}),
    exp.Trim: TranslationRule(_trim, _IS_TEXT, _SPACES_ONLY),
    exp.Replace: TranslationRule(_replace, _IS_TEXT, _NO_ORACLE),
    exp.Pad: TranslationRule(
        _pad,
        _IS_TEXT,
        frozenset(("bigquery", "databricks", "duckdb", "mysql", "redshift", "snowflake", "spark")),
    ),
    exp.StrPosition: TranslationRule(_place, always(ValueKind.INT), _NO_ORACLE),
    exp.SplitPart: TranslationRule(_part, _IS_TEXT, frozenset(("duckdb", "redshift", "snowflake"))),
    exp.StartsWith: TranslationRule(
        _starts,
        always(ValueKind.BOOL),
        frozenset(("bigquery", "databricks", "duckdb", "snowflake", "spark", "trino")),
    ),
    exp.MD5: TranslationRule(
        _of_text,
        _IS_TEXT,
        frozenset(("databricks", "duckdb", "mysql", "redshift", "snowflake", "spark")),
    ),
}
