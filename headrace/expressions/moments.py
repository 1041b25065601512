"""Native functions over date and timestamp: resolvers and kernels.

No function here depends on a setting; those that read the time zone are left to Postgres.  Years
are astronomical internally (0 is 1 BC), as in Postgres.

Source: ``timestamp.c`` and ``date.c`` (``extract``, ``date_trunc``, ``timestamp_pl_interval``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.expressions import kernels
from headrace.expressions.ir import Expr, Literal, Native
from headrace.expressions.signature import Args, Builder, Kernel, NativeOp, Resolver
from headrace.kernels import buffers
from headrace.types import DATE, FLOAT8, INTERVAL, NUMERIC, TEXT, TIMESTAMP, TIMESTAMPTZ

Int64s = npt.NDArray[np.int64]

_SECOND: Final = 1_000_000
_DAY: Final = 86_400 * _SECOND
_EPOCH: Final = 946_684_800
"""Seconds from 1970 to 2000."""
_FIRST, _END = -2451545 * _DAY, 9223371331200000000
"""Valid timestamp range, half-open, in microseconds since 2000-01-01."""
_OUT_OF_RANGE: Final = "timestamp out of range"


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval, as its three fields in Postgres."""

    months: int
    days: int
    micros: int

    def negated(self) -> Interval:
        """Return the negated interval."""
        return Interval(-self.months, -self.days, -self.micros)


_PART: Final = re.compile(r"(-?\+?\d+) (year|mon|day)s?")
_CLOCK: Final = re.compile(r"([-+]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


def parse_interval(text: str) -> Interval | None:
    """Parse IntervalStyle postgres; None if the interval is infinite or cannot be negated."""
    found = {"year": 0, "mon": 0, "day": 0}
    micros, rest = 0, text
    while rest:
        part = _PART.match(rest)
        if part is not None:
            found[part[2]] += int(part[1])
        else:
            part = _CLOCK.fullmatch(rest)
            if part is None:
                return None
            sign, hours, minutes, seconds, fraction = part.groups()
            whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
            micros = whole * _SECOND + int((fraction or "").ljust(6, "0"))
            micros = -micros if sign == "-" else micros
        rest = rest[part.end() :].removeprefix(" ")
    out = Interval(found["year"] * 12 + found["mon"], found["day"], micros)
    least = (-(2**31), -(2**31), -(2**63))
    parts = (out.months, out.days, out.micros)
    # Intervals that cannot be negated are left to Postgres.
    return out if all(low < p < -low for low, p in zip(least, parts, strict=True)) else None


# --- resolvers


_MONOTONIC: Final = ("year", "isoyear", "decade", "century", "millennium", "epoch")
"""Fields that are infinite for an infinite timestamp; the others are NULL."""
_OF_DATE: Final = (*_MONOTONIC, "month", "day", "quarter", "week", "dow", "isodow", "doy")
_OF_TIME: Final = ("hour", "minute", "second", "milliseconds", "microseconds")
_CUT_TIME: Final = {
    "microseconds": 1, "milliseconds": 1000, "second": _SECOND, "minute": 60 * _SECOND,
    "hour": 3600 * _SECOND, "day": _DAY,
}  # fmt: skip
_CUT_DATE: Final = ("month", "quarter", "year", "decade", "century", "millennium")
_FORMAT: Final = re.compile(
    "(?:YYYY|MM|DD|HH24|HH12|HH|MI|SS|yyyy|mm|dd|hh24|hh12|hh|mi|ss|[-/:., ])+"
)
_TOKEN: Final = re.compile("YYYY|MM|DD|HH24|HH12|HH|MI|SS|.")


def _extract(name: str, args: Args) -> NativeOp | None:
    if len(args) != 2 or args[0].oid != TEXT:
        return None
    if args[1].oid == TIMESTAMPTZ and args[0].literal == "epoch":
        return NativeOp(name, NUMERIC if name == "extract" else FLOAT8)
    if args[1].oid not in (DATE, TIMESTAMP):
        return None
    known: tuple[str, ...] = _OF_DATE
    if args[1].oid == TIMESTAMP or name == "date_part":
        known += _OF_TIME
    if args[0].literal not in known:
        return None
    if name == "extract":
        return NativeOp(name, NUMERIC)
    # A date is converted to a timestamp first.
    return NativeOp(name, FLOAT8, may_raise=args[1].oid == DATE)


def _date_trunc(name: str, args: Args) -> NativeOp | None:
    if len(args) != 2 or args[0].oid != TEXT or args[1].oid != TIMESTAMP:
        return None
    unit = args[0].literal
    if unit in _CUT_TIME or unit == "week":
        return NativeOp(name, TIMESTAMP)
    # The month of the first timestamp begins before it.
    return NativeOp(name, TIMESTAMP, may_raise=True) if unit in _CUT_DATE else None


def _to_char(name: str, args: Args) -> NativeOp | None:
    if len(args) != 2 or args[0].oid != TIMESTAMP or args[1].oid != TEXT:
        return None
    pattern = args[1].literal or ""
    upper = pattern.upper()
    if not _FORMAT.fullmatch(pattern) or "DDD" in upper or "SSS" in upper:
        return None
    return NativeOp(name, TEXT)


def shift(name: str, args: Args) -> NativeOp | None:
    """Resolve ``+`` and ``-`` of a date or timestamp and a constant interval."""
    if len(args) != 2:
        return None
    moment, span = args
    if name == "+" and moment.oid == INTERVAL:
        moment, span = span, moment
    if moment.oid not in (DATE, TIMESTAMP) or span.oid != INTERVAL:
        return None
    if span.literal is None or parse_interval(span.literal) is None:
        return None
    return NativeOp(f"interval_{name}", TIMESTAMP, may_raise=True)


RESOLVERS: Final[dict[str, Resolver]] = {
    "extract": _extract,
    "date_part": _extract,
    "date_trunc": _date_trunc,
    "to_char": _to_char,
    # may_raise resolves the returned names again.
    "interval_+": lambda name, args: shift("+", args),
    "interval_-": lambda name, args: shift("-", args),
}


# --- the calendar


def _civil(days: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return (year, month, day) of days since 2000-01-01.

    Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    """
    z = days + (10957 + 719468)
    era = z // 146097
    doe = z - era * 146097
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    day = doy - (153 * mp + 2) // 5 + 1
    month = np.where(mp < 10, mp + 3, mp - 9)
    return yoe + era * 400 + (month <= 2), month, day


def _days(year: Int64s, month: Int64s, day: Int64s | int) -> Int64s:
    """Return days since 2000-01-01; the inverse of ``_civil``."""
    y = year - (month <= 2)
    era = y // 400
    yoe = y - era * 400
    doy = (153 * np.where(month > 2, month - 3, month + 9) + 2) // 5 + day - 1
    doe: Int64s = yoe * 365 + yoe // 4 - yoe // 100 + doy
    return era * 146097 + doe - 719468 - 10957


def _weekday(days: Int64s) -> Int64s:
    """Return the day of the week; 0 is Monday (2000-01-01 was a Saturday)."""
    return (days + 5) % 7


def _decade(year: Int64s) -> Int64s:
    return np.where(year >= 0, year // 10, -((8 - (year - 1)) // 10))


def _hundreds(year: Int64s, size: int) -> Int64s:
    """Return the century (``size`` 100) or millennium (1000)."""
    after = (year + size - 1) // size
    return np.where(year > 0, after, -((size - 1 - (year - 1)) // size))


def _shown(year: Int64s) -> Int64s:
    return np.where(year > 0, year, year - 1)


def _ones(days: Int64s) -> Int64s:
    return np.ones(len(days), np.int64)


def _of_year(days: Int64s) -> Int64s:
    year, _, _ = _civil(days)
    return days - _days(year, _ones(days), 1) + 1


def _thursday(days: Int64s) -> Int64s:
    return days - _weekday(days) + 3


_DATE_FIELDS: Final[dict[str, Callable[[Int64s], Int64s]]] = {
    "year": lambda d: _shown(_civil(d)[0]),
    "isoyear": lambda d: _shown(_civil(_thursday(d))[0]),
    "decade": lambda d: _decade(_civil(d)[0]),
    "century": lambda d: _hundreds(_civil(d)[0], 100),
    "millennium": lambda d: _hundreds(_civil(d)[0], 1000),
    "month": lambda d: _civil(d)[1],
    "day": lambda d: _civil(d)[2],
    "quarter": lambda d: (_civil(d)[1] - 1) // 3 + 1,
    "week": lambda d: (_of_year(_thursday(d)) - 1) // 7 + 1,
    "dow": lambda d: (_weekday(d) + 1) % 7,
    "isodow": lambda d: _weekday(d) + 1,
    "doy": _of_year,
}


# --- kernels


def _literal(expr: Expr) -> str:
    assert isinstance(expr, Literal), "resolved with a constant"
    assert expr.text is not None, "resolved with a constant that is not NULL"
    return expr.text


@dataclass(frozen=True, slots=True)
class _Moments:
    """A column as int64 microseconds (days for dates); 0 where there is no finite value."""

    values: Int64s
    finite: npt.NDArray[np.bool_]
    endless: pa.Array
    """Sign of an infinite value (1 or -1), NULL in all other rows."""
    valid: buffers.Bytes


def _moments(column: pa.Array, *, date: bool) -> _Moments:
    raw = buffers.values(column).astype(np.int64)
    limits = np.iinfo(np.int32 if date else np.int64)
    valid = buffers.validity(column)
    low, high = raw == limits.min, raw == limits.max
    finite = ~(low | high) & (valid == 1)
    sign = pa.array(high.astype(np.int8) - low.astype(np.int8))
    endless = pc.if_else(pa.array((low | high) & (valid == 1)), sign, None)
    return _Moments(np.where(finite, raw, 0), finite, endless, valid)


def _build_extract(expr: Native) -> tuple[Kernel, Sequence[Expr]]:
    field, oid = _literal(expr.args[0]), expr.args[1].oid
    numeric = expr.op == "extract"

    def run(args: list[pa.Array]) -> pa.Array:
        column = args[0]
        date = oid == DATE
        if date and not numeric:
            column, date = kernels.cast(column, DATE, TIMESTAMP), False
        moments = _moments(column, date=date)
        if field in ("second", "milliseconds", "epoch"):
            out = _fraction(field, moments, date=date, numeric=numeric)
        else:
            out = _whole(field, moments, date=date)
            out = pc.cast(out, pa.string() if numeric else pa.float64())
        if field not in _MONOTONIC or pc.all(pc.is_null(moments.endless)).as_py():
            return out
        words = ["Infinity", "-Infinity"] if numeric else [np.inf, -np.inf]
        up, down = (pa.scalar(w, out.type) for w in words)
        infinite = pc.if_else(pc.equal(moments.endless, 1), up, down)
        return pc.coalesce(infinite, out)

    return run, expr.args[1:]


def _whole(field: str, moments: _Moments, *, date: bool) -> pa.Array:
    values, present = moments.values, moments.finite.astype(np.uint8)
    days = values if date else values // _DAY
    if field in _DATE_FIELDS:
        out = _DATE_FIELDS[field](days)
    else:
        time = values - days * _DAY
        per = {"hour": 3600 * _SECOND, "minute": 60 * _SECOND, "microseconds": 1}[field]
        over = {"hour": 24, "minute": 60, "microseconds": 60 * _SECOND}[field]
        out = time // per % over
    return buffers.make_fixed(out, present, pa.int64())


def _fraction(field: str, moments: _Moments, *, date: bool, numeric: bool) -> pa.Array:
    """Compute fields that have digits after the point."""
    values, present = moments.values, moments.finite.astype(np.uint8)
    if date:
        seconds = values * 86_400 + _EPOCH
        return pc.cast(buffers.make_fixed(seconds, present, pa.int64()), pa.string())
    if field == "epoch":
        return _epoch(values, present, numeric=numeric)
    micros = values % (60 * _SECOND)
    scale = 6 if field == "second" else 3
    if not numeric:
        seconds, fraction = micros // _SECOND, (micros % _SECOND).astype(np.float64)
        out = seconds + fraction / 1e6 if scale == 6 else seconds * 1e3 + fraction / 1e3
        return buffers.make_fixed(out, present, pa.float64())
    return _decimal(micros.astype(np.uint64), scale, present, None)


def _epoch(values: Int64s, present: buffers.Bytes, *, numeric: bool) -> pa.Array:
    # The sum overflows for the last years of the range; Postgres computes those differently.
    late = values >= 2**63 - 1 - _EPOCH * _SECOND
    if not numeric:
        total = np.where(late, 0, values) + _EPOCH * _SECOND
        out = np.where(late, values.astype(np.float64) + float(_EPOCH * _SECOND), total)
        return buffers.make_fixed(out / 1e6, present, pa.float64())
    before = values < -_EPOCH * _SECOND
    behind = -(np.where(before, values, 0) + _EPOCH * _SECOND)
    # Values before 2000 wrap around in uint64; the addition wraps them back.
    ahead = np.where(before, -_EPOCH * _SECOND, values).astype(np.uint64)
    ahead += np.uint64(_EPOCH * _SECOND)
    # Postgres divides numerics here; the quotient has four digits after the point.
    rounded = (ahead + np.uint64(50)) // np.uint64(100) * np.uint64(100)
    size = np.where(before, behind.astype(np.uint64), np.where(late, rounded, ahead))
    return _decimal(size, 6, present, before)


def _decimal(
    size: npt.NDArray[np.uint64],
    scale: int,
    present: buffers.Bytes,
    negative: npt.NDArray[np.bool_] | None,
) -> pa.Array:
    """Format ``size / 10**scale`` with exactly ``scale`` decimal places."""
    unit = np.uint64(10**scale)
    whole = pc.cast(pa.array(size // unit), pa.string())
    digits = pc.utf8_lpad(pc.cast(pa.array(size % unit), pa.string()), scale, "0")
    out = pc.binary_join_element_wise(whole, digits, ".")
    if negative is not None and negative.any():
        signs = pc.if_else(pa.array(negative), "-", "")
        out = pc.binary_join_element_wise(signs, out, "")
    return pc.if_else(pa.array(present == 1), out, pa.scalar(None, pa.string()))


def _build_date_trunc(expr: Native) -> tuple[Kernel, Sequence[Expr]]:
    unit = _literal(expr.args[0])

    def run(args: list[pa.Array]) -> pa.Array:
        moments = _moments(args[0], date=False)
        values = moments.values
        if unit in _CUT_TIME:
            out = values // _CUT_TIME[unit] * _CUT_TIME[unit]
        elif unit == "week":
            days = values // _DAY
            out = (days - _weekday(days)) * _DAY
        else:
            out = _cut_date(unit, values // _DAY)
            out = _checked(out, moments.finite)
        return _with_infinite(out, args[0], moments)

    return run, expr.args[1:]


def _cut_date(unit: str, days: Int64s) -> Int64s:
    """Return the first day of the month … millennium."""
    year, month, _ = _civil(days)
    if unit == "month":
        return _days(year, month, 1)
    if unit == "quarter":
        return _days(year, (month - 1) // 3 * 3 + 1, 1)
    if unit == "decade":
        year = _decade(year) * 10
    elif unit != "year":
        size = 100 if unit == "century" else 1000
        number = _hundreds(year, size)
        year = np.where(year > 0, number * size - size + 1, number * size + 1)
    return _days(year, _ones(days), 1)


def _checked(days: Int64s, finite: npt.NDArray[np.bool_]) -> Int64s:
    """Convert days to microseconds; raise FailingRow outside the range of timestamps."""
    bad = finite & ((days < _FIRST // _DAY) | (days >= _END // _DAY))
    kernels.fail(bad, _OUT_OF_RANGE, kernels.DATETIME_OVERFLOW)
    return np.where(finite, days, 0) * _DAY


def _with_infinite(out: Int64s, column: pa.Array, moments: _Moments) -> pa.Array:
    content = np.where(moments.finite, out, buffers.values(column))
    return buffers.make_fixed(content, moments.valid, pa.int64())


def _build_shift(expr: Native) -> tuple[Kernel, Sequence[Expr]]:
    first, second = expr.args
    moment, span = (second, first) if first.oid == INTERVAL else (first, second)
    interval = parse_interval(_literal(span))
    assert interval is not None, "resolved with a finite interval"
    if expr.op == "interval_-":
        interval = interval.negated()

    def run(args: list[pa.Array]) -> pa.Array:
        column = args[0]
        if moment.oid == DATE:
            column = kernels.cast(column, DATE, TIMESTAMP)
        moments = _moments(column, date=False)
        out = _shifted(moments.values, moments.finite, interval)
        return _with_infinite(out, column, moments)

    return run, (moment,)


def _shifted(values: Int64s, finite: npt.NDArray[np.bool_], interval: Interval) -> Int64s:
    """Add months first (the day is cut to the month's last), then days, then the time."""
    days = values // _DAY
    time = values - days * _DAY
    if interval.months:
        year, month, day = _civil(days)
        months = year * 12 + (month - 1) + interval.months
        year, month = months // 12, months % 12 + 1
        following = _days(year + month // 12, month % 12 + 1, 1)
        days = np.minimum(_days(year, month, day), following - 1)
        _checked(days, finite)
    if interval.days:
        days = np.where(finite, days, 0) + interval.days
        _checked(days, finite)
    out = np.where(finite, days, 0) * _DAY + np.where(finite, time, 0)
    # Postgres' sum does not wrap: a result outside the limits is out of range.
    low, high = _FIRST - interval.micros, _END - interval.micros
    bad = finite & ((out < max(low, -(2**63))) | (out >= min(high, 2**63 - 1)))
    kernels.fail(bad, _OUT_OF_RANGE, kernels.DATETIME_OVERFLOW)
    return np.where(finite & ~bad, out, 0) + np.where(finite, interval.micros, 0)


def _build_to_char(expr: Native) -> tuple[Kernel, Sequence[Expr]]:
    tokens = _TOKEN.findall(_literal(expr.args[1]).upper())

    def run(args: list[pa.Array]) -> pa.Array:
        moments = _moments(args[0], date=False)
        days = moments.values // _DAY
        time = (moments.values - days * _DAY) // _SECOND
        year, month, day = _civil(days)
        half = np.where(time // 3600 % 12 == 0, 12, time // 3600 % 12)
        numbers = {
            "HH": half,
            "HH12": half,
            "YYYY": np.abs(_shown(year)),
            "MM": month,
            "DD": day,
            "HH24": time // 3600,
            "MI": time // 60 % 60,
            "SS": time % 60,
        }
        parts: list[Any] = [
            _padded(numbers[token], 4 if token == "YYYY" else 2) if token in numbers else token
            for token in tokens
        ]
        first = pc.if_else(pa.array(moments.finite), "", pa.scalar(None, pa.string()))
        return pc.binary_join_element_wise(first, *parts, "")

    return run, expr.args[:1]


def _padded(values: Int64s, width: int) -> pa.Array:
    return pc.utf8_lpad(pc.cast(pa.array(values), pa.string()), width, "0")


BUILDERS: Final[dict[str, Builder]] = {
    "extract": _build_extract,
    "date_part": _build_extract,
    "date_trunc": _build_date_trunc,
    "to_char": _build_to_char,
    "interval_+": _build_shift,
    "interval_-": _build_shift,
}
