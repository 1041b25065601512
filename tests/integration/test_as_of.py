"""Results of view_as_of() for times and positions at which the view was not written."""

from __future__ import annotations

import collections
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from tests.waiting import wait_until

pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(HEADRACE_LOCK_TIMEOUT_MS="300", HEADRACE_CLOCK_INTERVAL_MS="100"),
]

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, g int, n int);
INSERT INTO t SELECT i, i % 3, i FROM generate_series(1, 9) i;
CREATE TABLE due (id int PRIMARY KEY, at timestamptz);
INSERT INTO due SELECT i, clock_timestamp() + interval '1 day' * (i - 3) FROM generate_series(1, 6) i;
CREATE TABLE noise (id int);
"""
QUERIES = {
    "plain": "SELECT id, n FROM t",
    "above": "SELECT count(*) AS n, sum(n) AS total FROM plain",
    "grouped": "SELECT g, count(*) AS n FROM t GROUP BY g",
    "shared": "SELECT g, n + 1 AS m FROM (SELECT g, count(*) AS n FROM t GROUP BY g) s",
    "temporal": "SELECT id FROM due WHERE at > now()",
}


def create(conn: psycopg.Connection, name: str, query: str) -> None:
    conn.execute('CALL headrace.create_view(%s, %s, \'{"history": "1 hour"}\')', (name, query))


@pytest.fixture
def views(commander, source):
    """Create view ``plain``, and return the connection to the port."""
    create(commander, "plain", QUERIES["plain"])
    return commander


def now(conn: psycopg.Connection) -> str:
    return str(conn.execute("SELECT clock_timestamp()::text").fetchone()[0])


def rows(conn: psycopg.Connection, name: str) -> collections.Counter:
    return collections.Counter(conn.execute(f"SELECT * FROM {name}").fetchall())


def as_of(conn: psycopg.Connection, name: str, at: str, what: str = "at") -> collections.Counter:
    return rows(conn, f"headrace.view_as_of(NULL::{name}, {what} => '{at}')")


def all_as_of(dsn: str, at: str, what: str = "at") -> dict[str, collections.Counter]:
    """Return the rows of all views, each read over a separate connection."""

    def one(name: str) -> collections.Counter:
        with psycopg.connect(dsn, autocommit=True) as conn:
            return as_of(conn, name, at, what)

    with ThreadPoolExecutor(len(QUERIES)) as pool:
        return dict(zip(QUERIES, pool.map(one, QUERIES), strict=True))


def wanted(conn: psycopg.Connection) -> dict[str, collections.Counter]:
    return {name: rows(conn, f"({query}) q") for name, query in QUERIES.items()}


def test_every_kind_of_view_on_a_quiet_database(views, source, engine):
    """The expected contents are the query's, read while there were no writers."""
    for name in [*QUERIES][1:]:
        create(views, name, QUERIES[name])
    known = []
    lsn = "SELECT pg_current_wal_insert_lsn()::text"
    for n in range(2):
        before = wanted(source)
        at = now(source)
        position = str(source.execute(lsn).fetchone()[0])
        # It answers at once, though nothing has been written since; on both kinds of connection.
        dsn = (engine.source, engine.dsn)[n % 2]
        assert all_as_of(dsn, at) == before
        assert all_as_of(dsn, position, "lsn") == before
        known.append((at, before))
        source.execute("UPDATE t SET n = n + 1, g = mod(g + 1, 2) WHERE mod(id, 3) = %s", (n,))
        source.execute("UPDATE due SET at = at - interval '1 day' WHERE id > 3")
        # WAL without changes of views, which is not flushed.
        source.execute("SET synchronous_commit = off; INSERT INTO noise VALUES (1)")
        source.execute("RESET synchronous_commit")
        source.execute("CALL headrace.wait_for('plain')")
    for at, before in known:
        assert all_as_of(engine.source, at) == before
    # The example of the issue.
    call = "SELECT * FROM headrace.view_as_of(NULL::plain, at => now() - interval '1 ms')"
    assert collections.Counter(source.execute(call).fetchall()) == wanted(source)["plain"]


def test_a_txid_of_another_views_change(views, source, engine):
    """A txid is the number of a batch: a view that it did not change has the rows from before."""
    create(views, "temporal", QUERIES["temporal"])
    due, changed = wanted(source)["temporal"], []
    for dsn in (engine.source, engine.dsn):
        source.execute("UPDATE t SET n = n + 1 WHERE id = 1")
        source.execute("CALL headrace.wait_for('plain')")
        txid = source.execute("SELECT headrace.view_txid('plain')").fetchone()[0]
        last = source.execute("SELECT headrace.view_txid('temporal')").fetchone()[0]
        assert last < txid, "it has not changed"
        with psycopg.connect(dsn, autocommit=True) as conn:
            assert as_of(conn, "temporal", txid, "txid") == due
            diff = "SELECT * FROM headrace.view_diff('temporal', since => %s)"
            assert conn.execute(diff, (txid,)).fetchall() == []
            assert conn.execute(f"{diff[:-1]}, until => %s)", (last, txid)).fetchall() == []
        changed.append((txid, wanted(source)["plain"]))
    source.execute("DELETE FROM due WHERE id = 4")
    source.execute("CALL headrace.wait_for('temporal')")
    for txid, plain in changed:
        assert as_of(source, "temporal", txid, "txid") == due
        assert as_of(source, "plain", txid, "txid") == plain
    assert as_of(source, "temporal", now(source)) == wanted(source)["temporal"] != due
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="does not reach txid"):
        as_of(source, "temporal", 10**9, "txid")


def test_asynchronous_commits_before_the_time_are_in(views, source):
    source.execute("SET synchronous_commit = off")
    for n in range(2):
        source.execute("UPDATE t SET n = n + 1 WHERE id = %s", (n + 1,))
        at = now(source)
        before = rows(source, f"({QUERIES['plain']}) q")
        assert as_of(source, "plain", at) == before


def test_a_busy_database(views, source, engine):
    """Each transaction counts up: at a time between two of them the view shows the earlier one."""
    stop = threading.Event()
    seen = []

    def write() -> None:
        with psycopg.connect(engine.source, autocommit=True) as writer:
            while not stop.is_set():
                writer.execute("UPDATE t SET n = n + 1 WHERE id = 1")

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for _ in range(3):
            before = source.execute("SELECT n FROM t WHERE id = 1").fetchone()[0]
            source.execute("CALL headrace.wait_for('plain')")
            at = now(source)
            after = source.execute("SELECT n FROM t WHERE id = 1").fetchone()[0]
            seen.append((at, as_of(source, "plain", at)))
            [(shown,)] = [(n,) for id_, n in seen[-1][1] if id_ == 1]
            # The time of a transaction precedes its visibility.
            assert before <= shown <= after + 1
    finally:
        stop.set()
        writing.join()
    source.execute("CALL headrace.wait_for('plain')")
    for at, shown in seen:
        assert as_of(source, "plain", at) == shown, "the same as when it was asked first"


def test_what_is_outside_of_the_history_is_refused(views, source):
    for at in ("clock_timestamp() + interval '1 day'", "'infinity'"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is in the future"):
            source.execute(f"SELECT * FROM headrace.view_as_of(NULL::plain, at => {at})")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="is in the future"):
        as_of(source, "plain", "FFFF/0", "lsn")
    for what, value in (("at", "2001-01-01"), ("at", "-infinity"), ("lsn", "0/1")):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="does not reach"):
            as_of(source, "plain", value, what)
    # The view is populated after this time.
    at = now(source)
    create(views, "young", "SELECT id FROM t")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="does not reach"):
        as_of(source, "young", at)


def test_a_fixed_snapshot_cannot_wait(views, source):
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        before = rows(source, f"({QUERIES['plain']}) q")
        at = now(source)
        with (
            pytest.raises(psycopg.errors.InvalidParameterValue, match="does not reach") as caught,
            source.transaction(),
        ):
            as_of(source, "plain", at)
    assert "READ COMMITTED" in caught.value.diag.message_hint
    assert as_of(source, "plain", at) == before
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        assert as_of(source, "plain", at) == before, "it can be read later"


def test_nothing_is_left_of_who_has_waited(views, source):
    with source.transaction():
        source.execute("SET TRANSACTION READ ONLY")
        as_of(source, "plain", now(source))
        held = source.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
        assert held.fetchone() == (0,)


def calls(hint: str) -> list[str]:
    return re.findall(r"CALL [^)]*\)", hint)


@contextmanager
def standing(source, engine, name: str, how: str) -> Iterator[None]:
    """Let the view lag behind a committed change, by a pause or a lock of its table."""
    change = "UPDATE t SET n = n + 1"
    if how == "paused":
        source.execute("CALL headrace.pause_view(%s)", (name,))
        source.execute(change)
        yield
        return
    with psycopg.connect(engine.source) as locker:
        locker.execute(f"LOCK TABLE {name} IN SHARE MODE")
        source.execute(change)
        yield


def status(conn: psycopg.Connection, name: str) -> str:
    return conn.execute(
        "SELECT status FROM headrace.list_views() WHERE name = %s", (f"public.{name}",)
    ).fetchone()[0]


@pytest.mark.parametrize("through", ["port", "source"])
def test_a_paused_view(views, source, engine, through):
    conn = views if through == "port" else source
    before = rows(source, "plain")
    at = now(source)
    assert as_of(conn, "plain", at) == before
    with standing(source, engine, "plain", "paused"):
        assert as_of(conn, "plain", at) == before, "that was covered before"
        later = now(source)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="is paused") as got:
            as_of(conn, "plain", later)
    for call in calls(got.value.diag.message_hint):
        source.execute(call)
    assert as_of(conn, "plain", later) == rows(source, f"({QUERIES['plain']}) q")


def test_a_blocked_view(views, source, engine):
    with standing(source, engine, "plain", "blocked"):
        wait_until(lambda: status(source, "plain") == "sink_error", "it cannot be written")
        later = now(source)
        with pytest.raises(
            psycopg.errors.ObjectNotInPrerequisiteState, match="cannot be written"
        ) as got:
            as_of(source, "plain", later)
        assert "locked by process" in got.value.diag.message_detail
    [call] = calls(got.value.diag.message_hint)
    source.execute(call)
    assert as_of(source, "plain", later) == rows(source, f"({QUERIES['plain']}) q")


def test_a_stopped_view(views, source, engine):
    create(views, "divided", "SELECT id, 1 / n AS m FROM t")
    source.execute("UPDATE t SET n = 0 WHERE id = 1")
    wait_until(lambda: status(source, "divided") == "error", "it has stopped")
    later = now(source)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="has stopped") as got:
        as_of(source, "divided", later)
    assert "division by zero" in got.value.diag.message_detail
    source.execute("UPDATE t SET n = 1 WHERE id = 1")
    source.execute(calls(got.value.diag.message_hint)[0])
    later = now(source)
    assert as_of(source, "divided", later) == rows(source, "(SELECT id, 1 / n AS m FROM t) q")


def test_a_view_that_is_filled_anew(views, source):
    """A resync sets the view back to a snapshot: its earlier progress does not count."""
    as_of(source, "plain", now(source))
    source.execute("CALL headrace.resync_view('plain')")
    at = now(source)
    assert as_of(source, "plain", at) == rows(source, f"({QUERIES['plain']}) q")
    source.execute("DELETE FROM t WHERE id = 2")
    later = now(source)
    assert as_of(source, "plain", later) == rows(source, f"({QUERIES['plain']}) q")


def test_cancel_and_statement_timeout_end_the_wait(views, source, engine):
    """The caller locks the view's table: the worker cannot write the rows that it waits for."""
    with psycopg.connect(engine.source) as conn:
        conn.execute("LOCK TABLE plain IN SHARE MODE")
        source.execute("UPDATE t SET n = n + 1")
        later = now(source)
        conn.execute("SET statement_timeout = 50")
        with pytest.raises(psycopg.errors.QueryCanceled):
            as_of(conn, "plain", later)
        conn.rollback()
    assert as_of(source, "plain", later) == rows(source, f"({QUERIES['plain']}) q")
