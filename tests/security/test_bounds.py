"""Bounds on a view's time and memory: a view that exceeds them leaves the batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from tests.compared import differs, status_of
from tests.databases import Databases
from tests.faults.helpers import ENDLESS, WORKER
from tests.security import servers
from tests.security.servers import TABLE, create, follows, innocent, poison
from tests.waiting import wait_until

TRIES_MAX = 3
"""Number of times that a view may catch up alone."""
BUILDER = "headrace.views.builder"
SCHEMA = f"""{TABLE}{ENDLESS};
CREATE TABLE many (n int PRIMARY KEY);
INSERT INTO many SELECT generate_series(1, 2000);
CREATE FUNCTION large(have text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN have = 'poison' THEN repeat('x', 200000000) ELSE have END $$;
"""
HOSTILE = {
    "an endless function": "SELECT id, endless(v) AS v FROM t",
    "a large value": "SELECT id, large(v) AS v FROM t",
    "a large value of a built-in function": (
        "SELECT id, repeat(v, CASE v WHEN 'poison' THEN 30000000 ELSE 1 END) AS v FROM t"
    ),
    "a series": (
        "SELECT t.id, s.n FROM t, generate_series(1, CASE t.v WHEN 'poison'"
        " THEN 60000000 ELSE 1 END) AS s(n)"
    ),
    "a cross join": (
        "SELECT t.id, a.n FROM t CROSS JOIN many a CROSS JOIN many b"
        " WHERE t.v = 'poison' AND a.n + b.n + t.id > 0"
    ),
    "rows that are alike": (
        "SELECT t.v FROM t CROSS JOIN many a CROSS JOIN many b WHERE t.v = 'poison'"
    ),
    "a recursion that doubles": (
        "WITH RECURSIVE r(id, n) AS (SELECT id, 0 FROM t WHERE v = 'poison'"
        " UNION ALL SELECT r.id, n + 1 FROM r, (VALUES (1), (2)) AS two(x) WHERE n < 40)"
        " SELECT id, n FROM r"
    ),
}


@pytest.fixture(scope="module")
def running(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedEngine]:
    more = {"HEADRACE_POPULATION_IDLE_MS_MAX": "10000"}
    with servers.running(databases, tmp_path_factory, SCHEMA, **more) as engine:
        yield engine


@pytest.fixture
def conn(running: EmbeddedEngine, request) -> Iterator[psycopg.Connection]:
    with innocent(running, request) as conn:
        yield conn


def test_who_exceeds_a_limit_leaves_and_the_others_follow(conn, running):
    """All at once: no hostile view delays the healthy view, or the end of another one."""
    before = running.child(WORKER)
    for number, query in enumerate(HOSTILE.values()):
        create(conn, f"v{number}", query)
    poison(conn)
    follows(conn)
    for number, name in enumerate(HOSTILE):
        wait_until(lambda n=number: status_of(conn, f"v{n}")[1] == "54H01", f"{name} leaves")
    # If a step of the population is cheap enough, they catch up by themselves and are right.
    for number, name in enumerate(HOSTILE):
        status, code, message = status_of(conn, f"v{number}")
        if status == "error":
            assert code == "54H01", name
            assert message is not None
            # Or no retry is possible, because Postgres has not ended a cancelled query.
            ours = "the view " in message and "_max" in message
            assert ours or "though they were canceled" in message, name
    conn.execute("INSERT INTO t VALUES (3, 'three')")
    follows(conn)
    assert running.child(WORKER) == before


def test_who_leaves_catches_up_alone(conn, running):
    """A transaction that is too large for the batch is not too large for a population."""
    before = running.child(WORKER)
    query = "SELECT t.id, s.n FROM t, generate_series(1, length(t.v)) AS s(n)"
    create(conn, "v", query, view_rows_max=2000)
    conn.execute("INSERT INTO t VALUES (2, repeat('x', 2500))")
    wait_until(
        lambda: status_of(conn, "v")[0] == "running" and not differs(conn, "v", query),
        "it has caught up",
    )
    follows(conn)
    assert '"code": "54H01"' in running.log
    assert running.child(WORKER) == before


def test_who_leaves_again_and_again_stops(conn):
    query = "SELECT t.id, s.n FROM t, generate_series(1, length(t.v)) AS s(n)"
    create(conn, "v", query, view_rows_max=2000)
    for number in range(2, 2 + TRIES_MAX):
        conn.execute("INSERT INTO t VALUES (%s, repeat('x', 2500))", (number,))
        wait_until(
            lambda: status_of(conn, "v")[0] == "running" and not differs(conn, "v", query),
            "it has caught up",
        )
    conn.execute("INSERT INTO t VALUES (10, repeat('x', 2500))")
    wait_until(lambda: status_of(conn, "v")[0] == "error", "it leaves")
    # Further transactions cause no other try.
    for number in range(11, 14):
        conn.execute("INSERT INTO t VALUES (%s, 'more')", (number,))
        follows(conn)
    status, code, message = status_of(conn, "v")
    assert (status, code) == ("error", "54H01")
    assert message is not None and '{"view_rows_max": 20000}' in message
    conn.execute("CALL headrace.resync_view('v')")
    assert not differs(conn, "v", query)


@pytest.mark.parametrize("verb", ["drop_view", "pause_view"])
def test_a_verb_interrupts_what_runs(conn, running, verb):
    """The limit would let the function run for ten seconds; the verb does not wait for it."""
    before = running.child(WORKER)
    create(conn, "v", HOSTILE["an endless function"], commit_group="slow", view_time_ms_max=10_000)
    poison(conn)
    wait_until(lambda: evaluating(conn), "it runs")
    conn.execute(f"CALL headrace.{verb}('v')")
    assert "54H01" not in running.log.partition(f'"{verb}"')[2]
    follows(conn)
    assert running.child(WORKER) == before
    if verb == "pause_view":
        assert status_of(conn, "v")[0] == "paused"


def test_a_cancel_ends_a_population(conn, running):
    builder = running.child(BUILDER)
    conn.execute("INSERT INTO t VALUES (2, 'poison')")
    with psycopg.connect(running.dsn, autocommit=True) as other:
        errors: list[Exception] = []

        def call() -> None:
            try:
                create(other, "v", HOSTILE["an endless function"])
            except psycopg.Error as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        wait_until(lambda: evaluating(conn), "it runs")
        other.cancel_safe()
        thread.join()
    assert isinstance(errors[0], psycopg.errors.QueryCanceled)
    assert not conn.execute("SELECT FROM headrace.views WHERE view_name = 'v'").fetchall()
    follows(conn)
    assert running.child(BUILDER) == builder


def evaluating(conn: psycopg.Connection) -> int:
    """Return the number of backends that run the endless function."""
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'headrace eval' AND query ~ 'endless'"
        " AND state = 'active'"
    ).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("count", [25, pytest.param(90, marks=pytest.mark.slow)])
def test_many_views_need_few_connections(conn, running, count):
    for number in range(count):
        create(conn, f"v{number}", f"SELECT id, endless(v) || '{number}' AS v FROM t")
    conn.execute("INSERT INTO t VALUES (2, 'two')")
    follows(conn)
    row = conn.execute(
        "SELECT count(*), count(*) FILTER (WHERE application_name = 'headrace eval')"
        " FROM pg_stat_activity WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    assert row[1] <= 4
    assert row[0] < 20
