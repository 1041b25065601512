"""A process that repeatedly dies of one view finds out which, and continues without it."""

from __future__ import annotations

import itertools
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from headrace.process import faults
from headrace.runtime.crash_attribution import ALONE_MAX, CAREFUL_AFTER
from tests.compared import differs, status_of
from tests.faults.helpers import WORKER, arm
from tests.waiting import wait_until

BUILDER = "headrace.views.builder"
GOOD = "SELECT id, v FROM t"
BAD = "SELECT v, count(*) AS n FROM t GROUP BY v"


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    folder = tmp_path / "traps"
    folder.mkdir()
    return folder


@pytest.fixture
def engine(database, start_engine, traps) -> EmbeddedEngine:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        conn.execute("INSERT INTO t VALUES (1, 'one')")
    return start_engine(database, **{faults.ENV_DIR: str(traps)})


def test_the_worker_stops_the_view_that_kills_it(engine, traps):
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        for name, query in (("a", GOOD), ("bad", BAD), ("z", GOOD)):
            conn.execute(f"CALL headrace.create_view('{name}', '{query}')")
        (number,) = conn.execute("SELECT id FROM headrace.views WHERE view_name = 'bad'").fetchone()
        arm(traps, faults.ROWS_TAKEN, f"{number} poison")
        conn.execute("INSERT INTO t VALUES (2, 'poison')")
        conn.execute("INSERT INTO t VALUES (3, 'three')")
        wait_until(lambda: status_of(conn, "bad")[0] == "error", "the culprit is stopped")
        _, code, message = status_of(conn, "bad")
        assert code == "58000"
        assert "the worker died while processing this view" in message
        assert "CALL headrace.resync_view('public.bad')" in message
        for name in ("a", "z"):
            wait_until(lambda name=name: not differs(conn, name, GOOD), f"{name} follows")
            assert status_of(conn, name)[0] == "running"
        before = engine.child(WORKER)
        conn.execute("INSERT INTO t VALUES (4, 'poison')")
        wait_until(lambda: not differs(conn, "a", GOOD), "a follows")
        assert engine.child(WORKER) == before, "it does not die any more"
        (traps / faults.ROWS_TAKEN).unlink()
        conn.execute("CALL headrace.resync_view('bad')")
        conn.execute("INSERT INTO t VALUES (5, 'poison')")
        wait_until(lambda: not differs(conn, "bad", BAD), "it is right again")


def test_the_worker_stops_a_lagging_view_that_kills_it(engine, traps):
    """Leading views commit between the deaths, and later batches than the one that kills."""
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        for name, query in (("a", GOOD), ("bad", BAD)):
            conn.execute(f"CALL headrace.create_view('{name}', '{query}')")
        (number,) = conn.execute("SELECT id FROM headrace.views WHERE view_name = 'bad'").fetchone()
        conn.execute("CALL headrace.pause_view('bad')")
        # The poison comes after so many rows that the leading view commits before it.
        conn.execute(
            "INSERT INTO t SELECT i, CASE i WHEN 200000 THEN 'poison' ELSE 'row ' || i END"
            " FROM generate_series(2, 200000) i"
        )
        wait_until(lambda: not differs(conn, "a", GOOD), "a follows")
        arm(traps, faults.CHECKPOINT_WRITTEN, "pass:2")
        sprung = traps / f"{faults.CHECKPOINT_WRITTEN}{faults.SPRUNG}"
        done = Event()
        later = itertools.count(1_000_000)

        def write() -> None:
            with psycopg.connect(engine.dsn, autocommit=True) as own:
                while not done.wait(0.02):
                    own.execute("INSERT INTO t VALUES (%s, 'later')", [next(later)])

        writer = Thread(target=write)
        writer.start()
        try:
            wait_until(sprung.exists, "the leading view is durably ahead")
            arm(traps, faults.ROWS_TAKEN, f"{number} poison")
            conn.execute("CALL headrace.resume_view('bad')")
            wait_until(lambda: status_of(conn, "bad")[0] == "error", "the culprit is stopped", 90)
        finally:
            done.set()
            writer.join()
        assert "the worker died while processing this view" in status_of(conn, "bad")[2]
        wait_until(lambda: not differs(conn, "a", GOOD), "a follows")
        assert status_of(conn, "a")[0] == "running"
        (traps / faults.ROWS_TAKEN).unlink()
        conn.execute("CALL headrace.resync_view('bad')")
        wait_until(lambda: not differs(conn, "bad", BAD), "it is right again")


@pytest.mark.parametrize("where", ["main", "w1"])
def test_a_worker_that_dies_of_taking_a_view_in_is_not_asked_again(engine, traps, where):
    """The view stops, and the call fails, though the builder would hand it over again."""
    point, failed = faults.STATES_TAKEN, list[psycopg.Error]()
    sprung = traps / f"{point}{faults.SPRUNG}"
    options = f'{{"sharing": false, "placement": "{where}"}}'
    deaths = 0

    def create() -> None:
        with psycopg.connect(engine.dsn, autocommit=True) as own:
            try:
                own.execute("CALL headrace.create_view('bad', %s, %s)", (BAD, options))
            except psycopg.Error as error:
                failed.append(error)

    def ended() -> bool:
        nonlocal deaths
        if sprung.exists():
            deaths += 1
            arm(traps, point, "kill:1")
        return not caller.is_alive()

    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        if where != "main":
            conn.execute(f"CALL headrace.add_worker('{where}')")
        conn.execute("CALL headrace.create_view('a', %s, %s)", (GOOD, options))
        arm(traps, point, "kill:1")
        caller = Thread(target=create)
        caller.start()
        wait_until(ended, "the call has failed", every_s=0.01)
        assert deaths == CAREFUL_AFTER + ALONE_MAX
        assert "the worker died while processing this view" in str(failed[0])
        assert status_of(conn, "bad")[:2] == ("error", "58000")
        conn.execute("INSERT INTO t VALUES (7, 'seven')")
        wait_until(lambda: not differs(conn, "a", GOOD), "the other view follows")
        assert not sprung.exists()
        (traps / point).unlink()
        conn.execute("CALL headrace.resync_view('bad')")
        wait_until(lambda: not differs(conn, "bad", BAD), "it is right again")


@pytest.mark.slow
def test_a_view_that_nobody_waits_for_is_not_begun_for_ever(engine, traps):
    point = faults.POPULATION_BEGINS

    def sprung() -> bool:
        return (traps / f"{point}{faults.SPRUNG}").exists()

    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        arm(traps, point, "kill:1")
        conn.execute(f"CALL headrace.create_view('v', '{BAD}', '{{\"block\": false}}')")
        for _ in range(2):
            wait_until(sprung, "the builder dies of it")
            arm(traps, point, "kill:1")
        wait_until(sprung, "the builder dies of it once more")
        arm(traps, point, "kill:1")
        wait_until(
            lambda: "died 2 times while filling this view" in engine.log, "it is not begun again"
        )
        assert not sprung()
        (traps / point).unlink()
        assert conn.execute("SELECT view_name FROM headrace.views").fetchall() == []
        conn.execute(f"CALL headrace.create_view('v', '{BAD}')")
        assert not differs(conn, "v", BAD)


@pytest.mark.slow
def test_a_stopped_view_is_not_filled_anew_for_ever(engine, traps):
    point = faults.POPULATION_BEGINS

    def sprung() -> bool:
        return (traps / f"{point}{faults.SPRUNG}").exists()

    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute(f"CALL headrace.create_view('v', '{GOOD}', '{{\"on_change\": \"resync\"}}')")
        arm(traps, point, "kill:1")
        conn.execute("ALTER TABLE t ALTER v TYPE varchar(20)")
        for _ in range(2):
            wait_until(sprung, "the builder dies of it")
            arm(traps, point, "kill:1")
        wait_until(
            lambda: "died 2 times while filling" in str(status_of(conn, "v")[2]),
            "it is not begun again, and its message says so",
        )
        assert not sprung()
        (traps / point).unlink()
        conn.execute("CALL headrace.resync_view('v')")
        assert status_of(conn, "v")[0] == "running"
    assert engine.child(BUILDER)
