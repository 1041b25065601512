"""alter_view of a view that is being verified, and of one whose table cannot be written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 50) i;
"""
OLD = "SELECT g, count(*) AS n FROM items GROUP BY g"
NEW = "SELECT g, count(*) AS n FROM items WHERE id > 10 GROUP BY g"
WIDE = "SELECT g, count(*) AS n, max(id) AS last FROM items GROUP BY g"
VIEWS = {"v": OLD}


def follows(conn: psycopg.Connection, query: str) -> bool:
    conn.execute("UPDATE items SET g = g + 1 WHERE id % 3 = 0")
    conn.execute("CALL headrace.wait_for('v', timeout => '90 s')")
    return differs(conn, "v", query) == []


def status(conn: psycopg.Connection) -> str:
    return str(conn.execute("SELECT status FROM headrace.views").fetchone()[0])


def snapshots(conn: psycopg.Connection) -> int:
    """Return the number of temporary slots: snapshots that a call waits for."""
    query = (
        "SELECT count(*) FROM pg_replication_slots"
        " WHERE temporary AND database = current_database()"
    )
    return int(conn.execute(query).fetchone()[0])


@pytest.mark.parametrize("query", [NEW, WIDE])
def test_one_that_is_being_verified(commander, source, engine, query):
    """verify_view finds no difference, or fails because the view was altered."""

    def verify() -> object:
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            try:
                return conn.execute("SELECT * FROM headrace.verify_view('v')").fetchall()
            except psycopg.Error as error:
                return error

    def alter() -> None:
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            conn.execute("CALL headrace.alter_view('v', %s)", (query,))

    with ThreadPoolExecutor(2) as pool, psycopg.connect(engine.source) as writer:
        # A writer with an open transaction delays both snapshots.
        writer.execute("UPDATE items SET g = g + 1 WHERE id = 7")
        told = pool.submit(verify)
        wait_until(lambda: snapshots(source) == 1, "it waits for its snapshot")
        altering = pool.submit(alter)
        wait_until(lambda: snapshots(source) == 2, "so does the other")
        writer.commit()
        altering.result(90)
        answer = told.result(90)
    if isinstance(answer, psycopg.Error):
        assert answer.sqlstate in ("55000", "55006"), answer
    else:
        assert answer == []
    assert follows(commander, query)
    assert commander.execute("SELECT * FROM headrace.verify_view('v')").fetchall() == []
    assert snapshots(source) == 0


@pytest.mark.slow  # it waits for locks
def test_one_whose_table_cannot_be_written(commander, source, engine):
    """Refused without effect while the table is locked; it succeeds later, before any retry."""
    with psycopg.connect(engine.source) as holder:
        holder.execute("LOCK TABLE v IN EXCLUSIVE MODE")
        source.execute("UPDATE items SET g = g + 1 WHERE id % 2 = 0")
        wait_until(lambda: status(source) == "sink_error", "it cannot be written")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            commander.execute("CALL headrace.alter_view('v', %s)", (WIDE,))
        assert status(source) == "sink_error"
        columns = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'v'::regclass AND attnum > 0"
        assert source.execute(columns).fetchone() == (2,)
    assert follows(commander, OLD)
    with psycopg.connect(engine.source) as holder:
        holder.execute("LOCK TABLE v IN EXCLUSIVE MODE")
        source.execute("UPDATE items SET g = g + 1 WHERE id % 2 = 1")
        wait_until(lambda: status(source) == "sink_error", "it cannot be written")
    commander.execute("CALL headrace.alter_view('v', %s)", (WIDE,))
    assert differs(commander, "v", WIDE) == []
    assert follows(commander, WIDE)
    assert status(source) == "running"
