"""Parts of views that read parts on other workers: exact whichever process is killed, and when."""

from __future__ import annotations

import random
from contextlib import ExitStack
from functools import partial

import pytest

from headrace.collections.dataflow import Dataflow
from headrace.errors import Interrupted, TransientError
from headrace.network.sender import _WAITING_BYTES_MAX
from headrace.runtime import batches, row_transfer
from headrace.runtime.leaving import TRIES_MAX
from headrace.runtime.worker_handles import RemoteBatch
from headrace.sql.status import Status
from tests.compared import differs, status_of
from tests.runtime import test_sharing
from tests.runtime.disturbances import disturb, disturb_processes
from tests.runtime.harness import check, no_checkpoints
from tests.runtime.hosted import hosting, process, reached
from tests.runtime.test_cut import BOTH, crashed, cut, parts, states
from tests.runtime.test_sharing import MOST, SUMS, change, create
from tests.waiting import wait_until

TABLES = test_sharing.TABLES


def test_a_part_reads_a_part_on_another_worker(source, database, start):
    running = start()
    with hosting(running.settings, "w1") as one, hosting(running.settings, "w2") as two:
        view = cut(running, source, database, "sums", SUMS, {"reduce": "w1", "join": "w2"})
        create(running, database, "most", MOST)
        for n in range(20):
            change(source, random.Random(n), 3)
        check(running, source, sums=SUMS, most=MOST)
        higher, lower = parts(running, view)
        assert (one.units, two.units) == ({higher.id}, {lower.id})
        assert list(higher.feeds.values()) == [lower.id]
        assert running.book.views[view].feeds == {higher.plan.sink.input: higher.id}
        assert states(one._units[higher.id].here) == {"reduce"}
        assert states(two._units[lower.id].here) == {"join", "source"}
        source.execute("DELETE FROM headrace.views WHERE id = %s", (view,))
        running.on(lambda: running.engine.lifecycle.drop(view))
        assert not running.book.subplans
        change(source, random.Random(1), 3)
        check(running, source, most=MOST)
        assert not one.units | two.units
        running.stop()


def test_rows_come_back_to_the_worker_that_sent_them(source, database, start):
    """A join on w1 is read by two groups on w2, which a join on w1 reads."""
    running = start()
    with hosting(running.settings, "w1"), hosting(running.settings, "w2"):
        view = cut(running, source, database, "pairs", BOTH, {"reduce": "w2", "join": "w1"})
        for n in range(20):
            change(source, random.Random(n), 3)
        check(running, source, pairs=BOTH)
        found = {part.id: part for part in parts(running, view)}
        edges = {
            (found[feeder].shown, found[feeder].placed, part.shown, part.placed)
            for part in found.values()
            for feeder in part.feeds.values()
        }
        assert edges == {("join", "w1", "reduce", "w2"), ("reduce", "w2", "join", "w1")}
        assert len(found) == 4
        running.stop()


def nested(running, source, dsn: str) -> dict[str, tuple[int, str]]:
    """Create views of two and three levels of parts; return id and query of each, by name."""
    views = {
        "sums": (SUMS, {"reduce": "w2", "join": "w1"}),
        "pairs": (BOTH, {"reduce": "w2", "join": "w1"}),
    }
    return {
        name: (cut(running, source, dsn, name, query, workers), query)
        for name, (query, workers) in views.items()
    }


def advanced(running, source, views: dict[str, tuple[int, str]], **others: str) -> None:
    """Wait until the views go on, and check them, and more queries by name."""
    for view, _ in views.values():
        reached(running, view)
    queries = {name: query for name, (_, query) in views.items()}
    check(running, source, **queries, **others)


@pytest.mark.parametrize("number", [0, 1])
def test_the_worker_of_a_higher_or_lower_part_is_killed(source, database, start, number):
    """The parts may be at different txids afterwards; each reads the output that it lacks."""
    running = start()
    with ExitStack() as stack:
        processes = [stack.enter_context(process(running.settings, n)) for n in ("w1", "w2")]
        for one in processes:
            one.wait()
        views = nested(running, source, database)
        create(running, database, "most", MOST)
        change(source, random.Random(1), 10)
        advanced(running, source, views, most=MOST)
        # Not all of the finished work is durable.
        running.on(running.engine.durability.finish)
        no_checkpoints(running)
        change(source, random.Random(3), 10)
        advanced(running, source, views, most=MOST)
        before = running.book.reconnects
        processes[number].kill()
        wait_until(
            lambda: all(status_of(source, name)[0] == Status.SINK_ERROR for name in views),
            "they stand still",
        )
        behind = {p.id for p in parts(running, views["pairs"][0]) if not p.reachable}
        assert behind
        change(source, random.Random(2), 10)
        check(running, source, most=MOST)
        processes[number].start()
        advanced(running, source, views, most=MOST)
        change(source, random.Random(4), 10)
        advanced(running, source, views, most=MOST)
        assert running.book.reconnects == before
        running.stop()


def test_a_row_that_a_lower_part_cannot_compute_stops_the_view(source, database, start):
    query = (
        "SELECT i.name, sum(o.n) AS s FROM items i JOIN orders o ON o.item = i.id"
        " AND 100 / o.n >= 0 GROUP BY i.name"
    )
    running = start()
    source.execute("UPDATE orders SET n = n + 1")
    with hosting(running.settings, "w1") as one, hosting(running.settings, "w2") as two:
        workers = {"reduce": "w1", "join": "w2"}
        cut(running, source, database, "quotients", query, workers)
        cut(running, source, database, "sums", SUMS, workers)
        source.execute("INSERT INTO orders VALUES (1000, 1, 0)")
        wait_until(lambda: status_of(source, "quotients")[0] == Status.ERROR, "it has stopped")
        assert status_of(source, "quotients")[1] == "22012"
        check(running, source, sums=SUMS)
        assert (len(one.units), len(two.units)) == (1, 1)
        assert len(running.book.subplans) == 2
        running.stop()


def test_a_higher_part_that_fails_goes_on_with_the_output_of_the_lower(
    source, database, start, monkeypatch
):
    """The lower part has the batch; the higher one reads its output from the queue."""
    running = start()
    with hosting(running.settings, "w1"), hosting(running.settings, "w2"):
        view = cut(running, source, database, "sums", SUMS, {"reduce": "w1", "join": "w2"})
        change(source, random.Random(1), 5)
        check(running, source, sums=SUMS)
        higher, lower = parts(running, view)
        recalled = []
        recall = batches._recall

        def spied(shared, outcome) -> None:
            recall(shared, outcome)
            recalled.append((shared.id, outcome.frames.txid))

        monkeypatch.setattr(batches, "_recall", spied)
        feed, failures = Dataflow.feed, [Interrupted("not now", sqlstate="57014")] * 2

        def failing(flow, node, diffs) -> None:
            if failures and node == lower.plan.sink.input:
                raise failures.pop()
            feed(flow, node, diffs)

        monkeypatch.setattr(Dataflow, "feed", failing)
        source.execute("INSERT INTO orders VALUES (1000, 1, 7)")
        wait_until(lambda: not failures, "it has failed")
        wait_until(lambda: running.book.views[view].leads, "it leads again")
        change(source, random.Random(2), 5)
        check(running, source, sums=SUMS)
        assert {shared for shared, _ in recalled} >= {lower.id}
        assert higher.processed == lower.processed
        running.stop()


def test_an_interrupted_lower_part_is_tried_as_often_as_any_unit(
    source, database, start, monkeypatch
):
    """Its readers fail with it, which is no further try."""
    running = start(sink_retry_ms=10)
    with hosting(running.settings, "w1"), hosting(running.settings, "w2"):
        view = cut(running, source, database, "sums", SUMS, {"reduce": "w1", "join": "w2"})
        change(source, random.Random(1), 5)
        check(running, source, sums=SUMS)
        end = Dataflow.end
        failures = [Interrupted("not now", sqlstate="57014")] * (TRIES_MAX - 1)

        def failing(flow, *args):
            if failures and flow.tables:
                raise failures.pop()
            return end(flow, *args)

        monkeypatch.setattr(Dataflow, "end", failing)
        source.execute("INSERT INTO orders VALUES (1000, 1, 7)")
        wait_until(lambda: not failures or not running.book.views[view].owned, "it has failed")
        assert running.book.views[view].owned
        wait_until(lambda: running.book.views[view].leads, "it leads again")
        check(running, source, sums=SUMS)
        running.stop()


def test_a_higher_part_is_replayed_from_the_queue_of_the_lower(
    source, database, start, monkeypatch
):
    """The view has the batches and leads, so that only the higher part has to catch up."""
    running = start()
    with process(running.settings, "w1") as one, hosting(running.settings, "w2"):
        one.wait()
        view = cut(running, source, database, "sums", SUMS, {"reduce": "w1", "join": "w2"})
        change(source, random.Random(1), 5)
        check(running, source, sums=SUMS)
        running.on(running.engine.durability.finish)
        no_checkpoints(running)
        change(source, random.Random(2), 5)
        check(running, source, sums=SUMS)
        higher, lower = parts(running, view)
        catching_up = running.engine._catching_up
        with monkeypatch.context() as patched:
            patched.setattr(catching_up, "step", lambda: None)
            one.kill()
            wait_until(lambda: status_of(source, "sums")[0] == Status.SINK_ERROR, "it stands still")
            one.start()
            reached(running, view)
            assert higher.processed < lower.processed == running.book.views[view].processed
            running.on(running.engine.rewind_soon)
            wait_until(lambda: running.book.views[view].leads, "it leads")
            change(source, random.Random(3), 5)
            check(running, source, sums=SUMS)
        assert higher.processed == lower.processed
        running.stop()


def test_a_lower_part_may_send_more_than_all_queues_hold(source, database, start, monkeypatch):
    """Each side of a link holds some megabytes of rows, and no worker waits for another one."""
    query = (
        "SELECT a.name, count(*) AS n, max(b.name) AS last"
        " FROM items a JOIN items b ON a.id % 2 = b.id % 2 GROUP BY a.name"
    )
    running = start()
    with process(running.settings, "w1") as one, process(running.settings, "w2") as two:
        views = {}
        for worker in (one, two):
            worker.wait()
        for name, workers in (
            ("one", {"reduce": "w1", "join": "w2"}),
            ("two", {"reduce": "w2", "join": "w1"}),
        ):
            views[name] = cut(running, source, database, name, query, workers), query
        sent = []
        hand_on = RemoteBatch._hand_on

        def spied(batch, part, outcome) -> None:
            hand_on(batch, part, outcome)
            sent.extend(diffs.nbytes for diffs in outcome.sent.get(part.id, ()))

        monkeypatch.setattr(RemoteBatch, "_hand_on", spied)
        source.execute(
            "INSERT INTO items SELECT i, repeat('x', 100) || i % 9 FROM generate_series(1000, 1900) i"
        )
        wait_until(lambda: not any(differs(source, name, query) for name in views), "they follow")
        assert max(sent) > _WAITING_BYTES_MAX + row_transfer._WAITING_BYTES_MAX
        change(source, random.Random(2), 5)
        advanced(running, source, views)
        running.stop()


def test_a_batch_of_units_that_lag_is_given_up_on_all_workers(source, database, start, monkeypatch):
    """The lower part has answered already when the higher one cannot go on."""
    running = start()
    with hosting(running.settings, "w1"), hosting(running.settings, "w2"):
        view = cut(running, source, database, "sums", SUMS, {"reduce": "w1", "join": "w2"})
        change(source, random.Random(1), 5)
        check(running, source, sums=SUMS)
        higher, lower = parts(running, view)
        troubles = [TransientError("not now")] * 2
        running.on(lambda: running.engine.lifecycle.pause(view))
        change(source, random.Random(2), 5)
        create(running, database, "most", MOST)
        check(running, source, most=MOST)
        feed = Dataflow.feed

        def failing(flow, node, diffs) -> None:
            if troubles and node == lower.plan.sink.input:
                raise troubles.pop()
            feed(flow, node, diffs)

        monkeypatch.setattr(Dataflow, "feed", failing)
        recalled = []
        recall = batches._recall

        def spied(shared, outcome) -> None:
            recall(shared, outcome)
            recalled.append((shared.id, dict(outcome.forgotten)))

        monkeypatch.setattr(batches, "_recall", spied)
        running.on(lambda: running.engine.lifecycle.resume(view))
        check(running, source, sums=SUMS)
        assert not troubles
        assert higher.processed == lower.processed
        # Output that no unit of a batch reads may be gone, and is not looked for.
        assert {shared for shared, _ in recalled} == {higher.id, lower.id}
        assert not any(forgotten for _, forgotten in recalled)
        running.stop()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 40))]
)
def test_it_goes_on_after_anything(source, database, start, seed):
    """Kills and stops of any process, lost connections, locks, pauses."""
    rng = random.Random(seed)
    changes = {"lock_timeout_ms": 100, "checkpoint_txids": 3}
    changes |= {"wal_retention": rng.choice(("source", "local"))}
    running = start(**changes)
    with ExitStack() as stack:
        workers = [stack.enter_context(process(running.settings, n)) for n in ("w1", "w2")]
        for worker in workers:
            worker.wait()
        views = nested(running, source, database)
        create(running, database, "most", MOST)
        kinds = ["kill", "kill", "pause", "lock", "lose", "stop", "settle", "both", "halt"]
        for _ in range(20):
            change(source, rng, 3)
            what = rng.choice([*kinds, *["crash"] * (seed > 1)])
            victim, (view, _) = rng.choice(workers), rng.choice(list(views.values()))
            running = disturb_processes(
                what,
                running,
                rng,
                victim,
                partial(change, source, rng),
                partial(start, **changes),
                lambda engine, w=victim: crashed(engine, source, rng, w),
            )
            tables = ("pairs", "sums", "most")
            disturb(what, running, source, rng, view, tables, partial(change, source, rng))
        for view, _ in views.values():
            reached(running, view)
        wait_until(lambda: all(v.live for v in list(running.book.views.values())), "all go on")
        advanced(running, source, views, most=MOST)
        running.stop()
