"""Hazards of joining, positions and crashes against a running engine (README: the table)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import uuid

import psycopg
import pytest
from psycopg import sql

from headrace.config import Settings
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import ContinuityLost, PrerequisiteError
from headrace.runtime import ownership
from headrace.server import main as server_main
from tests.compared import differs, status_of
from tests.conftest import drop_database
from tests.faults.helpers import WORKER, memory_peak_bytes, signal_worker, slot, wal_end
from tests.waiting import at_any_moment, create_marker, settle, wait_until

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server():
    """A server that no other test uses: it may be killed."""
    with EmbeddedPostgres(None, 16, durable=False) as made:
        yield made


@pytest.fixture
def mortal(server):
    """The DSN of a fresh database on ``server``."""
    name = f"i_{uuid.uuid4().hex[:12]}"
    with connect(server.dsn()) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield server.dsn(name)
    server.start()
    drop_database(server.dsn(), name)


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def create(engine, source: psycopg.Connection, views: dict[str, str], options: str = "{}") -> None:
    """Create the marker and ``views``."""
    with connect(engine.dsn) as commander:
        create_marker(source, commander)
        for name, query in views.items():
            commander.execute(f"CALL headrace.create_view('{name}', $q${query}$q$, '{options}')")


def check(source: psycopg.Connection, views: dict[str, str]) -> None:
    settle(source)
    for name, query in views.items():
        assert differs(source, name, query) == [], name


# --- H17


def test_server_killed_and_slot_gone_back(server, mortal, start_engine):  # H17
    """kill -9 of the whole server loses the slot's positions since its last save."""
    views = {
        "copy": "SELECT id, n FROM t",
        "total": "SELECT n % 3 AS g, count(*) AS n, sum(n) AS s FROM t GROUP BY n % 3",
    }
    with connect(mortal) as source:
        source.execute("CREATE TABLE t (id bigserial PRIMARY KEY, n int)")
        source.execute("INSERT INTO t (n) SELECT i FROM generate_series(1, 100) i")
        engine = start_engine(mortal)
        create(engine, source, views)
    name = engine.env["HEADRACE_SLOT_NAME"]
    went_back = 0
    for _ in range(3):
        with connect(mortal) as source:
            for i in range(40):
                source.execute("INSERT INTO t (n) VALUES (%s)", (i,))
                source.execute("UPDATE t SET n = n + 1 WHERE id %% 17 = %s", (i % 17,))
            settle(source)
            done = wal_end(source)
            wait_until(lambda: slot(source, name)[0] >= done, "the rows are confirmed")  # noqa: B023
            signal_worker(engine, signal.SIGSTOP)
            before = slot(source, name)[0]
        server.kill()
        server.start()
        with connect(mortal) as source:
            went_back += slot(source, name)[0] < min(before, done)
            # Rows beyond the lost positions, before the stream starts again.
            source.execute("INSERT INTO t (n) SELECT i FROM generate_series(1, 50) i")
            source.execute("DELETE FROM t WHERE id % 11 = 0")
            signal_worker(engine, signal.SIGCONT)
            check(source, views)
    assert went_back, "rows must have lain in the gap at least once"


# --- H16


def test_writes_of_others_do_not_pin_wal(mortal, start_engine):  # H16
    with connect(mortal) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY)")
        source.execute("CREATE TABLE other (x text)")
        engine = start_engine(mortal)
        create(engine, source, {"v": "SELECT id FROM t"})
        name = engine.env["HEADRACE_SLOT_NAME"]
        begin = wal_end(source)
        for _ in range(4):
            source.execute(
                "INSERT INTO other SELECT repeat('x', 1900) FROM generate_series(1, 15000)"
            )

            def released() -> bool:
                # The record that a server writes by itself every few seconds.
                source.execute("SELECT pg_log_standby_snapshot()")
                return wal_end(source) - slot(source, name)[1] < 8 * MIB

            wait_until(released, "the WAL of a table that nobody reads may go")
        assert wal_end(source) - begin > 100 * MIB
        source.execute("INSERT INTO t VALUES (1)")
        check(source, {"v": "SELECT id FROM t"})


# --- H18


@pytest.mark.slow
def test_kills_while_large_copies_arrive(engine):  # H18
    """The rows of one COPY share LSNs: positions belong to transactions, never to rows."""
    rng = random.Random(18)
    views = {"copy": "SELECT id, n, s FROM t", "total": "SELECT n, count(*) AS c FROM t GROUP BY n"}
    with connect(engine.source) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY, n int, s text)")
        create(engine, source, views)
        for part in range(4):
            with source.cursor().copy("COPY t FROM STDIN") as copy:
                for i in range(20_000):
                    copy.write_row((part * 20_000 + i, i % 7, f"row {i}"))
            at_any_moment(rng, 0.0, 0.5)
            signal_worker(engine, signal.SIGKILL)
        check(source, views)
        assert source.execute("SELECT count(*) FROM copy").fetchone() == (80_000,)


# --- H21


def test_second_engine_is_refused_and_told_why(engine, tmp_path, monkeypatch):  # H21
    monkeypatch.setattr(ownership, "_LOCK_WAIT_S", 0.5)
    settings = Settings(
        source=engine.source,
        data_dir=tmp_path / "other",
        slot_name=engine.env["HEADRACE_SLOT_NAME"],
    )
    with pytest.raises(PrerequisiteError, match="another headrace engine") as caught:
        server_main.prepare(settings)
    assert caught.value.code == "55006"
    assert "process" in (caught.value.detail or "")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_stopped_engine_wakes_up_beside_its_successor(engine, start_engine, tmp_path):
    """H21: the first engine is stopped, loses its connections, and meets the second one."""
    views = {"copy": "SELECT id, n FROM t", "total": "SELECT count(*) AS c, sum(n) AS s FROM t"}
    with connect(engine.source) as source:
        source.execute("CREATE TABLE t (id bigserial PRIMARY KEY, n int)")
        create(engine, source, views, '{"on_damage": "stop"}')
        source.execute("INSERT INTO t (n) SELECT i FROM generate_series(1, 500) i")
        settle(source)
        os.killpg(engine.pid, signal.SIGSTOP)
        try:
            source.execute("INSERT INTO t (n) SELECT i FROM generate_series(1, 50) i")
            # The effect of the server's keepalive on a machine that does not answer.
            source.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            shutil.copytree(
                engine.data_dir, tmp_path / "engine1", ignore=shutil.ignore_patterns("run", "lock")
            )
            second = start_engine(engine.source)
            source.execute("UPDATE t SET n = n + 1 WHERE id % 5 = 0")
            check(source, views)
        finally:
            os.killpg(engine.pid, signal.SIGCONT)
        wait_until(lambda: "stream interrupted" in engine.log, "the first has noticed")
        epochs = "SELECT epoch FROM headrace.progress ORDER BY view_id"
        before = source.execute(epochs).fetchall()
        for i in range(20):
            source.execute("INSERT INTO t (n) VALUES (%s)", (i,))
            source.execute("DELETE FROM t WHERE id = %s", (i * 3,))
        check(source, views)
        wait_until(
            lambda: "another headrace engine is running" in engine.log,
            "the first says why it does not run",
        )
        assert source.execute(epochs).fetchall() == before, "it owns nothing"
        done = wal_end(source)
        name = second.env["HEADRACE_SLOT_NAME"]
        wait_until(lambda: slot(source, name)[0] >= done, "the second has confirmed")
        kept = source.execute("SELECT * FROM copy ORDER BY id").fetchall()
        second.kill9()
        # Alone again, its state is older than the confirmed position: it reports that and writes
        # nothing.
        source.execute("INSERT INTO t (n) VALUES (77)")
        wait_until(lambda: status_of(source, "copy")[0] == "error", "the view is stopped")
        assert status_of(source, "copy")[1] == ContinuityLost.sqlstate
        assert source.execute("SELECT * FROM copy ORDER BY id").fetchall() == kept


# --- size


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_million_row_transaction_in_bounded_memory(engine):  # H32, in small
    views = {
        "total": "SELECT g, count(*) AS n, sum(v) AS s FROM t GROUP BY g",
        "few": "SELECT id, v FROM t WHERE v > 9990",
    }
    with connect(engine.source) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY, g int, v int)")
        create(engine, source, views)
        pid = engine.child(WORKER)
        before = memory_peak_bytes(pid)
        source.execute(
            "INSERT INTO t SELECT i, i % 100, i % 10000 FROM generate_series(1, 1000000) i"
        )
        settle(source, 400)
        grown = memory_peak_bytes(pid) - before
        assert engine.child(WORKER) == pid, "nobody died on the way"
        for name, query in views.items():
            assert differs(source, name, query) == [], name
        print(f"peak grew by {grown / MIB:.0f} MiB")
        assert grown < 1024 * MIB, f"{grown / MIB:.0f} MiB"
