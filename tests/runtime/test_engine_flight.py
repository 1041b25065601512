"""Several txids in flight: failures between intake, commit and checkpoint."""

from __future__ import annotations

import shutil
import signal
import threading

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.collections import plan
from headrace.errors import TransientError
from headrace.expressions import ir
from headrace.runtime import positions
from headrace.runtime.coordinator import FlightState
from headrace.runtime.writing import SinkThread
from headrace.state import rocks
from headrace.state.rocks import RocksDatabase
from headrace.types import BOOL
from tests.compared import differs, status_of
from tests.proxy import Proxy
from tests.runtime.harness import ITEMS, create_view, lose_state_since, settle, source_plan
from tests.runtime.test_engine import WorkerProcess, assert_consistent
from tests.waiting import PATIENCE_S, wait_until

QUERY = "SELECT * FROM items"
NEVER = {"checkpoint_txids": 1_000_000, "checkpoint_interval_ms": 1_000_000}
"""Settings that prevent checkpoints."""


TABLES = ITEMS


class Gate:
    """Lets the sink thread write, or keeps it waiting before the next job."""

    def __init__(self, monkeypatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.written: list[tuple[int, int]] = []
        write = SinkThread.write

        def gated(sink, owner, job):
            assert self.open.wait(PATIENCE_S)
            answer = write(sink, owner, job)
            self.written.append((job.txid, job.attempt))
            return answer

        monkeypatch.setattr(SinkThread, "write", gated)


@pytest.fixture
def gate(monkeypatch):
    made = Gate(monkeypatch)
    yield made
    made.open.set()


def fill(running, source, count: int = 4) -> None:
    """Commit changes until ``count`` batches are in flight (the gate must be shut)."""
    flights = running.book.pipeline.flights
    number = 0
    while True:
        held = len(flights())
        if held >= count:
            return
        number += 1
        with source.transaction():  # in one batch, whenever the engine takes it
            source.execute("UPDATE items SET price = price + 1 WHERE id %% 7 = %s", (number % 7,))
            source.execute(
                "INSERT INTO items VALUES ((SELECT max(id) + 1 FROM items), 'more', 0.50)"
            )
        wait_until(lambda held=held: len(flights()) > held, "one more is in flight")


def log_moves(source) -> None:
    """Log every update of a progress row in table ``moves``."""
    source.execute("CREATE TABLE moves (n serial, view_id bigint, txid bigint, attempt int)")
    source.execute(
        "CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.moves (view_id, txid, attempt)"
        " VALUES (NEW.view_id, NEW.txid, NEW.attempt); RETURN NULL; END $$"
    )
    source.execute(
        "CREATE TRIGGER move AFTER UPDATE ON headrace.progress FOR EACH ROW"
        " WHEN (OLD.txid <> NEW.txid) EXECUTE FUNCTION move()"
    )


def moves(source, view_id: int) -> list[int]:
    return [
        row[0]
        for row in source.execute(
            "SELECT txid FROM moves WHERE view_id = %s ORDER BY n", (view_id,)
        )
    ]


def assert_once_in_order(source, view_id: int) -> None:
    """Assert that each txid was written once, in order."""
    found = moves(source, view_id)
    assert found
    assert found == sorted(set(found))


def put_in_group(source, name: str, group: str) -> None:
    source.execute(
        "UPDATE headrace.views SET options = jsonb_build_object('commit_group', %s::text)"
        " WHERE view_name = %s",
        (group, name),
    )


def test_processing_goes_on_while_the_sink_writes(source, start, database, gate):
    running = start()
    view_id = create_view(running, database, "v", source_plan(source, "items"), QUERY)
    settle(running, source)
    log_moves(source)
    gate.open.clear()
    fill(running, source)
    flights = running.book.pipeline.flights()
    assert len(flights) == 4
    wait_until(
        lambda: (
            [f.state for f in running.book.pipeline.flights()]
            == [FlightState.COMMITTING] + [FlightState.PROCESSED] * 3
        ),
        "all four are processed",
    )
    first = flights[0].txid
    assert [f.txid for f in flights] == list(range(first, first + 4))
    assert running.book.position.txid < first, "nothing is committed"
    # More changes wait in the stream: the window is full.
    source.execute("DELETE FROM items WHERE id = 3")
    assert len(running.book.pipeline.flights()) == 4
    gate.open.set()
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    assert_once_in_order(source, view_id)
    assert_consistent(running, source)


def test_failure_of_n_takes_back_all_later_ones(source, start, database, gate):
    """Txid n and its successors are replayed with a new attempt, and each is committed once."""
    running = start()
    view_id = create_view(running, database, "v", source_plan(source, "items"), QUERY)
    settle(running, source)
    log_moves(source)
    gate.open.clear()
    fill(running, source)
    flights = {f.txid: f.attempt for f in running.book.pipeline.flights()}
    source.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
        " application_name LIKE 'headrace sink%' AND datname = current_database()"
    )
    gate.open.set()
    settle(running, source)
    assert running.book.reconnects >= 1
    written = dict(gate.written)
    assert all(written[txid] > attempt for txid, attempt in flights.items())
    assert differs(source, "v", QUERY) == []
    assert_once_in_order(source, view_id)
    assert_consistent(running, source)


def test_lost_commit_answers_with_more_in_flight(source, start, database, gate):
    parts = conninfo_to_dict(database)
    relay = Proxy(parts["host"], int(parts["port"]))
    try:
        dsn = make_conninfo(database, port=relay.port, host="127.0.0.1")
        running = start(dsn)
        view_id = create_view(running, database, "v", source_plan(source, "items"), QUERY)
        settle(running, source)
        log_moves(source)
        relay.drop_commit_every = 3
        for _ in range(4):
            gate.open.clear()
            fill(running, source)
            gate.open.set()
            settle(running, source)
        assert relay.dropped >= 3, "the fault must have landed"
        assert differs(source, "v", QUERY) == []
        assert_once_in_order(source, view_id)
        running.stop()
    finally:
        relay.close()


def test_table_locked_with_more_in_flight(source, start, database, gate):
    """A view that cannot be written at n is removed; nothing of n + 1 is written for it."""
    running = start()
    physical = source_plan(source, "items")
    a = create_view(running, database, "a", physical, QUERY)
    b = create_view(running, database, "b", physical, QUERY)
    settle(running, source)
    log_moves(source)
    before = source.execute("SELECT * FROM a ORDER BY id").fetchall()
    gate.open.clear()
    fill(running, source)
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE a IN SHARE MODE")
        gate.open.set()
        wait_until(lambda: status_of(source, "a")[0] == "sink_error", "a leaves")
        settle(running, source)
        assert differs(source, "b", QUERY) == []
        assert source.execute("SELECT * FROM a ORDER BY id").fetchall() == before
        assert moves(source, a) == []
    wait_until(lambda: differs(source, "a", QUERY) == [], "a has caught up")
    settle(running, source)
    for view_id in (a, b):
        assert_once_in_order(source, view_id)
    assert_consistent(running, source)


def failing_at_13(source) -> tuple[plan.PhysicalPlan, str]:
    physical = source_plan(source, "items")
    oid = next(f.oid for f in physical.sink.schema if f.name == "id")
    ratio = ir.Remote("(1 / ($1 - 13)) < 100", (ir.Column(0, oid),), BOOL, trusted=True)
    query = "SELECT * FROM items WHERE 1 / (id - 13) < 100"
    return source_plan(source, "items", filtered=ratio), query


def test_row_error_behind_txids_in_flight(source, start, database, gate):
    """The txids before the bad one are still written; the view stops exactly there."""
    running = start()
    source.execute("DELETE FROM items WHERE id = 13")
    physical, query = failing_at_13(source)
    create_view(running, database, "a", physical, query)
    create_view(running, database, "b", source_plan(source, "items"), QUERY)
    settle(running, source)
    gate.open.clear()
    fill(running, source, 3)
    wanted = source.execute(f"{query} ORDER BY id").fetchall()
    source.execute("INSERT INTO items VALUES (900, 'q', 1), (13, 'q', 1)")
    gate.open.set()
    wait_until(lambda: status_of(source, "a")[0] == "error", "a stops")
    _, code, message = status_of(source, "a")
    assert code == "22012"
    assert "(id)=(13)" in (message or "")
    assert source.execute("SELECT * FROM a ORDER BY id").fetchall() == wanted
    settle(running, source)
    assert differs(source, "b", QUERY) == []


@pytest.mark.parametrize("verb", ["pause", "suspend"])
def test_view_taken_out_with_txids_in_flight(source, start, database, gate, verb):
    """After the answer nothing more is written for it, and all earlier changes are."""
    running = start()
    physical = source_plan(source, "items")
    a = create_view(running, database, "a", physical, QUERY)
    create_view(running, database, "b", physical, QUERY)
    settle(running, source)
    gate.open.clear()
    fill(running, source)
    lifecycle = running.engine.lifecycle
    out = running.engine.submit(
        (lambda: lifecycle.pause(a)) if verb == "pause" else (lambda: lifecycle.suspend(a, "job"))
    )
    assert not out.done(), "it waits for what is in flight"
    gate.open.set()
    out.result(PATIENCE_S)
    kept = source.execute("SELECT * FROM a ORDER BY id").fetchall()
    source.execute("DELETE FROM items WHERE id < 5")
    settle(running, source)
    assert differs(source, "b", QUERY) == []
    assert source.execute("SELECT * FROM a ORDER BY id").fetchall() == kept
    if verb == "pause":
        running.on(lambda: lifecycle.resume(a))
    else:
        running.on(lambda: lifecycle.release("job"))
    settle(running, source)
    wait_until(lambda: differs(source, "a", QUERY) == [], "it has caught up")
    assert_consistent(running, source)


def test_view_dropped_with_txids_in_flight(source, start, database, gate):
    running = start()
    physical = source_plan(source, "items")
    a = create_view(running, database, "a", physical, QUERY)
    create_view(running, database, "b", physical, QUERY)
    settle(running, source)
    gate.open.clear()
    fill(running, source)
    source.execute("DELETE FROM headrace.views WHERE id = %s", (a,))
    source.execute("DROP TABLE a")
    gate.open.set()
    settle(running, source)
    wait_until(lambda: a not in running.book.views, "it is forgotten")
    assert differs(source, "b", QUERY) == []
    assert running.error is None


def test_view_adopted_with_txids_in_flight(source, start, database, gate):
    running = start()
    physical = source_plan(source, "items")
    create_view(running, database, "a", physical, QUERY)
    b = create_view(running, database, "b", physical, QUERY, adopt=False)
    gate.open.clear()
    fill(running, source)
    adopted = running.engine.submit(lambda: running.engine.lifecycle.adopt(b))
    gate.open.set()
    adopted.result(PATIENCE_S).result(PATIENCE_S)
    running.on(lambda: running.engine.lifecycle.release("b"))
    settle(running, source)
    assert differs(source, "a", QUERY) == differs(source, "b", QUERY) == []
    assert_consistent(running, source)


# --- state behind the tables


def lag(source, running, count: int = 12) -> None:
    """Change rows ``count`` times, each in a separate batch."""
    for i in range(count):
        source.execute(
            "UPDATE items SET price = price + 1, name = name || '!' WHERE id %% 5 = %s", (i % 5,)
        )
        source.execute("INSERT INTO items VALUES (%s, 'late', 1.10)", (1000 + i,))
        if running is not None:
            settle(running, source)


def test_kill_9_with_tables_far_ahead_of_the_state(source, start, database):
    """Progress has txids that no checkpoint has: they are computed again, but not written."""
    running = start(feedback_interval_ms=10_000)
    ids = [
        create_view(running, database, name, source_plan(source, "items"), QUERY)
        for name in ("a", "b")
    ]
    running.stop()
    put_in_group(source, "b", "g")
    settings = running.settings.replace(**NEVER)
    database_files = RocksDatabase(settings.state_dir)
    before = positions.views(database_files)
    database_files.close()
    log_moves(source)
    worker = WorkerProcess(settings)
    for i in range(15):
        source.execute("INSERT INTO items VALUES (%s, 'x', 1.10)", (2000 + i,))
        source.execute("UPDATE items SET price = price + 1 WHERE id = %s", (i + 1,))
        wait_until(
            lambda i=i: source.execute(
                "SELECT count(*) FROM a JOIN b USING (id) WHERE id = %s", (2000 + i,)
            ).fetchone()[0],
            "it is in both tables",
        )
    worker.process.send_signal(signal.SIGKILL)
    worker.close()
    database_files = RocksDatabase(settings.state_dir)
    after = positions.views(database_files)
    database_files.close()
    assert {i: after[i].txid for i in ids} == {i: before[i].txid for i in ids}
    assert all(max(moves(source, i)) >= before[i].txid + 10 for i in ids)
    source.execute("DELETE FROM items WHERE id > 2008")
    running = start(**NEVER)
    settle(running, source)
    assert differs(source, "a", QUERY) == differs(source, "b", QUERY) == []
    for view_id in ids:
        assert_once_in_order(source, view_id)
    assert_consistent(running, source)


@pytest.mark.parametrize("groups", ["one group", "two groups"])
def test_machine_lost_with_everything_that_was_not_synced(source, start, database, groups):
    """The batch records are lost too; the tables' txids are known from progress."""
    running = start(feedback_interval_ms=10_000)
    physical = source_plan(source, "items")
    source.execute("CREATE TABLE others (LIKE items INCLUDING ALL)")
    for name in ("a", "b"):
        create_view(running, database, name, physical, QUERY)
    create_view(running, database, "c", source_plan(source, "others"), "SELECT * FROM others")
    settle(running, source)
    running.stop()
    if groups == "two groups":
        put_in_group(source, "c", "g")
        put_in_group(source, "b", "h")
    folder = running.settings.data_dir
    shutil.copytree(folder / "state", folder / "synced")
    running = start(feedback_interval_ms=600_000, **NEVER)
    source.execute("INSERT INTO others VALUES (1, 'first', 1)")
    settle(running, source)
    lag(source, running)
    source.execute("UPDATE items SET name = 'paused' WHERE id = 1")
    settle(running, source)
    a = next(v.id for v in running.book.views.values() if v.target.table_name == "a")
    running.on(lambda: running.engine.lifecycle.pause(a))
    lag_after = source.execute("SELECT count(*) FROM items").fetchone()
    source.execute("UPDATE items SET price = 0 WHERE id % 3 = 0")
    settle(running, source)
    stood = running.book.position.txid
    # A machine crash leaves only the last synced checkpoint.
    running.book.checkpoints.begin = None  # type: ignore[assignment]  # no last word
    running.engine._finish = running.engine.rewind_soon
    running.stop()
    lose_state_since(folder / "synced", folder / "state")
    running = start(**NEVER)
    assert running.book.position.txid <= stood
    settle(running, source)
    assert differs(source, "b", QUERY) == []
    assert differs(source, "c", "SELECT * FROM others") == []
    source.execute("DELETE FROM items WHERE id < 3")
    running.on(lambda: running.engine.lifecycle.resume(a))
    settle(running, source)
    wait_until(lambda: differs(source, "a", QUERY) == [], "the paused one goes on")
    assert differs(source, "b", QUERY) == []
    assert lag_after != source.execute("SELECT count(*) FROM items").fetchone()
    assert_consistent(running, source)


# --- checkpoints


def test_commits_go_on_while_a_checkpoint_is_written(source, start, database, monkeypatch):
    running = start(feedback_interval_ms=20, checkpoint_interval_ms=10)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    settle(running, source)
    going = threading.Event()
    going.set()
    reached = threading.Event()
    write = rocks.RocksCheckpoint.write

    def slow(checkpoint, *, sync):
        reached.set()
        assert going.wait(PATIENCE_S)
        write(checkpoint, sync=sync)

    monkeypatch.setattr(rocks.RocksCheckpoint, "write", slow)
    going.clear()
    source.execute("UPDATE items SET price = price + 1")
    assert reached.wait(PATIENCE_S)
    held = running.book.confirmed
    for i in range(5):
        source.execute("INSERT INTO items VALUES (%s, 'y', 2)", (500 + i,))
        settle(running, source)
    assert differs(source, "v", QUERY) == []
    assert running.book.confirmed == held, "nothing of it is durable"
    going.set()
    wait_until(lambda: running.book.confirmed > held, "it is confirmed")
    assert_consistent(running, source)


def test_checkpoint_that_cannot_be_written_is_tried_again(source, start, database, monkeypatch):
    """A full disk stops neither processing nor commits, and nothing is confirmed by mistake."""
    running = start(feedback_interval_ms=20, checkpoint_interval_ms=10)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    settle(running, source)
    failures = []
    write = rocks.RocksCheckpoint.write

    def full(checkpoint, *, sync):
        if len(failures) < 3:
            failures.append(1)
            raise TransientError("the disk is full", sqlstate="53100")
        write(checkpoint, sync=sync)

    monkeypatch.setattr(rocks.RocksCheckpoint, "write", full)
    source.execute("UPDATE items SET price = price + 1")
    wait_until(lambda: running.book.checkpoints.error, "it is noticed")
    assert running.book.checkpoints.error.code == "53100"
    source.execute("DELETE FROM items WHERE id = 2")
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    target = running.book.position.lsn
    wait_until(lambda: running.book.confirmed >= target, "it is written at last")
    assert len(failures) == 3
    assert running.book.checkpoints.error is None
    assert running.book.reconnects == 0
    running.stop()
    running = start()
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    assert_consistent(running, source)


def test_clean_stop_checkpoints_everything(source, start, database):
    running = start(**NEVER)
    view_id = create_view(running, database, "v", source_plan(source, "items"), QUERY)
    lag(source, running, 4)
    last = running.book.position.txid
    running.stop()
    files = RocksDatabase(running.settings.state_dir)
    assert positions.views(files)[view_id].txid == last
    assert positions.get_position(files).txid == last
    assert list(positions.records(files)) == [last]
    files.close()


def test_checkpoints_come_after_so_many_txids(source, start, database):
    running = start(checkpoint_txids=3, checkpoint_interval_ms=1_000_000)
    view_id = create_view(running, database, "v", source_plan(source, "items"), QUERY)
    before = running.book.checkpoints.written
    lag(source, running, 9)
    wait_until(lambda: running.book.checkpoints.written > before, "a checkpoint")
    view = running.book.views[view_id]
    # On a busy machine the first checkpoint may still be all that is written.
    wait_until(lambda: view.mark.txid - view.durable.txid < 3, "all but the last txids are durable")
    assert_consistent(running, source)


# --- groups


def test_named_groups_commit_by_themselves_and_all_are_exact(source, start, database):
    running = start()
    physical = source_plan(source, "items")
    names = ["a", "b", "c", "d"]
    for name in names:
        create_view(running, database, name, physical, QUERY)
    running.stop()
    put_in_group(source, "c", "g")
    put_in_group(source, "d", "g")
    running = start()
    source.execute("UPDATE items SET price = price + 1")
    settle(running, source)
    xids = dict(
        source.execute(
            "SELECT v.view_name, p.xmin::text FROM headrace.views v"
            " JOIN headrace.progress p ON p.view_id = v.id"
        ).fetchall()
    )
    assert xids["a"] == xids["b"]
    assert xids["c"] == xids["d"]
    assert xids["a"] != xids["c"]
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE c IN SHARE MODE")
        source.execute("DELETE FROM items WHERE id = 4")
        settle(running, source)
        for name in ("a", "b", "d"):
            assert differs(source, name, QUERY) == []
    wait_until(lambda: differs(source, "c", QUERY) == [], "c has caught up")
    assert_consistent(running, source)
