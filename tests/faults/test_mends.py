"""Losses that concern all views at once, and kills during their repair: all views recover."""

from __future__ import annotations

import os
import shutil
import signal
import uuid

import psycopg
import pytest
from psycopg import sql

from headrace.embedded.postgres import EmbeddedPostgres
from tests.compared import differs
from tests.conftest import drop_database
from tests.faults.helpers import WORKER, signal_worker, wal_end
from tests.waiting import PATIENCE_S, wait_until

QUERIES = (
    "SELECT g, count(*) AS n, sum(x) AS total FROM items GROUP BY g",
    "SELECT id, x FROM items WHERE x > 20",
    "SELECT i.id, o.id AS other FROM items i JOIN others o ON o.id = i.g",
    "SELECT g, max(x) AS top FROM items GROUP BY g",
    "SELECT id, x * 2 AS twice FROM others",
    "SELECT DISTINCT g FROM items",
)
SIDE_BY_SIDE = 2


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def fill(source: psycopg.Connection) -> None:
    source.execute("CREATE TABLE items (id int PRIMARY KEY, g int, x numeric)")
    source.execute("CREATE TABLE others (id int PRIMARY KEY, x numeric)")
    source.execute("INSERT INTO items SELECT i, i % 5, i FROM generate_series(1, 50) i")
    source.execute("INSERT INTO others SELECT i, i FROM generate_series(1, 4) i")


def create(source: psycopg.Connection, queries=QUERIES) -> dict[str, str]:
    views = {f"v{number}": query for number, query in enumerate(queries)}
    for name, query in views.items():
        source.execute(f"CALL headrace.create_view('{name}', $q${query}$q$)")
    return views


def ids(source: psycopg.Connection) -> set[int]:
    return {row[0] for row in source.execute("SELECT id FROM headrace.views")}


def mended(source: psycopg.Connection, views: dict[str, str], before: set[int]) -> int:
    """Wait until all views are populated again and equal; return the peak number of snapshots."""
    most = 0

    def done() -> bool:
        nonlocal most
        (slots,) = source.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE temporary"
            " AND database = current_database()"
        ).fetchone()
        most = max(most, slots)
        told = source.execute("SELECT status, message FROM headrace.list_views()")
        right = [
            status == "running" and (message or "").startswith("rebuilt at ")
            for status, message in told
        ]
        return all(right) and not ids(source) & before

    wait_until(done, "all views are rebuilt")
    for name, query in views.items():
        wait_until(lambda n=name, q=query: not differs(source, n, q), f"{name} is right")
    return most


def leftovers(source: psycopg.Connection) -> list:
    """Return slots of populations, and published tables that no view reads."""
    return source.execute(
        "SELECT slot_name::text FROM pg_replication_slots WHERE temporary"
        " AND database = current_database()"
        " UNION ALL SELECT prrelid::regclass::text FROM pg_publication_rel"
        " WHERE prrelid NOT IN (SELECT table_oid FROM headrace.view_tables)"
    ).fetchall()


def drop_slot(source: psycopg.Connection, name: str) -> None:
    def dropped() -> bool:
        source.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active_pid IS NOT NULL",
            (name,),
        )
        try:
            source.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        except psycopg.errors.ObjectInUse:
            return False
        return True

    wait_until(dropped, "the slot is dropped")


@pytest.mark.slow
def test_all_is_lost_at_once(database, start_engine):
    engine = start_engine(database, HEADRACE_POPULATIONS_MAX=str(SIDE_BY_SIDE))
    with connect(database) as source:
        fill(source)
        views = create(source)
        # A new disk.
        engine.stop()
        shutil.rmtree(engine.data_dir)
        source.execute("UPDATE items SET g = g + 1")
        before = ids(source)
        engine.start()
        assert mended(source, views, before) <= SIDE_BY_SIDE
        # The slot, while all views run.
        before = ids(source)
        drop_slot(source, engine.env["HEADRACE_SLOT_NAME"])
        source.execute("UPDATE items SET g = g + 1, x = x + 1")
        assert mended(source, views, before) <= SIDE_BY_SIDE
        # The files of the state, while the worker has them open.
        before = ids(source)
        state = engine.data_dir / "state"

        def removed() -> bool:
            # The worker may have created a file after the folder was listed.
            shutil.rmtree(state, ignore_errors=True)
            return not state.exists()

        wait_until(removed, "its files are gone")
        source.execute("DELETE FROM items WHERE id % 3 = 0")

        def noticed() -> bool:
            source.execute("UPDATE items SET x = x + 1 WHERE id = 1")
            return not ids(source) & before

        wait_until(noticed, "the worker finds out by itself")
        assert mended(source, views, before) <= SIDE_BY_SIDE
        source.execute("UPDATE items SET x = x + 1 WHERE id < 20")
        for name, query in views.items():
            source.execute("CALL headrace.wait_for(%s)", (name,))
            assert differs(source, name, query) == []
        assert leftovers(source) == []


@pytest.mark.parametrize(
    "points",
    [("cp08", "cp07"), pytest.param(("cp06", "cp08", "cp08b", "cp07"), marks=pytest.mark.slow)],
    ids=len,
)
def test_killed_amid_mending_and_the_catalog_dropped(database, start_engine, tmp_path, points):
    traps = tmp_path / "traps"
    traps.mkdir()
    engine = start_engine(database, HEADRACE_FAULT_DIR=str(traps))
    with connect(database) as source:
        fill(source)
        views = create(source, QUERIES[: len(points)])
        for name, point in zip(views, points, strict=True):
            # In the last round, all processes are killed at once.
            (traps / point).write_text("hang:1" if point == "cp07" else "kill:1")
            before = source.execute(
                "SELECT id FROM headrace.views WHERE view_name = %s", (name,)
            ).fetchone()
            source.execute(f"DROP TABLE {name}")
            wait_until((traps / f"{point}.sprung").exists, f"{point} is passed")
            if point == "cp07":
                engine.kill9()
                engine.start()
            source.execute("UPDATE items SET x = x + 1")
            mended_one(source, name, before[0])
        for name, query in views.items():
            source.execute("CALL headrace.wait_for(%s)", (name,))
            assert differs(source, name, query) == []
        wait_until(lambda: leftovers(source) == [], "nothing is left")
        # The catalog of the views is dropped: the engine reports it and ends; the tables stay.
        process = engine._process
        source.execute("DROP SCHEMA headrace CASCADE")
        assert process.wait(PATIENCE_S) == 1
        assert "schema headrace was dropped" in engine.log
        assert differs(source, "v1", QUERIES[1]) == []
        engine.start()
        source.execute(f"CALL headrace.create_view('fresh', '{QUERIES[0]}')")
        source.execute("UPDATE items SET x = x + 1")
        source.execute("CALL headrace.wait_for('fresh')")
        assert differs(source, "fresh", QUERIES[0]) == []


def mended_one(source: psycopg.Connection, name: str, before: int) -> None:
    def done() -> bool:
        row = source.execute(
            "SELECT id, status, note FROM headrace.views WHERE view_name = %s", (name,)
        ).fetchone()
        filled = (row[2] or "").startswith("rebuilt at ")
        return row[0] != before and row[1] == "running" and filled

    wait_until(done, f"{name} is rebuilt")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_restored_source(start_engine, tmp_path):
    """A source restored to an earlier state of the same timeline: every view notices."""
    with EmbeddedPostgres(None, 16, durable=False) as server:
        name = f"m_{uuid.uuid4().hex[:12]}"
        with connect(server.dsn()) as conn:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        dsn = server.dsn(name)
        with connect(dsn) as source:
            fill(source)
            engine = start_engine(dsn)
            views = create(source)
            source.execute("CREATE TABLE quiet AS SELECT 1 AS x")
        server.stop()
        backup = tmp_path / "backup"
        shutil.copytree(server.data_dir, backup, symlinks=True)
        keep_owner(server.data_dir, backup)
        server.start()
        with connect(dsn) as source:
            # Changes only items; for views of other tables only the WAL position moves.
            source.execute("UPDATE items SET x = x + 1")
            source.execute("INSERT INTO quiet SELECT i FROM generate_series(1, 100000) i")
            done = wal_end(source)
            slot = engine.env["HEADRACE_SLOT_NAME"]
            confirmed = (
                "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
            )
            wait_until(
                lambda: source.execute(confirmed, (slot,)).fetchone()[0] >= done,
                "all of it is confirmed",
            )
        signal_worker(engine, signal.SIGSTOP)  # so that it meets the restored server
        server.stop("immediate")
        shutil.rmtree(server.data_dir)
        shutil.copytree(backup, server.data_dir, symlinks=True)
        keep_owner(backup, server.data_dir)
        server.start()
        with connect(dsn) as source:
            before = ids(source)
            assert wal_end(source) < done
            source.execute("INSERT INTO others VALUES (77, 77)")
            source.execute("DELETE FROM items WHERE id < 10")
            os.kill(engine.child(WORKER), signal.SIGCONT)
            mended(source, views, before)
            source.execute("INSERT INTO others VALUES (78, 77)")
            for view, query in views.items():
                source.execute("CALL headrace.wait_for(%s)", (view,))
                assert differs(source, view, query) == []
        engine.kill9()
        drop_database(server.dsn(), name)


def keep_owner(of, path) -> None:
    """Give the files of ``path`` the owner of ``of``: a server does not run as root."""
    owner = of.stat()
    for entry in (path, *path.rglob("*")):
        os.chown(entry, owner.st_uid, owner.st_gid, follow_symlinks=False)
