"""H14 and the WAL budget: the positions confirmed to the source."""

from __future__ import annotations

import random
import shutil
import signal
import time

import psycopg
import pytest

from headrace.runtime import positions
from headrace.state.rocks import RocksDatabase
from tests.compared import differs, status_of
from tests.faults.helpers import slot, wal_end
from tests.runtime.harness import copy_state, create_view, settle, source_plan
from tests.runtime.test_engine import WorkerProcess
from tests.waiting import wait_until

QUERY = "SELECT * FROM items"


TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric);
INSERT INTO items SELECT i, 'n' || i, i FROM generate_series(1, 50) i;
"""


def test_nothing_is_confirmed_that_a_kill_could_lose(start, database, source):  # H14
    """After kill -9 at any moment the state on disk covers the position confirmed to the slot."""
    running = start(feedback_interval_ms=1, wal_retention="source")
    for name in ("a", "b"):
        create_view(running, database, name, source_plan(source, "items"), QUERY)
    running.stop()
    settings = running.settings
    rng = random.Random(14)
    moved = 0
    for patient in (False, True, False, True):
        begin = slot(source, settings.slot_name)[0]
        worker = WorkerProcess(settings)
        wait_until(
            lambda: source.execute(
                "SELECT active FROM pg_replication_slots WHERE slot_name = %s",
                (settings.slot_name,),
            ).fetchone()[0],
            "the worker streams",
        )
        until = time.monotonic() + rng.uniform(0.05, 0.5)
        give_up = until + 60
        while time.monotonic() < until or (
            patient and slot(source, settings.slot_name)[0] == begin and time.monotonic() < give_up
        ):
            source.execute(
                "UPDATE items SET price = price + 1 WHERE id %% 5 = %s", (rng.randint(0, 4),)
            )
        worker.process.send_signal(signal.SIGKILL)
        worker.close()
        # Four deaths in a row at one batch would be attributed to a view.
        for file in settings.run_dir.glob("worker.*"):
            file.unlink()
        wait_until(
            lambda: (
                not source.execute(
                    "SELECT active FROM pg_replication_slots WHERE slot_name = %s",
                    (settings.slot_name,),
                ).fetchone()[0]
            ),
            "the server has noticed",
        )
        confirmed = slot(source, settings.slot_name)[0]
        moved += confirmed > begin
        database_files = RocksDatabase(settings.state_dir)
        durable = positions.get_confirmed(database_files)
        position = positions.get_position(database_files)
        marks = positions.views(database_files).values()
        database_files.close()
        assert confirmed <= durable <= position.lsn
        assert all(m.lsn >= durable or m.txid == position.txid for m in marks)
    assert moved >= 2, "positions must have been confirmed meanwhile"
    running = start()
    settle(running, source, 60)
    for name in ("a", "b"):
        assert differs(source, name, QUERY) == []


def test_blocked_view_pins_no_more_wal_than_the_budget(start, database, source):
    running = start(wal_budget_bytes=2_000_000, feedback_interval_ms=20, wal_retention="source")
    physical = source_plan(source, "items")
    view_id = create_view(running, database, "a", physical, QUERY)
    create_view(running, database, "b", physical, QUERY)
    name = running.settings.slot_name
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE a IN SHARE MODE")
        source.execute("UPDATE items SET price = price + 1")
        wait_until(lambda: status_of(source, "a")[0] == "sink_error", "it is blocked")
        kept = source.execute("SELECT * FROM a ORDER BY id").fetchall()
        source.execute("UPDATE items SET price = price + 1 WHERE id < 5")
        settle(running, source)
        # The position from which the view lacks changes; a later one must not be confirmed.
        mark = running.book.views[view_id].mark
        held = running.on(lambda: running.book.covered(mark))
        source.execute("UPDATE items SET price = price + 1 WHERE id < 9")
        settle(running, source)
        assert slot(source, name)[0] <= held, "within the budget it keeps its place"
        source.execute("CREATE TABLE other (x text)")
        source.execute("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
        wait_until(lambda: status_of(source, "a")[0] == "error", "it is given up")
        wait_until(lambda: slot(source, name)[0] > held + 2_000_000, "the WAL may go")
    status, code, message = status_of(source, "a")
    assert (status, code) == ("error", "53400")
    for word in ("needs a resync", "wal_budget_bytes", "headrace.resync_view"):
        assert word in (message or "")
    assert source.execute("SELECT * FROM a ORDER BY id").fetchall() == kept
    source.execute("DELETE FROM items WHERE id < 9")
    settle(running, source, 60)
    assert differs(source, "b", QUERY) == []
    running.stop()
    running = start(wal_budget_bytes=2_000_000)
    source.execute("DELETE FROM items WHERE id < 12")
    settle(running, source, 60)
    assert status_of(source, "a")[0] == "error", "a restart does not revive it"
    assert differs(source, "b", QUERY) == []


def test_view_blocked_after_idle_time_catches_up(start, database, source):
    """Idle time moves the confirmed position past the end of the view's last batch."""
    running = start(feedback_interval_ms=20, sink_retry_ms=100)
    name = running.settings.slot_name
    physical = source_plan(source, "items")
    for view in ("a", "b"):
        create_view(running, database, view, physical, QUERY)
    source.execute("UPDATE items SET price = price + 1")
    settle(running, source, 60)
    source.execute("CREATE TABLE other AS SELECT 1 AS x")
    quiet = wal_end(source)
    wait_until(lambda: slot(source, name)[0] >= quiet, "idle time is confirmed")
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE a IN SHARE MODE")
        source.execute("UPDATE items SET price = price + 1")
        wait_until(lambda: status_of(source, "a")[0] == "sink_error", "it is blocked")
        running.stop()  # the next engine knows only the state on disk
        running = start(feedback_interval_ms=20, sink_retry_ms=100)
        source.execute("UPDATE items SET price = price + 1")
        wait_until(lambda: differs(source, "b", QUERY) == [], "the other goes on")
    wait_until(lambda: differs(source, "a", QUERY) == [], "it has caught up")
    assert status_of(source, "a")[0] == "running"


def test_blocked_view_is_tried_again_in_time(start, database, source):
    """The next attempt wakes the engine even if it waits for nothing else."""
    running = start(sink_retry_ms=200, feedback_interval_ms=600_000)
    create_view(running, database, "a", source_plan(source, "items"), QUERY)
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE a IN SHARE MODE")
        source.execute("UPDATE items SET price = price + 1")
        wait_until(lambda: status_of(source, "a")[0] == "sink_error", "it is blocked")
    wait_until(lambda: status_of(source, "a")[0] == "running", "it is healed")
    wait_until(lambda: differs(source, "a", QUERY) == [], "it has caught up")


def test_slot_that_moved_on_before_the_first_checkpoint_is_noticed(
    start, database, source, tmp_path
):
    """H21: the state of an engine that never wrote a checkpoint knows its start position."""
    never = {"checkpoint_interval_ms": 600_000, "feedback_interval_ms": 600_000}
    running = start(**never)
    create_view(running, database, "a", source_plan(source, "items"), QUERY)
    settings = running.settings
    early = tmp_path / "early"
    copy_state(running, early)
    running.stop()
    source.execute("UPDATE items SET price = price + 1")
    source.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (settings.slot_name,)
    )
    shutil.rmtree(settings.state_dir)
    early.rename(settings.state_dir)
    kept = source.execute("SELECT * FROM a ORDER BY id").fetchall()
    start(**never)
    wait_until(lambda: status_of(source, "a")[0] == "error", "the view is stopped")
    assert source.execute("SELECT * FROM a ORDER BY id").fetchall() == kept


@pytest.mark.parametrize("case", ["cut otherwise", "unknown to the state"])
def test_batches_written_by_another_engine_are_noticed(start, database, source, case):
    """H21: two engines cut batches differently; the batch numbers alone would look right."""
    running = start()
    view_id = create_view(running, database, "a", source_plan(source, "items"), QUERY)
    source.execute("UPDATE items SET price = price + 1")
    settle(running, source, 60)
    running.stop()
    kept = source.execute("SELECT * FROM a ORDER BY id").fetchall()
    files = RocksDatabase(running.settings.state_dir)
    mark = positions.views(files)[view_id]
    meta: positions.Meta = {}
    if case == "cut otherwise":
        # This engine recorded the next batch; the other engine wrote it with another end.
        end = mark.lsn + 800
        positions.put_record(meta, positions.BatchRecord(mark.txid + 1, mark.lsn, end, 0))
        source.execute(
            "UPDATE headrace.progress SET txid = %s, lsn = lsn + 160, epoch = epoch + 1",
            (mark.txid + 1,),
        )
    else:
        # For this engine the batch was empty; the other engine's batch of that number was not.
        older = positions.StateMark(mark.txid, mark.lsn, mark.sink_txid - 1)
        positions.put_view(meta, view_id, older)
    files.put_meta(meta, sync=True)
    files.close()
    source.execute("DELETE FROM items WHERE id = 7")
    start()
    wait_until(lambda: status_of(source, "a")[0] == "error", "the view is stopped")
    assert "another engine" in (status_of(source, "a")[2] or "")
    assert source.execute("SELECT * FROM a ORDER BY id").fetchall() == kept


def test_blocked_view_catches_up_by_the_part_of_a_batch_that_it_reads(start, database, source):
    """A retry neither reads nor counts the parts of a batch that the blocked view does not need."""
    source.execute("CREATE TABLE others (id int PRIMARY KEY, name text, price numeric)")
    running = start(spool_bytes_min=1_000, sink_retry_ms=100)
    create_view(running, database, "a", source_plan(source, "items"), QUERY)
    others = "SELECT * FROM others"
    create_view(running, database, "b", source_plan(source, "others"), others)
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE b IN SHARE MODE")
        with source.transaction():
            source.execute("UPDATE items SET name = repeat(name, 30)")  # goes to a file
            source.execute("INSERT INTO others VALUES (1, 'one', 1)")
        wait_until(lambda: status_of(source, "b")[0] == "sink_error", "it is blocked")
    wait_until(lambda: differs(source, "b", others) == [], "it has caught up")
    assert status_of(source, "b")[0] == "running"
    settle(running, source, 60)
    assert differs(source, "a", QUERY) == []
