"""Pausing and resuming views, with restarts in between, and the limit of the WAL they keep."""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import wait_until

QUERY = "SELECT g, count(*) AS n FROM items GROUP BY g"


def status(conn, name):
    return conn.execute(
        "SELECT status, headrace.view_message(id) FROM headrace.views WHERE view_name = %s", (name,)
    ).fetchone()


TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 50) i;
"""


def wait(conn, name):
    conn.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (name,))


@pytest.mark.shared_engine
def test_paused_views_stand_still_and_go_on(engine, source):
    with psycopg.connect(engine.dsn, autocommit=True) as commander:
        for name in ("a", "b"):
            commander.execute(f"CALL headrace.create_view('{name}', '{QUERY}')")
        commander.execute("CALL headrace.pause_view('a')")
        source.execute("CALL headrace.pause_view('a')")  # again, and directly
        before = source.execute("TABLE a").fetchall()
        source.execute("UPDATE items SET g = g + 1")
        wait(commander, "b")
        assert status(source, "a") == ("paused", None)
        assert source.execute("TABLE a").fetchall() == before
        assert differs(source, "b", QUERY) == []
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="paused"):
            wait(commander, "a")
    engine.kill9()
    engine.start()
    with psycopg.connect(engine.dsn, autocommit=True) as commander:
        source.execute("DELETE FROM items WHERE id < 10")
        wait(commander, "b")
        assert status(source, "a") == ("paused", None)
        assert source.execute("TABLE a").fetchall() == before
        commander.execute("CALL headrace.resume_view('a')")
        commander.execute("CALL headrace.resume_view('a')")
        wait(commander, "a")
        assert status(source, "a") == ("running", None)
        assert differs(source, "a", QUERY) == []
        source.execute("UPDATE items SET g = g + 1")
        wait(source, "a")
        assert differs(source, "a", QUERY) == []


@pytest.mark.engine_with(HEADRACE_WAL_BUDGET_BYTES="2000000", HEADRACE_WAL_RETENTION="source")
def test_a_view_paused_for_too_long_needs_a_resync(engine, source):
    with psycopg.connect(engine.dsn, autocommit=True) as commander:
        for name in ("a", "b"):
            commander.execute(f"CALL headrace.create_view('{name}', '{QUERY}')")
        commander.execute("CALL headrace.pause_view('a')")
        source.execute("UPDATE items SET g = g + 1")
        source.execute("CREATE TABLE other (x text)")
        source.execute("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
        wait_until(lambda: status(source, "a")[0] == "error", "it is given up")
        message = status(source, "a")[1]
        assert "it was paused while" in message
        assert "CALL headrace.resync_view('public.a')" in message
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as caught:
            commander.execute("CALL headrace.resume_view('a')")
        assert "resync_view" in caught.value.diag.message_hint
        wait(commander, "b")
        assert differs(source, "b", QUERY) == []


@pytest.mark.shared_engine
def test_only_owners_pause(engine, source):
    source.execute("DROP ROLE IF EXISTS e_pause; CREATE ROLE e_pause LOGIN")
    try:
        with psycopg.connect(engine.dsn, autocommit=True) as commander:
            commander.execute(f"CALL headrace.create_view('a', '{QUERY}')")
            commander.execute("SET ROLE e_pause")
            for call in ("pause_view", "resume_view", "resync_view"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    commander.execute(f"CALL headrace.{call}('a')")
            with pytest.raises(psycopg.errors.UndefinedTable):
                commander.execute("CALL headrace.pause_view('nope')")
    finally:
        source.execute("DROP ROLE e_pause")
