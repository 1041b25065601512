"""Views with parts on other workers: results are exact whichever process is killed, and when."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Iterator
from functools import partial

import pytest

from headrace.errors import BugError, StateDamaged
from headrace.network import link
from headrace.process import faults
from headrace.sql.status import Status
from headrace.state import layout
from headrace.state.rocks import RocksDatabase
from tests.compared import status_of
from tests.runtime import hosted, test_sharing
from tests.runtime.disturbances import disturb, disturb_processes
from tests.runtime.harness import Running, check, no_checkpoints, settings_for
from tests.runtime.hosted import HostProcess, hosting, reached
from tests.runtime.test_engine import POINTS, WorkerProcess, assert_consistent
from tests.runtime.test_sharing import MOST, ROWS, SUMS, change, create, killed
from tests.waiting import PATIENCE_S, wait_until

TABLES = test_sharing.TABLES
BOTH = f"SELECT a.name, a.s, b.m FROM ({SUMS}) a FULL JOIN ({MOST}) b ON a.s = b.m + 10"
"""Two groups under a join."""


def cut(running, conn, dsn: str, name: str, query: str, workers: dict[str, str], **more) -> int:
    """Create a view and place parts on other workers, by the kind of each part's last node."""
    placed = {}

    def place() -> None:
        placed.update(hosted.cut(conn, name, workers))

    view = create(running, dsn, name, query, between=place, **more)
    assert placed
    return view


@pytest.fixture
def worker(database, tmp_path) -> Iterator[HostProcess]:
    """Yield worker "w1", a separate process."""
    with hosted.process(settings_for(database, tmp_path / "data"), "w1") as process:
        yield process


def parts(running, view_id: int) -> list:
    return running.on(lambda: running.book.parts_of(running.book.views[view_id]))


def states(store) -> set[str]:
    return {name.partition("_")[0] for name, pairs in store.dump().items() if pairs}


@pytest.mark.parametrize(
    "kind", ["reduce", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("join", "source"))]
)
def test_a_part_is_elsewhere(source, database, start, kind):
    running = start()
    with hosting(running.settings, "w1") as host:
        view = cut(running, source, database, "sums", SUMS, {kind: "w1"})
        create(running, database, "most", MOST)
        for n in range(20):
            change(source, random.Random(n), 3)
        check(running, source, sums=SUMS, most=MOST)
        found = parts(running, view)
        assert len(found) == (2 if kind == "source" else 1)
        assert host.units == {part.id for part in found}
        assert running.book.subplans.keys() == host.units  # "most" shares nothing with it
        here = running.on(lambda: states(running.book.views[view].here))
        there = {name for part in found for name in states(host._units[part.id].here)}
        assert not here & there
        assert "reduce" in (there if kind == "reduce" else here)
        source.execute("DELETE FROM headrace.views WHERE id = %s", (view,))
        running.on(lambda: running.engine.lifecycle.drop(view))
        wait_until(lambda: host.units == set(), "it is gone")
        assert not running.book.subplans
        running.stop()


def test_others_do_not_notice_that_a_worker_is_killed(source, database, start, worker):
    """The view stops and continues: its part catches up alone."""
    running = start()
    worker.wait()
    view = cut(running, source, database, "sums", SUMS, {"join": "w1"})
    create(running, database, "most", MOST)
    change(source, random.Random(1), 10)
    check(running, source, sums=SUMS, most=MOST)
    # Not all of the finished work is durable.
    running.on(running.engine.durability.finish)
    no_checkpoints(running)
    change(source, random.Random(3), 10)
    check(running, source, sums=SUMS, most=MOST)
    before = running.book.reconnects
    [part] = parts(running, view)
    mark = part.mark.txid
    worker.kill()
    wait_until(lambda: status_of(source, "sums")[0] == Status.SINK_ERROR, "it stands still")
    assert "cannot be reached" in status_of(source, "sums")[2]
    change(source, random.Random(2), 10)
    check(running, source, most=MOST)
    worker.start()
    reached(running, view)
    check(running, source, sums=SUMS, most=MOST)
    assert part.mark.txid > mark
    assert part.mark.txid == running.book.views[view].mark.txid
    assert status_of(source, "sums")[0] == Status.RUNNING
    assert running.book.reconnects == before
    running.stop()


@pytest.mark.slow
def test_an_engine_comes_back_without_the_worker(source, database, start, worker):
    running = start()
    worker.wait()
    view = cut(running, source, database, "sums", SUMS, {"reduce": "w1"})
    change(source, random.Random(1), 10)
    check(running, source, sums=SUMS)
    running.stop()
    worker.kill()
    change(source, random.Random(2), 5)
    running = start()
    wait_until(lambda: status_of(source, "sums")[0] == Status.SINK_ERROR, "it stands still")
    change(source, random.Random(3), 5)
    running.stop()
    running = start()
    worker.start()
    reached(running, view)
    change(source, random.Random(4), 5)
    check(running, source, sums=SUMS)
    running.stop()


@pytest.mark.slow
def test_a_worker_that_was_stopped_is_given_up(source, database, start, worker, monkeypatch):
    monkeypatch.setattr(link, "SILENCE_S", 5.0)
    running = start()
    worker.wait()
    view = cut(running, source, database, "sums", SUMS, {"join": "w1"})
    create(running, database, "most", MOST)
    change(source, random.Random(1), 5)
    check(running, source, sums=SUMS, most=MOST)
    worker.kill(signal.SIGSTOP)
    change(source, random.Random(2), 5)
    wait_until(lambda: status_of(source, "sums")[0] == Status.SINK_ERROR, "it stands still")
    check(running, source, most=MOST)
    worker.kill(signal.SIGCONT)
    reached(running, view)
    change(source, random.Random(3), 5)
    check(running, source, sums=SUMS, most=MOST)
    running.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map", "join"])
def test_a_row_that_cannot_be_computed_is_told(source, database, start, worker, kind):
    """The error is reported whether the row fails above the part or in it."""
    running = start()
    worker.wait()
    quotient = "SELECT i.name, 100 / o.n AS q FROM items i JOIN orders o ON o.item = i.id"
    inside = "SELECT i.name, o.n FROM items i JOIN orders o ON o.item = i.id AND 100 / o.n > i.id"
    query = quotient if kind == "map" else inside
    source.execute("UPDATE orders SET n = n + 1")
    cut(running, source, database, "quotients", query, {"join": "w1"})
    cut(running, source, database, "sums", SUMS, {"join": "w1"})
    change(source, random.Random(2), 0)
    source.execute("INSERT INTO orders VALUES (1000, 1, 0)")
    wait_until(lambda: status_of(source, "quotients")[0] == Status.ERROR, "it has stopped")
    assert status_of(source, "quotients")[1] == "22012"
    change(source, random.Random(2), 5)
    check(running, source, sums=SUMS)
    assert len(running.book.subplans) == 1
    running.stop()


@pytest.mark.slow
def test_a_view_waits_for_its_worker_before_it_begins(source, database, start, worker):
    worker.kill()
    running = start()
    view = cut(running, source, database, "sums", SUMS, {"join": "w1"}, adopt=False)
    running.on(lambda: running.engine.lifecycle.adopt(view))
    change(source, random.Random(1), 5)
    wait_until(lambda: status_of(source, "sums")[0] == Status.SINK_ERROR, "it stands still")
    running.stop()
    running = start()
    worker.start()
    reached(running, view)
    check(running, source, sums=SUMS)
    running.stop()


def two_parts(source, name: str) -> None:
    """Place one group of "pairs" on "w1", the other on "w2"."""
    nodes = source.execute("SELECT placed_parts FROM headrace.views").fetchone()[0]
    source.execute(
        "UPDATE headrace.views SET placed_parts = %s WHERE view_name = %s",
        (json.dumps(dict(zip(sorted(nodes), ("w1", "w2"), strict=True))), name),
    )


def test_a_view_waits_for_all_of_its_workers(source, database, start):
    """No worker receives changes before all can be reached."""
    running = start()
    with hosting(running.settings, "w1") as host:
        view = cut(running, source, database, "pairs", BOTH, {"reduce": "w1"}, adopt=False)
        two_parts(source, "pairs")
        running.on(lambda: running.engine.lifecycle.adopt(view))
        change(source, random.Random(1), 5)
        assert status_of(source, "pairs")[0] == Status.SINK_ERROR
        assert not host.units
        assert not running.book.subplans
        with hosting(running.settings, "w2") as other:
            reached(running, view)
            check(running, source, pairs=BOTH)
            assert (len(host.units), len(other.units)) == (1, 1)
            running.stop()


@pytest.mark.slow
def test_a_part_that_was_taken_in_goes_with_a_view_that_never_ran(
    source, database, start, monkeypatch
):
    running = start()
    with hosting(running.settings, "w1") as host, hosting(running.settings, "w2") as other:

        def full(*_) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(other._db, "ingest", full)
        view = cut(running, source, database, "pairs", BOTH, {"reduce": "w1"}, adopt=False)
        two_parts(source, "pairs")
        with pytest.raises(StateDamaged):
            running.on(lambda: running.engine.lifecycle.adopt(view))
        assert len(host.units) == 1
        source.execute("DELETE FROM headrace.views WHERE id = %s", (view,))
        running.on(lambda: running.engine.lifecycle.drop(view))
        wait_until(lambda: not host.units, "it is gone")
        running.stop()


@pytest.mark.slow
def test_a_damaged_state_is_set_aside(source, database, start, worker):
    """The view stops and must be populated again; its state on the other worker is removed."""
    running = start()
    with hosting(running.settings, "w2") as other:
        worker.wait()
        view = cut(running, source, database, "pairs", BOTH, {"reduce": "w1"})
        on_other = cut(running, source, database, "sums", SUMS, {"join": "w2"})
        create(running, database, "most", MOST)
        change(source, random.Random(1), 3)
        check(running, source, pairs=BOTH, most=MOST, sums=SUMS)
        running.on(running.engine.durability.finish)
        for folder in running.settings.staging_dir.iterdir():
            shutil.rmtree(folder)
        worker.kill()
        state = running.settings.of_worker("w1").state_dir
        manifest = next(state.glob("MANIFEST-*"))
        manifest.write_bytes(manifest.read_bytes()[:20])
        worker.start()
        wait_until(lambda: status_of(source, "pairs")[0] == Status.ERROR, "it has stopped")
        assert status_of(source, "pairs")[1] == "55H04"
        change(source, random.Random(2), 3)
        check(running, source, most=MOST, sums=SUMS)
        assert not parts(running, view)
        [left] = parts(running, on_other)
        assert other.units == {left.id}
        running.stop()


@pytest.mark.slow
def test_what_was_sent_is_lost(source, database, start, worker):
    """The worker is ahead of the engine: without the lost results, the view stops."""
    running = start(wal_retention="source")
    worker.wait()
    view = cut(running, source, database, "sums", SUMS, {"join": "w1"})
    change(source, random.Random(1), 5)
    check(running, source, sums=SUMS)
    running.stop()
    killed(running, source, f"{faults.AWAY_WRITTEN}:kill:2", 2)
    shutil.rmtree(running.settings.queue_dir)
    for folder in running.settings.staging_dir.iterdir():
        shutil.rmtree(folder)
    running = start(wal_retention="source")
    wait_until(lambda: status_of(source, "sums")[0] == Status.ERROR, "it has stopped")
    assert status_of(source, "sums")[1:2] == ("55H04",)
    assert "the output of a part of the view is lost" in status_of(source, "sums")[2]
    assert view in running.book.views
    running.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [*POINTS, faults.CHECKPOINT_BEGUN, faults.QUEUES_SYNCED, faults.AWAY_WRITTEN]
)
def test_kill_9_at_every_point(source, database, start, worker, point):
    """The writing process is killed; now and then the worker is killed too before it is back."""
    running = start(feedback_interval_ms=20)
    worker.wait()
    both = cut(running, source, database, "pairs", BOTH, {"reduce": "w1"})
    sums = cut(running, source, database, "sums", SUMS, {"join": "w1"})
    if point != faults.FEEDBACK_SENT:  # nothing is confirmed while it is paused
        running.on(lambda: running.engine.lifecycle.pause(sums))
    change(source, random.Random(12), 5)
    running.stop()
    for seed, times in enumerate((2, 7)):
        killed(running, source, f"{point}:kill:{times}", seed)
        if seed:
            worker.kill()
            worker.start()
    running = start()
    reached(running, both)
    rng = random.Random(13)
    change(source, rng, 5)
    check(running, source, pairs=BOTH)
    running.on(lambda: running.engine.lifecycle.resume(sums))
    change(source, rng, 5)
    reached(running, sums)
    check(running, source, pairs=BOTH, sums=SUMS)
    assert_consistent(running, source)
    running.stop()


def staged(running, view_id: int) -> None:
    """Stage a view's states, as for a move."""
    engine, folder = running.engine, running.settings.staging_dir / str(view_id)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "state").mkdir(parents=True)
    running.hold("move")
    assert running.on(lambda: engine.moving.begin(view_id, "move"))
    facts = None
    while facts is None:
        facts = running.on(lambda: engine.moving.ready(view_id, "move"))
    running.on(lambda: engine.moving.exporter(view_id, "move", folder / "state" / "moved.sst"))()
    runs = [f"state/{path.name}" for path in (folder / "state").iterdir() if path.stat().st_size]
    (folder / "manifest.json").write_text(
        json.dumps({**facts, "runs": runs, "format": layout.FORMAT})
    )


@pytest.mark.parametrize("ends", [RocksDatabase.ingest, RocksDatabase.drop_view])
def test_an_engine_dies_twice_while_a_view_moves(source, database, start, monkeypatch, ends):
    """Once after the catalog has the new place, and once while its states are ingested."""
    running = start()
    with hosting(running.settings, "w1") as host:
        view = cut(running, source, database, "sums", SUMS, {"join": "w1"})
        change(source, random.Random(1), 10)
        check(running, source, sums=SUMS)
        staged(running, view)
        source.execute("UPDATE headrace.views SET placed_parts = '{}'")
        running.stop()
        change(source, random.Random(2), 5)

        def die(*_, **__) -> None:
            raise SystemExit

        with monkeypatch.context() as patched:
            patched.setattr(RocksDatabase, ends.__name__, die)
            second = Running(running.settings)
            second.thread.join(PATIENCE_S)
            assert isinstance(second.error, SystemExit)
        running = start()
        change(source, random.Random(3), 5)
        check(running, source, sums=SUMS)
        assert not host.units
        assert not running.book.subplans
        running.stop()


def test_only_the_worker_has_written_the_first_checkpoint(source, database, start, monkeypatch):
    """Its states rely on output that the other process has, and had not counted on."""
    running = start(checkpoint_txids=1_000, checkpoint_interval_ms=600_000)
    with hosting(running.settings, "w1"):
        view = cut(running, source, database, "sums", SUMS, {"join": "w1"})
        change(source, random.Random(1), 5)
        wait_until(lambda: running.book.views[view].mark.txid > 0, "it is committed")

        def die(name: str) -> None:
            if name == faults.AWAY_WRITTEN:
                raise BugError("the engine dies")

        with monkeypatch.context() as patched:
            patched.setattr(faults, "point", die)
            running.on(running.engine.durability.begin)
            running.thread.join(PATIENCE_S)
        assert isinstance(running.error, BugError)
        running = start()
        change(source, random.Random(2), 5)
        check(running, source, sums=SUMS)
        assert running.book.views[view].live
        running.stop()


def crashed(running, source, rng: random.Random, worker: HostProcess) -> None:
    """Run another engine under changes and kill it; perhaps kill the worker first."""
    engine = WorkerProcess(running.settings)
    try:
        until = time.monotonic() + rng.choice((1.5, 2.0, 3.0))
        while time.monotonic() < until:
            change(source, rng)
            if rng.random() < 0.02:
                worker.kill()
                worker.start()
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_it_goes_on_after_anything(source, database, start, tmp_path, seed):
    """Kills and stops of any process, lost connections, locks, pauses."""
    rng = random.Random(seed)
    changes = {"lock_timeout_ms": 100, "checkpoint_txids": 3}
    changes |= {"wal_retention": rng.choice(("source", "local"))}
    running = start(**changes)
    with (
        hosted.process(running.settings, "w1") as one,
        hosted.process(running.settings, "w2") as two,
    ):
        for worker in (one, two):
            worker.wait()
        both = cut(running, source, database, "pairs", BOTH, {"reduce": "w1"})
        sums = cut(running, source, database, "sums", SUMS, {"join": "w2"})
        create(running, database, "most", MOST)
        create(running, database, "rows", ROWS)
        kinds = [
            "nothing",
            "kill",
            "kill",
            "pause",
            "lock",
            "lose",
            "stop",
            "settle",
            "both",
            "halt",
            "fail",
        ]
        for _ in range(20):
            change(source, rng, 3)
            what = rng.choice([*kinds, *["crash"] * (seed > 1)])
            victim, view = rng.choice((one, two)), rng.choice((both, sums))
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
        for view in (both, sums):
            reached(running, view)
        wait_until(lambda: all(v.live for v in list(running.book.views.values())), "all go on")
        check(running, source, pairs=BOTH, sums=SUMS, most=MOST, rows=ROWS)
        running.stop()
