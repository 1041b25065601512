"""The engine against a real Postgres: exactness over changes, restarts, rewinds, trouble."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.collections.dataflow import Dataflow
from headrace.errors import ContinuityLost, FencedError, PrerequisiteError, SinkTableError
from headrace.expressions import ir
from headrace.kernels import packed
from headrace.planner import PlanRequest, plan
from headrace.process import faults, rpc
from headrace.process.memory_reservations import GRANT_BYTES_MIN
from headrace.runtime import ownership, positions
from headrace.sql import progress
from headrace.state import columns, warm_start
from headrace.state.rocks import RocksDatabase
from headrace.types import BOOL, parse_lsn
from tests.compared import differs
from tests.databases import drop_slots
from tests.engines import Child
from tests.proxy import Proxy
from tests.runtime.harness import ITEMS, Running, create_view, settings_for, settle, source_plan
from tests.waiting import PATIENCE_S, eventually, time_passes, wait_until

QUERY = "SELECT * FROM items"


TABLES = ITEMS
READY = False


def test_follows_every_change(source, start, database):
    running = start()
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    assert differs(source, "v", QUERY) == []
    source.execute("UPDATE items SET price = 1.0 WHERE id = 3")
    source.execute("UPDATE items SET price = 1.00 WHERE id = 3")
    source.execute("DELETE FROM items WHERE id % 5 = 0")
    source.execute("INSERT INTO items SELECT 100 + i, NULL, NULL FROM generate_series(1, 50) i")
    source.execute("UPDATE items SET id = id + 1000 WHERE id < 4")
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    assert source.execute("SELECT price::text FROM v WHERE id = 1003").fetchone() == ("1.00",)
    source.execute("TRUNCATE items")
    source.execute("INSERT INTO items VALUES (1, 'x', 'NaN')")
    settle(running, source)
    assert source.execute("SELECT * FROM v").fetchall() == [
        (1, "x", pytest.approx(float("nan"), nan_ok=True))
    ]
    running.stop()


def test_an_idle_engine_does_not_wait_for_more(source, start, database):
    """The interval bounds how long a batch gathers, only while another batch is in flight."""
    running = start(batch_interval_ms=3_600_000, lock_timeout_ms=60_000)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    for i in range(3):
        source.execute("INSERT INTO items VALUES (%s, 'alone', 1)", (100 + i,))
        wait_until(lambda: differs(source, "v", QUERY) == [], "all rows are shown")
    before = running.book.next_txid
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE v IN SHARE MODE")
        source.execute("INSERT INTO items VALUES (200, 'first', 1)")
        wait_until(lambda: running.book.next_txid > before, "it is in flight")
        for i in range(5):
            source.execute("INSERT INTO items VALUES (%s, 'gathered', 1)", (201 + i,))
        batcher = running.book.stream.batcher
        wait_until(lambda: batcher.statistics()["open_transactions"] == 5, "they are gathered")
    wait_until(lambda: differs(source, "v", QUERY) == [], "all rows are shown")
    assert running.book.next_txid == before + 2
    running.stop()


POINTS = ["cp11", "cp12", "cp13", "cp14", "cp15", "cp16", "cp17", "cp18"]


@pytest.fixture
def faulty():
    yield faults.arm
    faults.arm("")


@pytest.mark.parametrize("point", POINTS)
def test_failure_at_every_point_loses_and_doubles_nothing(source, start, database, faulty, point):
    running = start(feedback_interval_ms=20)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    faulty(f"{point}:raise:2")
    # A checkpoint comes once a second: on a fast machine after many batches.
    for i in range(500):
        if i >= 5 and running.book.reconnects:
            break
        source.execute(
            "INSERT INTO items SELECT 1000 + %s * 10 + g, 'x', 2 FROM generate_series(1, 3) g", (i,)
        )
        source.execute("UPDATE items SET price = price + 1 WHERE id %% 3 = %s", (i % 3,))
        settle(running, source)
    assert running.book.reconnects == 1, "the fault must have landed"
    assert differs(source, "v", QUERY) == []
    assert_consistent(running, source)


def assert_consistent(running, source):
    """Assert that state and sink of every view are at the engine's positions.

    The engine updates its positions shortly after the rows are visible.
    """

    def written(view):
        return source.execute(
            "SELECT txid, epoch FROM headrace.progress WHERE view_id = %s", (view.id,)
        ).fetchone()

    for view in running.book.views.values():
        wait_until(
            lambda v=view: (
                written(v) == (v.progress.txid, v.progress.epoch)
                and v.mark.sink_txid == v.progress.txid
            ),
            "the engine knows what is written",
        )
        assert view.mark.sink_txid <= view.mark.txid


@pytest.mark.parametrize("point", POINTS)
def test_kill_9_at_every_point(source, database, tmp_path, start, point):
    running = start(feedback_interval_ms=20)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    running.stop()
    settings = running.settings
    worker = WorkerProcess(settings, HEADRACE_FAULT=f"{point}:kill:3")
    number = 0
    until = time.monotonic() + PATIENCE_S
    while worker.wait(0.05) is None and time.monotonic() < until:
        source.execute("UPDATE items SET price = price + 1 WHERE id %% 3 = %s", (number % 3,))
        source.execute("INSERT INTO items VALUES (%s, 'y', 1.10)", (5000 + number,))
        number += 1
    assert worker.wait(0) == -signal.SIGKILL, "the fault must have landed"
    worker.close()
    source.execute("DELETE FROM items WHERE id > 5004")
    running = start(feedback_interval_ms=20)
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    assert_consistent(running, source)


@pytest.mark.parametrize(
    "point", [faults.STATES_TAKEN, faults.BEFORE_CHECKPOINT, faults.CHECKPOINT_BEGUN]
)
def test_resident_population_killed_before_its_first_checkpoint(source, database, start, point):
    """The populated state is only in memory, and yet none of it is lost."""
    running = start()
    view_id = create_view(running, database, "v", source_plan(source, "items"), QUERY, adopt=False)
    running.stop()
    run = running.settings.staging_dir / str(view_id) / "0.sst"
    assert warm_start.of_run(run).exists()
    worker = WorkerProcess(running.settings, HEADRACE_FAULT=f"{point}:kill:1")
    source.execute("UPDATE items SET price = price + 1 WHERE id % 2 = 0")
    source.execute("DELETE FROM items WHERE id % 3 = 0")
    assert worker.wait(PATIENCE_S) == -signal.SIGKILL, "the fault must have landed"
    worker.close()
    source.execute("UPDATE items SET price = price + 1 WHERE id % 5 = 0")
    running = start()
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    assert_consistent(running, source)


def test_new_view_begins_in_memory(source, database, start, monkeypatch):
    monkeypatch.setattr(columns.Groups, "read", None)
    running = start()
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    (view,) = running.book.views.values()
    assert [tier.spilled for tier in view.store.listed()] == [0] * len(view.store.tiers) != []
    source.execute("UPDATE items SET price = price + 1 WHERE id % 2 = 0")
    settle(running, source)
    assert differs(source, "v", QUERY) == []


class WorkerProcess(Child):
    """A worker process: ``python -m headrace.runtime.worker``."""

    def __init__(self, settings, **env):
        super().__init__("headrace.runtime.worker", settings, **env)


def test_worker_ends_cleanly_on_sigterm_and_when_its_parent_is_gone(source, database, start):
    running = start()
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    running.stop()
    worker = WorkerProcess(running.settings)
    try:
        status = asyncio.run(_status(running.settings.worker_socket))
        assert status["running"]
        assert [v["status"] for v in status["views"]] == ["running"]
        source.execute("DELETE FROM items WHERE id = 1")
        worker.process.terminate()
        assert worker.wait(PATIENCE_S) == 0
    finally:
        worker.close()
    worker = WorkerProcess(running.settings)
    try:
        asyncio.run(_status(running.settings.worker_socket))
        worker.hang_up()
        assert worker.wait(PATIENCE_S) == 0
    finally:
        worker.close()


async def _status(path):
    async def connect():
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return await rpc.connect(path)

    async with asyncio.timeout(PATIENCE_S):
        peer = await eventually(connect, "it listens")
        await peer.call("start", {"holds": []})
        out = await peer.call("status")
        await peer.close()
        return out


def test_changes_between_snapshot_and_adoption(source, start, database):
    running = start()
    create_view(running, database, "first", source_plan(source, "items"), QUERY)

    def change():
        source.execute("UPDATE items SET name = 'between' WHERE id < 5")
        source.execute("DELETE FROM items WHERE id = 9")
        settle(running, source)
        source.execute("INSERT INTO items VALUES (77, 'late', 1)")
        settle(running, source)

    create_view(running, database, "v", source_plan(source, "items"), QUERY, between=change)
    assert differs(source, "v", QUERY) == []
    source.execute("UPDATE items SET price = 0")
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    assert differs(source, "first", QUERY) == []
    assert running.book.holds.jobs() == {}


def test_locked_table_waits_and_others_go_on(source, start, database):
    running = start()
    physical = source_plan(source, "items")
    create_view(running, database, "a", physical, QUERY)
    create_view(running, database, "b", physical, QUERY)
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE a IN SHARE MODE")
        for i in range(3):
            source.execute("UPDATE items SET price = price + 1 WHERE id = %s", (i + 1,))
            settle(running, source)
        assert differs(source, "b", QUERY) == []
        status = source.execute(
            "SELECT status, sqlstate, headrace.view_message(id) FROM headrace.views WHERE view_name = 'a'"
        ).fetchone()
        assert status[:2] == ("sink_error", "55P03")
        assert str(blocker.info.backend_pid) in status[2]
    wait_until(lambda: differs(source, "a", QUERY) == [], "it has caught up")
    assert source.execute(
        "SELECT status, headrace.view_message(id) FROM headrace.views WHERE view_name = 'a'"
    ).fetchone() == ("running", None)
    assert differs(source, "b", QUERY) == []
    assert_consistent(running, source)


def test_restart_while_a_table_is_locked(source, start, database):
    running = start()
    physical = source_plan(source, "items")
    create_view(running, database, "a", physical, QUERY)
    create_view(running, database, "b", physical, QUERY)
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE a IN SHARE MODE")
        source.execute("UPDATE items SET price = 5")
        settle(running, source)
        running.stop()
        running = start()
        source.execute("DELETE FROM items WHERE id < 4")
        settle(running, source)
        assert differs(source, "b", QUERY) == []
    wait_until(lambda: differs(source, "a", QUERY) == [], "it has caught up")


@pytest.mark.parametrize(
    "harm",
    [
        "DROP TABLE a",
        "ALTER TABLE a RENAME TO other",
        "CREATE SCHEMA other; ALTER TABLE a SET SCHEMA other",
        "ALTER TABLE a DROP COLUMN name",
        "CREATE TABLE child () INHERITS (a); INSERT INTO child SELECT * FROM a",
        "CREATE RULE nothing AS ON INSERT TO a DO INSTEAD NOTHING",
        "DELETE FROM a WHERE id = 1",
        "DROP TABLE a; CREATE TABLE a AS SELECT * FROM items",
    ],
)
def test_result_table_changed_behind_our_back(source, start, database, harm):
    running = start()
    physical = source_plan(source, "items")
    create_view(running, database, "a", physical, QUERY)
    create_view(running, database, "b", physical, QUERY)
    source.execute("UPDATE items SET price = price + 1")
    settle(running, source)
    source.execute(harm)
    source.execute("UPDATE items SET price = price + 1, name = 'z' WHERE id < 3")
    settle(running, source)
    status = source.execute(
        "SELECT status, sqlstate FROM headrace.views WHERE view_name = 'a'"
    ).fetchone()
    assert status == ("error", SinkTableError.sqlstate)
    assert differs(source, "b", QUERY) == []
    wait_until(lambda: running.book.confirmed >= running.book.position.lsn, "all is confirmed")


def test_failing_row_stops_its_view_and_is_named(source, start, database):
    running = start()
    physical = source_plan(source, "items")
    oid = next(f.oid for f in physical.sink.schema if f.name == "id")
    ratio = ir.Remote("(1 / ($1 - 13)) < 100", (ir.Column(0, oid),), BOOL, trusted=True)
    source.execute("DELETE FROM items WHERE id = 13")
    bad = "SELECT * FROM items WHERE 1 / (id - 13) < 100"
    create_view(running, database, "a", source_plan(source, "items", filtered=ratio), bad)
    create_view(running, database, "b", physical, QUERY)
    source.execute("INSERT INTO items VALUES (300, 'fine', 1)")
    settle(running, source)
    assert differs(source, "a", bad) == []
    before = source.execute("SELECT count(*) FROM a").fetchone()
    source.execute("INSERT INTO items VALUES (400, 'q', 1), (13, 'q', 1), (401, 'q', 1)")
    settle(running, source)
    status = source.execute(
        "SELECT status, sqlstate, headrace.view_message(id) FROM headrace.views WHERE view_name = 'a'"
    ).fetchone()
    assert status[:2] == ("error", "22012")
    assert "(id)=(13)" in status[2]
    assert '"public"."items"' in status[2]
    assert source.execute("SELECT count(*) FROM a").fetchone() == before
    assert differs(source, "b", QUERY) == []


def test_second_engine_refuses_to_start(source, start, database, tmp_path, monkeypatch):
    running = start()
    running.engine.running.wait(PATIENCE_S)
    monkeypatch.setattr(ownership, "_LOCK_WAIT_S", 0.2)
    other = Running(settings_for(database, tmp_path / "other"))
    other.thread.join(PATIENCE_S)
    assert isinstance(other.error, PrerequisiteError)
    assert "another headrace engine" in other.error.message


def test_states_that_a_dying_worker_did_not_drop(source, start, database):
    running = start()
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    settle(running, source)
    running.stop()
    files = RocksDatabase(running.settings.state_dir)
    assert files.views()
    # Views whose marks were forgotten; one has its own column family.
    files.disk.own("v999")
    pair = packed.pack([b"k"]), packed.nullable([b"v"])
    files.disk.write([(files.disk.place("v998").section("s"), *pair)], {}, sync=True)
    assert {998, 999} <= files.views()
    files.close()
    again = start()
    source.execute("DELETE FROM items WHERE id = 1")
    settle(again, source)
    assert differs(source, "v", QUERY) == []
    again.stop()
    files = RocksDatabase(running.settings.state_dir)
    assert not {998, 999} & files.views()
    files.close()


def test_zombie_cannot_commit(source, start, database, tmp_path):  # H21
    running = start()
    view_id = create_view(running, database, "v", source_plan(source, "items"), QUERY)
    # A second engine does this when the first has lost its lock without noticing.
    source.execute("UPDATE headrace.progress SET epoch = epoch + 1 WHERE view_id = %s", (view_id,))
    source.execute("DELETE FROM items WHERE id = 1")
    running.thread.join(PATIENCE_S)
    assert isinstance(running.error, FencedError)
    assert source.execute("SELECT count(*) FROM v WHERE id = 1").fetchone() == (1,)


def test_an_owner_is_no_zombie_if_the_answer_to_its_takeover_is_lost(
    source, start, database, monkeypatch
):
    """The server may have raised the epochs, and the engine does not know."""
    running = start()
    view_id = create_view(running, database, "v", source_plan(source, "items"), QUERY)
    lost = []
    take_over = progress.take_over

    def unanswered(conn, view_ids):
        found = take_over(conn, view_ids)
        if len(lost) < 2:
            lost.append(found)
            conn.close()
            raise psycopg.OperationalError("the answer was lost")
        return found

    monkeypatch.setattr(progress, "take_over", unanswered)
    running.engine.submit(running.engine.rewind_soon)
    source.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'headrace%%' AND pid <> pg_backend_pid()"
    )
    source.execute("DELETE FROM items WHERE id = 1")
    settle(running, source)
    assert len(lost) == 2
    assert differs(source, "v", QUERY) == []
    epoch = "SELECT epoch FROM headrace.progress WHERE view_id = %s"
    assert source.execute(epoch, (view_id,)).fetchone()[0] >= 4
    assert running.error is None


def test_slot_advanced_by_somebody_else_stops_the_views(source, start, database):  # H26, H27
    running = start()
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    running.stop()
    source.execute("DELETE FROM items WHERE id = 1")
    slot = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    # The sender may not have noticed yet that the connection is closed.
    wait_until(
        lambda: not source.execute(slot, (running.settings.slot_name,)).fetchone()[0],
        "nobody uses the slot",
    )
    source.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())",
        (running.settings.slot_name,),
    )
    running = start()
    running.engine.running.wait(PATIENCE_S)
    wait_until(lambda: status_of(source, "v")[0] == "error", "it stops")
    assert status_of(source, "v") == ("error", ContinuityLost.sqlstate)
    create_view(running, database, "w", source_plan(source, "items"), QUERY)
    source.execute("DELETE FROM items WHERE id = 2")
    settle(running, source)
    assert differs(source, "w", QUERY) == []


def status_of(source, name):
    return source.execute(
        "SELECT status, sqlstate FROM headrace.views WHERE view_name = %s", (name,)
    ).fetchone()


def test_slot_dropped_while_running(source, start, database):
    running = start()
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    drop_slots(source, source.info.dbname)
    wait_until(lambda: status_of(source, "v")[0] == "error", "it stops")


def test_idle_source_is_confirmed(source, start, database):  # H16
    running = start(feedback_interval_ms=50)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    source.execute("CREATE TABLE other (x text)")
    source.execute("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
    target = source.execute("SELECT pg_current_wal_lsn()::text").fetchone()[0]
    wait_until(
        lambda: source.execute(
            "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"
            " WHERE slot_name = %s",
            (target, running.settings.slot_name),
        ).fetchone()[0],
        "it is confirmed",
    )


def test_connections_cut_while_running(source, start, database):
    running = start()
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    for i in range(6):
        source.execute("UPDATE items SET price = price + 1 WHERE id %% 2 = %s", (i % 2,))
        source.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
            " application_name LIKE %s AND datname = current_database()",
            (["headrace stream%", "headrace sink%"][i % 2],),
        )
        settle(running, source)
    assert running.book.reconnects >= 3
    assert differs(source, "v", QUERY) == []


def test_million_row_transaction_is_spooled(source, start, database):
    running = start(spool_bytes_min=1_000_000, buffer_bytes_max=2_000_000)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    source.execute("INSERT INTO items SELECT i, 'n' || i, i FROM generate_series(1000, 40000) i")
    source.execute("UPDATE items SET price = price + 1 WHERE id > 39000")
    settle(running, source, 60)
    assert differs(source, "v", QUERY) == []


def test_e24_large_batches_are_taken_up_as_memory_allows(source, start, database, monkeypatch):
    """Large batches are processed in pieces; two views together never exceed the budget."""
    running = start(batch_memory_bytes=GRANT_BYTES_MIN)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    query = "SELECT id % 7 AS p, count(*) AS n, min(name) AS least FROM items GROUP BY 1"
    create_view(running, database, "w", plan(source, PlanRequest(query)).physical, query)
    ingest, pieces, most = Dataflow.ingest, [], []

    def seen(flow, table, batch, made=None):
        pieces.append(batch.num_rows)
        most.append(running.book.grants.granted_bytes)
        return ingest(flow, table, batch, made)

    monkeypatch.setattr(Dataflow, "ingest", seen)
    wide = "'n' || repeat('x', 100) || i"
    source.execute(f"INSERT INTO items SELECT i, {wide}, i FROM generate_series(1000, 30000) i")
    settle(running, source, 60)
    assert differs(source, "v", QUERY) == []
    assert differs(source, "w", query) == []
    assert sum(pieces) == 2 * 29_001
    assert 2 < len(pieces) < 200, "one for each view was too large"
    assert 0 < max(most) <= GRANT_BYTES_MIN
    assert running.book.grants.granted_bytes == 0


def test_full_identity_duplicates(source, start, database):
    source.execute("CREATE TABLE bag (a int, b text, j json)")
    source.execute("ALTER TABLE bag REPLICA IDENTITY FULL")
    source.execute("INSERT INTO bag SELECT 1, 'x', '{}' FROM generate_series(1, 5)")
    running = start()
    query = "SELECT * FROM bag"
    create_view(running, database, "v", source_plan(source, "bag"), query)
    source.execute("DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag LIMIT 3)")
    source.execute("INSERT INTO bag VALUES (1, 'x', '{ }'), (NULL, NULL, NULL), (NULL, NULL, NULL)")
    source.execute("DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a IS NULL LIMIT 1)")
    settle(running, source)
    text_of = "SELECT a, b, j::text, count(*) FROM {} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    assert (
        source.execute(text_of.format("v")).fetchall()
        == source.execute(text_of.format("bag")).fetchall()
    )


@pytest.fixture
def proxy(database):
    parts = conninfo_to_dict(database)
    made = Proxy(parts["host"], int(parts["port"]))
    yield made, make_conninfo(database, port=made.port, host="127.0.0.1")
    made.close()


def test_lost_commit_answers(source, database, tmp_path, proxy):  # H20
    relay, dsn = proxy
    running = Running(settings_for(dsn, tmp_path))
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    relay.drop_commit_every = 3
    for i in range(12):
        source.execute("UPDATE items SET price = price + 1 WHERE id %% 4 = %s", (i % 4,))
        source.execute("INSERT INTO items VALUES (%s, 'z', 0)", (700 + i,))
        settle(running, source)
    assert relay.dropped >= 3, "the fault must have landed"
    assert differs(source, "v", QUERY) == []
    assert_consistent(running, source)
    running.stop()


def test_network_cuts_and_stalls(source, database, tmp_path, proxy):  # H39
    relay, dsn = proxy
    running = Running(settings_for(dsn, tmp_path))
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    for i in range(6):
        source.execute("UPDATE items SET price = price + 1 WHERE id %% 4 = %s", (i % 4,))
        if i % 2:
            relay.cut()
        else:
            relay.stall()
            source.execute("DELETE FROM items WHERE id = %s", (i + 1,))
            time_passes(0.05)
            relay.resume()
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    running.stop()


def test_never_confirms_what_is_not_durable(source, database, tmp_path, start, faulty):  # H14
    running = start(feedback_interval_ms=1)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    seen = []
    for i in range(30):
        source.execute("UPDATE items SET price = price + 1 WHERE id = %s", (1 + i % 15,))
        confirmed = source.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            (running.settings.slot_name,),
        ).fetchone()[0]
        durable = running.on(lambda: positions.get_confirmed(running.book.db))
        seen.append(parse_lsn(confirmed) <= durable)
    assert all(seen)


def test_e18_reader_never_sees_half_a_batch_of_two_views(source, start, database):
    running = start()
    physical = source_plan(source, "items")
    create_view(running, database, "a", physical, QUERY)
    create_view(running, database, "b", physical, QUERY)
    stop = threading.Event()
    torn = []
    reads = [0]

    def read() -> None:
        with psycopg.connect(database, autocommit=True) as conn:
            while not stop.is_set():
                row = conn.execute(
                    "SELECT (SELECT sum(price) FROM a), (SELECT sum(price) FROM b)"
                ).fetchone()
                reads[0] += 1
                if row[0] != row[1] or row[0] != 315:
                    torn.append(row)

    thread = threading.Thread(target=read)
    thread.start()
    for i in range(60):
        with source.transaction():
            source.execute("UPDATE items SET price = price - 1 WHERE id = %s", (1 + i % 20,))
            source.execute("UPDATE items SET price = price + 1 WHERE id = %s", (1 + (i + 7) % 20,))
    settle(running, source)
    stop.set()
    thread.join()
    assert torn == []
    assert reads[0] > 20
