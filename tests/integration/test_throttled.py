"""Bursts of many rows behind a slow sink: memory is bounded, and no row is lost.

The sink is throttled by stopping its backends again and again (SIGSTOP); meanwhile its worker is
killed now and then.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import psycopg
import pytest

from headrace import clock
from headrace.embedded.engine import EmbeddedEngine
from tests.compared import differs
from tests.waiting import PATIENCE_S, again_and_again, at_any_moment, wait_until

MB = 1_048_576
ROWS = 25_000
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int NOT NULL, x int NOT NULL, filler text NOT NULL);
CREATE TABLE groups (g int PRIMARY KEY, name text NOT NULL);
INSERT INTO groups SELECT i, 'group ' || i FROM generate_series(0, 999) i;
"""
JOINED = "SELECT i.id, i.x, g.name FROM items i JOIN groups g USING (g)"
VIEWS = {
    "wide": f"SELECT id, name, x * 2 AS y FROM ({JOINED}) j",
    "narrow": f"SELECT name, count(*), sum(x) FROM ({JOINED}) j GROUP BY name",
}
BURST = """
INSERT INTO items SELECT i, i %% 1000, i %% 77, repeat('f', 100)
  FROM generate_series(%s::int, %s::int) i"""
BOUNDS = {
    "HEADRACE_WAL_RETENTION": "local",
    "HEADRACE_BUFFER_BYTES_MAX": str(8 * MB),
    "HEADRACE_SPOOL_BYTES_MIN": str(4 * MB),
    "HEADRACE_QUEUE_MEMORY_BYTES": str(8 * MB),
    "HEADRACE_STATE_MEMORY_BYTES": str(32 * MB),
    "HEADRACE_VIEW_ROWS_MAX": "10000000",
}


def queues(conn: psycopg.Connection) -> list[dict[str, object]]:
    with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute("SELECT * FROM headrace.queues()").fetchall()


def sinks(conn: psycopg.Connection) -> list[int]:
    """Return the backends over which views are written."""
    rows = conn.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'headrace sink%'"
    )
    return [pid for (pid,) in rows]


class Watched(threading.Thread):
    """Thread that measures the worker's private memory and throttles the sink."""

    def __init__(self, engine: EmbeddedEngine, *, throttled: bool = True) -> None:
        super().__init__()
        self.peak = 0
        """Maximum of RssAnon, in bytes."""
        self.throttled = throttled
        self._engine = engine
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        with psycopg.connect(self._engine.source, autocommit=True) as conn:
            while not self._over.is_set():
                pids = sinks(conn) if self.throttled else []
                for how, seconds in ((signal.SIGSTOP, 0.3), (signal.SIGCONT, 0.05)):
                    for pid in pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, how)
                    until = clock.monotonic() + seconds
                    while clock.monotonic() < until:
                        self._look()
                        self._over.wait(0.02)

    def _look(self) -> None:
        pid = self._engine.child("headrace.runtime.worker")
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    self.peak = max(self.peak, int(line.split()[1]) * 1024)


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Suspend a process with SIGSTOP; it may be ended meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def sink_standing_still(conn: psycopg.Connection) -> Iterator[None]:
    """Suspend the sink's backend while it waits for its client, so that it blocks no session."""
    told = "SELECT wait_event = 'ClientRead' FROM pg_stat_activity WHERE pid = %s"
    for _ in again_and_again(PATIENCE_S):
        [pid] = wait_until(lambda: sinks(conn), "somebody writes views")
        with standing_still(pid):
            if conn.execute(told, (pid,)).fetchone() == (True,):
                yield
                return
    raise AssertionError("it never waits")


def parts(commander: psycopg.Connection) -> dict[str, tuple[int, int | None]]:
    """Return the uses of memory and their limits."""
    rows = commander.execute("SELECT * FROM headrace.memory()").fetchall()
    return {part: (used, limit) for part, views, used, limit in rows if views is None}


def holds(commander: psycopg.Connection) -> bool:
    """Return whether memory is within its limits."""
    now = parts(commander)
    return all(now[part][0] <= now[part][1] for part in ("states", "queues in memory"))


def right(source: psycopg.Connection) -> Iterator[bool]:
    """Yield for each view whether it equals its query."""
    return (differs(source, name, query) == [] for name, query in VIEWS.items())


@pytest.mark.parametrize(
    "bursts", [4, pytest.param(40, marks=(pytest.mark.slow, pytest.mark.timeout(900)))]
)
@pytest.mark.engine_with(**BOUNDS)
def test_e24_memory_is_bounded_and_all_arrives(engine, source, commander, bursts):
    rng = random.Random(bursts)
    with Watched(engine) as watched:
        wait_until(lambda: watched.peak, "it is looked at")
        idle = watched.peak
        for n in range(bursts):
            source.execute(BURST, (n * ROWS, (n + 1) * ROWS - 1))
            source.execute("UPDATE items SET x = x + 1 WHERE id %% 40 = %s", (n,))
            if n % 10 == 3:
                at_any_moment(rng, 0.0, 0.5)
                os.kill(engine.child("headrace.runtime.worker"), signal.SIGKILL)
        watched.throttled = False
        for name, query in VIEWS.items():
            wait_until(lambda n=name, q=query: differs(source, n, q) == [], f"{name} is right", 600)
        assert watched.peak - idle < 300 * MB
    wait_until(lambda: holds(commander), lambda: f"what was let go is gone: {parts(commander)}")


@contextlib.contextmanager
def call_waiting(engine: EmbeddedEngine) -> Iterator[None]:
    """Have a call that waits for the sink, as a notice has said; its view has no changes."""
    told: list[str | None] = []
    with (
        psycopg.connect(engine.dsn, autocommit=True) as conn,
        ThreadPoolExecutor(1) as beside,
    ):
        conn.add_notice_handler(lambda notice: told.append(notice.message_primary))
        call = beside.submit(conn.execute, "CALL headrace.pause_view('quiet')")
        wait_until(lambda: told, "the call waits")
        yield
        call.result(PATIENCE_S)


@pytest.mark.parametrize("calling", [False, True], ids=["alone", "beside-a-call"])
@pytest.mark.engine_with(**BOUNDS)
def test_a9_a_queue_fills_on_disk_behind_what_stands_still(engine, source, commander, calling):
    """First behind the sink's backend, then behind the worker, which must read all of it back.

    So it does while a call waits until all that is in flight is committed.
    """

    def burst(n: int) -> None:
        source.execute(BURST, (n * ROWS, (n + 1) * ROWS - 1))
        source.execute("UPDATE items SET x = x + 1 WHERE id %% 40 = %s", (n,))

    def on_disk() -> int:
        return (engine.data_dir / "queues" / "blocks").stat().st_blocks * 512

    def spilled() -> bool:
        used, limit = parts(commander)["queues in memory"]
        return limit is not None and used <= limit < on_disk() // 2

    if calling:
        commander.execute("CALL headrace.create_view('quiet', 'SELECT g FROM groups')")
    with Watched(engine, throttled=False) as watched:
        wait_until(lambda: watched.peak, "it is looked at")
        idle = watched.peak
        burst(0)
        wait_until(lambda: all(right(source)), "the first burst is there")
        with contextlib.ExitStack() as stack:
            waits = stack.enter_context(contextlib.ExitStack())
            stack.enter_context(sink_standing_still(source))
            burst(1)
            wait_until(lambda: parts(commander)["rows to be written"][0], "the sink has work")
            if calling:
                waits.enter_context(call_waiting(engine))
            for n in range(2, 9):
                burst(n)
            wait_until(lambda: on_disk() > 3 * 8 * MB, lambda: f"only {on_disk()} bytes are kept")
            wait_until(
                spilled, lambda: f"it is on disk only: {parts(commander)} {queues(commander)}"
            )
            assert source.execute("SELECT count(*) FROM wide").fetchone() == (ROWS,)
            with standing_still(engine.child("headrace.runtime.worker")):
                burst(9)
                assert source.execute("SELECT count(*) FROM wide").fetchone() == (ROWS,)
        wait_until(lambda: all(right(source)), "the views are right", 300)
        assert watched.peak - idle < 300 * MB
    wait_until(lambda: holds(commander), lambda: f"what was let go is gone: {parts(commander)}")
