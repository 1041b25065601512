"""Subplans that views share: stored once, and right after any event of one of the views."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from headrace import clock
from headrace.collections import subplans
from headrace.planner import PlanRequest, plan
from headrace.process import faults
from headrace.runtime.positions import Position
from headrace.runtime.sharing import Shared
from headrace.sql.status import Status
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.types import arrow_schema
from tests.compared import status_of
from tests.runtime.harness import check, create_view, settle
from tests.runtime.test_engine import POINTS, WorkerProcess, assert_consistent
from tests.waiting import PATIENCE_S, at_any_moment, wait_until

JOINED = "FROM items i JOIN orders o ON o.item = i.id"
ROWS = f"SELECT i.name, o.n {JOINED}"
SUMS = f"SELECT i.name, sum(o.n) AS s {JOINED} GROUP BY i.name"
MOST = f"SELECT i.name, max(o.n) AS m {JOINED} GROUP BY i.name"
OVER = f"SELECT s, count(*) AS c FROM ({SUMS}) x GROUP BY s"
WIDE = f"SELECT name, s, rank() OVER (ORDER BY s) AS r FROM ({SUMS}) x"


QUICK = (faults.COLLECTIONS_DONE, faults.COMMIT_ANSWERED, faults.CHECKPOINT_WRITTEN)


def rarely(point: str, often: tuple[str, ...]):
    """Return a parameter that only the slow tests use, unless it is one of ``often``."""
    return pytest.param(point, marks=[pytest.mark.slow] * (point not in often))


TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY, item int, n int);
INSERT INTO items SELECT i, 'n' || i % 5 FROM generate_series(1, 20) i;
INSERT INTO orders SELECT i, i % 25, i FROM generate_series(1, 60) i;
"""


def create(running, dsn: str, name: str, query: str, **more) -> int:
    with psycopg.connect(dsn) as conn:
        physical = plan(conn, PlanRequest(query, None, {})).physical
    return create_view(running, dsn, name, physical, query, **more)


def change(source, rng: random.Random, transactions: int = 1) -> None:
    for _ in range(transactions):
        with source.transaction():
            for _ in range(rng.randint(1, 4)):
                order, item = rng.randint(1, 80), rng.randint(1, 25)
                source.execute(
                    rng.choice(
                        (
                            f"INSERT INTO orders VALUES ({order}, {item}, {rng.randint(0, 9)})"
                            " ON CONFLICT (id) DO UPDATE SET n = excluded.n + orders.n",
                            f"DELETE FROM orders WHERE id = {order}",
                            f"UPDATE orders SET item = {item} WHERE id % 7 = {order % 7}",
                            f"UPDATE items SET name = 'n{order % 6}' WHERE id = {item}",
                            f"INSERT INTO items VALUES ({item}, 'new') ON CONFLICT DO NOTHING",
                            f"DELETE FROM items WHERE id = {item} AND {order} % 3 = 0",
                        )
                    )
                )


def joined(running, count: int = 1) -> list[Shared]:
    """Wait until all eligible views have joined, and return the shared subplans."""
    sharing = running.engine.sharing
    wait_until(lambda: not sharing._joining, "nobody is left to join")
    found = list(running.book.subplans.values())
    assert len(found) == count
    return found


def drop(running, view_id: int) -> None:
    running.on(lambda: running.engine.lifecycle.drop(view_id))


def states(running, view_id: int) -> set[str]:
    """Return the names of the non-empty states of a view (or shared subplan)."""

    def read() -> set[str]:
        running.engine.durability.finish()
        unit = running.book.unit(view_id)
        return {name for name, pairs in unit.store.dump().items() if pairs}

    return running.on(read)


def test_a_new_view_looks_at_no_view_that_it_does_not_concern(source, database, start, monkeypatch):
    """The cost does not depend on the number of other views, with a shared subplan and without."""
    running = start()
    looked: list[object] = []
    largest = subplans.largest

    def counted(whole, wanted):
        looked.append(whole)
        return largest(whole, wanted)

    monkeypatch.setattr(subplans, "largest", counted)
    looks = []
    for number in range(8):
        query = SUMS.replace("GROUP BY", f"WHERE o.n > {number} GROUP BY") if number % 2 else ROWS
        del looked[:]
        create(running, database, f"v{number}", query)
        wait_until(lambda: not running.engine.sharing._joining, "nobody is left to join")
        looks.append(len(looked))
    assert looks[-4:] == looks[-2:] * 2, looks


def test_a_join_of_two_views_is_kept_once(source, database, start):
    running = start()
    one = create(running, database, "one", ROWS)
    assert any("join" in name for name in states(running, one))
    two = create(running, database, "two", SUMS)
    [shared] = joined(running)
    change(source, random.Random(1), 20)
    check(running, source, one=ROWS, two=SUMS)
    assert states(running, one) == set()
    assert all(name.startswith("reduce") for name in states(running, two))
    assert any("join" in name for name in states(running, shared.id))
    flow = running.book.views[one].flow(running.settings, running.book.evaluators)
    assert not any("join" in name for name in flow.metrics())
    # A third view joins the shared subplan.
    three = create(running, database, "three", MOST)
    assert joined(running) == [shared]
    change(source, random.Random(2), 20)
    check(running, source, one=ROWS, two=SUMS, three=MOST)
    assert not any("join" in name for name in states(running, three))


def test_a42_what_is_derived_carries_when_the_oldest_was_committed(source, database, start):
    """The queues of the shared subplan and of the batches have it, also when read again."""
    running = start(wal_retention="local")
    one = create(running, database, "one", ROWS)
    create(running, database, "two", SUMS)
    joined(running)
    settle(running, source)
    running.on(lambda: running.engine.lifecycle.pause(one))
    before = running.book.position.txid
    moments = []

    def look() -> None:
        row = source.execute("SELECT clock_timestamp()").fetchone()
        moments.append(row[0])

    def gather() -> None:
        """Send transactions while the engine works, so that they become one batch."""
        for n in (1, 2, 3):
            look()
            source.execute("UPDATE orders SET n = n + 1 WHERE id %% 3 = %s", (n % 3,))
            look()
        batcher = running.book.stream.batcher
        wait_until(lambda: batcher.statistics()["open_transactions"] == 3, "all have come")

    running.on(gather)
    settle(running, source)
    queues = {queue.name: queue for queue in running.book.queues.queues}
    assert len(queues) == 2
    for queue in queues.values():
        told = running.on(lambda q=queue: [f.header for f in q.sent(before + 1)])
        [oldest] = {clock.from_postgres(header.commit_us) for header in told}
        assert moments[0] < oldest < moments[1]
    again = running.on(lambda: running.book.retained.backlog(before).take())
    assert moments[0] < clock.from_postgres(again.oldest_us) < moments[1]
    assert again.transactions == 3
    assert moments[4] < clock.from_postgres(again.commit_time_us) < moments[5]


def test_equal_views_share_everything(source, database, start):
    running = start()
    one = create(running, database, "one", WIDE)
    two = create(running, database, "two", WIDE)
    [shared] = joined(running)
    change(source, random.Random(3), 20)
    check(running, source, one=WIDE, two=WIDE)
    assert states(running, one) == states(running, two) == set()
    assert any("window" in name for name in states(running, shared.id))


def test_a_shared_subplan_reads_another(source, database, start):
    running = start()
    ids = {"one": create(running, database, "one", ROWS)}
    ids["two"] = create(running, database, "two", OVER)
    joined(running)
    ids["three"] = create(running, database, "three", WIDE)
    first, second = joined(running, 2)
    assert second.feeds
    assert list(second.feeds.values()) == [first.id]
    queries = {"one": ROWS, "two": OVER, "three": WIDE}
    rng = random.Random(4)
    change(source, rng, 20)
    check(running, source, **queries)
    running.on(lambda: running.engine.lifecycle.pause(ids["two"]))
    change(source, rng, 20)
    check(running, source, one=ROWS, three=WIDE)
    running.on(lambda: running.engine.lifecycle.resume(ids["two"]))
    check(running, source, **queries)
    running.on(lambda: running.engine.lifecycle.drop(ids["one"]))
    change(source, rng, 20)
    check(running, source, two=OVER, three=WIDE)
    running.on(lambda: running.engine.lifecycle.drop(ids["three"]))
    running.on(lambda: running.engine.lifecycle.drop(ids["two"]))
    assert running.on(lambda: running.book.subplans) == {}
    assert running.on(running.book.db.views) == set()


@pytest.mark.parametrize("dropped", ["one", "two"])
def test_dropping_a_view_leaves_the_other(source, database, start, dropped):
    running = start()
    ids = {"one": create(running, database, "one", ROWS)}
    ids["two"] = create(running, database, "two", SUMS)
    joined(running)
    rng = random.Random(5)
    change(source, rng, 5)
    source.execute("DELETE FROM headrace.views WHERE id = %s", (ids[dropped],))
    running.on(lambda: running.engine.lifecycle.drop(ids[dropped]))
    left = {"one": ROWS, "two": SUMS}
    del left[dropped]
    change(source, rng, 20)
    check(running, source, **left)
    running.stop()
    running = start()
    change(source, rng, 20)
    check(running, source, **left)
    joined(running)
    [name] = left
    source.execute("DELETE FROM headrace.views WHERE id = %s", (ids[name],))
    running.on(lambda: running.engine.lifecycle.drop(ids[name]))
    assert running.book.subplans == {}


def test_a_paused_view_is_fed_what_it_missed(source, database, start):
    running = start()
    one = create(running, database, "one", ROWS)
    create(running, database, "two", SUMS)
    assert len(joined(running)) == 1
    rng = random.Random(6)
    change(source, rng, 10)
    settle(running, source)
    running.on(lambda: running.engine.lifecycle.pause(one))
    before = source.execute("SELECT * FROM one ORDER BY 1, 2").fetchall()
    change(source, rng, 20)
    check(running, source, two=SUMS)
    assert source.execute("SELECT * FROM one ORDER BY 1, 2").fetchall() == before
    running.stop()
    running = start()
    change(source, rng, 20)
    check(running, source, two=SUMS)
    running.on(lambda: running.engine.lifecycle.resume(one))
    change(source, rng, 20)
    check(running, source, one=ROWS, two=SUMS)

    def forgotten() -> bool:
        change(source, rng)
        settle(running, source)
        running.on(running.engine.durability.finish)
        [shared] = joined(running)
        return running.on(lambda: shared.output.base_txid) > shared.mark.txid - 10

    wait_until(forgotten, "what was kept for it is forgotten")


def test_a_paused_view_is_fed_from_the_disk(source, database, start):
    """The view missed more than the queues may have in memory."""
    block = 4096
    running = start(queue_block_bytes=block, queue_memory_bytes=4 * block)
    one = create(running, database, "one", ROWS)
    create(running, database, "two", SUMS)
    [shared] = joined(running)
    rng = random.Random(7)
    running.on(lambda: running.engine.lifecycle.pause(one))

    def full() -> bool:
        change(source, rng, 5)
        settle(running, source)
        running.on(running.engine.durability.finish)
        queue = shared.output
        return running.on(lambda: queue.queued_bytes - queue.resident_bytes) > 20 * block

    wait_until(full, "most of it is on the disk")
    assert running.on(lambda: shared.output.resident_bytes) <= 4 * block
    check(running, source, two=SUMS)
    running.on(lambda: running.engine.lifecycle.resume(one))
    change(source, rng, 5)
    check(running, source, one=ROWS, two=SUMS)
    assert running.book.queues.file.reads > 0


def test_a_view_that_joined_after_a_txid_of_others_is_fed_what_it_missed(source, database, start):
    """The last txid before that may have brought the subplan nothing."""
    source.execute("CREATE TABLE apart (id int PRIMARY KEY)")
    running = start()
    create(running, database, "other", "SELECT id FROM apart")
    create(running, database, "two", SUMS)
    create(running, database, "one", ROWS)
    joined(running)
    rng = random.Random(23)
    change(source, rng, 5)
    settle(running, source)
    source.execute("INSERT INTO apart VALUES (1)")
    settle(running, source)
    late = create(running, database, "late", MOST)
    joined(running)
    running.on(lambda: running.engine.lifecycle.pause(late))
    for _ in range(3):
        change(source, rng, 10)
        check(running, source, one=ROWS, two=SUMS)
        running.on(running.engine.durability.finish)
    running.on(lambda: running.engine.lifecycle.resume(late))
    check(running, source, one=ROWS, two=SUMS, late=MOST)
    assert status_of(source, "late")[0] == Status.RUNNING


def _flip(folder: Path) -> None:
    """Change one bit in the middle of every block that is not empty."""
    path = folder / "blocks"
    data = bytearray(path.read_bytes())
    for start in range(0, len(data), 131_072):
        data[start + 4_000] ^= 16
    path.write_bytes(data)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("spoil", [_flip, _remove], ids=["flipped", "removed"])
def test_what_was_sent_to_a_paused_view_is_lost(source, database, start, spoil):
    """The view reports the loss and keeps its last contents; the other one goes on."""
    running = start(wal_retention="source")
    one = create(running, database, "one", ROWS)
    create(running, database, "two", SUMS)
    joined(running)
    rng = random.Random(19)
    change(source, rng, 10)
    settle(running, source)
    running.on(lambda: running.engine.lifecycle.pause(one))
    before = source.execute("SELECT * FROM one ORDER BY 1, 2").fetchall()
    change(source, rng, 80)
    check(running, source, two=SUMS)
    running.stop()
    spoil(running.settings.queue_dir)
    running = start(wal_retention="source")
    change(source, rng, 20)
    check(running, source, two=SUMS)
    running.on(lambda: running.engine.lifecycle.resume(one))
    change(source, rng, 3)
    wait_until(lambda: status_of(source, "one")[0] == Status.ERROR, "it has stopped")
    assert "the output of a shared subplan is lost" in status_of(source, "one")[2]
    assert source.execute("SELECT * FROM one ORDER BY 1, 2").fetchall() == before
    check(running, source, two=SUMS)


class Stopped:
    """A stopped engine for ``create_view``, which populates at the engine's position."""

    def __init__(self, running) -> None:
        self.settings = running.settings
        self.engine, self.book = running.engine, running.book

    def hold(self, job) -> Position:
        return self.book.position


def test_nobody_joins_before_the_stream_has_reached_the_snapshot(source, database, start):
    running = start()
    create(running, database, "one", ROWS)
    rng = random.Random(16)
    change(source, rng, 5)
    running.stop()
    change(source, rng, 20)
    # The new view's state is ahead of the stream, but not of the stream's txids.
    create(Stopped(running), database, "two", ROWS, adopt=False)
    change(source, rng, 20)
    running = start(batch_rows_max=1)
    change(source, rng, 20)
    joined(running)
    change(source, rng, 20)
    check(running, source, one=ROWS, two=ROWS)


def test_a_locked_table_holds_up_no_other(source, database, start):
    running = start()
    create(running, database, "one", ROWS)
    create(running, database, "two", SUMS)
    joined(running)
    rng = random.Random(7)
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE one IN ACCESS EXCLUSIVE MODE")
        change(source, rng, 10)
        wait_until(lambda: status_of(source, "one")[0] == Status.SINK_ERROR, "it is blocked")
        change(source, rng, 10)
        check(running, source, two=SUMS)
    wait_until(lambda: status_of(source, "one")[0] == Status.RUNNING, "it goes on")
    change(source, rng, 10)
    check(running, source, one=ROWS, two=SUMS)


def test_a_row_that_fails_stops_all_who_read_it(source, database, start):
    running = start()
    inner = f"SELECT i.name, sum(100 / o.n) AS s {JOINED} GROUP BY i.name"
    source.execute("DELETE FROM orders WHERE n = 0")
    queries = {
        "one": inner,
        "two": f"SELECT s, count(*) AS c FROM ({inner}) x GROUP BY s",
        "three": ROWS,
    }
    ids = {n: create(running, database, n, q) for n, q in queries.items()}
    joined(running, len(running.book.subplans))
    source.execute("UPDATE orders SET n = 0 WHERE id = 6")
    wait_until(lambda: status_of(source, "one")[0] == Status.ERROR, "it has stopped")
    wait_until(lambda: status_of(source, "two")[0] == Status.ERROR, "it has stopped")
    check(running, source, three=ROWS)
    message = source.execute(
        "SELECT headrace.view_message(id) FROM headrace.views WHERE id = %s", (ids["two"],)
    ).fetchone()[0]
    assert "division by zero" in message
    source.execute("UPDATE orders SET n = 1 WHERE id = 6")
    rng = random.Random(8)
    change(source, rng, 10)
    check(running, source, three=ROWS)
    running.stop()
    running = start()
    change(source, rng, 10)
    check(running, source, three=ROWS)
    assert all(not s.feeds for s in running.book.subplans.values())


def test_views_that_must_not_share(source, database, start):
    running = start(sharing=False)
    create(running, database, "one", ROWS)
    create(running, database, "two", SUMS)
    assert running.book.subplans == {}
    running.stop()
    running = start()
    assert joined(running, 0) == []
    create(running, database, "three", MOST)
    joined(running)
    rng = random.Random(9)
    change(source, rng, 20)
    check(running, source, one=ROWS, two=SUMS, three=MOST)


def test_views_come_and_go_while_rows_change(source, database, start):
    running = start()
    stop = threading.Event()

    def behind() -> int:
        """Return how many txids the last view or subplan lacks."""
        book = running.book
        units = [v for v in list(book.views.values()) if v.live]
        units += list(book.subplans.values())
        return book.position.txid - min((u.processed for u in units), default=book.position.txid)

    def work() -> None:
        rng = random.Random(10)
        with psycopg.connect(database, autocommit=True) as conn:
            while not stop.is_set():
                change(conn, rng)
                at_any_moment(rng, 0.0, 0.01)
                # A busy machine might let no view catch up.
                wait_until(lambda: stop.is_set() or behind() < 100, "they catch up")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        rng = random.Random(11)
        queries = [ROWS, SUMS, MOST, OVER, WIDE]
        there: dict[str, tuple[int, str]] = {}
        for number in range(14):
            if len(there) < 3 or rng.random() < 0.6:
                name, query = f"v{number}", rng.choice(queries)
                there[name] = (create(running, database, name, query), query)
            else:
                name = rng.choice(list(there))
                view_id, _ = there.pop(name)
                with psycopg.connect(database, autocommit=True) as conn:
                    conn.execute("DELETE FROM headrace.views WHERE id = %s", (view_id,))
                drop(running, view_id)
            if number % 5 == 4:
                running.stop()
                running = start()
    finally:
        stop.set()
        thread.join()
    joined(running, len(running.book.subplans))
    assert running.book.subplans
    check(running, source, **{name: query for name, (_, query) in there.items()})


def test_what_was_sent_of_batches_that_were_never_recorded_is_sent_anew(source, database, start):
    """A power failure has taken their records, but not the frames in the queue."""
    running = start()
    one = create(running, database, "one", ROWS)
    create(running, database, "two", SUMS)
    [shared] = joined(running)
    change(source, random.Random(1), 5)
    check(running, source, one=ROWS, two=SUMS)
    running.on(lambda: running.engine.lifecycle.pause(one))
    last, schema = running.book.records.last, arrow_schema(shared.plan.sink.schema)
    running.stop()
    settings = running.settings
    storage = Storage(settings.queue_dir, settings.queue_bytes_max, settings.queue_block_bytes)
    queue = storage.get(shared.queue_name)
    with queue.together():  # of a batch with other bounds after the replay
        queue.put(Header(Kind.DIFFS, last + 1, 0, 0, 0), pa.RecordBatch.from_pylist([], schema))
        queue.put(Header(Kind.TIME_END, last + 3, 0, 0, 0))
    storage.close()
    running = start()
    change(source, random.Random(2), 5)
    check(running, source, two=SUMS)
    running.on(lambda: running.engine.lifecycle.resume(one))
    check(running, source, one=ROWS, two=SUMS)


def killed(running, source, fault: str, seed: int) -> None:
    """Let a worker run under changes until ``fault`` has killed it."""
    worker = WorkerProcess(running.settings, HEADRACE_FAULT=fault)
    try:
        rng = random.Random(seed)
        until = time.monotonic() + PATIENCE_S
        while worker.wait(0.02) is None and time.monotonic() < until:
            change(source, rng)
        assert worker.wait(0) == -signal.SIGKILL, "the fault must have landed"
    finally:
        worker.close()


@pytest.mark.parametrize("point", [rarely(p, QUICK) for p in POINTS])
def test_kill_9_at_every_point(source, database, start, point):
    queries = {"one": ROWS, "two": SUMS, "three": WIDE}
    running = start(feedback_interval_ms=20)
    ids = {n: create(running, database, n, q) for n, q in queries.items()}
    joined(running, 2)
    if point != faults.FEEDBACK_SENT:  # nothing is confirmed while it is paused
        running.on(lambda: running.engine.lifecycle.pause(ids["one"]))
    change(source, random.Random(12), 5)
    running.stop()
    for seed, times in enumerate((2, 7)):
        killed(running, source, f"{point}:kill:{times}", seed)
    running = start()
    rng = random.Random(13)
    change(source, rng, 5)
    check(running, source, two=SUMS, three=WIDE)
    running.on(lambda: running.engine.lifecycle.resume(ids["one"]))
    change(source, rng, 5)
    check(running, source, **queries)
    assert_consistent(running, source)
    joined(running, 2)


@pytest.mark.parametrize(
    "point",
    [
        rarely(p, (faults.JOINED,))
        for p in (faults.BEFORE_JOIN, faults.JOINED, faults.BEFORE_CHECKPOINT)
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_kill_9_while_views_join(source, database, start, point, times):
    queries = {"one": ROWS, "two": OVER, "three": WIDE}
    running = start()
    for name, query in queries.items():
        create(running, database, name, query, adopt=name == "one")
    change(source, random.Random(14), 5)
    running.stop()
    killed(running, source, f"{point}:kill:{times}", times)
    running = start()
    joined(running, 2)
    change(source, random.Random(15), 5)
    check(running, source, **queries)
    assert_consistent(running, source)
