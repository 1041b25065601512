"""Rules for aggregate and window functions."""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp

from headrace.reading.forms.rule import (
    ANY,
    CAST_HINT,
    Form,
    TranslationRule,
    TranslationRules,
    always,
    at_least,
    filled_text,
    only,
    same_as_argument,
)
from headrace.reading.kinds import INTEGERS, NUMBERS, Kinds, ValueKind

_FLOAT: Final = (ValueKind.FLOAT,)
_DOUBLE_MEAN: Final = frozenset(("bigquery", "databricks", "duckdb", "spark", "trino"))
"""Dialects in which the mean of integers is a double."""
_SAMPLE: Final = ANY - {"mysql", "oracle", "sqlite"}
"""Dialects whose STDDEV and VARIANCE are of a sample, and NULL for one row, as in Postgres."""
_EXPLICIT_FRAME: Final = frozenset(("redshift", "snowflake"))
"""Dialects in which the default frame of FIRST_VALUE and the like is the whole partition."""


def _summed(node: Any, kinds: Kinds) -> ValueKind | None:
    found = kinds.of(_distinct_of(node.this))
    if found is ValueKind.INT:
        return ValueKind.BIGINT
    return ValueKind.NUMERIC if found is ValueKind.BIGINT else found if found in NUMBERS else None


def _distinct_of(node: Any) -> Any:
    """Return the argument without its DISTINCT."""
    if isinstance(node, exp.Distinct) and len(node.expressions) == 1:
        return node.expressions[0]
    return node


def _count(node: exp.Count, form: Form) -> exp.Expr:
    only(node, form, "this", "big_int")
    if isinstance(node.this, exp.Distinct):
        one = len(node.this.expressions) == 1 and not node.this.args.get("on")
        if not one or isinstance(node.this.expressions[0], exp.Tuple):
            form.refuse(node, "it is the same only for one argument")
    return exp.Count(this=node.this)


def _count_if(node: exp.CountIf, form: Form) -> exp.Expr:
    """Translate COUNT_IF to COUNT of a CASE; both are zero for no rows."""
    inner = node.this
    if isinstance(inner, exp.Distinct):
        form.refuse(node, "DISTINCT has no equivalent here")
    form.need(inner, (ValueKind.BOOL,))
    one = exp.Literal.number(1)
    return exp.Count(this=exp.Case(ifs=[exp.If(this=inner, true=one)]))


def _sum(node: exp.Sum, form: Form) -> exp.Expr:
    form.need(_distinct_of(node.this), NUMBERS)
    return node


def _mean(node: exp.Avg, form: Form) -> exp.Expr:
    """Translate AVG of doubles, and of integers in dialects in which it is a double."""
    inner = _distinct_of(node.this)
    kind = form.kind(inner)
    if kind is ValueKind.FLOAT:
        return node
    if kind in INTEGERS and form.dialect in _DOUBLE_MEAN and inner is node.this:
        double = exp.DataType.build("double precision", dialect="postgres")
        return exp.Avg(this=exp.Cast(this=inner, to=double))
    raise form.refusal(
        node,
        f"a mean of {'an unknown type' if kind is None else f'type {kind}'} has different digits in Postgres",
        CAST_HINT if kind is None else "Cast its argument to a double, if that is meant.",
    )


def _extreme(node: exp.Expr, form: Form) -> exp.Expr:
    only(node, form, "this")
    return node


def _of_doubles(node: exp.Expr, form: Form) -> exp.Expr:
    for one in node.iter_expressions():
        form.need(one, _FLOAT)
    return node


def _joined(node: exp.GroupConcat, form: Form) -> exp.Expr:
    """Translate LISTAGG and the like, which is NULL for no rows."""
    only(node, form, "this", "separator")
    argument = node.this
    if isinstance(argument, exp.Order):
        argument = argument.this
    form.need(_distinct_of(argument), (ValueKind.TEXT,))
    if node.args.get("separator") is not None:
        filled_text(node.args["separator"], node, form)
    return node


def _truth(node: exp.Expr, form: Form) -> exp.Expr:
    form.need(node.this, (ValueKind.BOOL,))
    return node


def _same(node: exp.Expr, _form: Form) -> exp.Expr:
    return node


def _neighbour(node: exp.Expr, form: Form) -> exp.Expr:
    only(node, form, "this", "offset", "default")
    if node.args.get("offset") is not None:
        at_least(node.args["offset"], 0, node, form)
    default = node.args.get("default")
    kinds = (form.kind(node.this), ValueKind.NULL if default is None else form.kind(default))
    if default is not None and (kinds[0] is None or kinds[1] not in (kinds[0], ValueKind.NULL)):
        form.refuse(node, "its default has another type than its argument", CAST_HINT)
    return node


def _at_end(node: exp.Expr, form: Form) -> exp.Expr:
    """Check FIRST_VALUE, LAST_VALUE and NTH_VALUE, whose default frame differs by dialect."""
    only(node, form, "this", "offset")
    if node.args.get("offset") is not None:
        at_least(node.args["offset"], 1, node, form)
    window = node.parent
    framed = window is not None and window.args.get("spec")
    if form.dialect in _EXPLICIT_FRAME and not framed:
        form.refuse(node, "its default frame differs", "Write the frame of the window.")
    return node


def _tiles(node: exp.Ntile, form: Form) -> exp.Expr:
    at_least(node.this, 1, node, form)
    return node


def _window(node: exp.Window, form: Form) -> exp.Expr:
    only(node, form, "this", "partition_by", "order", "spec", "alias", "over")
    return node


def _in_order(node: exp.WithinGroup, form: Form) -> exp.Expr:
    if not isinstance(node.this, exp.GroupConcat):
        form.refuse(node, "it is the same only for texts that are put together")
    return node


_RANK: Final = TranslationRule(_same, always(ValueKind.BIGINT))
RULES: Final[TranslationRules] = {
    exp.Count: TranslationRule(_count, always(ValueKind.BIGINT)),
    exp.CountIf: TranslationRule(
        _count_if,
        always(ValueKind.BIGINT),
        frozenset(("bigquery", "databricks", "snowflake", "spark", "trino")),
    ),
    exp.Sum: TranslationRule(_sum, _summed),
    exp.Avg: TranslationRule(_mean, always(ValueKind.FLOAT)),
    exp.Max: TranslationRule(_extreme, same_as_argument),
    exp.Min: TranslationRule(_extreme, same_as_argument),
    exp.GroupConcat: TranslationRule(
        _joined,
        always(ValueKind.TEXT),
        frozenset(("duckdb", "redshift", "sqlite", "trino", "tsql")),
    ),
    **dict.fromkeys(
        (exp.Stddev, exp.Variance), TranslationRule(_of_doubles, always(ValueKind.FLOAT), _SAMPLE)
    ),
    **dict.fromkeys(
        (exp.StddevPop, exp.StddevSamp, exp.VariancePop),
        TranslationRule(_of_doubles, always(ValueKind.FLOAT), ANY - {"oracle", "spark", "sqlite"}),
    ),
    **dict.fromkeys(
        (exp.LogicalAnd, exp.LogicalOr),
        TranslationRule(
            _truth,
            always(ValueKind.BOOL),
            frozenset(("bigquery", "databricks", "duckdb", "redshift", "spark", "trino")),
        ),
    ),
    exp.Grouping: TranslationRule(_same, always(ValueKind.INT)),
    exp.Window: TranslationRule(_window, same_as_argument),
    **dict.fromkeys((exp.RowNumber, exp.Rank, exp.DenseRank), _RANK),
    **dict.fromkeys(
        (exp.PercentRank, exp.CumeDist), TranslationRule(_same, always(ValueKind.FLOAT))
    ),
    exp.Ntile: TranslationRule(_tiles, always(ValueKind.INT)),
    **dict.fromkeys((exp.Lag, exp.Lead), TranslationRule(_neighbour, same_as_argument)),
    **dict.fromkeys(
        (exp.FirstValue, exp.LastValue, exp.NthValue), TranslationRule(_at_end, same_as_argument)
    ),
    exp.Filter: TranslationRule(_same, same_as_argument),
    exp.WithinGroup: TranslationRule(_in_order, same_as_argument),
}
