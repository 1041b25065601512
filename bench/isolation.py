"""isolation: the delay of an unrelated view while another view is in trouble.

A probe view follows its own table.  Another view, over a large table, resumes many changes behind,
its result table is locked and released, its worker is lost or silent, and it fails on each batch;
a third one is created over that table.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Final

import psycopg

from bench.scenario import Bed, Figures, Options, Scenario, bed, caught_up, scalar, wait_for
from headrace.embedded.shop import percentile

_LOCK: Final = 78
_FAILS: Final = -2
"""Value for which a view's function fails while the advisory lock is held."""
_SETUP: Final = f"""
CREATE TABLE events (id int PRIMARY KEY, x int NOT NULL);
CREATE TABLE probes (id int PRIMARY KEY);
CREATE TABLE odd (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, x int NOT NULL);
CREATE FUNCTION failing(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF x = {_FAILS} AND NOT pg_try_advisory_xact_lock_shared({_LOCK}) THEN
        RAISE EXCEPTION 'not now' USING ERRCODE = '40001';
    END IF;
    RETURN x;
END $$;
"""
_PROBE: Final = "SELECT id FROM probes"
_OTHER: Final = "SELECT x % 1000 AS k, count(*) AS c, sum(x) AS s FROM events GROUP BY x % 1000"
_FAILING: Final = "SELECT id, failing(x) AS x FROM odd"
_ROWS: Final = 300_000
_STEP: Final = 1_000
_PAUSE_S: Final = 0.05
_POLL_S: Final = 0.001
_SECONDS: Final = 20.0
_LOCKED_S: Final = 5.0
_SILENT_S: Final = 8.0
"""Seconds for which a worker is stopped; it is considered lost before that."""
_BEHIND: Final = "SELECT %s <= coalesce(max(c), 0) FROM (SELECT sum(c) AS c FROM other) o"
_STATUS: Final = "SELECT status FROM headrace.list_views() WHERE name = 'public.' || %s::text"

Work = Callable[[], Any]
"""Brings a trouble about, and returns once the other view has all changes again."""


class Isolation(Scenario):
    """The delay of an unrelated view while another one is in trouble."""

    name: ClassVar[str] = "isolation"
    about: ClassVar[str] = (
        "ms from commit to visible of an unrelated view, alone, and while another view resumes"
        " many rows behind, its table is locked, it is released many rows behind, is created,"
        " loses its worker, waits for a silent worker, or fails on each batch;"
        " took_s: until that is over; p99_ratio: to the line without trouble"
    )

    def run(self, options: Options) -> Iterator[Figures]:
        """Measure the unrelated view alone, then beside each trouble, or those of ``only``."""
        rows, least_s = options.rows or _ROWS, options.seconds or _SECONDS
        with bed(options, HEADRACE_SPARK_WARM="false") as on:
            with psycopg.connect(on.source, autocommit=True) as conn:
                conn.execute(_SETUP.encode())
            on.engine.start()
            on.create_view("probe", _PROBE)
            on.create_view("other", _OTHER)
            _change(on, rows)
            alone = _measure(on, lambda: time.sleep(least_s), least_s)
            yield _line("nothing", alone, alone)
            for trouble, prepared in _TROUBLES.items():
                if options.only and trouble not in options.only:
                    continue
                with prepared(on, rows) as work:
                    yield _line(trouble, _measure(on, work, least_s), alone)
                on.check("probe", _PROBE)
                on.check("other", _OTHER)


def _call(on: Bed, statement: str) -> None:
    with psycopg.connect(on.engine.dsn, autocommit=True) as conn:
        conn.execute(statement.encode())


def _change(on: Bed, rows: int) -> None:
    """Insert rows, many of them in a transaction of their own."""
    with psycopg.connect(on.source, autocommit=True) as conn:
        for _ in range(rows // _STEP):
            conn.execute(
                "INSERT INTO events SELECT m + i, i FROM (SELECT coalesce(max(id), 0) AS m"
                " FROM events) o, generate_series(1, %s) i",
                (_STEP,),
            )


def _stands(on: Bed, view: str, *statuses: str) -> bool:
    return scalar(on.source, _STATUS, view) in statuses


@contextmanager
def _resumed(on: Bed, rows: int) -> Iterator[Work]:
    _call(on, "CALL headrace.pause_view('other')")
    _change(on, rows)

    def resume() -> None:
        _call(on, "CALL headrace.resume_view('other')")
        _wait(on)

    yield resume


@contextmanager
def _locked(on: Bed, rows: int) -> Iterator[Work]:
    del rows

    def lock() -> None:
        with psycopg.connect(on.source) as blocker:
            blocker.execute("LOCK TABLE other IN ACCESS EXCLUSIVE MODE")
            _change(on, _STEP)
            wait_for("the view is blocked", lambda: _stands(on, "other", "sink_error"))
            time.sleep(_LOCKED_S)
        _wait(on)

    yield lock


@contextmanager
def _released(on: Bed, rows: int) -> Iterator[Work]:
    blocker = psycopg.connect(on.source)
    blocker.execute("LOCK TABLE other IN ACCESS EXCLUSIVE MODE")
    _change(on, rows)

    def release() -> None:
        blocker.close()
        _wait(on)

    yield release


@contextmanager
def _created(on: Bed, rows: int) -> Iterator[Work]:
    del rows
    yield lambda: on.create_view("third", _OTHER.replace("sum(x)", "max(x)"))
    on.drop_view("third")


@contextmanager
def _placed(on: Bed) -> Iterator[int]:
    """Place the other view on a worker; yield the worker's process id."""
    _call(on, "CALL headrace.add_worker('w1')")
    _call(on, "CALL headrace.set_placement('other', 'w1')")
    yield int(scalar(on.engine.dsn, "SELECT pid FROM headrace.workers() WHERE worker = 'w1'"))
    wait_for("the view runs again", lambda: _stands(on, "other", "running"))
    _call(on, "CALL headrace.set_placement('other', 'main')")
    _call(on, "CALL headrace.remove_worker('w1')")


@contextmanager
def _lost(on: Bed, rows: int) -> Iterator[Work]:
    """Kill the worker under rows for the view; it is restarted, and the view catches up."""
    with _placed(on) as pid:

        def kill() -> None:
            _change(on, rows // 10)
            os.kill(pid, signal.SIGKILL)
            _change(on, rows // 10)
            _wait(on)

        yield kill


@contextmanager
def _silent(on: Bed, rows: int) -> Iterator[Work]:
    with _placed(on) as pid:

        def stop() -> None:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(_SILENT_S)
            os.kill(pid, signal.SIGCONT)
            _change(on, rows // 10)
            _wait(on)

        yield stop


@contextmanager
def _failed(on: Bed, rows: int) -> Iterator[Work]:
    """Let a view fail on each batch until it is given up."""
    del rows
    on.create_view("failing", _FAILING)

    def fail() -> None:
        with psycopg.connect(on.source, autocommit=True) as conn:
            conn.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            while not _stands(on, "failing", "error"):
                conn.execute("INSERT INTO odd (x) VALUES (%s)", (_FAILS,))
                time.sleep(_PAUSE_S)

    yield fail
    on.drop_view("failing")


_TROUBLES: Final[dict[str, Callable[[Bed, int], AbstractContextManager[Work]]]] = {
    "resumes": _resumed,
    "locked": _locked,
    "released": _released,
    "created": _created,
    "lost": _lost,
    "silent": _silent,
    "fails": _failed,
}


def _wait(on: Bed) -> None:
    """Wait until the other view has all changes."""
    with psycopg.connect(on.source, autocommit=True) as conn:
        row = conn.execute("SELECT count(*) FROM events").fetchone()
        assert row is not None, "a count is a row"
        while conn.execute(_BEHIND, row).fetchone() != (True,):
            time.sleep(_PAUSE_S)


def _measure(on: Bed, work: Work, least_s: float) -> tuple[float, list[float]]:
    """Probe while ``work`` runs, and at least for some seconds; return its seconds, and all ms."""
    took: list[float] = []
    with (
        psycopg.connect(on.source, autocommit=True) as conn,
        ThreadPoolExecutor(1) as pool,
    ):
        caught_up(conn, "probe")
        row = conn.execute("SELECT coalesce(max(id), 0) FROM probes").fetchone()
        assert row is not None, "the query gives one row"
        following, begun, over_s = int(row[0]) + 1, time.perf_counter(), 0.0
        working = pool.submit(work)
        while not working.done() or time.perf_counter() - begun < least_s:
            conn.execute("INSERT INTO probes VALUES (%s)", (following,))
            since = time.perf_counter()
            while not conn.execute("SELECT FROM probe WHERE id = %s", (following,)).rowcount:
                time.sleep(_POLL_S)
            took.append((time.perf_counter() - since) * 1000)
            following += 1
            if working.done():
                over_s = over_s or time.perf_counter() - begun
            time.sleep(_PAUSE_S)
        working.result()
        return over_s or time.perf_counter() - begun, took


def _line(
    trouble: str, measured: tuple[float, list[float]], alone: tuple[float, list[float]]
) -> Figures:
    over_s, took = measured
    return {
        "trouble": trouble,
        "took_s": round(over_s, 1),
        "probes": len(took),
        "p50_ms": round(statistics.median(took), 1),
        "p99_ms": round(percentile(took, 99), 1),
        "max_ms": round(max(took), 1),
        "p99_ratio": round(percentile(took, 99) / percentile(alone[1], 99), 2),
    }
