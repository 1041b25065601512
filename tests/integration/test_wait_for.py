"""Read your writes: wait_for, through the commander and on direct connections."""

from __future__ import annotations

import contextlib
import threading
import time

import psycopg
import pytest

from headrace.server.waits import search_path
from headrace.types import record_end

pytestmark = pytest.mark.shared_engine

QUERY = "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer"
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(10,2));
CREATE TABLE other (id int PRIMARY KEY);
"""
VIEWS = {"v": QUERY}


@contextlib.contextmanager
def cancelling(conn):
    """Cancel the statement again and again; a cancel before it has begun has no effect."""
    done = threading.Event()

    def cancel():
        while not done.wait(0.3):
            conn.cancel_safe()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("way", ["commander", "direct"])
def test_a_session_reads_its_writes(request, commander, source, way):
    conn = commander if way == "commander" else source
    # Changes that were not flushed at the commit must be visible, too.
    conn.execute("SET synchronous_commit = off")
    for i in range(20):
        conn.execute("INSERT INTO orders VALUES (%s, 1, 1.50)", (i,))
        conn.execute("CALL headrace.wait_for('v')")
        assert conn.execute("SELECT n, total::text FROM v").fetchone() == (
            i + 1,
            f"{1.5 * (i + 1):.2f}",
        )


def test_transactions_of_other_tables_and_none_at_all_are_covered(commander, source):
    for _ in range(3):
        source.execute("INSERT INTO other SELECT coalesce(max(id), 0) + 1 FROM other")
        (before,) = source.execute("SELECT pg_current_wal_lsn()").fetchone()
        commander.execute("CALL headrace.wait_for('v', %s)", (before,))
        commander.execute("CALL headrace.wait_for('v')")


def test_named_arguments_and_casts(commander, source):
    (lsn,) = source.execute("SELECT pg_current_wal_lsn()").fetchone()
    for text in (
        "CALL headrace.wait_for(name => 'public.v', timeout => '1 min')",
        f"CALL headrace.wait_for('v', '{lsn}'::pg_lsn, '1 min'::interval)",
        "CALL headrace.wait_for('v', NULL, NULL)",
        "CALL headrace.wait_for('v', pg_current_wal_lsn(), interval '1 min')",
    ):
        commander.execute(text)
        source.execute(text)


def test_wrong_arguments_are_errors(commander, source):
    for conn in (commander, source):
        with pytest.raises(psycopg.errors.UndefinedTable, match="does not exist"):
            conn.execute("CALL headrace.wait_for('nope')")
        with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="pg_lsn"):
            conn.execute("CALL headrace.wait_for('v', '2s')")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="negative"):
            conn.execute("CALL headrace.wait_for('v', timeout => '-1 s')")


@pytest.mark.parametrize("way", ["commander", "direct"])
def test_a_timeout_says_so(request, commander, source, way):
    conn = commander if way == "commander" else source
    with pytest.raises(psycopg.errors.QueryCanceled, match="due to timeout"):
        conn.execute("CALL headrace.wait_for('v', 'FFFF/0', '50 ms')")


@pytest.mark.parametrize("way", ["commander", "direct"])
def test_it_can_be_cancelled(commander, source, way):
    conn = commander if way == "commander" else source
    with pytest.raises(psycopg.errors.QueryCanceled, match="user request"), cancelling(conn):
        conn.execute("CALL headrace.wait_for('v', 'FFFF/0')")
    conn.execute("CALL headrace.wait_for('v')")


def test_a_blocked_view_is_waited_for(commander, source, engine):
    with psycopg.connect(engine.source) as blocker:
        blocker.execute("LOCK TABLE v IN SHARE MODE")
        source.execute("INSERT INTO orders VALUES (1, 1, 1)")
        with pytest.raises(psycopg.errors.QueryCanceled):
            commander.execute("CALL headrace.wait_for('v', timeout => '100 ms')")
        assert source.execute("SELECT * FROM v").fetchall() == []
    commander.execute("CALL headrace.wait_for('v', timeout => '90 s')")
    assert source.execute("SELECT n FROM v").fetchone() == (1,)


def test_a_stopped_view_gives_its_reason(commander, source):
    commander.execute("CALL headrace.create_view('w', 'SELECT 1 / amount AS x FROM orders')")
    source.execute("INSERT INTO orders VALUES (1, 1, 0)")
    for conn in (commander, source):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="stopped") as caught:
            conn.execute("CALL headrace.wait_for('w', timeout => '90 s')")
        assert "division by zero" in caught.value.diag.message_detail
    commander.execute("CALL headrace.wait_for('v', timeout => '90 s')")


def test_many_wait_at_once(commander, source, engine):
    """Calls that wait for a far position do not delay the others."""
    far = [psycopg.connect(engine.dsn, autocommit=True) for _ in range(20)]
    for conn in far:
        conn.pgconn.send_query(b"CALL headrace.wait_for('v', 'FFFF/0')")
    for i in range(5):
        source.execute("INSERT INTO orders VALUES (%s, 2, 2)", (i,))
        commander.execute("CALL headrace.wait_for('v', timeout => '90 s')")
        assert source.execute("SELECT n FROM v").fetchone() == (i + 1,)
    for conn in far:
        conn.close()


def test_the_end_of_a_page_is_no_position_beyond_it():
    block, segment = 8192, 16 * 1024 * 1024
    page = 5 * block
    assert record_end(page, block, segment) == page
    assert record_end(page + 24, block, segment) == page
    assert record_end(page + 32, block, segment) == page + 32
    assert record_end(page + 40, block, segment) == page + 40
    assert record_end(segment + 40, block, segment) == segment
    assert record_end(segment + 48, block, segment) == segment + 48


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('"$user", public', ["me", "public"]),
        ("Foo,bar", ["foo", "bar"]),
        ('"Fo""o, x", pg_catalog', ['Fo"o, x', "pg_catalog"]),
        ("", []),
        ('""', [""]),
    ],
)
def test_search_path_is_read_as_postgres_does(text, names):
    assert search_path(text, "me") == names


def test_waiting_does_not_wait_for_the_interval(database, start_engine):
    """The batch that a call waits for closes at once, even with a very long interval."""
    engine = start_engine(database, HEADRACE_BATCH_INTERVAL_MS="600000")
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        conn.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")
        took = []
        for i in range(10):
            conn.execute("INSERT INTO t VALUES (%s)", (i,))
            began = time.monotonic()
            conn.execute("CALL headrace.wait_for('v', timeout => '90 s')")
            took.append(time.monotonic() - began)
            assert conn.execute("SELECT count(*) FROM v").fetchone() == (i + 1,)
        print(f"wait_for: {sorted(took)[5] * 1000:.1f} ms")  # shown with -s
