"""Rows of list_views() on direct connections: they never claim more than is true."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, n int);
INSERT INTO t SELECT i, 0 FROM generate_series(1, 9) i;
"""
SLOW = (
    "CREATE FUNCTION slow(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
    " 'BEGIN PERFORM pg_sleep($1); RETURN $1; END'"
)


def listed(source: psycopg.Connection, name: str = "v") -> tuple:
    """Return status, message and lag of a view."""
    row = source.execute(
        "SELECT status, message, lag_ms FROM headrace.list_views()"
        " WHERE name = 'public.' || %s::text",
        (name,),
    ).fetchone()
    assert row is not None
    return row


def is_running(source: psycopg.Connection) -> bool:
    return listed(source)[0] == "running"


@pytest.mark.slow
def test_nothing_runs_when_everything_was_killed(engine, source):
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.create_view('v', 'SELECT id, n FROM t')")
        conn.execute("CALL headrace.create_view('p', 'SELECT id FROM t')")
        conn.execute("CALL headrace.pause_view('p')")
    assert is_running(source)
    assert listed(source, "p")[0] == "paused"
    # Also for a reader that has looked before in the same transaction.
    with psycopg.connect(engine.source) as reader:
        assert is_running(reader)
        engine.kill9()
        wait_until(lambda: not is_running(reader), "somebody notices")
    source.execute("INSERT INTO t VALUES (10, 0)")
    status, message, lag = listed(source)
    assert (status, message) == ("stopped", "no engine is connected to this database")
    assert lag is not None
    status, _, lag = listed(source, "p")
    assert status == "paused"
    assert lag is not None
    wait_until(lambda: listed(source)[2] > lag, "the lag grows")
    engine.start()
    wait_until(lambda: is_running(source), "it runs again")
    wait_until(lambda: source.execute("SELECT count(*) FROM v").fetchone() == (10,), "all came")
    source.execute("CALL headrace.resume_view('p')")
    wait_until(lambda: listed(source)[2] == 0, "nothing waits")


def test_a_dropped_table_is_no_running_view(engine, source):
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.create_view('v', 'SELECT id, n FROM t')")
        source.execute("DROP TABLE v")
        status, message, _ = listed(source)
        assert status == "error"
        assert "CALL headrace.resync_view('public.v')" in message
        conn.execute("CALL headrace.resync_view('public.v')")
    assert is_running(source)
    assert source.execute("SELECT count(*) FROM v").fetchone() == (9,)


def test_a_batch_under_way_has_a_lag(engine, source):
    """Nothing is confirmed or written yet, but the lag shows that a change waits."""
    source.execute(SLOW)
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute(
            "CALL headrace.create_view('v', 'SELECT slow(n) AS n FROM t',"
            " options => '{\"view_time_ms_max\": 10000}')"
        )
    wait_until(lambda: listed(source)[2] == 0, "all is applied and confirmed")
    source.execute("UPDATE t SET n = 4 WHERE id = 1")
    lags = []

    def came() -> bool:
        lags.append(listed(source)[2])
        return source.execute("SELECT max(n) FROM v").fetchone() == (4,)

    wait_until(came, "the row came")
    assert max(lags) >= 2000, lags
    wait_until(lambda: listed(source)[2] == 0, "nothing waits")


@pytest.mark.slow
def test_a_worker_that_is_silent_does_not_run(engine, source):
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.create_view('v', 'SELECT id, n FROM t')")
    assert is_running(source)
    pid = engine.child("worker")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: listed(source)[0] == "starting", "it is missed")
        assert listed(source)[1] == "the worker is not connected, or silent"
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: is_running(source), "it is back")


def test_a_killed_worker_is_missed_and_comes_back(engine, source):
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.create_view('v', 'SELECT id, n FROM t')")
        os.kill(engine.child("worker"), signal.SIGKILL)
        wait_until(lambda: listed(source)[0] == "starting", "it is missed")
        wait_until(lambda: is_running(source), "it is back")


def test_functions_are_not_compiled_by_the_server(engine, source):
    """Compiling made ``list_views()`` a hundred times as slow, where the server can do that."""
    found = source.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang"
        " WHERE p.pronamespace = 'headrace'::regnamespace AND l.lanname IN ('sql', 'plpgsql')"
        " AND p.proconfig IS NOT NULL AND NOT 'jit=off' = ANY (p.proconfig)"
    ).fetchall()
    assert found == []


def test_a_view_that_was_just_created_is_not_filled_anew(engine, source):
    """The progress of its population is stored each second, so it may be older than its status.

    The rows are stored in a transaction that is rolled back, so the engine does not change them.
    """
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.create_view('v', 'SELECT id, n FROM t')")
        conn.execute("CALL headrace.wait_for('v')")
    wait_until(lambda: listed(source)[2] == 0, "nothing is lacking")

    def held_by(began: str, what: str, *, catching_up: bool) -> str | None:
        with source.transaction(force_rollback=True):
            source.execute("LOCK TABLE headrace.held")
            source.execute("DELETE FROM headrace.held")
            store = (
                "INSERT INTO headrace.held SELECT v.id, %s, %s, v.since + %s::interval, p.lsn"
                " FROM headrace.views v JOIN headrace.progress p ON p.view_id = v.id"
            )
            source.execute(store, ("population", what, began))
            if catching_up:
                source.execute(store, ("cursor", "catching_up", "0 s"))
                source.execute(store, ("behind", "", "0 s"))
            source.execute("INSERT INTO t SELECT max(id) + 1, 0 FROM t")
            row = source.execute("SELECT held_by FROM headrace.list_views()").fetchone()
            assert row is not None
            return row[0]

    # It was filled before it ran: at its creation, or by a resync after an error.
    for what in ("rows are written", "it catches up"):
        assert "filled" not in (held_by("-1 s", what, catching_up=False) or "")
        text = held_by("-1 s", what, catching_up=True)
        assert text is not None
        assert text.startswith("it catches up") or " behind" in text
    # Or it ran before, and is filled anew.
    text = held_by("1 ms", "rows are written", catching_up=False)
    assert text is not None
    assert text.endswith("it is being filled anew: rows are written")
