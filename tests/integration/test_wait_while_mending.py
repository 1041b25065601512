"""wait_for while a view is populated again: it waits, and fails only if a user has to act."""

from __future__ import annotations

import concurrent.futures

import psycopg
import pytest

from tests.compared import differs
from tests.security.roles import connect, role
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int NOT NULL, x int NOT NULL);
INSERT INTO items SELECT i, i % 7, i FROM generate_series(1, 500) i;
"""
QUERY = "SELECT g, count(*) AS n, sum(x) AS total FROM items GROUP BY g"

# Reasons for stops after which a view recovers by itself.
STOPS = {
    "a wider column": "ALTER TABLE items ALTER x TYPE bigint",
    "a dropped result table": "DROP TABLE v",
    "a truncated result table": "TRUNCATE v",
}


@pytest.mark.parametrize("way", ["commander", "direct"])
@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_it_waits_for_a_view_that_mends_itself(commander, source, way, stop):
    commander.execute("CALL headrace.create_view('v', %s)", (QUERY,))
    conn = commander if way == "commander" else source
    try:
        source.execute(stop)
        for i in range(3):
            source.execute("INSERT INTO items VALUES (%s, 1, 1)", (10_000 + i,))
            conn.execute("CALL headrace.wait_for('v', timeout => '90 s')")
            assert not differs(source, "v", QUERY)
    finally:
        commander.execute("CALL headrace.drop_view('v', if_exists => true)")
        source.execute("DELETE FROM items WHERE id >= 10000")
        source.execute("ALTER TABLE items ALTER x TYPE int")


def test_it_fails_where_somebody_has_to_act(commander, source):
    options = '{"on_change": "stop", "on_damage": "stop"}'
    commander.execute("CALL headrace.create_view('w', %s, %s)", (QUERY, options))
    try:
        source.execute("TRUNCATE w")
        source.execute("INSERT INTO items VALUES (20000, 1, 1)")
        wait_until(lambda: status(source, "w") == "error", "the view has stopped")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="has stopped"):
            commander.execute("CALL headrace.wait_for('w')")
        commander.execute("CALL headrace.resync_view('w')")
        commander.execute("CALL headrace.wait_for('w', timeout => '90 s')")
        assert not differs(source, "w", QUERY)
    finally:
        commander.execute("CALL headrace.drop_view('w', if_exists => true)")


@pytest.mark.parametrize("call", ["resync_view('v')", "set_latency('v', 50)"])
def test_a_call_waits_until_the_server_has_filled_the_view(engine, commander, source, call):
    commander.execute("CALL headrace.create_view('v', %s)", (QUERY,))
    with (
        concurrent.futures.ThreadPoolExecutor() as threads,
        psycopg.connect(engine.dsn, autocommit=True) as other,
        psycopg.connect(engine.source) as blocker,
    ):
        said = []
        other.add_notice_handler(lambda notice: said.append(notice.message_primary))
        before = len(engine.log)
        blocker.execute("SELECT pg_current_xact_id()")  # a snapshot waits for its end
        source.execute("DROP TABLE v")
        wait_until(lambda: "waiting for transaction" in engine.log[before:], "it is filled anew")
        done = threads.submit(other.execute, f"CALL headrace.{call}")
        wait_until(lambda: any("by the server" in line for line in said), "the call waits")
        assert not done.done()
        with (
            role(source, "stranger") as name,
            connect(engine.dsn, name) as stranger,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            stranger.execute(f"CALL headrace.{call}")
        blocker.rollback()
        done.result(PATIENCE_S)
    source.execute("INSERT INTO items VALUES (30000, 1, 1)")
    commander.execute("CALL headrace.wait_for('v', timeout => '90 s')")
    assert not differs(source, "v", QUERY)
    source.execute("DELETE FROM items WHERE id = 30000")


def status(conn, name):
    return conn.execute(
        "SELECT status FROM headrace.list_views() WHERE name = 'public.' || %s::text", (name,)
    ).fetchone()[0]
