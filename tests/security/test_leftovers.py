"""Side effects of a user's function in the session that evaluates it, now and later.

``f(n)`` is declared immutable, but calls ``sly(n)``, which is not. ``sly`` acts only if it runs as
the evaluating role.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs, status_of
from tests.faults.helpers import WORKER
from tests.security.roles import connect, role

pytestmark = pytest.mark.shared_engine

SLY = """
CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL);
INSERT INTO t SELECT g, g FROM generate_series(1, 9) g;
CREATE TABLE written (what text);
GRANT ALL ON written TO PUBLIC;
CREATE FUNCTION sly(n int) RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
    IF current_user LIKE 'headrace_eval%' THEN
        {body}
    END IF;
END $f$;
CREATE FUNCTION f(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    AS 'BEGIN PERFORM {low}.sly(n); RETURN n * 2; END';
"""
WRITES = """
        PERFORM set_config('default_transaction_read_only', 'off', false);
        BEGIN
            INSERT INTO {low}.written VALUES (current_user || n);
        EXCEPTION WHEN read_only_sql_transaction THEN NULL;
        END;
        BEGIN
            EXECUTE format('ALTER ROLE %I SET statement_timeout = 1234567', current_user);
        EXCEPTION WHEN read_only_sql_transaction THEN NULL;
        END;
        PERFORM pg_notify('{low}', n::text);
"""
SWAPS = """
        FOR i IN 0..9 LOOP
            BEGIN
                EXECUTE format('DEALLOCATE h%s', i);
                EXECUTE format('PREPARE h%s (text) AS {query}', i);
            EXCEPTION WHEN invalid_sql_statement_name THEN NULL;
            END;
        END LOOP;
"""
SWAPPED = {
    "no row": "SELECT 1 WHERE false",
    "other values": "SELECT 7 FROM unnest($1::int[])",
    "another type": "SELECT now()",
}
QUERY = "SELECT id, f(n) AS n FROM t"
ROWS = "SELECT id, n * 2 AS n FROM t"


@pytest.fixture
def server(engine):
    with psycopg.connect(engine.source, autocommit=True) as conn:
        yield conn


@pytest.fixture
def low(server):
    with role(server, "low") as name, connect(server.info.dsn, name) as conn:
        yield conn
        for view in conn.execute(
            "SELECT format('%I.%I', schema_name, view_name) FROM headrace.views"
        ).fetchall():
            server.execute("CALL headrace.drop_view(%s)", view)


def sly(low: psycopg.Connection, body: str) -> None:
    name = low.info.user
    low.execute(SLY.format(body=body.format(low=name), low=name))


def follows(low: psycopg.Connection) -> None:
    """Update the rows in several transactions, with new values, and check the view."""
    for _ in range(3):
        low.execute("UPDATE t SET n = n + 1000")
        low.execute("CALL headrace.wait_for('v')")
        assert not differs(low, "v", ROWS)


def test_nothing_is_written_whatever_was_set_before(server, low):
    name = low.info.user
    sly(low, WRITES)
    with connect(server.info.dsn, name) as listener:
        listener.execute(f'LISTEN "{name}"')
        low.execute("CALL headrace.create_view('v', %s)", (QUERY,))
        follows(low)
        assert list(listener.notifies(timeout=0)) == []
    assert low.execute("SELECT what FROM written").fetchall() == []
    left = server.execute(
        "SELECT r.rolname, s.setconfig FROM pg_db_role_setting s"
        " JOIN pg_roles r ON r.oid = s.setrole WHERE r.rolname LIKE 'headrace_eval%'"
    ).fetchall()
    assert left == []


@pytest.mark.parametrize("query", SWAPPED.values(), ids=SWAPPED)
def test_a_function_that_exchanges_our_statements(engine, server, low, query):
    """Prepared statements have no owner: user code may replace ours by any other."""
    before = engine.child(WORKER)
    sly(low, SWAPS.replace("{query}", query))
    low.execute("CALL headrace.create_view('v', %s)", (QUERY,))
    follows(low)
    assert status_of(low, "v")[0] == "running"
    assert engine.child(WORKER) == before
