"""Many views that one midnight changes: some at a time, each as if it were alone.

The day ends soon, as in ``test_calendar.py``.  Postgres computes the queries as of midnight before
anything is committed after it.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.compared import multiset
from tests.integration.test_calendar import Midnight, day_ends, midnight
from tests.waiting import at_any_moment, wait_until

pytestmark = pytest.mark.engine_with(HEADRACE_CLOCK_INTERVAL_MS="100")

TABLES = """
CREATE TABLE dues (id int PRIMARY KEY, k int, d date);
CREATE TABLE other (id int PRIMARY KEY);
INSERT INTO dues SELECT i, i % 3, (now() AT TIME ZONE '{zone}')::date + (i % 5 - 2)
  FROM generate_series(1, 6) i;
"""
TODAY = "({now} AT TIME ZONE '{zone}')::date"
QUERIES = {f"day{i}": f"SELECT id, {TODAY} - d + {i} AS days FROM dues" for i in range(28)}
QUERIES |= {
    "grouped": f"SELECT k, {TODAY} AS t, count(*) FILTER (WHERE {TODAY} > d) AS n FROM dues GROUP BY k",
    "passed": f"SELECT id FROM dues WHERE d < {TODAY}",
    # These are in one commit group, and only the first one reads the clock.
    "one": f"SELECT id, {TODAY} - d AS days FROM dues WHERE k > 0",
    "two": "SELECT id, d FROM dues",
}
PAIR = ("one", "two")
LAGGED = "views left their commit groups for a change of the time"


def query(soon: Midnight, name: str, now: str = "now()") -> str:
    return QUERIES[name].format(now=now, zone=soon.zone)


@pytest.fixture
def source(engine):
    with psycopg.connect(engine.source, autocommit=True, prepare_threshold=None) as conn:
        conn.execute("SET timezone = 'UTC'")
        yield conn


def before_midnight(engine, source) -> Midnight:
    """Create the views before a day ends; a slow machine gets more time."""
    for seconds in (10, 40, 160):
        soon = midnight(source, seconds)
        source.execute(TABLES.format(zone=soon.zone))
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            for name in QUERIES:
                group = ', "commit_group": "pair"' if name in PAIR else ""
                options = '{"history": "1 hour"' + group + "}"
                call = "CALL headrace.create_view(%s, %s, %s)"
                conn.execute(call, (name, query(soon, name), options))
            conn.execute("CALL headrace.create_view('others', 'SELECT id FROM other')")
            left = "SELECT clock_timestamp() < %s::timestamptz - %s * interval '1 s'"
            if source.execute(left, (soon.at, seconds / 5)).fetchone() == (True,):
                return soon
            for name in (*QUERIES, "others"):
                conn.execute("CALL headrace.drop_view(%s)", (name,))
        source.execute("DROP TABLE dues, other")
    raise AssertionError("the machine is too slow for this test")


def contents(source) -> dict[str, Counter[Any]]:
    return {name: multiset(source, f"TABLE {name}") for name in QUERIES}


def at_midnight(source, soon: Midnight) -> dict[str, Counter[Any]]:
    """Return Postgres' answers as of midnight, from the rows that the tables have now."""
    now = f"'{soon.at}'::timestamptz"
    return {name: multiset(source, query(soon, name, now)) for name in QUERIES}


def check(source, soon: Midnight, before: dict[str, Counter[Any]], then: dict[str, Counter[Any]]):
    """Check the views now, at midnight and before it."""
    for name in QUERIES:
        source.execute("CALL headrace.wait_for(%s)", (name,))
    now = f"'{soon.at}'::timestamptz"  # it is still that day
    wait_until(
        lambda: all(
            multiset(source, f"TABLE {name}") == multiset(source, query(soon, name, now))
            for name in QUERIES
        ),
        "they show the new day",
    )
    for name in QUERIES:
        call = f"SELECT * FROM headrace.view_as_of(NULL::{name}, at => %s::timestamptz %s)"
        assert multiset(source, call % (f"'{soon.at}'", "")) == then[name], name
        late = multiset(source, call % (f"'{soon.at}'", "- interval '1 us'"))
        assert late == before[name], name


def verified(engine) -> None:
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        for name in ("day3", "grouped", "passed", "two"):
            assert conn.execute(f"SELECT * FROM headrace.verify_view('{name}')").fetchall() == []


def test_each_view_takes_midnight_before_what_is_committed_after_it(engine, source):
    soon = before_midnight(engine, source)
    source.execute("INSERT INTO dues VALUES (21, 1, NULL)")
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        for name in QUERIES:
            conn.execute("CALL headrace.wait_for(%s)", (name,))
        before = contents(source)
        conn.execute("CALL headrace.pause_view('day0')")
        day_ends(source, soon)
        then = at_midnight(source, soon)
        assert then != before
        for i in range(20):
            source.execute("INSERT INTO other VALUES (%s)", (i,))
            source.execute("UPDATE dues SET k = k + 1 WHERE id = %s", (1 + i % 6,))
            conn.execute("CALL headrace.wait_for('others')")
        for name in set(QUERIES) - {"day0"}:
            conn.execute("CALL headrace.wait_for(%s)", (name,))
        # It reads all that it lacks at once, but not beyond midnight.
        conn.execute("CALL headrace.resume_view('day0')")
    check(source, soon, before, then)
    assert LAGGED in engine.log
    verified(engine)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_amid_the_parts(seed, engine, source):
    rng = random.Random(f"parts {seed}")
    soon = before_midnight(engine, source)
    source.execute("CALL headrace.wait_for('two')")
    before = contents(source)
    day_ends(source, soon)
    then = at_midnight(source, soon)
    source.execute("UPDATE dues SET k = k + 1 WHERE id = 1")
    if seed:
        at_any_moment(rng, 0.0, 0.4)
    else:
        wait_until(lambda: contents(source) != before, "one of them has changed", every_s=0.001)
    source.execute("DELETE FROM dues WHERE id = 2")
    engine.kill9()
    source.execute("INSERT INTO dues VALUES (23, 0, '2026-01-01')")
    engine.start()
    check(source, soon, before, then)
    verified(engine)
