"""Whether a history is long enough for a connection point (A-26, A-27), at any date."""

from __future__ import annotations

import psycopg
import pytest

from headrace.sql import history, points

ENOUGH = [
    ("1 mon", "28 days"),
    ("1 mon", "1 mon"),
    ("31 days", "1 mon"),
    ("30 days", "720:00:00"),
    ("2 mons", "59 days"),
    ("1 year", "365 days"),
    ("366 days", "1 year"),
    ("1 mon 3 days", "31 days"),
    ("4 years", "1460 days"),
    ("1 year 1 mon", "1 year 28 days"),
    ("6700 years", "6699 years"),
]
SHORT = [
    # Retention, need, and a time at which the need is longer.
    ("1 mon", "29 days", "2026-03-28 12:00"),
    ("1 mon", "30 days", "2026-03-01"),
    ("30 days", "1 mon", "2026-08-01"),
    ("1 mon 2 days", "31 days", "2026-03-15"),
    ("2 mons", "60 days", "2026-03-01"),
    ("1 year", "366 days", "2027-01-01"),
    ("365 days", "1 year", "2025-01-01"),
    ("4 years", "1461 days", "2101-01-01"),
    ("1 year 1 mon", "1 year 29 days", "2026-03-01"),
    ("02:00:00", "02:00:00.000001", "2026-01-01"),
]
MOMENTS = """
SELECT count(*) FROM generate_series(timestamptz '1999-12-31 23:30Z', '2030-01-01', '11 hours') t
 WHERE t - %s::interval > t - %s::interval"""
"""Number of times at which the retention is shorter than the need."""


@pytest.fixture
def conn(catalog, database):
    with psycopg.connect(database, autocommit=True) as made:
        made.execute("SET TimeZone = 'UTC'")
        made.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query, result_oid)"
            " VALUES (1, 'public', 'v', '', 'pg_class'::regclass)"
        )
        yield made


def needs(conn, need: str, name: str = "p") -> None:
    assert points.insert(conn, points.Point(name, 1, need, None))


def kept(conn, need: str) -> str:
    """Return the retention of the history after a point is added."""
    history.ask(conn, 1, points.enough(conn, 1, need))
    return conn.execute("SELECT keep::text FROM headrace.histories").fetchone()[0]


def test_a26_what_is_long_enough_at_any_time_of_the_year(conn):
    for keep, need in ENOUGH:
        with conn.transaction(force_rollback=True):
            assert conn.execute(MOMENTS, (keep, need)).fetchone() == (0,)
            needs(conn, need)
            assert points.needing_more(conn, 1, keep) is None, (keep, need)
            history.ask(conn, 1, keep)
            assert kept(conn, need) == keep


def test_a26_what_is_too_short_once_a_year(conn):
    reached = "SELECT %s::timestamptz - %s::interval > %s::timestamptz - %s::interval"
    for keep, need, at in SHORT:
        with conn.transaction(force_rollback=True):
            assert conn.execute(reached, (at, keep, at, need)).fetchone() == (True,)
            needs(conn, need)
            found = points.needing_more(conn, 1, keep)
            assert found is not None, (keep, need)
            assert (found.name, found.keep) == ("p", need)
            history.ask(conn, 1, keep)
            enough = kept(conn, need)
            assert conn.execute(MOMENTS, (enough, need)).fetchone() == (0,)
            assert conn.execute(MOMENTS, (enough, keep)).fetchone() == (0,)


def test_a26_two_points_of_which_neither_needs_what_the_other_does(conn):
    assert kept(conn, "1 mon") == "1 mon"
    needs(conn, "1 mon")
    assert kept(conn, "30 days") == "31 days"
    needs(conn, "30 days", "q")
    assert points.needing_more(conn, 1, "31 days") is None
    for less, name in (("1 mon", "q"), ("30 days", "p"), (None, "p"), ("02:00:00", "p")):
        found = points.needing_more(conn, 1, less)
        assert found is not None
        assert found.name == name
    assert kept(conn, "2 days") == "31 days"


def test_a_point_without_a_history_needs_none(conn):
    assert points.insert(conn, points.Point("p", 1, None, None))
    assert points.needing_more(conn, 1, None) is None
