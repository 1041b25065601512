"""``wal_retention = local``: the engine stores batches, and the source need not retain its WAL."""

from __future__ import annotations

import random
import shutil
import signal

import psycopg
import pytest

from headrace.process import faults
from headrace.sql.status import Status
from headrace.types import parse_lsn
from tests.compared import differs, status_of
from tests.faults.helpers import slot
from tests.runtime.harness import copy_state, create_view, lose_state_since, settle, source_plan
from tests.runtime.test_engine import WorkerProcess, assert_consistent
from tests.waiting import wait_until

QUERY = "SELECT * FROM items"
OTHERS = "SELECT * FROM others"
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric);
INSERT INTO items SELECT i, 'n' || i, i FROM generate_series(1, 50) i;
CREATE TABLE others (id int PRIMARY KEY, what text);
INSERT INTO others VALUES (1, 'one');
"""
LOCAL = {"wal_retention": "local", "feedback_interval_ms": 20}
SOURCE = {"wal_retention": "source", "feedback_interval_ms": 20}
AHEAD = LOCAL | {"buffer_bytes_max": 400}
"""Hardly any transaction may wait outside the queue."""
both = pytest.mark.parametrize("local", [LOCAL, AHEAD], ids=["local", "ahead"])


def views(running, database, source) -> dict[str, int]:
    """Create three views, one of them over another table."""
    items, others = source_plan(source, "items"), source_plan(source, "others")
    return {
        "a": create_view(running, database, "a", items, QUERY),
        "b": create_view(running, database, "b", items, QUERY),
        "c": create_view(running, database, "c", others, OTHERS),
    }


def change(source, rng: random.Random, times: int = 1) -> None:
    for _ in range(times):
        with source.transaction():
            source.execute(
                "UPDATE items SET price = price + 1, name = %s WHERE id %% 7 = %s",
                (f"x{rng.random()}", rng.randint(0, 6)),
            )
            source.execute(
                "INSERT INTO others VALUES (%s, 'w') ON CONFLICT (id) DO UPDATE"
                " SET what = others.what || 'x'",
                (rng.randint(1, 40),),
            )
        if rng.random() < 0.3:
            source.execute("DELETE FROM items WHERE id = %s", (rng.randint(1, 50),))
            source.execute(
                "INSERT INTO items VALUES (%s, 'new', 1) ON CONFLICT DO NOTHING",
                (rng.randint(100, 10**8),),
            )


def pause(running, view_id: int) -> None:
    running.on(lambda: running.engine.lifecycle.pause(view_id))


def resume(running, view_id: int) -> None:
    running.on(lambda: running.engine.lifecycle.resume(view_id))


def equal(running, source, *names: str) -> None:
    settle(running, source)
    for name in names:
        query = OTHERS if name == "c" else QUERY
        wait_until(lambda n=name, q=query: differs(source, n, q) == [], f"{name} is right")
        assert status_of(source, name)[0] == Status.RUNNING


def end(source) -> int:
    return parse_lsn(source.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0])


def moves_on(running, source, beyond: int) -> None:
    """Wait until the slot is confirmed beyond ``beyond``: the source may remove older WAL."""
    rng = random.Random(1)

    def confirmed() -> bool:
        change(source, rng)
        settle(running, source)
        return slot(source, running.settings.slot_name)[0] >= beyond

    wait_until(confirmed, "the slot is confirmed")

    def restarts() -> bool:
        source.execute("CHECKPOINT")  # writes what a slot may begin at
        change(source, rng)
        settle(running, source)
        row = source.execute(
            "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            (running.settings.slot_name,),
        ).fetchone()
        return parse_lsn(row[0]) >= beyond

    wait_until(restarts, "its WAL may go")


def stays(running, source, before: int) -> None:
    """Assert that the source still retains the WAL after ``before``."""
    running.on(running.engine.durability.finish)
    assert slot(source, running.settings.slot_name)[0] <= before


@both
def test_a_paused_view_keeps_no_wal(source, database, start, local):
    running = start(**local)
    ids = views(running, database, source)
    rng = random.Random(3)
    change(source, rng, 5)
    settle(running, source)
    pause(running, ids["a"])
    kept = source.execute("SELECT * FROM a ORDER BY id").fetchall()
    change(source, rng, 30)
    equal(running, source, "b", "c")
    moves_on(running, source, end(source))
    assert source.execute("SELECT * FROM a ORDER BY id").fetchall() == kept
    resume(running, ids["a"])
    equal(running, source, "a", "b", "c")
    assert_consistent(running, source)

    def given_up() -> bool:
        change(source, rng)
        settle(running, source)
        running.on(running.engine.durability.finish)
        return running.book.retained.bytes_after(running.book.durable.txid) < 100_000

    wait_until(given_up, "what nobody needs is given up")


def test_with_source_it_does(source, database, start):
    running = start(**SOURCE)
    ids = views(running, database, source)
    pause(running, ids["a"])
    at = end(source)
    change(source, random.Random(3), 30)
    equal(running, source, "b", "c")
    stays(running, source, at + 100_000)
    assert not running.book.retained.trusted
    resume(running, ids["a"])
    equal(running, source, "a", "b", "c")


@both
def test_over_restarts_and_switches(source, database, start, local):
    """Between source and local, both ways, while one view is paused."""
    running = start(**SOURCE)
    ids = views(running, database, source)
    pause(running, ids["a"])
    rng = random.Random(5)
    for mode in (SOURCE, local, local, SOURCE, SOURCE, local, SOURCE):
        change(source, rng, 8)
        equal(running, source, "b", "c")
        running.stop()
        change(source, rng, 8)
        running = start(**mode)
        equal(running, source, "b", "c")
        if mode is local:
            moves_on(running, source, end(source))
    assert running.book.retained.trusted
    at = end(source)
    change(source, rng, 8)
    settle(running, source)
    stays(running, source, at)
    resume(running, ids["a"])
    equal(running, source, "a", "b", "c")
    assert_consistent(running, source)

    def gone() -> bool:
        change(source, rng)
        settle(running, source)
        running.on(running.engine.durability.finish)
        return not running.book.retained.trusted

    wait_until(gone, "nobody needs the queue")


POINTS = [
    faults.BATCH_RECORDED, faults.BATCH_KEPT, faults.COLLECTIONS_DONE, faults.COMMIT_SENT,
    faults.COMMIT_ANSWERED, faults.BEFORE_CHECKPOINT, faults.CHECKPOINT_BEGUN,
    faults.QUEUES_SYNCED, faults.CHECKPOINT_WRITTEN, faults.FEEDBACK_SENT,
]  # fmt: skip


@pytest.mark.parametrize(
    ("point", "local"),
    [
        *((p, LOCAL) for p in POINTS),
        (faults.BATCH_AHEAD, AHEAD),
        *(pytest.param(p, AHEAD, marks=pytest.mark.slow) for p in POINTS),
    ],
    ids=lambda value: value if isinstance(value, str) else "ahead" * (value is AHEAD),
)
def test_kill_9_at_every_point(source, database, start, point, local):
    running = start(**local)
    ids = views(running, database, source)
    pause(running, ids["a"])
    change(source, random.Random(12), 5)
    running.stop()
    for seed, times in enumerate((2, 5)):
        worker = WorkerProcess(running.settings, HEADRACE_FAULT=f"{point}:kill:{times}")
        rng = random.Random(seed)
        try:
            wait_until(
                lambda r=rng, w=worker: change(source, r) or w.wait(0.02) is not None,
                "the fault has landed",
            )
            assert worker.wait(0) == -signal.SIGKILL
        finally:
            worker.close()
    running = start(**local)
    rng = random.Random(13)
    change(source, rng, 5)
    equal(running, source, "b", "c")
    moves_on(running, source, end(source))
    resume(running, ids["a"])
    change(source, rng, 5)
    equal(running, source, "a", "b", "c")
    assert_consistent(running, source)


@both
def test_a_failure_at_every_point(source, database, start, local):
    running = start(**local)
    ids = views(running, database, source)
    rng = random.Random(8)
    pause(running, ids["a"])
    for point in (*POINTS, faults.BATCH_AHEAD) if local is AHEAD else POINTS:
        faults.arm(f"{point}:raise:2")
        change(source, rng, 5)
        equal(running, source, "b", "c")
    faults.arm("")
    change(source, rng)
    equal(running, source, "b", "c")  # the work that the last fault interrupted continues
    resume(running, ids["a"])
    equal(running, source, "a", "b", "c")
    assert_consistent(running, source)


@both
def test_a_locked_table_and_changes_between(source, database, start, local):
    """A view that is blocked, and one that is populated, need nothing of the source either."""
    running = start(**local)
    views(running, database, source)
    rng = random.Random(9)
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE a IN SHARE MODE")
        change(source, rng, 5)
        wait_until(lambda: status_of(source, "a")[0] == Status.SINK_ERROR, "it is blocked")
        change(source, rng, 20)

        def between() -> None:
            change(source, rng, 10)
            equal(running, source, "b", "c")
            moves_on(running, source, end(source))
            change(source, rng, 10)

        create_view(running, database, "d", source_plan(source, "items"), QUERY, between=between)
        equal(running, source, "d", "b", "c")
    wait_until(lambda: differs(source, "a", QUERY) == [], "it has caught up")
    equal(running, source, "a", "b", "c", "d")
    assert running.book.holds.jobs() == {}


@both
def test_large_transactions_truncates_and_ddl(source, database, start, local):
    running = start(**local, spool_bytes_min=200_000)
    ids = views(running, database, source)
    pause(running, ids["a"])
    pause(running, ids["c"])
    source.execute("INSERT INTO items SELECT g, 'big', g FROM generate_series(1000, 40000) g")
    source.execute("UPDATE items SET name = name || 'y' WHERE id % 3 = 0")
    source.execute("ALTER TABLE items ADD COLUMN more int")
    source.execute("INSERT INTO items VALUES (200, 'with', 1, 7)")
    source.execute("TRUNCATE others")
    source.execute("INSERT INTO others VALUES (8, 'eight')")
    settle(running, source)
    moves_on(running, source, end(source))
    running.stop()
    running = start(**local, spool_bytes_min=200_000)
    for name in ("a", "c"):
        resume(running, ids[name])
    settle(running, source)
    three = "SELECT id, name, price FROM items"
    for name, query in (("a", three), ("b", three), ("c", OTHERS)):
        wait_until(lambda n=name, q=query: differs(source, n, q) == [], f"{name} is right")


def _flip(folder) -> None:
    """Change one bit in the middle of every block that is not empty."""
    path = folder / "blocks"
    data = bytearray(path.read_bytes())
    for begin in range(0, len(data), 131_072):
        data[begin + 4_000] ^= 16
    path.write_bytes(data)


def _cut(folder) -> None:
    path = folder / "blocks"
    path.write_bytes(path.read_bytes()[:20_000])


@pytest.mark.parametrize("spoil", [_flip, _cut, shutil.rmtree])
def test_what_is_kept_is_lost(source, database, start, spoil):
    """The view that needs the lost log reports it; other views continue from the source's WAL."""
    running = start(**LOCAL)
    ids = views(running, database, source)
    rng = random.Random(19)
    pause(running, ids["a"])
    kept = source.execute("SELECT * FROM a ORDER BY id").fetchall()
    change(source, rng, 80)
    equal(running, source, "b", "c")
    moves_on(running, source, end(source))
    running.stop()
    spoil(running.settings.queue_dir)
    running = start(**LOCAL)
    change(source, rng, 5)
    equal(running, source, "b", "c")
    status, _, message = status_of(source, "a")
    assert status == Status.ERROR
    assert "resync_view" in message
    assert source.execute("SELECT * FROM a ORDER BY id").fetchall() == kept
    pause(running, ids["b"])
    change(source, rng, 20)
    moves_on(running, source, end(source))
    resume(running, ids["b"])
    equal(running, source, "b", "c")


def test_damage_is_found_when_it_is_read(source, database, start):
    running = start(**LOCAL)
    ids = views(running, database, source)
    rng = random.Random(29)
    pause(running, ids["a"])
    change(source, rng, 80)
    equal(running, source, "b", "c")
    moves_on(running, source, end(source))
    pause(running, ids["b"])
    change(source, rng, 5)
    settle(running, source)

    def flip() -> None:
        [queue] = [q for q in running.book.queues.queues if q.name.startswith("intake")]
        ring = queue.ring
        ring.memory(queue.base + 3_000, 1)[0] ^= 4

    running.on(flip)
    resume(running, ids["b"])
    resume(running, ids["a"])
    wait_until(lambda: status_of(source, "a")[0] == Status.ERROR, "it has stopped")
    assert status_of(source, "a")[1] == "55H02", "as where WAL was lost"
    change(source, rng, 5)
    equal(running, source, "b", "c")


def test_when_it_is_full_the_source_keeps_all_again(source, database, start):
    running = start(**LOCAL, queue_bytes_max=2_000_000)
    ids = views(running, database, source)
    pause(running, ids["a"])
    rng = random.Random(31)
    source.execute(
        "INSERT INTO items SELECT g, repeat('z', 60), 1 FROM generate_series(100, 8000) g"
    )
    change(source, rng, 5)
    source.execute("UPDATE items SET price = 3")
    equal(running, source, "b", "c")
    at = end(source)
    change(source, rng, 20)
    settle(running, source)
    assert not running.book.retained.taking
    stays(running, source, at)
    notes = source.execute("SELECT message ~ 'queue_bytes_max' FROM headrace.list_views()")
    assert notes.fetchall() == [(True,)] * 3
    running.stop()
    running = start(**LOCAL, queue_bytes_max=2_000_000)
    change(source, rng, 5)
    equal(running, source, "b", "c")
    resume(running, ids["a"])
    equal(running, source, "a", "b", "c")
    running.stop()
    running = start(**LOCAL, queue_bytes_max=2_000_000)
    change(source, rng, 5)
    equal(running, source, "a", "b", "c")
    assert running.book.retained.taking
    moves_on(running, source, end(source))
    notes = source.execute("SELECT message FROM headrace.list_views()")
    assert notes.fetchall() == [(None,)] * 3


def test_a_view_is_given_up_when_more_is_kept_than_the_budget(source, database, start):
    running = start(**LOCAL, wal_budget_bytes=300_000)
    ids = views(running, database, source)
    pause(running, ids["a"])
    source.execute("CREATE TABLE apart (x text)")
    source.execute("INSERT INTO apart SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
    settle(running, source)
    moves_on(running, source, end(source))
    assert status_of(source, "a")[0] == Status.PAUSED, "what no view reads is not kept"
    source.execute(
        "INSERT INTO items SELECT g, repeat('z', 60), 1 FROM generate_series(100, 8000) g"
    )
    wait_until(lambda: status_of(source, "a")[0] == Status.ERROR, "it is given up")
    _, code, message = status_of(source, "a")
    assert code == "53400"
    assert "changes were kept" in message
    assert "resync_view" in message
    equal(running, source, "b", "c")


def test_the_slot_is_lost(source, database, start):
    """Then the stored batches are useless: the changes after them are unknown."""
    running = start(**LOCAL)
    ids = views(running, database, source)
    pause(running, ids["a"])
    change(source, random.Random(2), 20)
    settle(running, source)
    running.stop()
    source.execute("SELECT pg_drop_replication_slot(%s)", (running.settings.slot_name,))
    change(source, random.Random(3), 20)
    running = start(**LOCAL)
    for name in "abc":
        wait_until(lambda n=name: status_of(source, n)[0] == Status.ERROR, f"{name} has stopped")
    new = create_view(running, database, "e", source_plan(source, "items"), QUERY)
    pause(running, new)
    change(source, random.Random(4), 20)
    moves_on(running, source, end(source))
    resume(running, new)
    settle(running, source)
    wait_until(lambda: differs(source, "e", QUERY) == [], "it is right")


@pytest.mark.parametrize("gone", ["state", "queues"])
def test_the_power_goes(source, database, start, gone):
    """Of the writes since the last checkpoint one reached the disk, and the other did not."""
    running = start(**LOCAL)
    ids = views(running, database, source)
    rng = random.Random(41)
    pause(running, ids["a"])
    change(source, rng, 10)
    moves_on(running, source, end(source))
    running.stop()
    folder = running.settings.data_dir
    shutil.copytree(folder / gone, folder / "synced")
    never = LOCAL | {"checkpoint_interval_ms": 3_600_000, "checkpoint_txids": 100_000}
    never["feedback_interval_ms"] = 3_600_000
    running = start(**never)
    change(source, rng, 20)
    equal(running, source, "b", "c")
    stood = running.book.position.txid
    running.book.checkpoints.begin = None  # type: ignore[assignment]  # no last word
    running.engine._finish = running.engine.rewind_soon
    running.stop()
    if gone == "state":
        lose_state_since(folder / "synced", folder / gone)
    else:
        shutil.rmtree(folder / gone)
        shutil.copytree(folder / "synced", folder / gone)
    change(source, rng, 5)
    running = start(**LOCAL)
    change(source, rng, 5)
    equal(running, source, "b", "c")
    assert running.book.position.txid > stood
    resume(running, ids["a"])
    equal(running, source, "a", "b", "c")
    assert_consistent(running, source)


def test_the_state_is_older_than_what_is_kept(source, database, start):
    """The state has lost more than a crash may lose: views report it, or are right."""
    running = start(**LOCAL)
    views(running, database, source)
    rng = random.Random(43)
    image = running.settings.data_dir / "image"
    copy_state(running, image)
    change(source, rng, 20)
    moves_on(running, source, end(source))
    running.stop()
    shutil.rmtree(running.settings.state_dir)
    image.rename(running.settings.state_dir)
    change(source, rng, 5)
    running = start(**LOCAL)
    settle(running, source)
    for name in "abc":
        status, _, message = status_of(source, name)
        if status == Status.RUNNING:
            assert differs(source, name, OTHERS if name == "c" else QUERY) == []
        else:
            assert status == Status.ERROR
            assert "resync_view" in message
