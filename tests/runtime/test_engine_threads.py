"""Thread pools: one of each for all views; a blocked view blocks no other (E-15 to E-17)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.expressions.pool import CONNECTIONS_MAX
from headrace.process.thread_pools import BATCHES
from tests.compared import differs, status_of
from tests.faults.helpers import WORKER
from tests.waiting import again_and_again, wait_until

VIEWS = 50
GATE = 7001
GATED = f"""
CREATE FUNCTION gated(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared({GATE});
  RETURN v;
END $$;
CREATE TABLE items (id int PRIMARY KEY, x int);
INSERT INTO items SELECT i, i FROM generate_series(1, 10) i;
"""
"""A function whose statement waits while another session holds the gate."""
MANY = 5_000
"""Number of rows for which views run concurrently, even if they were quick before."""


def threads(pid: int) -> list[str]:
    return sorted(path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm"))


@pytest.mark.slow
def test_e15_fifty_views_need_the_threads_of_one(engine):
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as commander,
    ):
        source.execute("CREATE TABLE items (id int PRIMARY KEY, kind int, price int)")
        source.execute("INSERT INTO items SELECT i, i % 7, i FROM generate_series(1, 100) i")

        def create(number: int) -> None:
            commander.execute(
                f"CALL headrace.create_view('v{number}', 'SELECT kind, count(*) AS n,"
                f" sum(price) AS total FROM items WHERE id > {number} GROUP BY kind')"
            )

        def change(step: int) -> None:
            source.execute("UPDATE items SET price = price + %s", (step,))
            wait_until(
                lambda: (
                    source.execute("SELECT sum(total) FROM v0").fetchone()
                    == source.execute("SELECT sum(price) FROM items").fetchone()
                ),
                "the view follows",
            )

        create(0)
        pid = wait_until(lambda: engine.child(WORKER), "a worker")
        for step in range(5):
            change(step)
        one = threads(pid)
        for number in range(1, VIEWS):
            create(number)
        for step in range(5):
            change(step)
        assert engine.child(WORKER) == pid
        many = threads(pid)
        assert len(many) == len(one), (one, many)
        differing = source.execute(
            f"SELECT count(*) FROM (SELECT kind, count(*), sum(price) FROM items"
            f" WHERE id > {VIEWS - 1} GROUP BY kind EXCEPT ALL"
            f" SELECT * FROM v{VIEWS - 1}) d"
        ).fetchone()
        assert differing == (0,)


def held_up(source: psycopg.Connection) -> int:
    """Return the number of statements that wait at the gate."""
    row = source.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        (GATE,),
    ).fetchone()
    return int(row[0])


@contextlib.contextmanager
def gate_shut(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn, autocommit=True) as gate:
        gate.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        yield


def received_bytes(commander: psycopg.Connection) -> int:
    """Return the bytes that the worker's loop has read of the stream but not yet processed."""
    rows = commander.execute("SELECT * FROM headrace.memory()").fetchall()
    return {part: used for part, _, used, _ in rows}["changes received"]


def test_e16_a_collection_that_waits_holds_up_no_loop(engine):
    """One view's statement waits; the worker answers, and reads on, before it has ended."""
    queries = {
        "waits": "SELECT id, gated(x) AS x FROM items",
        "counts": "SELECT count(*) FROM items",
    }
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as commander,
    ):
        source.execute(GATED)
        for name, query in queries.items():
            commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
        with gate_shut(engine.source):
            source.execute("UPDATE items SET x = x + 1 WHERE id = 3")
            wait_until(lambda: held_up(source) == 1, "the statement waits")
            before = received_bytes(commander)
            source.execute("INSERT INTO items SELECT i, i FROM generate_series(11, 2000) i")
            wait_until(lambda: received_bytes(commander) > before + 2_000 * 10, "it reads on")
            for _ in range(50):
                received_bytes(commander)
            assert held_up(source) == 1
            assert differs(source, "counts", "SELECT 10::bigint") == []
        for name, query in queries.items():
            wait_until(lambda n=name, q=query: differs(source, n, q) == [], f"{name} is right")


@pytest.mark.parametrize("ends", ["fails", "is dropped"])
def test_a_view_that_ends_makes_no_other_wait_for_one_that_lags(engine, ends):
    """A batch of the view that lags waits at the gate meanwhile."""
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as commander,
    ):
        source.execute(GATED)
        source.execute("CREATE TABLE apart (id int PRIMARY KEY)")
        commander.execute(
            "CALL headrace.create_view('waits', 'SELECT id, gated(x) AS x FROM items',"
            """ options => '{"commit_group": "slow", "view_time_ms_max": 60000}')"""
        )
        commander.execute("CALL headrace.create_view('ends', 'SELECT 100 / id AS x FROM apart')")
        commander.execute("CALL headrace.create_view('counts', 'SELECT count(*) FROM apart')")
        commander.execute("CALL headrace.pause_view('waits')")
        source.execute("UPDATE items SET x = x + 1 WHERE id = 3")
        source.execute("INSERT INTO apart VALUES (1)")
        wait_until(lambda: differs(source, "counts", "SELECT 1::bigint") == [], "it was taken")
        with gate_shut(engine.source):
            commander.execute("CALL headrace.resume_view('waits')")
            wait_until(lambda: held_up(source) == 1, "the statement waits")
            if ends == "fails":
                source.execute("INSERT INTO apart VALUES (0)")
                wait_until(lambda: status_of(source, "ends")[1] == "22012", "it has stopped")
            else:
                source.execute("DROP TABLE ends")
                source.execute("INSERT INTO apart VALUES (0)")
            wait_until(lambda: differs(source, "counts", "SELECT 2::bigint") == [], "it follows")
            assert held_up(source) == 1
        query = "SELECT id, gated(x) AS x FROM items"
        wait_until(lambda: differs(source, "waits", query) == [], "it goes on")


def test_e17_as_many_at_once_as_there_are_threads(engine):
    """Views wait side by side while threads are free, the others come after them."""
    most = min(BATCHES, CONNECTIONS_MAX)
    queries = {f"v{n}": f"SELECT id, gated(x + {n}) AS x FROM items" for n in range(most + 2)}
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as commander,
    ):
        source.execute(GATED)
        for name, query in queries.items():
            commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
        with gate_shut(engine.source):
            source.execute("INSERT INTO items SELECT i, i FROM generate_series(11, %s) i", (MANY,))
            wait_until(lambda: held_up(source) == most, lambda: f"{held_up(source)} of {most} wait")
            for _ in again_and_again(0.3):
                assert held_up(source) == most
        for name, query in queries.items():
            wait_until(lambda n=name, q=query: differs(source, n, q) == [], f"{name} is right")
