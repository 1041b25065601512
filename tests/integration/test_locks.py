"""Locks that a user or a call holds on one view delay no other view.

While a lock is held, rows are committed to the table of a probe view, one by one, and each must
become visible.  Nothing depends on times: the engine would wait longer for the locks than a test
waits for a row, and the test itself ends each lock.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.compared import differs, status_of
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(HEADRACE_LOCK_TIMEOUT_MS=str(int(4_000 * PATIENCE_S))),
]

TABLES = """
CREATE TABLE events (id int PRIMARY KEY, x int NOT NULL);
INSERT INTO events SELECT i, i FROM generate_series(1, 100) i;
CREATE TABLE probes (id int PRIMARY KEY);
"""
PROBE = "SELECT id FROM probes"
OTHER = "SELECT 100 / x AS k, count(*) AS c FROM events GROUP BY 1"
VIEWS = {"probe": PROBE}
PROBES = 10
"""Rows of the probe view that must become visible while a lock is held."""
IDS = itertools.count(1)
ROW = "SELECT FROM headrace.views WHERE view_name = 'other' FOR UPDATE"


@pytest.fixture
def other(commander) -> None:
    commander.execute("CALL headrace.create_view('other', %s)", (OTHER,))


@contextlib.contextmanager
def held(engine, statement: str) -> Iterator[psycopg.Connection]:
    """Hold the locks of ``statement`` in a transaction, which ``rollback`` may end before."""
    with psycopg.connect(engine.source) as conn:
        conn.execute(statement)
        yield conn
        conn.rollback()


@contextlib.contextmanager
def calling(engine, call: str) -> Iterator[Callable[[], bool]]:
    """Run ``call`` beside the block; yield whether it has returned.  It must succeed."""
    failed: list[psycopg.Error] = []

    def run() -> None:
        try:
            with psycopg.connect(engine.dsn, autocommit=True) as conn:
                conn.execute(call)
        except psycopg.Error as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: not thread.is_alive()
    finally:
        thread.join(PATIENCE_S)
    assert not failed, failed


def probe(source: psycopg.Connection) -> None:
    """Check that the probe view follows."""
    for key in itertools.islice(IDS, PROBES):
        source.execute("INSERT INTO probes VALUES (%s)", (key,))
        wait_until(
            lambda key=key: source.execute("SELECT FROM probe WHERE id = %s", (key,)).rowcount,
            f"row {key} is visible",
            every_s=0.003,
        )


def test_a_view_stops_while_a_call_has_its_row(engine, source, commander, other):
    """A call may have the row for long, for example because it builds an index."""
    with held(engine, ROW):
        source.execute("INSERT INTO events VALUES (101, 0)")
        wait_until(lambda: '"status waits for a row that is locked"' in engine.log, "it waits")
        probe(source)
        assert status_of(source, "other")[0] == "running"
    wait_until(lambda: status_of(source, "other")[0] == "error", "the view has stopped")
    assert "division by zero" in str(status_of(source, "other")[2])
    source.execute("DELETE FROM events WHERE x = 0")
    commander.execute("CALL headrace.resync_view('other')")
    wait_until(lambda: not differs(source, "other", OTHER), "it is right again")


def test_a_view_is_paused_while_another_call_has_its_row(engine, source, commander, other):
    with held(engine, ROW) as holder, calling(engine, "CALL headrace.pause_view('other')") as done:
        probe(source)
        assert not done()
        holder.rollback()
    assert status_of(source, "other")[0] == "paused"
    with held(engine, ROW) as holder, calling(engine, "CALL headrace.resume_view('other')") as done:
        probe(source)
        assert not done()
        holder.rollback()
    assert status_of(source, "other")[0] == "running"


def test_an_index_is_made_while_a_call_has_the_row(engine, source, commander, other):
    """Its definition is recorded when the row is free."""
    recorded = "SELECT kept::text ~ 'while_locked' FROM headrace.views WHERE view_name = %s"

    def is_recorded(name: str) -> bool:
        return source.execute(recorded, (name,)).fetchone() == (True,)

    with held(engine, ROW):
        source.execute("CREATE INDEX while_locked ON other (c)")
        source.execute("CREATE INDEX while_locked_too ON probe (id)")
        wait_until(lambda: is_recorded("probe"), "the engine has looked at the tables")
        probe(source)
        assert not is_recorded("other")
    wait_until(lambda: is_recorded("other"), "it is recorded")


WAITS = """
    SELECT FROM pg_locks WHERE relation = 'other'::regclass AND mode = 'AccessExclusiveLock'
       AND NOT granted AND database = (
           SELECT oid FROM pg_database WHERE datname = current_database())
"""


def test_a_result_table_is_locked(engine, source, commander, other):
    with held(engine, "LOCK TABLE other IN ACCESS EXCLUSIVE MODE"):
        source.execute("INSERT INTO events VALUES (201, 1)")
        probe(source)
    wait_until(lambda: not differs(source, "other", OTHER), "it goes on")


def test_a_view_is_dropped_while_it_is_read(engine, source, commander, other):
    """The call waits for the reader, and the changes of the view wait behind the call."""
    call = "CALL headrace.drop_view('other')"
    with held(engine, "SELECT FROM other") as reader, calling(engine, call) as done:
        wait_until(lambda: source.execute(WAITS).rowcount, "the call waits")
        source.execute("INSERT INTO events VALUES (301, 1)")
        probe(source)
        assert not done()
        reader.rollback()
