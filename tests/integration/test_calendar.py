"""Views with units of the clock in a server, around the end of a day.

The day ends soon, because the views use a time zone in which it is nearly midnight. Postgres
computes the queries as of the timestamp of the views' progress.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import psycopg
import pytest

from tests.compared import difference, multiset
from tests.seeds import every
from tests.waiting import PATIENCE_S, at_any_moment, wait_until

pytestmark = pytest.mark.engine_with(HEADRACE_CLOCK_INTERVAL_MS="100")

TABLES = """
CREATE TABLE dues (id int PRIMARY KEY, k int, d date);
CREATE TABLE other (id int PRIMARY KEY);
INSERT INTO dues SELECT i, i % 3, (now() AT TIME ZONE '{zone}')::date + (i % 5 - 2)
  FROM generate_series(1, 20) i;
"""
TODAY = "({now} AT TIME ZONE '{zone}')::date"
QUERIES = {
    "overdue": f"SELECT id, {TODAY} - d AS days FROM dues",
    "grouped": f"SELECT k, {TODAY} AS t, count(*) FILTER (WHERE {TODAY} > d) AS n FROM dues GROUP BY k",
    "shared": f"SELECT k, n + 1 AS m FROM (SELECT k, {TODAY} AS t, count(*) FILTER (WHERE {TODAY} > d)"
    " AS n FROM dues GROUP BY k) g",
    "compared": f"SELECT id FROM dues WHERE {TODAY} - d > k",
    "mixed": f"SELECT id, d < {TODAY} AS past, {TODAY} - d AS days FROM dues WHERE {{now}} > 'epoch'",
}
HISTORY = '{"history": "1 hour"}'


@dataclass
class Midnight:
    """A time zone in which a day ends soon."""

    zone: str
    at: str
    """The end of the day."""

    def query(self, name: str, now: str = "now()") -> str:
        return QUERIES[name].format(now=now, zone=self.zone)

    def as_of(self, name: str, instant: str) -> str:
        return self.query(name, f"'{instant}'::timestamptz")


def midnight(conn: psycopg.Connection, seconds: int) -> Midnight:
    """Return a time zone whose day ends in ``seconds``."""
    at, east = conn.execute(
        "SELECT at::text, (interval '24:00' - (at - date_trunc('day', at)))::text"
        " FROM (SELECT date_trunc('second', now() AT TIME ZONE 'UTC') + %s * interval '1 s') x(at)",
        (seconds,),
    ).fetchone()
    return Midnight(f"<soon>-{east}", f"{at}+00")


@pytest.fixture
def source(engine):
    with psycopg.connect(engine.source, autocommit=True, prepare_threshold=None) as conn:
        conn.execute("SET timezone = 'UTC'")
        yield conn


def create(engine, source, soon: Midnight) -> None:
    source.execute(TABLES.format(zone=soon.zone))
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        for name in QUERIES:
            call = "CALL headrace.create_view(%s, %s, %s)"
            conn.execute(call, (name, soon.query(name), HISTORY))


def before_midnight(engine, source) -> Midnight:
    """Create the views shortly before a day ends; a slow machine gets more time."""
    for seconds in (6, 25, 100):
        soon = midnight(source, seconds)
        create(engine, source, soon)
        left = "SELECT clock_timestamp() < %s::timestamptz - %s * interval '1 s'"
        if source.execute(left, (soon.at, seconds / 3)).fetchone() == (True,):
            return soon
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            for name in QUERIES:
                conn.execute("CALL headrace.drop_view(%s)", (name,))
        source.execute("DROP TABLE dues, other")
    raise AssertionError("the machine is too slow for this test")


def check(source, soon: Midnight) -> None:
    """Compare each view with its query as of the last change of any of them."""
    source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    try:
        [(instant,)] = source.execute(
            "SELECT coalesce(max(source_commit_at), now())::text FROM headrace.progress"
        ).fetchall()
        for name in QUERIES:
            want = multiset(source, soon.as_of(name, instant))
            got = multiset(source, f"SELECT * FROM {name}")
            assert want == got, f"{name} as of {instant}: {difference(want, got)}"
    finally:
        source.execute("ROLLBACK")


def is_past(source, soon: Midnight) -> bool:
    """Return whether the views show the new day."""
    want = multiset(source, soon.as_of("overdue", soon.at))
    return multiset(source, "SELECT * FROM overdue") == want


def verified(engine) -> None:
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        for name in QUERIES:
            assert conn.execute(f"SELECT * FROM headrace.verify_view('{name}')").fetchall() == []


def passed(source, soon: Midnight) -> bool:
    return bool(source.execute("SELECT clock_timestamp() >= %s", (soon.at,)).fetchone()[0])


def day_ends(source, soon: Midnight) -> None:
    """Wait for midnight: a slow machine's is minutes away."""
    [(left_s,)] = source.execute(
        "SELECT extract(epoch FROM %s::timestamptz - clock_timestamp())::float", (soon.at,)
    ).fetchall()
    wait_until(lambda: passed(source, soon), "the day ends", max(0.0, left_s) + PATIENCE_S)


def test_at_midnight_the_views_change_and_their_history_knows_when(engine, source):
    soon = before_midnight(engine, source)
    source.execute("INSERT INTO dues VALUES (21, 1, NULL)")
    source.execute("CALL headrace.wait_for('overdue')")
    check(source, soon)
    before = {name: multiset(source, f"SELECT * FROM {name}") for name in QUERIES}
    day_ends(source, soon)
    wait_until(lambda: is_past(source, soon), "the views change", 20)
    check(source, soon)
    for name in QUERIES:
        call = f"SELECT * FROM headrace.view_as_of(NULL::{name}, at => %s::timestamptz %s)"
        late = multiset(source, (call % (f"'{soon.at}'", "- interval '1 us'")))
        assert late == before[name], name
        assert multiset(source, call % (f"'{soon.at}'", "")) == multiset(
            source, soon.as_of(name, soon.at)
        )
    verified(engine)
    source.execute("UPDATE dues SET d = d + 1 WHERE k = 1; DELETE FROM dues WHERE k = 2")
    source.execute("CALL headrace.wait_for('overdue')")
    check(source, soon)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("killed", every(3, ["at", "before", "after"]))
def test_killed_around_midnight(seed, killed, engine, source):
    rng = random.Random(f"{killed} {seed}")
    soon = before_midnight(engine, source)
    source.execute("INSERT INTO dues VALUES (22, 1, NULL)")
    source.execute("CALL headrace.wait_for('overdue')")
    check(source, soon)
    if killed == "before":
        assert not is_past(source, soon)
        engine.kill9()
        day_ends(source, soon)
    else:
        day_ends(source, soon)
        if killed == "after":
            wait_until(lambda: is_past(source, soon), "the views change", 20)
        at_any_moment(rng, 0.0, 0.2)
        source.execute("UPDATE dues SET k = k + 1 WHERE id % 4 = 0")
        engine.kill9()
    source.execute(
        "DELETE FROM dues WHERE id % 7 = 1; INSERT INTO dues VALUES (23, 0, '2026-01-01')"
    )
    engine.start()
    source.execute("CALL headrace.wait_for('overdue')")
    wait_until(lambda: is_past(source, soon), "the views change", 20)
    check(source, soon)
    verified(engine)


def test_commits_elsewhere_do_not_touch_such_a_view(engine, source):
    """Else 2 000 of them would delay every commit."""
    soon = midnight(source, 40_000)
    create(engine, source, soon)

    def busy() -> int:
        query = "SELECT sum(busy_us) FROM headrace.view_stats('overdue')"
        return int(source.execute(query).fetchone()[0])

    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.create_view('others', 'SELECT id FROM other')")
    before = busy()
    for i in range(5):
        source.execute("INSERT INTO other VALUES (%s)", (i,))
        source.execute("CALL headrace.wait_for('others')")
    assert busy() == before
    source.execute("DELETE FROM dues WHERE id = 3")
    source.execute("CALL headrace.wait_for('overdue')")
    assert busy() > before
    check(source, soon)


def test_no_view_is_fed_from_such_a_view(engine, source):
    soon = midnight(source, 40_000)
    create(engine, source, soon)
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.create_connection_point('overdue', 'overdue')")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="reads the clock"):
            conn.execute(
                "CALL headrace.create_view('fed', 'SELECT id FROM overdue', '{\"from\": \"overdue\"}')"
            )
        conn.execute("CALL headrace.create_view('above', 'SELECT id, days + 1 AS n FROM overdue')")
        conn.execute("CALL headrace.resync_view('grouped')")
    check(source, soon)
    want = multiset(source, "SELECT id, days + 1 FROM overdue")
    assert multiset(source, "TABLE above") == want
