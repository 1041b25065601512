"""Functions over dates and timestamps against Postgres, at the edges of the calendar and at random."""

from __future__ import annotations

import random

import pytest

from headrace.expressions.ir import Column, Literal, Native
from headrace.expressions.moments import Interval, parse_interval
from headrace.expressions.native import TypeRef, resolve
from tests.expressions.test_native import COMPARISONS, check, conn
from tests.expressions.test_texts import bulk, type_of

__all__ = ["conn"]

TEXT, DATE, TIMESTAMP, INTERVAL = 25, 1082, 1114, 1186
DATES = [
    None, "infinity", "-infinity", "2000-01-01", "1999-12-31", "1970-01-01", "2024-02-29",
    "1900-03-01", "0001-01-01", "0001-12-31 BC", "0005-06-07 BC", "0100-12-31", "0101-01-01",
    "1001-01-01 BC", "4714-11-24 BC", "5874897-12-31", "294276-12-31", "294277-01-01",
    "2020-12-31", "2021-01-03", "2021-01-04", "0002-02-28 BC", "2000-02-29", "0010-01-01 BC",
]  # fmt: skip
TIMES = [
    None, "infinity", "-infinity", "2000-01-01 00:00:00", "1999-12-31 23:59:59.999999",
    "1969-12-31 23:59:59.5", "1970-01-01 00:00:00", "1970-01-01 00:00:00.000001",
    "2024-02-29 12:34:56.789012", "0001-01-01 00:00:00 BC", "0044-03-15 11:00:00.25 BC",
    "4714-11-24 00:00:00 BC", "4714-12-24 00:00:00.000001 BC", "4714-11-25 01:02:03 BC",
    "294276-12-31 23:59:59.999999", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.77585",
    "294246-12-31 00:00:00.000149", "294276-11-30 01:00:00.00015", "294276-11-30 01:00:00.000149", "9999-12-31 23:00:00",
    "10000-01-31 00:00:59", "0099-05-31 05:06:07", "2023-01-31 00:00:00",
]  # fmt: skip
OF_DATE = (
    "year", "isoyear", "decade", "century", "millennium", "epoch", "month", "day", "quarter",
    "week", "dow", "isodow", "doy",
)  # fmt: skip
OF_TIME = ("hour", "minute", "second", "milliseconds", "microseconds")
UNITS = (
    "microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month",
    "quarter", "year", "decade", "century", "millennium",
)  # fmt: skip
INTERVALS = [
    "00:00:00", "1 day", "-1 days", "1 mon", "-1 mons", "1 year", "-13 mons +2 days -00:00:01",
    "1 year 2 mons 3 days 04:05:06.789", "-00:00:00.000001", "100 years", "-4000 years",
    "10000000 days", "2540000:00:00", "3 mons -31 days", "290000 years",
]  # fmt: skip


def random_days(seed, count):
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        year = rng.choice([rng.randrange(1, 4713), rng.randrange(1900, 2100), 1, 4])
        era = rng.choice(["", "", " BC"])
        out.append((f"{year:04}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}", era))
    return out


def moments(kind):
    if kind == "date":
        return DATES + [d + era for d, era in random_days(3, 300)]
    rng = random.Random(5)
    clock = (f"{rng.randrange(24):02}:{rng.randrange(60):02}:59.{rng.randrange(10**6):06}".rstrip("0")
             for _ in range(300))  # fmt: skip
    return TIMES + [
        f"{d} {c.rstrip('.')}{era}" for (d, era), c in zip(random_days(4, 300), clock, strict=True)
    ]


def both(conn, name, expr, args, kind):
    op = resolve(name, [type_of(a) for a in args])
    assert op is not None, (name, args)
    node = Native(op.name, tuple(args), op.oid)
    if op.may_raise:
        values = DATES if kind == "date" else TIMES
        check(conn, expr, [kind], [values], op, node)
    else:
        bulk(conn, expr, [kind], [moments(kind)], node)


def literal(text, oid=TEXT):
    return Literal(text, oid)


@pytest.mark.parametrize("field", OF_DATE)
def test_extract_of_a_date_equals_postgres(conn, field):
    column = Column(0, DATE)
    expr = f"extract({field} FROM $1)"
    both(conn, "extract", expr, [literal(field), column], "date")
    expr = f"date_part('{field}', $1)"
    both(conn, "date_part", expr, [literal(field), column], "date")


@pytest.mark.parametrize("field", OF_TIME)
def test_a_date_has_a_time_as_postgres_has_it(conn, field):
    args = [literal(field), Column(0, DATE)]
    both(conn, "date_part", f"date_part('{field}', $1)", args, "date")


@pytest.mark.parametrize("field", [*OF_DATE, *OF_TIME])
def test_extract_of_a_timestamp_equals_postgres(conn, field):
    args = [literal(field), Column(0, TIMESTAMP)]
    both(conn, "extract", f"extract({field} FROM $1)", args, "timestamp")
    both(conn, "date_part", f"date_part('{field}', $1)", args, "timestamp")


def test_the_epoch_of_a_moment_with_time_zone_equals_postgres(conn):
    args = [literal("epoch"), Column(0, 1184)]
    values = [m if m is None or "inf" in m else m.replace(" BC", "+00 BC") for m in TIMES]
    for name, expr in (
        ("extract", "extract(epoch FROM $1)"),
        ("date_part", "date_part('epoch', $1)"),
    ):
        op = resolve(name, [type_of(a) for a in args])
        node = Native(op.name, tuple(args), op.oid)
        zoned = [m if m is None or m.endswith(("BC", "infinity")) else m + "+00" for m in values]
        bulk(conn, expr, ["timestamptz"], [zoned], node)
    assert resolve("extract", [TypeRef(TEXT, literal="hour"), TypeRef(1184)]) is None


@pytest.mark.parametrize("unit", UNITS)
def test_date_trunc_equals_postgres(conn, unit):
    args = [literal(unit), Column(0, TIMESTAMP)]
    both(conn, "date_trunc", f"date_trunc('{unit}', $1)", args, "timestamp")
    op = resolve("date_trunc", [type_of(a) for a in args])
    node = Native(op.name, tuple(args), op.oid)
    usual = [m for m in moments("timestamp") if m is None or not m.endswith("BC")]
    bulk(conn, f"date_trunc('{unit}', $1)", ["timestamp"], [usual], node)


@pytest.mark.parametrize("kind", ["date", "timestamp"])
def test_moments_and_intervals_equal_postgres(conn, kind):
    column = Column(0, DATE if kind == "date" else TIMESTAMP)
    for span in INTERVALS:
        constant = literal(span, INTERVAL)
        both(conn, "+", f"$1 + interval '{span}'", [column, constant], kind)
        both(conn, "-", f"$1 - interval '{span}'", [column, constant], kind)
    both(conn, "+", f"interval '{span}' + $1", [constant, column], kind)


def test_moments_in_usual_years_and_intervals_equal_postgres(conn):
    column = Column(0, TIMESTAMP)
    usual = [m for m in moments("timestamp")[20:] if not m.endswith("BC")]
    for span in ("1 mon", "-1 mons -1 days -00:30:00", "11 mons 30 days", "-23:59:59.9"):
        args = [column, literal(span, INTERVAL)]
        op = resolve("+", [type_of(a) for a in args])
        node = Native(op.name, tuple(args), op.oid)
        bulk(conn, f"$1 + interval '{span}'", ["timestamp"], [usual], node)


@pytest.mark.parametrize(
    "pattern",
    [
        "YYYY-MM-DD",
        "YYYYMMDD",
        "HH24:MI:SS",
        "yyyy-mm",
        "DD.MM.YYYY, HH24:MI",
        "MI",
        " ",
        "YYYY",
        "HH:mm",
        "HH12:MI hh",
        "yyyyMMdd",
    ],
)
def test_to_char_equals_postgres(conn, pattern):
    args = [Column(0, TIMESTAMP), literal(pattern)]
    both(conn, "to_char", f"to_char($1, '{pattern}')", args, "timestamp")


def test_dates_and_timestamps_are_ordered_as_postgres_does(conn):
    for op_name in COMPARISONS:
        for kinds in (("date", "timestamp"), ("timestamp", "date")):
            oids = [DATE if k == "date" else TIMESTAMP for k in kinds]
            op = resolve(op_name, [TypeRef(o) for o in oids])
            if op_name in ("=", "<>"):
                assert op is None, "their keys would differ"
                continue
            node = Native(op.name, tuple(Column(i, o) for i, o in enumerate(oids)), 16)
            values = [DATES if k == "date" else TIMES for k in kinds]
            bulk(conn, f"$1 {op_name} $2", list(kinds), values, node)


def test_an_interval_is_read_as_postgres_writes_it():
    assert parse_interval("1 year 2 mons -3 days -04:05:06.5") == Interval(
        14, -3, -(((4 * 60 + 5) * 60 + 6) * 10**6 + 500_000)
    )
    assert parse_interval("-1 years +1 mon") == Interval(-11, 0, 0)
    assert parse_interval("infinity") is None


def test_what_depends_on_more_is_left_to_postgres():
    moment = TypeRef(TIMESTAMP)
    for name, args in {
        "extract": [TypeRef(TEXT), moment],
        "date_trunc": [TypeRef(TEXT, literal="fortnight"), moment],
        "+": [moment, TypeRef(INTERVAL)],
    }.items():
        assert resolve(name, args) is None
    for pattern in ("Day", "YYYYDDD", "SSSSS", 'YYYY"x"', "FMDD", ""):
        assert resolve("to_char", [moment, TypeRef(TEXT, literal=pattern)]) is None
    assert resolve("extract", [TypeRef(TEXT, literal="hour"), TypeRef(DATE)]) is None
    zoned = TypeRef(1184)
    assert resolve("date_trunc", [TypeRef(TEXT, literal="day"), zoned]) is None
    assert resolve("<", [zoned, TypeRef(DATE)]) is None
