"""Rules for dates and timestamps."""

from __future__ import annotations

import re
from typing import Any, Final

from sqlglot import exp

from headrace.reading.forms.rule import (
    Form,
    TranslationRule,
    TranslationRules,
    always,
    cast,
    only,
    signed,
    unsigned,
)
from headrace.reading.kinds import Kinds, ValueKind

ISO: Final = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?)?")
"""A date or timestamp that every dialect parses in the same way."""
_DAY_UNITS: Final = frozenset(("YEAR", "QUARTER", "MONTH", "WEEK", "DAY"))
_TIME_UNITS: Final = frozenset(("HOUR", "MINUTE", "SECOND"))
_MONTHS: Final = {"QUARTER": 3}
_CALENDAR: Final = frozenset(("YEAR", "QUARTER", "MONTH", "DAY"))
"""Units that begin on the same day in every dialect; a week begins on Sunday or Monday."""
_DATE_STAYS: Final = frozenset(("bigquery", "mysql", "snowflake", "trino", "tsql"))
"""Dialects in which a date shifted by days, months or years is a date."""
_TRUNCATED_DATE: Final = frozenset(("bigquery", "snowflake", "trino"))
"""Dialects in which a truncated date is a date."""
_TIMES: Final = (ValueKind.DATE, ValueKind.TIMESTAMP)


def _unit(node: exp.Expr) -> str:
    found = node.args.get("unit")
    name = found.name if isinstance(found, exp.Expr) else str(found or "DAY")
    return name.upper().removesuffix("S")


def _shift(node: exp.Expr, form: Form) -> exp.Expr:
    """Translate DATE_ADD and the like."""
    amount = signed(node.expression)
    if isinstance(node.expression, exp.Literal) and node.expression.is_string:
        text = str(node.expression.this)
        amount = int(text) if re.fullmatch(r"-?\d+", text) else None
    back = isinstance(node, exp.DateSub | exp.DatetimeSub | exp.TimestampSub)
    return _shifted(node, form, _unit(node), amount, back=back)


def shift_by_interval(node: exp.Binary, form: Form) -> exp.Expr:
    """Translate a date or timestamp plus or minus a literal interval of one unit."""
    interval = node.expression
    text = interval.this.name if isinstance(interval.this, exp.Literal) else ""
    amount = int(text) if re.fullmatch(r"-?\d+", text) else None
    return _shifted(node, form, _unit(interval), amount, back=isinstance(node, exp.Sub))


def _shifted(node: exp.Expr, form: Form, unit: str, amount: int | None, *, back: bool) -> exp.Expr:
    kind = form.kind(node.this)
    if amount is None:
        form.refuse(node, "it is the same only for a literal integer of units")
    if unit not in _DAY_UNITS | _TIME_UNITS:
        form.refuse(node, f"unit {unit} does not mean the same in Postgres")
    form.need(node.this, _TIMES)
    whole = kind is ValueKind.DATE and unit in _DAY_UNITS
    if kind is ValueKind.DATE and not (whole and form.dialect in _DATE_STAYS):
        form.refuse(
            node,
            "for a date its result has another type in Postgres",
            "Cast the date to a timestamp, if that is meant.",
        )
    sign = -1 if back else 1
    many = sign * amount * _MONTHS.get(unit, 1)
    word = "MONTH" if unit in _MONTHS else unit
    shifted = exp.Add(
        this=node.this, expression=cast(exp.Literal.string(f"{many} {word.lower()}"), "interval")
    )
    return cast(exp.paren(shifted, copy=False), "date") if whole else shifted


def _truncated(node: exp.Expr, form: Form) -> exp.Expr:
    """Translate DATE_TRUNC of a timestamp, and of a date in dialects in which it is a date."""
    only(node, form, "this", "unit", "input_type_preserved")
    unit = _unit(node)
    kind = form.kind(node.this)
    form.need(node.this, _TIMES)
    if unit not in _CALENDAR and not (kind is ValueKind.TIMESTAMP and unit in _TIME_UNITS):
        form.refuse(node, f"unit {unit} does not mean the same in Postgres")
    if kind is ValueKind.DATE and form.dialect not in _TRUNCATED_DATE:
        form.refuse(
            node,
            "for a date its result has another type in Postgres",
            "Cast the date to a timestamp, if that is meant.",
        )
    inner = cast(node.this, "timestamp") if kind is ValueKind.DATE else node.this
    call = exp.TimestampTrunc(this=inner, unit=exp.var(unit))
    return cast(call, "date") if kind is ValueKind.DATE else call


def _moved_kind(node: Any, kinds: Kinds) -> ValueKind | None:
    found = kinds.of(node.this)
    return found if found in _TIMES else None


def _days_between(node: exp.DateDiff, form: Form) -> exp.Expr:
    """Translate the days between two dates, which every dialect counts in the same way."""
    if _unit(node) != "DAY":
        form.refuse(node, "it is the same only for days")
    sides = [_without_date_cast(one, form) for one in (node.this, node.expression)]
    return exp.paren(exp.Sub(this=sides[0], expression=sides[1]), copy=False)


def _without_date_cast(node: exp.Expr, form: Form) -> exp.Expr:
    """Return a date argument without the casts that the parser adds."""
    inner = node.this if isinstance(node, exp.TsOrDsToDate | exp.TimeStrToTime) else node
    form.need(inner, (ValueKind.DATE,))
    return inner


def _to_date(node: exp.Expr, form: Form) -> exp.Expr:
    """Keep a cast that the parser adds; the date function around it removes it."""
    only(node, form, "this")
    if not isinstance(
        node.parent, exp.Year | exp.Month | exp.Day | exp.Quarter | exp.DateDiff | exp.TsOrDsDiff
    ):
        form.refuse(node, "it is the same only within functions of dates")
    return node


def _part(name: str) -> Any:
    def apply(node: exp.Expr, form: Form) -> exp.Expr:
        inner = node.this
        if isinstance(inner, exp.TsOrDsToDate | exp.TimeStrToTime):
            inner = inner.this
        form.need(inner, _TIMES)
        return exp.Extract(this=exp.var(name), expression=inner)

    return apply


_PARTS: Final = frozenset(("YEAR", "QUARTER", "MONTH", "DAY"))
_TIME_PARTS: Final = frozenset(("HOUR", "MINUTE"))


def _extract(node: exp.Extract, form: Form) -> exp.Expr:
    part = node.this.name.upper()
    form.need(node.expression, _TIMES)
    timed = form.kind(node.expression) is ValueKind.TIMESTAMP and part in _TIME_PARTS
    if part not in _PARTS and not timed:
        form.refuse(node, f"part {part} does not mean the same in Postgres")
    return exp.Extract(this=exp.var(part), expression=node.expression)


def _date_parts(node: exp.DateFromParts, form: Form) -> exp.Expr:
    only(node, form, "year", "month", "day")
    values = [node.args.get(name) for name in ("year", "month", "day")]
    numbers = [unsigned(one) for one in values]
    if None in numbers or not (1 <= (numbers[1] or 0) <= 12 and 1 <= (numbers[2] or 0) <= 28):
        form.refuse(node, "it is the same only for literal numbers of a date")
    return exp.Anonymous(this="MAKE_DATE", expressions=values)


def _shifted_day(node: exp.TsOrDsAdd, form: Form) -> exp.Expr:
    """Translate DATE_ADD of Spark (days of a date) and DATEADD of Redshift (a timestamp)."""
    if form.dialect == "redshift":
        form.need(node.this, (ValueKind.TIMESTAMP,))
        return _shift(node, form)
    form.need(node.this, (ValueKind.DATE,))
    days = signed(node.expression)
    if days is None or _unit(node) != "DAY":
        form.refuse(node, "it is the same only for a literal number of days")
    return exp.Add(this=node.this, expression=exp.Literal.number(days))


RULES: Final[TranslationRules] = {
    exp.TsOrDsAdd: TranslationRule(
        _shifted_day, _moved_kind, frozenset(("databricks", "redshift", "spark"))
    ),
    **dict.fromkeys(
        (exp.DateAdd, exp.DateSub, exp.DatetimeAdd, exp.DatetimeSub),
        TranslationRule(_shift, _moved_kind, _DATE_STAYS),
    ),
    **dict.fromkeys(
        (exp.DateTrunc, exp.TimestampTrunc, exp.DatetimeTrunc),
        TranslationRule(
            _truncated, _moved_kind, frozenset(("bigquery", "redshift", "snowflake", "trino"))
        ),
    ),
    **dict.fromkeys(
        (exp.DateDiff, exp.TsOrDsDiff),
        TranslationRule(_days_between, always(ValueKind.INT)),
    ),
    **dict.fromkeys((exp.TsOrDsToDate, exp.TimeStrToTime), TranslationRule(_to_date, _moved_kind)),
    exp.Year: TranslationRule(_part("YEAR"), always(ValueKind.NUMERIC)),
    exp.Quarter: TranslationRule(_part("QUARTER"), always(ValueKind.NUMERIC)),
    exp.Month: TranslationRule(_part("MONTH"), always(ValueKind.NUMERIC)),
    exp.Day: TranslationRule(_part("DAY"), always(ValueKind.NUMERIC)),
    exp.Extract: TranslationRule(_extract, always(ValueKind.NUMERIC)),
    exp.DateFromParts: TranslationRule(
        _date_parts, always(ValueKind.DATE), frozenset(("bigquery", "snowflake", "tsql"))
    ),
}
