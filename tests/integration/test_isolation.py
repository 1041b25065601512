"""A view in trouble delays no unrelated view, seen from outside.

While the trouble lasts, rows are committed to the table of a probe view, one by one.  Each must be
visible before the next one, and before the trouble ends.  No verdict depends on times: the test
itself ends the trouble, by a lock that it holds.  ``bench isolation`` measures the delays.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from tests.integration.test_lost_workers import elsewhere
from tests.integration.test_workers import check, listed
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(
        HEADRACE_LOCK_TIMEOUT_MS="300",
        HEADRACE_SINK_RETRY_MS="200",
        HEADRACE_VIEW_TIME_MS_MAX="0",
    ),
]

WAITS, FAILS = -1, -2
"""Values for which the other view's function waits for an advisory lock, and fails without one."""
TABLES = f"""
CREATE TABLE events (id int PRIMARY KEY, x int NOT NULL);
INSERT INTO events SELECT i, i FROM generate_series(1, 1000) i;
CREATE TABLE probes (id int PRIMARY KEY);
CREATE FUNCTION troubled(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF x = {WAITS} THEN
        PERFORM pg_advisory_xact_lock_shared({-WAITS});
    ELSIF x = {FAILS} AND NOT pg_try_advisory_xact_lock_shared({-FAILS}) THEN
        RAISE EXCEPTION 'not now' USING ERRCODE = '40001';
    END IF;
    RETURN x % 100;
END $$;
"""
PROBE = "SELECT id FROM probes"
OTHER = "SELECT troubled(x) AS k, count(*) AS c, sum(x) AS s FROM events GROUP BY 1"
VIEWS = {"probe": PROBE}
PROBES = 15
"""Rows of the probe view that must become visible in each phase of a trouble."""
STEP = 500
"""Rows of a transaction that the other view lacks."""
OF_ALL = {"stream interrupted", "stream started", "commit group is slow"}
"""Events that concern every view."""
STREAM = """
    SELECT r.pid, r.backend_start
      FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
     WHERE s.slot_name = %s
"""
MEMBER = """
    SELECT status, since, message FROM headrace.list_views() WHERE name = 'public.probe'
"""
PROGRESS = """
    SELECT p.txid, p.lsn FROM headrace.progress p JOIN headrace.views v ON v.id = p.view_id
     WHERE v.view_name = 'probe'
"""


@dataclass
class Trouble:
    """The other view, in trouble."""

    engine: EmbeddedEngine
    source: psycopg.Connection
    commander: psycopg.Connection
    folder: Path
    rows: int
    """Number of rows that the view lacks when it goes on."""
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(10_001))

    def create(self, **options: object) -> None:
        self.commander.execute(
            "CALL headrace.create_view('other', %s, options => %s)",
            (OTHER, json.dumps({"sharing": False} | options)),
        )

    def change(self) -> None:
        """Insert many rows, each few of them in a transaction of their own."""
        for _ in range(max(self.rows // STEP, 1)):
            self.source.execute(
                "INSERT INTO events SELECT m + i, m + i FROM (SELECT max(id) AS m FROM events) o,"
                " generate_series(1, %s) i",
                (STEP,),
            )

    def insert(self, x: int) -> None:
        self.source.execute("INSERT INTO events SELECT max(id) + 1, %s::int FROM events", (x,))

    def is_(self, status: str) -> bool:
        found = self.source.execute(
            "SELECT FROM headrace.list_views() WHERE name = 'public.other' AND status = %s",
            (status,),
        )
        return found.rowcount > 0

    def fails(self) -> bool:
        """Return whether it has failed and lacks the row; each try begins as a running view."""
        found = self.source.execute(
            "SELECT FROM headrace.list_views() WHERE name = 'public.other'"
            " AND last_error ~ 'not now' AND NOT EXISTS (SELECT FROM other WHERE k = %s)",
            (FAILS,),
        )
        return found.rowcount > 0

    def waits(self) -> bool:
        """Return whether the view's function waits for the lock of ``held``."""
        found = self.source.execute(
            "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            (-WAITS,),
        )
        return found.rowcount > 0

    @contextlib.contextmanager
    def held(self, x: int) -> Iterator[None]:
        """Hold the advisory lock that the view's function needs for ``x``."""
        with psycopg.connect(self.engine.source, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", (-x,))
            yield


Phase = Callable[[], bool]
"""Returns whether a phase of a trouble lasts, from the catalog or pg_locks."""


def resumed(on: Trouble) -> Iterator[Phase]:
    """It was paused, and many rows were committed since."""
    on.create()
    on.commander.execute("CALL headrace.pause_view('other')")
    on.change()
    on.insert(WAITS)
    yield lambda: on.is_("paused")
    with on.held(WAITS):
        on.commander.execute("CALL headrace.resume_view('other')")
        yield on.waits


def commanded(on: Trouble) -> Iterator[Phase]:
    """It lags, and a command for a third view waits until its batch has ended."""
    on.create()
    on.commander.execute("CALL headrace.create_view('third', 'SELECT id FROM events')")
    on.commander.execute("CALL headrace.pause_view('other')")
    on.insert(WAITS)
    with psycopg.connect(on.engine.dsn, autocommit=True) as caller:
        with on.held(WAITS):
            on.commander.execute("CALL headrace.resume_view('other')")
            yield on.waits
            call = ("CALL headrace.pause_view('third')",)
            paused = threading.Thread(target=caller.execute, args=call)
            paused.start()
            yield on.waits
        paused.join()


def released(on: Trouble) -> Iterator[Phase]:
    """Its table was locked, and many rows were committed since."""
    on.create()
    with psycopg.connect(on.engine.source) as blocker, on.held(WAITS):
        blocker.execute("LOCK TABLE other IN ACCESS EXCLUSIVE MODE")
        on.insert(1)
        yield lambda: on.is_("sink_error")
        on.change()
        on.insert(WAITS)
        blocker.rollback()
        yield on.waits


def populated(on: Trouble) -> Iterator[Phase]:
    """It is being populated."""
    on.change()
    on.insert(WAITS)
    with on.held(WAITS):
        created = threading.Thread(target=on.create)
        created.start()
        yield lambda: on.is_("populating") and on.waits()
    created.join()


def lost(on: Trouble) -> Iterator[Phase]:
    """Its worker was killed, and comes back."""
    with elsewhere(on.engine, on.folder, "w2") as [far]:
        on.create(placement="w2")
        on.insert(1)
        check(on.commander, other=OTHER)
        far.die()
        yield lambda: on.is_("sink_error")
        on.change()
        on.insert(WAITS)
        with on.held(WAITS):
            far.start()
            yield on.waits
        check(on.commander, other=OTHER)
        on.commander.execute("CALL headrace.drop_view('other')")
        on.commander.execute("CALL headrace.remove_worker('w2')")
        on.create()


def silent(on: Trouble) -> Iterator[Phase]:
    """Its worker is stopped, and goes on."""
    on.commander.execute("CALL headrace.add_worker('w1')")
    on.create(placement="w1")
    pid = listed(on.commander)["w1"][1]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield lambda: on.is_("sink_error")
        on.change()
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: on.is_("running"), "it goes on")
    check(on.commander, other=OTHER)
    on.commander.execute("CALL headrace.set_placement('other', 'main')")
    on.commander.execute("CALL headrace.remove_worker('w1')")


def failed(on: Trouble) -> Iterator[Phase]:
    """It fails on each batch, until it is given up."""
    on.create()
    with on.held(FAILS):
        on.insert(FAILS)
        on.change()
        yield on.fails
        yield lambda: on.is_("error")
    on.commander.execute("CALL headrace.resync_view('other')")


TROUBLES = (resumed, commanded, released, populated, lost, silent, failed)


def events(engine: EmbeddedEngine, after: int) -> list[dict[str, object]]:
    """Return the events after a number of characters that say that the probe view stood back."""
    lines = (line for line in engine.log[after:].splitlines() if line.startswith("{"))
    found = [json.loads(line) for line in lines]
    return [e for e in found if e.get("view") == "public.probe" or e["event"] in OF_ALL]


def one(conn: psycopg.Connection, query: str, *values: object) -> tuple:
    [row] = conn.execute(query, values).fetchall()
    return row


def probe(conn: psycopg.Connection, key: int) -> None:
    conn.execute("INSERT INTO probes VALUES (%s)", (key,))
    wait_until(
        lambda: conn.execute("SELECT FROM probe WHERE id = %s", (key,)).rowcount,
        lambda: f"row {key} is visible: {one(conn, MEMBER)}",
        every_s=0.003,
    )


@pytest.mark.parametrize(
    "rows", [2_000, pytest.param(300_000, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_no_other_view_notices(engine, commander, source, tmp_path, trouble, rows):
    on = Trouble(engine, source, commander, tmp_path, rows)
    slot = engine.env["HEADRACE_SLOT_NAME"]
    probe(source, next(on.ids))
    stream, member, before = one(source, STREAM, slot), one(source, MEMBER), one(source, PROGRESS)
    assert member[0] == "running"
    said = len(engine.log)
    phases = 0
    for lasts in trouble(on):
        while not lasts():  # the trouble begins
            probe(source, next(on.ids))
        for _ in range(PROBES):
            probe(source, next(on.ids))
            assert lasts(), "the row was visible before the end of the trouble"
            assert one(source, STREAM, slot) == stream
            assert one(source, MEMBER) == member
            now = one(source, PROGRESS)
            assert now > before
            before = now
        phases += 1
    assert phases, "else it was no test"
    check(commander, other=OTHER, probe=PROBE)
    assert one(source, STREAM, slot) == stream
    assert events(engine, said) == []
