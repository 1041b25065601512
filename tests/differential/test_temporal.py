"""Views that read the clock: at any time they equal the query as of the timestamp in progress.

``source_commit_at`` of a view's progress is the timestamp of its last batch. It is read in one
snapshot with the view, while nothing else is written. The view must then equal the query with that
timestamp in place of now(). A failure prints the seed.
"""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.compared import commit, create_view, difference, multiset
from tests.waiting import again_and_again, create_marker, time_passes, wait_until

DDL = """
    CREATE TABLE events (id int PRIMARY KEY, k int, ts timestamptz, l timestamp, d date);
    CREATE TABLE spans (k int, a timestamptz, b timestamptz);
    ALTER TABLE spans REPLICA IDENTITY FULL;
"""
TIMEZONE = "America/New_York"
QUERIES = (
    "SELECT id, ts FROM events WHERE ts > {now} - interval '1 second'",
    "SELECT id FROM events WHERE {now} - ts < interval '700 milliseconds' OR k = 1",
    "SELECT id FROM events WHERE {now} BETWEEN ts AND l",
    "SELECT k, count(*) FILTER (WHERE ts <= {now}) AS n, count(*) AS m FROM events GROUP BY k",
    "SELECT k, max(ts) AS m FROM events GROUP BY k HAVING max(ts) < {now}",
    "SELECT e.id, s.k FROM events e LEFT JOIN spans s ON s.k = e.k AND s.a < {now}"
    " AND s.b >= {now}",
    "SELECT id FROM events e WHERE NOT EXISTS (SELECT FROM spans s WHERE s.k = e.k"
    " AND s.b > {now})",
    "SELECT id, CASE WHEN ts < {now} THEN 'past' WHEN ts IS NULL THEN 'never'"
    " ELSE 'future' END AS w FROM events",
    "SELECT DISTINCT k FROM events WHERE d >= {today} - 1 AND l > {local}",
    "SELECT id FROM events WHERE date_trunc('second', ts) = date_trunc('second', {now})",
    "SELECT id FROM events WHERE l > {now} - interval '1 month' AND ts <> {now}"
    " AND (ts - {now} <= interval '0.5 s') IS NOT TRUE",
    "SELECT a, b FROM spans WHERE a <= {now} EXCEPT ALL SELECT a, b FROM spans WHERE b <= {now}",
    "SELECT k, ts FROM events WHERE ts < {now} ORDER BY ts DESC NULLS LAST, id LIMIT 3",
    "SELECT id, CASE WHEN k = 1 THEN 0 WHEN ts > {now} - interval '1 second' THEN 1 ELSE 2 END"
    " AS w FROM events",
    "SELECT k, a, tstzrange(a, b, '(]') @> {now} AS i FROM spans WHERE a <= b"
    " AND {now} <@ tstzrange(a, b + interval '0.5 s')",
    "SELECT id FROM events WHERE daterange(d, d + 1) @> {today} IS NOT FALSE",
    "SELECT id, extract(epoch FROM {now} - ts) / 2 <= 0.35 AS e FROM events"
    " WHERE extract(epoch FROM {now} - ts) BETWEEN -1 AND 1.5 OR ts IS NULL",
    "WITH c AS (SELECT {now} AS n, {now} - interval '1 second' AS since, {today} AS t)"
    " SELECT e.id, e.ts < c.n AS past FROM events e JOIN c ON e.ts >= c.since"
    " LEFT JOIN spans s ON s.k = e.k AND s.a < c.n WHERE e.d <= c.t OR s.k IS NULL",
    "SELECT id, date_trunc('second', {now}) - l AS x, k FROM events",
    "SELECT k, date_trunc('minute', {local}) AS m, {today} AS t, count(*) AS c FROM events"
    " WHERE ts > {now} - interval '1 second' GROUP BY k",
    "SELECT e.id, s.k FROM events e LEFT JOIN spans s ON s.k = e.k"
    " AND s.b - e.ts < date_trunc('second', {now}) - e.ts + ({today} - e.d) * interval '1 s'",
    "SELECT to_char({now}, 'HH24:MI:SS') AS t, count(*) AS c FROM events",
    "SELECT k, count(*) FILTER (WHERE ts > (SELECT {now} - interval '1 second')) AS c"
    " FROM events WHERE l < (SELECT {local} + interval '1 second') GROUP BY k",
)


def written(query: str) -> str:
    return query.format(now="now()", today="current_date", local="localtimestamp")


def as_of(query: str, instant: str) -> str:
    """Return the query with a timestamp for the clock."""
    now = f"'{instant}'::timestamptz"
    return query.format(now=now, today=f"({now})::date", local=f"({now})::timestamp")


class Writer:
    """Random rows around now."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def _time(self) -> str:
        r = self.rng
        if r.random() < 0.12:
            return "NULL"
        return f"clock_timestamp() + interval '{r.uniform(-2, 2):.4f} s'"

    def statement(self) -> str:
        r = self.rng
        key, k = r.randrange(30), r.choice(["NULL", "0", "1", "2"])
        kind = r.randrange(10)
        if kind < 4:
            return (
                f"INSERT INTO events VALUES ({key}, {k}, {self._time()}, {self._time()},"
                f" current_date - {r.randrange(3)}) ON CONFLICT DO NOTHING"
            )
        if kind < 6:
            return f"UPDATE events SET ts = {self._time()} WHERE id % 7 = {key % 7}"
        if kind < 8:
            return f"INSERT INTO spans VALUES ({k}, {self._time()}, {self._time()})"
        if kind == 8:
            return r.choice([f"DELETE FROM events WHERE id % 5 = {key % 5}", "TRUNCATE spans"])
        return f"DELETE FROM spans WHERE k = {key % 3}"


@pytest.fixture
def source(database):
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as conn:
        conn.execute(f"SET timezone = '{TIMEZONE}'")
        yield conn


def check(source: psycopg.Connection, views: dict[str, str], seed: int) -> str:
    """Compare all views as of the instant of the last change of any of them; returns the instant.

    A row of progress has the instant of its own view's last change.
    """
    source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    try:
        [(instant,)] = source.execute(
            "SELECT max(p.source_commit_at)::text FROM headrace.progress p"
        ).fetchall()
        for name, query in views.items():
            want = multiset(source, as_of(query, instant))
            got = multiset(source, f"SELECT * FROM {name}")
            assert want == got, f"seed {seed} as of {instant}\n{query}\n{difference(want, got)}"
    finally:
        source.execute("ROLLBACK")
    return instant


def create(engine, source, views: dict[str, str]) -> None:
    with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as c:
        c.execute(f"SET timezone = '{TIMEZONE}'")
        create_marker(source, c)
        for name, query in views.items():
            create_view(c, name, written(query))


def source_rows(engine, query: str) -> list[tuple]:
    with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as c:
        return c.execute(query).fetchall()


@pytest.mark.parametrize(("seed", "commits"), [(0, 4), pytest.param(1, 14, marks=pytest.mark.slow)])
def test_views_equal_their_queries_as_of_their_instant(
    seed, commits, database, source, start_engine
):
    engine = start_engine(database, HEADRACE_CLOCK_INTERVAL_MS="50")
    writer = Writer(seed)
    source.execute(DDL)
    for _ in range(12):
        source.execute(writer.statement())
    views = {f"public.time{i}": query for i, query in enumerate(QUERIES)}
    create(engine, source, views)
    commit(source, [])
    for number in range(commits):
        commit(source, [writer.statement() for _ in range(writer.rng.randrange(1, 5))])
        if number == commits // 2:
            engine.kill9()
            time_passes(1.0)
            engine.start()
            commit(source, [])
        seen = {check(source, views, seed)}
        for _ in again_and_again(0.6):
            seen.add(check(source, views, seed))
    for name in views:
        assert source_rows(engine, f"SELECT * FROM headrace.verify_view('{name}')") == []
    # Rows leave without writes: there was more than one timestamp between commits.
    commit(source, ["INSERT INTO events VALUES (99, 1, clock_timestamp() + interval '1 s', NULL)"])
    first = check(source, views, seed)
    wait_until(lambda: check(source, views, seed) != first, "time passes")
    wait_until(
        lambda: source.execute("SELECT w FROM time7 WHERE id = 99 AND w = 'past'").fetchone(),
        "the row's time comes",
    )


@pytest.mark.slow
def test_after_a_long_time_rows_leave_in_bounded_batches(database, source, start_engine):
    engine = start_engine(database, HEADRACE_CLOCK_INTERVAL_MS="50")
    source.execute(DDL)
    views = {"public.young": "SELECT id FROM events WHERE ts > {now}"}
    create(engine, source, views)
    rows = 30_000
    commit(
        source,
        [
            "INSERT INTO events SELECT i, 0, clock_timestamp() + interval '6 s'"
            f" + i * interval '0.1 ms' FROM generate_series(1, {rows}) i"
        ],
    )
    engine.kill9()
    assert source.execute("SELECT count(*) FROM young").fetchone() == (rows,)
    last = "SELECT clock_timestamp() > max(ts) FROM events"
    wait_until(lambda: source.execute(last).fetchone()[0], "all have passed")
    before = source.execute("SELECT max(txid) FROM headrace.progress").fetchone()[0]
    engine.start()
    wait_until(lambda: source.execute("SELECT count(*) FROM young").fetchone() == (0,), "all leave")
    after = source.execute("SELECT max(txid) FROM headrace.progress").fetchone()[0]
    assert after - before >= rows / 5_000
