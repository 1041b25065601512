"""Lagging groups: a slow commit group is processed separately (A-37 … A-44)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from functools import partial
from unittest import mock

import pytest

from headrace.collections.dataflow import Dataflow
from headrace.forwarder import policy
from headrace.process import bounds
from headrace.process.bounds import Bound
from headrace.runtime import (
    catching_up,
    coalesced_batch,
    cursor,
    engine,
    insight,
    worker_handles,
)
from headrace.runtime.batches import Outcome
from headrace.runtime.log_cursor import LogCursor
from headrace.runtime.shared import Shared
from headrace.runtime.slow_groups import SlowGroups
from headrace.runtime.views import Unit
from headrace.runtime.watch import Watch
from headrace.sql.status import CursorState
from headrace.state.checkpoint import RocksCheckpoint
from headrace.state.rocks import RocksDatabase
from headrace.storage.blocks import NoRoom
from headrace.storage.queue import Queue
from tests.compared import differs
from tests.runtime import hosted, test_sharing
from tests.runtime.disturbances import locked, told
from tests.runtime.harness import check, settle
from tests.runtime.test_sharing import SUMS, change, create
from tests.waiting import PATIENCE_S, again_and_again, wait_until

TABLES = test_sharing.TABLES
QUICK = "SELECT id, n FROM orders"
SLOW = "SELECT o.item, count(*) AS dear FROM orders o GROUP BY o.item"
MS = 15
"""Milliseconds above which a group is slow in these tests."""


@pytest.fixture(autouse=True)
def dear(monkeypatch) -> None:
    """Let views with a column named ``dear`` exceed the limit, and other views take no time.

    The engine classifies by these given times, so the machine's speed decides nothing.
    """
    judge = catching_up.CatchingUp.classify

    def judged(side: catching_up.CatchingUp, outcome: Outcome, worked_s: float) -> None:
        side._commits.writes = {}
        units = filter(None, map(side._state.unit, outcome.touched))
        slow = [unit for unit in units if _is_dear(unit)]
        outcome.remote_s = {unit.id: 1.3 * MS / 1000 for unit in slow if unit.placed}
        given = {unit.bound: 1.3 * MS / 1000 for unit in slow}
        with mock.patch.object(Bound, "taken_s", property(lambda bound: given.get(bound, 0.0))):
            judge(side, outcome, sum(given.values()))

    monkeypatch.setattr(catching_up.CatchingUp, "classify", judged)


def _is_dear(unit: Unit) -> bool:
    return any(field.name == "dear" for field in unit.plan.sink.schema)


@pytest.fixture
def stay(monkeypatch) -> None:
    """Let a group that was slow once stay separate."""
    monkeypatch.setattr(policy, "_STAY_S", 3_600.0)


@pytest.fixture
def visiting(monkeypatch) -> set[str]:
    """Separate slow groups briefly, again and again; collect their names."""
    monkeypatch.setattr(policy, "_STAY_S", 0.05)
    monkeypatch.setattr(policy, "_STAY_S_MAX", 0.05)
    monkeypatch.setattr(policy, "_SLOW_TIMES", 1)
    put, groups = SlowGroups._set_lagging, set[str]()

    def noted(slow: SlowGroups, group: str, *slowest) -> None:
        put(slow, group, *slowest)
        groups.update(slow._state.lagging.groups)

    monkeypatch.setattr(SlowGroups, "_set_lagging", noted)
    return groups


def put_in_group(source, name: str, group: str) -> None:
    source.execute(
        "UPDATE headrace.views SET options = jsonb_build_object('commit_group', %s::text)"
        " WHERE view_name = %s",
        (group, name),
    )


def grouped(running, source, dsn: str, group: str, name: str, query: str) -> int:
    return create(running, dsn, name, query, between=lambda: put_in_group(source, name, group))


def aside(running, source, group: str) -> None:
    """Change rows until a group is separate."""
    rng = random.Random(1)
    for _ in again_and_again(PATIENCE_S):
        change(source, rng)
        settle(running, source)
        if running.book.lagging.groups == {group}:
            return
    pytest.fail(f"group {group} is not put aside")


@contextlib.contextmanager
def standing_still(source) -> Iterator[None]:
    """Suspend the writes of the separate groups."""
    [(pid,)] = source.execute(
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'headrace lagging sink'"
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_slow_group_holds_up_no_other(source, database, start, stay):
    running = start(slow_batch_ms=MS)
    grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    with standing_still(source):
        for n in range(100, 130):
            source.execute("INSERT INTO orders VALUES (%s, %s, 1)", (n, n % 3))
            wait_until(lambda: differs(source, "quick", QUICK) == [], "the quick one is there")
        assert running.book.position.txid > running.book.views[1].mark.txid
    check(running, source, quick=QUICK, slow=SLOW)
    assert running.book.lagging.groups == {"reports"}
    slow, quick = running.book.views.values()
    assert (slow.cursor, quick.cursor) == (CursorState.CATCHING_UP, CursorState.LEADING)


def test_a_slow_group_on_another_worker_holds_up_no_other(
    source, database, start, stay, monkeypatch
):
    """The worker's result is late by any time."""
    results, arrived = worker_handles._Part.results, threading.Event()
    waiting = threading.Event()

    def late(part: worker_handles._Part, *batch: int):
        if part.lagging:
            waiting.set()
            assert arrived.wait(PATIENCE_S)
        return results(part, *batch)

    running = start(slow_batch_ms=MS)
    with hosted.process(running.settings, "w1") as worker:
        worker.wait()

        def there() -> None:
            put_in_group(source, "slow", "reports")
            hosted.place(source, "slow", worker="w1")

        create(running, database, "slow", SLOW, between=there)
        create(running, database, "quick", QUICK)
        aside(running, source, "reports")
        settle(running, source)
        monkeypatch.setattr(worker_handles._Part, "results", late)
        try:
            for n in range(100, 120):
                source.execute("INSERT INTO orders VALUES (%s, %s, 1)", (n, n % 3))
                wait_until(lambda: differs(source, "quick", QUICK) == [], "the quick one is there")
            assert waiting.wait(PATIENCE_S)
            assert differs(source, "slow", SLOW) != []
        finally:
            arrived.set()
        check(running, source, quick=QUICK, slow=SLOW)


def test_a38_what_has_gathered_is_taken_as_one(source, database, start, stay, monkeypatch):
    running = start(slow_batch_ms=MS)
    slow = grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    lengths = []
    read = LogCursor.read

    def spied(cursor: LogCursor, last: int, *more):
        lengths.append(last - cursor.txid)
        return read(cursor, last, *more)

    monkeypatch.setattr(LogCursor, "read", spied)
    works = running.book.views[slow].works
    with standing_still(source):
        for n in range(100, 140):
            source.execute("INSERT INTO orders VALUES (%s, %s, 1)", (n, n % 3))
            wait_until(lambda: differs(source, "quick", QUICK) == [], "the quick one is there")
    check(running, source, quick=QUICK, slow=SLOW)
    assert sum(lengths) >= 40
    assert max(lengths) > 10
    assert running.book.views[slow].works - works <= len(lengths) < 20


def test_who_is_quick_again_comes_back(source, database, start, visiting):
    running = start(slow_batch_ms=MS)
    grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    wait_until(lambda: not running.book.lagging.groups, "it is back, though nothing happens")
    rng = random.Random(2)
    for _ in range(20):
        change(source, rng, 3)
    check(running, source, quick=QUICK, slow=SLOW)


def test_what_is_shared_between_the_lanes(source, database, start, visiting):
    """One group reads what the main lane sends; later it keeps that for itself, and back."""
    running = start(slow_batch_ms=MS)
    slow = "SELECT name, s AS dear FROM (" + SUMS + ") x"
    over = "SELECT s, count(*) AS c FROM (" + SUMS + ") x GROUP BY s"
    grouped(running, source, database, "reports", "slow", slow)
    grouped(running, source, database, "reports", "over", over)
    create(running, database, "sums", SUMS)
    rng = random.Random(3)
    for n in range(30):
        change(source, rng, 3)
        settle(running, source)
        if n % 10 == 0:
            wait_until(lambda: not running.book.lagging.groups, "they are back")
    assert "reports" in visiting
    check(running, source, slow=slow, over=over, sums=SUMS)
    [sums] = [v.id for v in running.book.views.values() if v.target.table_name == "sums"]
    running.on(lambda: running.engine.lifecycle.pause(sums))
    for _ in range(20):
        change(source, rng, 3)
    check(running, source, slow=slow, over=over)
    running.on(lambda: running.engine.lifecycle.resume(sums))
    for _ in range(20):
        change(source, rng, 3)
    check(running, source, slow=slow, over=over, sums=SUMS)


def test_it_is_left_out_of_checkpoints_only_while_it_works(source, database, start, stay):
    running = start(slow_batch_ms=MS, checkpoint_txids=1)
    slow = grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    rng = random.Random(4)
    view = running.book.views[slow]
    for _ in range(5):
        before = view.durable.txid
        change(source, rng, 3)
        wait_until(lambda b=before: view.durable.txid > b, "its state is durable")
    check(running, source, quick=QUICK, slow=SLOW)


@pytest.fixture
def exclusive(monkeypatch) -> list[bool]:
    """Check that no checkpoint ends while a thread works on its units; record whether one worked."""
    found: list[bool] = []
    working: list[object] = []
    run, end = coalesced_batch.CoalescedBatch.run, RocksDatabase.end_checkpoint

    def ran(batch, *more):
        working.extend(unit.store for unit in batch.units)
        try:
            done = run(batch, *more)
            threading.Event().wait(0.01)  # as if it worked for longer
            return done
        finally:
            working.clear()

    def ended(database: RocksDatabase, checkpoint) -> None:
        assert not [store for store, _ in checkpoint.stores if store in working]
        found.append(bool(working))
        end(database, checkpoint)

    monkeypatch.setattr(coalesced_batch.CoalescedBatch, "run", ran)
    monkeypatch.setattr(RocksDatabase, "end_checkpoint", ended)
    return found


def test_views_that_lag_go_on_while_a_checkpoint_is_written(
    source, database, start, stay, monkeypatch
):
    running, rng = start(slow_batch_ms=MS, checkpoint_txids=50), random.Random(4)
    slow = grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    running.on(running.engine.durability.finish)
    released, write = threading.Event(), RocksCheckpoint.write

    def held(checkpoint: RocksCheckpoint, *, sync: bool) -> None:
        if slow in running.book.checkpoints.units:
            released.wait(PATIENCE_S)
        write(checkpoint, sync=sync)

    monkeypatch.setattr(RocksCheckpoint, "write", held)
    for _ in again_and_again(PATIENCE_S):
        change(source, rng, 3)
        if slow in running.on(lambda: running.book.checkpoints.units):
            break
    else:
        pytest.fail("no checkpoint has its states")
    for _ in range(5):
        change(source, rng, 3)
        check(running, source, quick=QUICK, slow=SLOW)
    assert running.book.checkpoints.underway
    released.set()
    running.stop()


def test_what_waits_for_a_checkpoint_does_not_wait_for_a_view_that_works_for_ever(
    source, database, start, stay, monkeypatch
):
    """Its batch is given up and processed again, so that the view stays exact and goes on."""
    running, rng = start(slow_batch_ms=MS, checkpoint_txids=50), random.Random(9)
    slow = grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    working, ended = threading.Event(), threading.Event()
    write, end = RocksCheckpoint.write, Dataflow.end

    def held(checkpoint: RocksCheckpoint, *, sync: bool) -> None:
        if slow in running.book.checkpoints.units:
            working.wait(PATIENCE_S)
        write(checkpoint, sync=sync)

    def endless(flow: Dataflow, txid: int):
        own = flow is running.book.views[slow].dataflow
        if own and slow in running.book.checkpoints.units:
            working.set()
            while not ended.wait(0.01):
                bounds.check()
        return end(flow, txid)

    monkeypatch.setattr(RocksCheckpoint, "write", held)
    monkeypatch.setattr(Dataflow, "end", endless)
    for _ in again_and_again(PATIENCE_S):
        change(source, rng, 3)
        if working.is_set():
            break
    assert working.wait(PATIENCE_S), "no batch has met a checkpoint"
    still = running.engine.submit(running.engine.durability.still, quiet=False)
    try:
        still.result(PATIENCE_S)
    finally:
        ended.set()
    assert running.book.views[slow].live
    change(source, rng, 3)
    check(running, source, quick=QUICK, slow=SLOW)
    running.stop()


def test_a_checkpoint_ends_when_no_unit_of_it_is_worked_on(
    source, database, start, stay, exclusive
):
    running, rng = start(slow_batch_ms=MS, checkpoint_txids=1), random.Random(7)
    grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    for _ in again_and_again(PATIENCE_S):
        change(source, rng, 3)
        if len(exclusive) > 50:
            break
    check(running, source, quick=QUICK, slow=SLOW)
    running.stop()


def test_what_is_left_out_of_a_checkpoint_is_not_confirmed(
    source, database, start, stay, monkeypatch
):
    """After a kill at any time, the stream still has the changes that its state lacks."""
    monkeypatch.setattr(policy, "_LEAVES_OUT_S", 0.0)
    running = start(slow_batch_ms=MS, checkpoint_txids=1, feedback_interval_ms=10)
    slow = grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    rng = random.Random(6)
    left_out = 0

    def look() -> None:
        nonlocal left_out
        book = running.book
        view = book.views[slow]
        left_out += book.lagging.awaited
        if view.durable.txid < book.position.txid:
            assert book.confirmed <= book.needs(view.durable)

    for _ in again_and_again(PATIENCE_S):
        change(source, rng, 3)
        for _ in range(20):
            running.engine.submit(look, quiet=False).result(PATIENCE_S)
        if left_out > 20:
            break
    check(running, source, quick=QUICK, slow=SLOW)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 40))]
)
def test_it_goes_on_after_anything(source, database, start, visiting, exclusive, seed):
    """Pauses, locks, lost connections, stops, while groups go back and forth."""
    rng = random.Random(seed)
    changes = {"slow_batch_ms": MS, "lock_timeout_ms": 100, "checkpoint_txids": 3}
    changes["wal_retention"] = rng.choice(("local", "source"))
    running = start(**changes)
    slow = grouped(running, source, database, "reports", "slow", SLOW)
    more = "SELECT name, s AS dear FROM (" + SUMS + ") x"
    grouped(running, source, database, "more", "more", more)
    create(running, database, "quick", QUICK)
    create(running, database, "sums", SUMS)
    for _ in range(25):
        change(source, rng, 3)
        what = rng.choice(("nothing", "pause", "lock", "lose", "stop", "settle"))
        if what == "pause":
            told(running, partial(running.engine.lifecycle.pause, slow))
            change(source, rng, 2)
            told(running, partial(running.engine.lifecycle.resume, slow))
        elif what == "lock":
            with locked(database, rng.choice(("slow", "quick", "more"))):
                change(source, rng, 2)
                threading.Event().wait(rng.choice((0.05, 0.3)))
        elif what == "lose":
            source.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE %s",
                (rng.choice(("headrace lagging%", "headrace sink%", "headrace stream%")),),
            )
        elif what == "stop":
            running.stop()
            running = start(**changes)
        elif what == "settle":
            settle(running, source)
    assert visiting
    wait_until(
        lambda: all(view.live for view in list(running.book.views.values())), "all go on again"
    )
    check(running, source, quick=QUICK, slow=SLOW, more=more, sums=SUMS)


@pytest.mark.parametrize("retention", ["local", "source"])
def test_no_other_view_notices_a_view_that_catches_up(source, database, start, retention):
    """The stream goes on, and the other views process each txid once."""
    source.execute("CREATE TABLE due (id int PRIMARY KEY, at timestamptz)")
    queries = {
        "quick": QUICK,
        "sums": SUMS,
        "over": "SELECT s, count(*) AS c FROM (" + SUMS + ") x GROUP BY s",
        "late": "SELECT id FROM due WHERE at < now()",
        # It reads what "sums" and "over" read, and stands still with none of them.
        "also": "SELECT name, s FROM (" + SUMS + ") x",
    }
    running = start(wal_retention=retention, clock_interval_ms=20, lock_timeout_ms=50)
    ids = {name: create(running, database, name, query) for name, query in queries.items()}
    book, rng = running.book, random.Random(11)
    stream, quick = book.stream, book.views[ids["quick"]]

    def more() -> None:
        for _ in range(5):
            change(source, rng, 2)
            source.execute(
                "INSERT INTO due SELECT coalesce(max(id), 0) + 1, clock_timestamp() FROM due"
            )
            settle(running, source)

    for name in ("sums", "over", "late"):
        running.on(partial(running.engine.lifecycle.pause, ids[name]))
    more()
    for name in ("over", "late", "sums"):
        running.on(partial(running.engine.lifecycle.resume, ids[name]))
        more()
    for name in ("sums", "late"):
        with locked(database, name):
            more()
            wait_until(lambda n=name: not book.views[ids[n]].live, f"{name} is blocked")
            more()
        wait_until(lambda n=name: book.views[ids[n]].live, f"{name} goes on")
    again = create(running, database, "again", SUMS, between=more)
    wait_until(lambda: book.views[again].processed == book.taken.txid, "it has caught up")
    check(running, source, again=SUMS, **{n: q for n, q in queries.items() if n != "late"})
    wait_until(lambda: differs(source, "late", queries["late"]) == [], "time has passed")
    wait_until(lambda: not book.index.catching_up, "all lead again")
    assert book.stream is stream
    assert quick.works <= book.taken.txid, "it has processed no txid twice"


def test_no_other_view_notices_a_view_on_a_worker_that_catches_up(
    source, database, start, tmp_path, monkeypatch
):
    """Neither if it was paused, nor if its worker was lost, nor if it was just created there."""
    there = "SELECT name, s FROM (" + SUMS + ") x"
    following, taken = catching_up.CatchingUp._next, []

    def spied(side: catching_up.CatchingUp):
        found = following(side)
        if found is not None:
            taken.extend((unit.id, found.last - found.first) for unit in found.remote.units)
        return found

    monkeypatch.setattr(catching_up.CatchingUp, "_next", spied)
    running = start(lock_timeout_ms=50)
    with hosted.process(running.settings, "w1") as worker:
        worker.wait()
        placed = partial(hosted.place, source, worker="w1")
        quick = create(running, database, "quick", QUICK)
        whole = create(running, database, "there", there, between=lambda: placed("there"))
        cut = partial(hosted.cut, source, "parted", {"reduce": "w1"})
        part = create(running, database, "parted", SUMS, between=cut)
        book, rng = running.book, random.Random(11)
        stream = book.stream

        def more() -> None:
            for _ in range(6):
                change(source, rng, 2)
                settle(running, source)

        def lead() -> None:
            wait_until(
                lambda: (
                    all(book.views[v].live for v in (whole, part)) and not book.index.catching_up
                ),
                "all lead again",
            )

        for view in (whole, part):
            running.on(partial(running.engine.lifecycle.pause, view))
        more()
        for view in (part, whole):
            running.on(partial(running.engine.lifecycle.resume, view))
            more()
        lead()
        worker.kill()
        more()
        worker.start()
        lead()
        with locked(database, "there"):
            more()
            wait_until(lambda: not book.views[whole].live, "it is blocked")
            more()
        lead()

        def between() -> None:
            placed("again")
            more()

        create(running, database, "again", there, between=between)
        lead()
        check(running, source, quick=QUICK, there=there, parted=SUMS, again=there)
        assert book.stream is stream
        assert book.views[quick].works <= book.taken.txid, "it has processed no txid twice"
        assert any(unit == whole and length for unit, length in taken), "batches were coalesced"
        assert {length for unit, length in taken if unit < 0} == {0}, "a part takes each by itself"
        running.stop()


def test_a41_the_latency_decides_who_runs_first(source, database, start, monkeypatch):
    """Two groups are equally far behind; the one that may be less late has its batches first."""
    monkeypatch.setattr(policy, "COALESCED_TXIDS", 1)
    running = start()
    queries = {"one": QUICK, "two": SUMS}
    ids = {
        name: grouped(running, source, database, name, name, query)
        for name, query in queries.items()
    }
    book, lifecycle, rng = running.book, running.engine.lifecycle, random.Random(12)
    order: list[str] = []
    run = coalesced_batch.CoalescedBatch.run

    def noted(batch: coalesced_batch.CoalescedBatch, *more):
        order.extend(name for name, view_id in ids.items() if book.views[view_id] in batch.views)
        return run(batch, *more)

    monkeypatch.setattr(coalesced_batch.CoalescedBatch, "run", noted)

    def go_on() -> None:
        for view_id in ids.values():
            lifecycle.resume(view_id)

    for urgent, other in (("one", "two"), ("two", "one")):
        for name, latency_ms in ((urgent, 0), (other, 60_000)):
            source.execute(
                "UPDATE headrace.views SET options = options || jsonb_build_object('latency_ms', %s::int)"
                " WHERE view_name = %s",
                (latency_ms, name),
            )
            running.on(partial(lifecycle.look_again, ids[name]))
        for view_id in ids.values():
            running.on(partial(lifecycle.pause, view_id))
        last = book.taken.txid
        while book.taken.txid < last + 30:
            change(source, rng)
            settle(running, source)
        order.clear()
        running.on(go_on)
        wait_until(lambda: not book.index.catching_up, "both lead again")
        check(running, source, **queries)
        last = len(order) - order[::-1].index(urgent)
        before = order[:last].count(other)
        assert order.count(urgent) > 25, "one txid after the other"
        assert before < order.count(urgent) / 2, order


def test_a_shared_subplan_goes_ahead_of_its_readers_in_coalesced_batches(
    source, database, start, stay, monkeypatch
):
    """Its batches end where those of another one do, so readers of both have common ends."""
    running = start(slow_batch_ms=MS)
    slow = "SELECT name, s AS dear FROM (" + SUMS + ") x"
    over = "SELECT s, count(*) AS c FROM (" + SUMS + ") x GROUP BY s"
    grouped(running, source, database, "reports", "slow", slow)
    grouped(running, source, database, "reports", "over", over)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    following = catching_up.CatchingUp._next
    subplans: list[tuple[int, int]] = []
    views: list[int] = []

    def spied(side: catching_up.CatchingUp):
        found = following(side)
        if found is not None:
            txids = found.last - found.first + 1
            if any(isinstance(unit, Shared) for unit in found.units):
                assert not found.views
                subplans.append((found.first - 1, txids))
            else:
                views.append(txids)
        return found

    monkeypatch.setattr(catching_up.CatchingUp, "_next", spied)
    with standing_still(source):
        for n in range(100, 120):
            source.execute("INSERT INTO orders VALUES (%s, %s, 1)", (n, n % 3))
            wait_until(lambda: differs(source, "quick", QUICK) == [], "the quick one is there")
    check(running, source, quick=QUICK, slow=slow, over=over)
    assert max(txids for _, txids in subplans) >= 4
    assert all(txids & -txids == txids and at % txids == 0 for at, txids in subplans)
    assert max(views) >= 10


def test_what_a_later_look_at_the_catalog_has_shown_is_not_looked_for_again(
    source, database, start, monkeypatch
):
    """Each transaction describes the table again, because it was altered.

    The views share a subplan, which takes each txid by itself.
    """
    over = "SELECT s, count(*) AS c FROM (" + SUMS + ") x GROUP BY s"
    running = start()
    views = [create(running, database, n, q) for n, q in {"one": SUMS, "two": over}.items()]
    create(running, database, "quick", QUICK)
    test_sharing.joined(running)
    for view in views:
        running.on(partial(running.engine.lifecycle.pause, view))
    for n in range(100, 130):
        source.execute(f"ALTER TABLE orders ALTER n SET STATISTICS {n}")
        source.execute("INSERT INTO orders VALUES (%s, %s, 1)", (n, n % 3))
        settle(running, source)
    checks, asked, described = [], [], []
    look, ask, describe = Watch._check, Watch.check_lagging, cursor._Tables.described

    def checked(watch: Watch, views) -> dict:
        checks.append(views)
        return look(watch, views)

    def asked_for(watch: Watch, found, takers):
        asked.append(found)
        return ask(watch, found, takers)

    def noted(tables: cursor._Tables, found) -> dict:
        described.extend(found)
        return describe(tables, found)

    monkeypatch.setattr(Watch, "_check", checked)
    monkeypatch.setattr(Watch, "check_lagging", asked_for)
    monkeypatch.setattr(cursor._Tables, "described", noted)
    for view in views:
        running.on(partial(running.engine.lifecycle.resume, view))
    check(running, source, one=SUMS, two=over, quick=QUICK)
    assert len(described) >= 30
    assert len(checks) <= 10
    assert len(asked) <= 10, "the engine's thread is asked although the facts are known"


def test_what_lags_is_told_by_a_row_of_the_log(source, database, start):
    running = start()
    ids = [create(running, database, name, QUICK) for name in ("first", "second")]
    running.on(partial(running.engine.lifecycle.pause, ids[0]))
    rng = random.Random(12)
    for _ in range(5):
        change(source, rng, 2)
        settle(running, source)

    def rows() -> list[tuple[object, bool]]:
        found = insight.queues(running.book)
        return [(row["views"], row["head_txid"] < running.book.taken.txid) for row in found]

    assert running.on(rows) == [(None, False)]

    def resumed() -> list[tuple[object, bool]]:
        running.engine.lifecycle.resume(ids[0])
        return rows()

    assert running.on(resumed) == [(None, False), ((ids[0],), True)]
    settle(running, source)
    wait_until(lambda: running.on(rows) == [(None, False)], "it leads again")


def test_who_reads_the_clock_stays(source, database, start, stay):
    running = start(slow_batch_ms=MS)
    slow = SLOW.replace("GROUP BY", "WHERE now() > '2020-01-01' GROUP BY")
    grouped(running, source, database, "reports", "slow", slow)
    create(running, database, "quick", QUICK)
    rng = random.Random(5)
    for _ in range(10):
        change(source, rng, 2)
        settle(running, source)
        assert not running.book.lagging.groups
    check(running, source, quick=QUICK, slow=slow)


def test_who_reads_the_clock_brings_its_group_back(source, database, start, stay):
    running = start(slow_batch_ms=MS, clock_interval_ms=20)
    grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    source.execute(
        "CREATE TABLE due (id int PRIMARY KEY, at timestamptz);"
        "INSERT INTO due SELECT i, clock_timestamp() + i * interval '1 s'"
        " FROM generate_series(1, 3) i"
    )
    grouped(running, source, database, "reports", "late", "SELECT id FROM due WHERE at < now()")
    wait_until(lambda: not running.book.lagging.groups, "they are back")
    wait_until(
        lambda: source.execute("SELECT count(*) FROM late").fetchone() == (3,),
        "time has passed, though nothing has happened",
    )
    rng = random.Random(6)
    for _ in range(10):
        change(source, rng, 2)
    check(running, source, quick=QUICK, slow=SLOW)


@pytest.mark.parametrize("retention", ["local", "source"])
@pytest.mark.parametrize("error", [NoRoom("they hold as much as they may"), OSError(28, "full")])
def test_the_log_has_no_room(source, database, start, stay, monkeypatch, retention, error):
    """All views then lead, and the stream is replayed for those that lag."""
    running = start(slow_batch_ms=MS, wal_retention=retention)
    grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    put, failed = Queue.put, []

    def full(queue: Queue, *frame):
        if queue.name.startswith("intake") and len(failed) < 1:
            failed.append(frame)
            raise error
        return put(queue, *frame)

    monkeypatch.setattr(Queue, "put", full)
    rng = random.Random(7)
    for _ in range(10):
        change(source, rng, 3)
    check(running, source, quick=QUICK, slow=SLOW)
    assert failed
    assert not running.book.lagging.groups


def test_who_fails_there_stops_alone_at_the_txid_before(source, database, start, stay):
    """The view stops at the row that fails; the rest of its coalesced batch goes on without it."""
    running = start(slow_batch_ms=MS)
    bad = "SELECT item, 100 / sum(n) AS dear FROM orders WHERE item > 90 GROUP BY item"
    failing = grouped(running, source, database, "reports", "bad", bad)
    grouped(running, source, database, "reports", "slow", SLOW)
    create(running, database, "quick", QUICK)
    aside(running, source, "reports")
    with standing_still(source):
        for n in range(5):
            source.execute("INSERT INTO orders VALUES (%s, 91, 7)", (900 + n,))
            wait_until(lambda: differs(source, "quick", QUICK) == [], "the quick one is there")
        source.execute("INSERT INTO orders VALUES (990, 92, 0)")
        source.execute("INSERT INTO orders VALUES (991, 93, 3)")
    view = running.book.views[failing]
    wait_until(lambda: view.status == "error", lambda: f"it is {view.status}")
    assert "division by zero" in view.message
    check(running, source, quick=QUICK, slow=SLOW)
    # Changes in the row's batch or later are missing; earlier ones may be in its coalesced batch.
    found = {item for (item,) in source.execute("SELECT item FROM bad")}
    assert found <= {91}
    change(source, random.Random(9), 5)
    check(running, source, quick=QUICK, slow=SLOW)


def test_nothing_waits_for_a_view_that_fails_there(source, database, start, monkeypatch):
    """A view that stops waits for batches in flight, but not for its own: that is processed."""
    monkeypatch.setattr(engine, "_DRAIN_S", 4 * PATIENCE_S)  # only an answer ends a wait
    running = start()
    bad = "SELECT item, 100 / sum(n) AS dear FROM orders WHERE item > 90 GROUP BY item"
    failing = create(running, database, "bad", bad)
    create(running, database, "quick", QUICK)
    running.on(lambda: running.engine.lifecycle.pause(failing))
    source.execute("INSERT INTO orders VALUES (990, 92, 0)")
    check(running, source, quick=QUICK)
    running.on(lambda: running.engine.lifecycle.resume(failing))
    view = running.book.views[failing]
    wait_until(lambda: view.status == "error", lambda: f"it is {view.status}")
    change(source, random.Random(9), 5)
    check(running, source, quick=QUICK)
