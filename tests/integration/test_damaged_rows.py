"""Damaged rows of the catalog: tasks that serve all views go on for the others."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest

from tests.compared import differs, status_of
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

BUILDER = "headrace.views.builder"
QUERY = "SELECT id, n FROM t"
LIMIT = "54H01"
"""SQLSTATE of a stop after which a view is populated again, regardless of its options."""


@pytest.fixture
def conn(engine):
    with psycopg.connect(engine.source, autocommit=True) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, n int)")
        conn.execute("INSERT INTO t VALUES (1, 1) ON CONFLICT DO NOTHING")
        yield conn


def stopped(conn: psycopg.Connection, name: str, message: str | None) -> int:
    """Mark a view as stopped and return its id."""
    (number,) = conn.execute(
        "UPDATE headrace.views SET status = 'error', sqlstate = %s, message = %s"
        " WHERE view_name = %s RETURNING id",
        (LIMIT, message, name),
    ).fetchone()
    return number


DAMAGE = {
    "options that are none": "sqlstate = '54H01', message = 'x', options = '[]'",
    "options that are asked for": "sqlstate = '55000', message = 'x', options = '1'",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_stopped_view_with_a_row_that_is_damaged(conn, damage):
    for name in ("broken", "whole"):
        conn.execute("CALL headrace.create_view(%s, %s)", (name, QUERY))
    conn.execute(f"UPDATE headrace.views SET status = 'error', {damage} WHERE view_name = 'broken'")
    # It recovers twice: before the second time the broken view was examined, too.
    before = stopped(conn, "whole", "a limit")
    wait_until(
        lambda: (
            status_of(conn, "whole")[0] == "running" and stopped(conn, "whole", "a limit") != before
        ),
        "it is filled anew",
    )
    wait_until(lambda: status_of(conn, "whole")[0] == "running", "it is filled once more")
    conn.execute("UPDATE t SET n = n + 1")
    conn.execute("CALL headrace.wait_for('whole')")
    assert not differs(conn, "whole", QUERY)
    for name in ("broken", "whole"):
        conn.execute("CALL headrace.drop_view(%s)", (name,))


def test_a_builder_is_started_until_it_can_be_tidied_up_after(conn, engine):
    """An error of the source during the clean-up does not end the supervision of the builder."""
    first = engine.child(BUILDER)
    conn.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE EXCEPTION 'no'; END $$"
    )
    conn.execute(
        "INSERT INTO headrace.views (schema_name, view_name, query, status)"
        " VALUES ('public', 'dead', 'q', 'populating')"
    )
    conn.execute(
        "CREATE TRIGGER no BEFORE DELETE ON headrace.views FOR EACH ROW EXECUTE FUNCTION no()"
    )
    try:
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: engine.log.count("child not usable") > 0, "it is not used")
    finally:
        conn.execute("DROP TRIGGER no ON headrace.views; DROP FUNCTION no()")
    conn.execute("CALL headrace.create_view('v', %s)", (QUERY,))
    assert not differs(conn, "v", QUERY)
    assert conn.execute("SELECT FROM headrace.views WHERE view_name = 'dead'").fetchone() is None
