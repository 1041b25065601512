"""resync_view: a lost view is populated again, without effect on readers and indexes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading

import psycopg
import pytest

from tests.compared import differs
from tests.integration.conftest import ITEMS
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = ITEMS

STOP = '{"on_damage": "stop", "on_change": "stop"}'
"""Options without which the server could repair a view in the middle of a test."""
QUERY = "SELECT g, count(*) AS n, sum(x) AS total FROM items GROUP BY g"


def status(conn, name):
    return conn.execute(
        "SELECT status, headrace.view_message(id) FROM headrace.views WHERE view_name = %s", (name,)
    ).fetchone()


def assert_equal(conn, name, query=QUERY):
    """Assert that the table equals its query, digit by digit."""
    assert differs(conn, name, query) == []


def wait(conn, name):
    conn.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (name,))


def leftovers(conn):
    """Return the slots of populations, and the published tables without a reader."""
    return conn.execute(
        "SELECT slot_name::text FROM pg_replication_slots WHERE temporary"
        " AND database = current_database()"
        " UNION ALL SELECT prrelid::regclass::text FROM pg_publication_rel"
        " WHERE prrelid NOT IN (SELECT table_oid FROM headrace.view_tables)"
    ).fetchall()


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


@pytest.fixture
def commander(commander):
    for name in ("v", "other"):
        commander.execute(f"CALL headrace.create_view('{name}', '{QUERY}', '{STOP}')")
    return commander


def places(conn):
    return dict(conn.execute("SELECT g, ctid::text FROM v").fetchall())


def test_a_bad_row_is_mended(commander, source):
    commander.execute(
        "CALL headrace.create_view('w', 'SELECT id, 100 / g AS q FROM items WHERE g <> 0')"
    )
    commander.execute(
        "CALL headrace.create_view('bad', 'SELECT id, 100 / (id - 500) AS q FROM items')"
    )
    source.execute("INSERT INTO items VALUES (500, 1, 1)")
    wait_until(lambda: status(source, "bad")[0] == "error", "it stops")
    message = status(source, "bad")[1]
    assert "Mend the row, then CALL headrace.resync_view('public.bad')" in message
    with pytest.raises(psycopg.errors.DivisionByZero):
        commander.execute("CALL headrace.resync_view('bad')")
    assert status(source, "bad") == ("error", message), "as it was"
    source.execute("DELETE FROM items WHERE id = 500")
    commander.execute("CALL headrace.resync_view('bad')")
    assert status(source, "bad") == ("running", None)
    source.execute("UPDATE items SET id = id + 1000 WHERE id < 10")
    for name, query in (
        ("bad", "SELECT id, 100 / (id - 500) AS q FROM items"),
        ("w", "SELECT id, 100 / g AS q FROM items WHERE g <> 0"),
        ("v", QUERY),
    ):
        wait(commander, name)
        assert_equal(source, name, query)
    assert leftovers(source) == []


def test_only_what_differs_is_touched(commander, source, engine):
    commander.execute("CALL headrace.create_index('v', '(n)')")
    source.execute("GRANT SELECT ON v TO PUBLIC")
    source.execute("CREATE VIEW reader AS SELECT * FROM v")
    # A privileged user has damaged the table: a digit, a row missing, one too many, one twice.
    source.execute("UPDATE v SET total = 1425.0 WHERE g = 0 AND total::text <> '1425.0'")
    source.execute("DELETE FROM v WHERE g = 1")
    source.execute(
        "INSERT INTO v VALUES (NULL, 7, NULL), (3, (SELECT n FROM v WHERE g = 3), (SELECT total FROM v WHERE g = 3))"
    )
    before = places(source)
    notices = []
    commander.add_notice_handler(lambda d: notices.append(d.message_primary))
    commander.execute("CALL headrace.resync_view('v')")
    assert_equal(source, "v")
    after = places(source)
    assert {g: after[g] for g in (2, 4)} == {g: before[g] for g in (2, 4)}
    assert any("3 rows were removed, 2 added" in n for n in notices), notices
    assert source.execute("SELECT count(*) FROM pg_indexes WHERE tablename = 'v'").fetchone() == (
        2,
    )
    assert source.execute("SELECT has_table_privilege('public', 'v', 'select')").fetchone() == (
        True,
    )
    assert source.execute("SELECT count(*) FROM reader").fetchone() == (5,)
    source.execute("DROP VIEW reader")
    source.execute("UPDATE items SET g = g + 1")
    wait(source, "v")
    assert_equal(source, "v")


def test_while_writers_go_on_and_readers_look(commander, source, engine):
    stop = threading.Event()
    seen, errors = [], []

    def write():
        with psycopg.connect(engine.source, autocommit=True) as conn:
            n = 1000
            while not stop.is_set():
                n += 1
                conn.execute("INSERT INTO items VALUES (%s, %s, 1.5)", (n, n % 7))
                conn.execute("UPDATE items SET x = x + 0.5 WHERE id = %s", (n % 100,))
                conn.execute("UPDATE items SET g = g + 1 WHERE id = %s", (n % 97,))

    def read():
        with psycopg.connect(engine.source, autocommit=True) as conn:
            while not stop.is_set():
                try:
                    # Never empty or partial: all initial groups are there.
                    seen.append(conn.execute("SELECT sum(n) FROM v").fetchone()[0])
                except psycopg.Error as error:
                    errors.append(error)

    threads = [threading.Thread(target=f) for f in (write, read)]
    for thread in threads:
        thread.start()
    for way in (commander, source):
        way.execute("CALL headrace.resync_view('v')")
    stop.set()
    for thread in threads:
        thread.join(90)
    assert not errors
    assert min(seen) >= 100
    for name in ("v", "other"):
        wait(commander, name)
        assert_equal(source, name)
    assert leftovers(source) == []


@pytest.mark.slow
def test_lost_tables_state_and_slots(database, start_engine):
    engine = start_engine(database)
    with psycopg.connect(database, autocommit=True) as source:
        source.execute("CREATE TABLE items (id int PRIMARY KEY, g int, x numeric)")
        source.execute("INSERT INTO items SELECT i, i % 5, i FROM generate_series(1, 50) i")
        for name in ("v", "other"):
            source.execute(f"CALL headrace.create_view('{name}', '{QUERY}', '{STOP}')")
        source.execute("DROP TABLE v")
        source.execute("UPDATE items SET g = g + 1")
        wait_until(lambda: status(source, "v")[0] == "error", "its table is gone")
        assert "resync_view('public.v')" in status(source, "v")[1]
        source.execute("CALL headrace.resync_view('v')")
        assert_equal(source, "v")
        # The slot and all states are lost.
        engine.stop()
        slot = engine.env["HEADRACE_SLOT_NAME"]
        source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        shutil.rmtree(engine.data_dir / "state")
        source.execute("UPDATE items SET g = g + 1")
        engine.start()
        for name in ("v", "other"):
            wait_until(lambda name=name: status(source, name)[0] == "error", "lost")
            assert "CALL headrace.resync_view(" in status(source, name)[1]
            source.execute("CALL headrace.resync_view(%s)", (name,))
            assert_equal(source, name)
        source.execute("UPDATE items SET g = g + 1")
        for name in ("v", "other"):
            wait(source, name)
            assert_equal(source, name)
        assert leftovers(source) == []


def test_altered_tables_are_not_taken_for_ours(commander, source):
    source.execute("ALTER TABLE v RENAME TO elsewhere")
    with pytest.raises(psycopg.Error, match="was renamed") as caught:
        commander.execute("CALL headrace.resync_view('v')")
    assert "Undo that and call again" in caught.value.diag.message_hint
    source.execute("ALTER TABLE elsewhere RENAME TO v")
    with contextlib.suppress(psycopg.Error):  # the worker may not have noticed the change
        commander.execute("CALL headrace.resync_view('v')")
    wait_until(lambda: status(source, "v")[0] == "running", "it is ours again")
    source.execute("ALTER TABLE items ALTER g TYPE bigint")
    wait_until(lambda: status(source, "v")[0] == "error", "a used column was altered")
    commander.execute("CALL headrace.resync_view('v')")
    assert_equal(source, "v")
    source.execute("DROP TABLE v")
    commander.execute("CALL headrace.resync_view('v')")
    assert_equal(source, "v")


def test_cancelled_it_leaves_the_view_as_it_was(commander, source, engine):
    source.execute("CREATE TABLE open_one (x int)")
    with psycopg.connect(engine.source) as writer:
        writer.execute("INSERT INTO open_one VALUES (1)")
        # The snapshot waits for the open transaction.
        with pytest.raises(psycopg.errors.QueryCanceled), cancelling(commander):
            commander.execute("CALL headrace.resync_view('v')")
        source.execute("UPDATE items SET g = g + 1")
    wait(commander, "v")
    assert_equal(source, "v")
    assert status(source, "v") == ("running", None)
    wait_until(lambda: leftovers(source) == [], "nothing is left")
    # The table is locked when the rows are exchanged: the call fails, and the view goes on.
    with psycopg.connect(engine.source) as blocker:
        blocker.execute("LOCK TABLE v IN ROW EXCLUSIVE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            commander.execute("CALL headrace.resync_view('v')")
        source.execute("UPDATE items SET g = g + 1")
        wait(commander, "v")
        assert_equal(source, "v")


@pytest.mark.slow
def test_killed_anywhere_it_is_done_or_not(database, start_engine, tmp_path):
    """Builder and worker are killed during a resync: the view is the old one or the new one."""
    traps = tmp_path / "traps"
    traps.mkdir()
    engine = start_engine(database, HEADRACE_FAULT_DIR=str(traps))
    with psycopg.connect(database, autocommit=True) as source:
        source.execute("CREATE TABLE items (id int PRIMARY KEY, g int, x numeric)")
        source.execute("INSERT INTO items SELECT i, i % 5, i FROM generate_series(1, 50) i")
        source.execute(f"CALL headrace.create_view('v', '{QUERY}')")
        for point in ("cp01", "cp05", "cp06", "cp07", "cp08", "cp08b"):
            source.execute("INSERT INTO v VALUES (NULL, 1000, NULL)")
            (traps / point).write_text("kill:1")
            with pytest.raises(psycopg.Error):
                source.execute("CALL headrace.resync_view('v')")
            assert (traps / f"{point}.sprung").exists(), point
            source.execute("UPDATE items SET g = g + 1, x = x + 1")
            wait(source, "v")
            done = source.execute("SELECT count(*) FROM v WHERE n = 1000").fetchone()
            assert done == (0 if point == "cp08b" else 1,), point
            source.execute("CALL headrace.resync_view('v')")
            assert_equal(source, "v")
        worker = "headrace.runtime.worker"
        for delay in (0.05, 0.2, 0.4):
            killer = threading.Timer(delay, lambda: os.kill(engine.child(worker), signal.SIGKILL))
            killer.start()
            with contextlib.suppress(psycopg.Error):
                source.execute("CALL headrace.resync_view('v')")
            killer.join()
            source.execute("UPDATE items SET g = g + 1, x = x + 1")
            wait(source, "v")
            assert_equal(source, "v")
        wait_until(lambda: leftovers(source) == [], "nothing is left")
        ids = {str(r[0]) for r in source.execute("SELECT id FROM headrace.views")}
        staging = engine.data_dir / "staging"
        wait_until(lambda: not list(staging.iterdir()), "no staged files are left")
        assert source.execute("SELECT view_id::text FROM headrace.progress").fetchall() == [
            (i,) for i in ids
        ]
