"""Rows that a moving window has passed for good: the limit of a source never omits another row."""

from __future__ import annotations

import random
import re

import pytest

from headrace.planner import PlanRequest, plan
from headrace.planner.passes import expired

DDL = """
CREATE TABLE moves (id int PRIMARY KEY, z timestamptz, l timestamp, d date, v varchar(9));
"""
BOUNDS = (
    "z > now() - interval '1 hour'",
    "now() - interval '3 days' <= z",
    "l >= now() - interval '2 days'",
    "l > localtimestamp - interval '1 month'",
    "d > now() - interval '36 hours'",
    "d >= current_date - 7",
    "current_date - 30 < d",
    "z > current_date - 7",
    "z >= date_trunc('month', now())",
    "l > date_trunc('week', now() - interval '1 month')",
    "d >= date_trunc('year', current_date)",
    "z >= date_trunc('day', now() AT TIME ZONE 'Asia/Tokyo') AT TIME ZONE 'America/New_York'",
    "now() - z < interval '1 day'",
    "interval '90 min' >= now() - z",
    "z - now() > interval '-2 hours'",
    "extract(epoch FROM now() - z) < 3600",
    "extract(epoch FROM now() - z) / 60 <= 90",
    "current_date - d < 10",
    "-5 <= d - current_date",
    "z > now()",
    "z BETWEEN now() - interval '2 days' AND now()",
    "z = now() OR z > now() - interval '1 day' AND d > current_date - 3",
)
NONE = (
    "z < now() - interval '1 hour'",
    "now() - z > interval '1 day'",
    "z <> now()",
    "z = date_trunc('day', now())",
    "z > now() - interval '1 hour' OR id = 5",
    "current_date - d > 10",
    "NOT z > now() - interval '1 hour'",
    "(z > now() - interval '1 hour') IS NOT TRUE",
)
ZONES = ("UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Kiritimati", "<+99>-99")
LONG = "SELECT id FROM moves WHERE "


@pytest.fixture
def moves(conn, monkeypatch):
    monkeypatch.setattr(expired, "BYTES_MIN", 0)
    with conn.transaction(force_rollback=True):
        conn.execute(DDL)
        yield


def wanted(conn, condition: str, zone: str = "UTC") -> str | None:
    """Return the predicate that the source pushes down, as SQL over the table's columns."""
    planned = plan(conn, PlanRequest(LONG + condition, settings={"TimeZone": zone}))
    [source] = planned.physical.sources
    parts = list(source.pushdown)
    for i in range(1, len(parts), 2):
        parts[i] = source.columns[int(parts[i])].name
    return "".join(parts) or None


@pytest.mark.parametrize("zone", ZONES)
def test_no_row_is_omitted_that_may_be_shown(conn, moves, zone):
    """Postgres evaluates both, at random times from now on, for rows around the limits."""
    rng = random.Random(zone)
    conn.execute(f"SET LOCAL timezone = '{zone}'")
    conn.execute(
        "INSERT INTO moves SELECT i, x, x, x FROM generate_series(1, 4000) i, LATERAL"
        " (SELECT now() - interval '1 h' * (i / 40.0) * (i % 37)) y(x)"
    )
    conn.execute(
        "INSERT INTO moves VALUES (0, NULL, NULL, NULL), (-1, 'infinity', 'infinity', 'infinity')"
    )
    conn.execute("INSERT INTO moves VALUES (-2, '-infinity', '-infinity', '-infinity')")
    omitted = 0
    for condition in BOUNDS:
        limit = wanted(conn, condition, zone)
        if " OR " in condition:
            assert limit is None, condition
            continue
        assert limit, condition
        for later in ("0", f"{rng.randrange(10**6)} s", f"{rng.randrange(400)} days"):
            at = f"(now() + interval '{later}')"
            shown = condition.replace("current_date", f"{at}::date")
            shown = shown.replace("localtimestamp", f"{at}::timestamp").replace("now()", at)
            # Before Postgres 17, infinite timestamps cannot be subtracted.
            finite = "id > 0" if re.search(r"\b[zd]\b - | - [zd]\b", condition) else "true"
            shown = f"CASE WHEN {finite} THEN {shown} END"
            count = f"SELECT count(*) FROM moves WHERE {shown} AND ({limit}) IS NOT TRUE"
            assert conn.execute(count).fetchone() == (0,), (condition, limit, later)
        count = f"SELECT count(*) FROM moves WHERE ({limit}) IS NOT TRUE"
        omitted += conn.execute(count).fetchone()[0] > 500
    assert omitted > len(BOUNDS) / 2


@pytest.mark.parametrize("condition", NONE)
def test_other_comparisons_have_no_limit(conn, moves, condition):
    assert wanted(conn, condition) is None


def test_the_clock_of_a_common_table_expression(conn, moves):
    query = (
        "WITH c AS (SELECT now() - interval '1 day' AS since)"
        " SELECT m.id FROM moves m JOIN c ON m.z >= c.since"
    )
    [source] = plan(conn, PlanRequest(query)).physical.sources
    assert source.wanted


def test_the_inner_side_of_an_outer_join(conn, moves):
    query = (
        "SELECT a.id, b.v FROM moves a LEFT JOIN moves b"
        " ON b.id = a.id AND b.z > now() - interval '1 hour'"
    )
    assert not plan(conn, PlanRequest(query)).physical.sources[0].wanted  # a needs all rows
    query = query.replace("FROM moves a", "FROM (VALUES (1), (2)) a(id)")
    assert plan(conn, PlanRequest(query)).physical.sources[0].wanted


def test_limits_of_one_day_are_equal(conn, moves):
    """So the sources of two views are equal, and shared."""
    first, second = (wanted(conn, "z > now() - interval '1 hour'") for _ in range(2))
    assert first == second


def test_a_value_out_of_line_needs_its_row(conn, moves):
    conn.execute("ALTER TABLE moves ADD t text")
    query = "SELECT t FROM moves WHERE z > now() - interval '1 hour'"
    [source] = plan(conn, PlanRequest(query)).physical.sources
    assert not source.wanted


def test_a_small_table_has_no_limit(conn):
    with conn.transaction(force_rollback=True):
        conn.execute(DDL)
        assert wanted(conn, "z > now() - interval '1 hour'") is None


def test_the_size_of_a_partitioned_table_is_that_of_its_partitions(conn):
    with conn.transaction(force_rollback=True):
        conn.execute(
            "CREATE TABLE moves (id int, z timestamptz, filler char(500), PRIMARY KEY (id))"
            " PARTITION BY RANGE (id);"
            "CREATE TABLE moves_1 PARTITION OF moves DEFAULT;"
            "INSERT INTO moves SELECT i, now(), '' FROM generate_series(1, 20000) i"
        )
        assert "(z OPERATOR" in (wanted(conn, "z > now() - interval '1 hour'") or "")
