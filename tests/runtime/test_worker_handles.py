"""Views placed on another worker: as exact as local ones, with any process killed at any time."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest

from headrace import clock
from headrace.errors import OutOfReach
from headrace.network import link
from headrace.network.ends import Near
from headrace.network.messages import Drop, Greeting
from headrace.process import faults
from headrace.runtime.remote_worker import RemoteWorker
from headrace.sql.status import Status
from tests.compared import status_of
from tests.runtime import hosted, test_sharing
from tests.runtime.disturbances import disturb, disturb_processes, told
from tests.runtime.harness import check, settings_for, settle
from tests.runtime.hosted import HostProcess, hosting, place, reached
from tests.runtime.test_sharing import MOST, ROWS, SUMS, change, create
from tests.waiting import PATIENCE_S, again_and_again, time_passes, wait_until

TABLES = test_sharing.TABLES


def placed(running, source, dsn: str, name: str, query: str, worker: str = "w1", **more) -> int:
    return create(running, dsn, name, query, between=lambda: place(source, name, worker), **more)


@pytest.fixture
def worker(database, tmp_path) -> Iterator[HostProcess]:
    """Yield worker "w1", a separate process."""
    with hosted.process(settings_for(database, tmp_path / "data"), "w1") as process:
        yield process


def goes(running, source, *views: int) -> None:
    """Change rows at random until the views on other workers have advanced."""
    for view in views:
        reached(running, view)
    change(source, random.Random(5), 3)


def test_a_placed_view_follows(source, database, start):
    running = start()
    with hosting(running.settings, "w1"):
        view = placed(running, source, database, "sums", SUMS)
        create(running, database, "most", MOST)
        for n in range(20):
            change(source, random.Random(n), 3)
        check(running, source, sums=SUMS, most=MOST)
        assert running.book.hosts["w1"].units == {view}
        assert view not in running.book.db.views()
        running.stop()


def test_others_do_not_notice_that_a_worker_is_killed(source, database, start, worker):
    running = start()
    worker.wait()
    view = placed(running, source, database, "sums", SUMS)
    create(running, database, "most", MOST)
    change(source, random.Random(1), 10)
    check(running, source, sums=SUMS, most=MOST)
    before = running.book.reconnects
    worker.kill()
    wait_until(lambda: status_of(source, "sums")[0] == Status.SINK_ERROR, "it stands still")
    assert "cannot be reached" in status_of(source, "sums")[2]
    change(source, random.Random(2), 10)
    check(running, source, most=MOST)
    worker.start()
    goes(running, source, view)
    check(running, source, sums=SUMS, most=MOST)
    assert status_of(source, "sums")[0] == Status.RUNNING
    assert running.book.reconnects == before
    running.stop()


def test_an_engine_comes_back_without_the_worker(source, database, start, worker):
    running = start()
    worker.wait()
    view = placed(running, source, database, "sums", SUMS)
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
    goes(running, source, view)
    check(running, source, sums=SUMS)
    running.stop()


def test_a_worker_that_was_stopped_is_given_up(source, database, start, worker, monkeypatch):
    monkeypatch.setattr(link, "SILENCE_S", 5.0)
    running = start()
    worker.wait()
    view = placed(running, source, database, "sums", SUMS)
    create(running, database, "most", MOST)
    change(source, random.Random(1), 5)
    check(running, source, sums=SUMS, most=MOST)
    worker.kill(signal.SIGSTOP)
    change(source, random.Random(2), 5)
    wait_until(lambda: status_of(source, "sums")[0] == Status.SINK_ERROR, "it stands still")
    check(running, source, most=MOST)
    # The engine keeps asking, and no view waits for the answer.
    outpost = running.book.hosts["w1"]
    wait_until(lambda: outpost.slow, "it does not answer")
    for _ in range(20):
        assert not running.engine.submit(lambda: outpost.link.up).result(1)
        change(source, random.Random(3))
    check(running, source, most=MOST)
    worker.kill(signal.SIGCONT)
    goes(running, source, view)
    check(running, source, sums=SUMS, most=MOST)
    running.stop()


def test_leading_views_do_not_wait_for_a_silent_worker(source, database, start, worker):
    """The link would be given up in an hour, if no leading view waited with it."""
    running = start()
    worker.wait()
    running.book.hosts["w1"] = RemoteWorker("w1", patience_s=3_600.0)
    view = placed(running, source, database, "sums", SUMS)
    create(running, database, "most", MOST)
    change(source, random.Random(1), 5)
    check(running, source, sums=SUMS, most=MOST)
    before = running.book.reconnects
    worker.kill(signal.SIGSTOP)
    for seed in range(10):
        change(source, random.Random(seed), 3)
        check(running, source, most=MOST)
    wait_until(lambda: status_of(source, "sums")[0] == Status.SINK_ERROR, "it stands still")
    worker.kill(signal.SIGCONT)
    goes(running, source, view)
    check(running, source, sums=SUMS, most=MOST)
    assert running.book.reconnects == before
    running.stop()


def test_a_row_that_cannot_be_computed_is_told(source, database, start, worker):
    running = start()
    worker.wait()
    query = "SELECT id, 100 / n AS q FROM orders"
    placed(running, source, database, "quotients", query)
    placed(running, source, database, "sums", SUMS)
    source.execute("INSERT INTO orders VALUES (1000, 1, 0)")
    wait_until(lambda: status_of(source, "quotients")[0] == Status.ERROR, "it has stopped")
    status = status_of(source, "quotients")
    assert status[1] == "22012"
    assert "id = 1000" in str(status[2]) or "1000" in str(
        source.execute("SELECT * FROM headrace.views WHERE view_name = 'quotients'").fetchone()
    )
    change(source, random.Random(2), 5)
    check(running, source, sums=SUMS)
    running.stop()


def test_a_view_that_is_dropped_leaves_the_worker(source, database, start):
    running = start()
    with hosting(running.settings, "w1") as host:
        view = placed(running, source, database, "sums", SUMS)
        other = placed(running, source, database, "most", MOST)
        change(source, random.Random(1), 5)
        check(running, source, sums=SUMS, most=MOST)
        source.execute("DELETE FROM headrace.views WHERE id = %s", (view,))
        running.on(lambda: running.engine.lifecycle.drop(view))
        wait_until(lambda: host.units == {other}, "it is gone")
        change(source, random.Random(1), 5)
        check(running, source, most=MOST)
        running.stop()


def test_a_view_that_its_worker_dies_of_stops_alone(source, database, start, worker, tmp_path):
    """After some deaths the view is identified."""
    running = start()
    worker.wait()
    bad = placed(running, source, database, "bad", "SELECT id, n FROM orders WHERE n > 100")
    good = placed(running, source, database, "sums", SUMS)
    change(source, random.Random(1), 3)
    check(running, source, sums=SUMS)
    worker.kill()
    (tmp_path / faults.ROWS_TAKEN).write_text(f"{bad} ")
    source.execute("INSERT INTO orders VALUES (1000, 1, 1000)")
    deaths, host = 0, running.book.hosts["w1"]
    for _ in again_and_again(PATIENCE_S):
        # The engine counts a death once it has noticed it.
        wait_until(lambda: not host.up, "the engine misses it")
        if status_of(source, "bad")[0] == Status.ERROR:
            break
        # As a supervisor does after some deaths. Started at once, the worker may die at another
        # txid in between, and then its deaths are counted anew.
        time_passes(1.0)
        worker.start(HEADRACE_FAULT_DIR=str(tmp_path))
        deaths += 1
        wait_until(
            lambda: worker.dead or status_of(source, "bad")[0] == Status.ERROR, "it dies of it"
        )
        if not worker.dead:
            break
    assert 5 <= deaths <= 7
    assert "died while processing" in status_of(source, "bad")[2]
    reached(running, good)
    change(source, random.Random(2), 3)
    check(running, source, sums=SUMS)
    running.stop()


def test_a_damaged_state_is_set_aside(source, database, start, worker):
    """The views there stop and must be populated again."""
    running = start()
    worker.wait()
    view = placed(running, source, database, "sums", SUMS)
    create(running, database, "most", MOST)
    change(source, random.Random(1), 3)
    check(running, source, sums=SUMS, most=MOST)
    running.on(running.engine.durability.finish)
    shutil.rmtree(running.settings.staging_dir / str(view))
    worker.kill()
    state = running.settings.of_worker("w1").state_dir
    manifest = next(state.glob("MANIFEST-*"))
    manifest.write_bytes(manifest.read_bytes()[:20])
    worker.start()
    wait_until(lambda: status_of(source, "sums")[0] == Status.ERROR, "it has stopped")
    assert status_of(source, "sums")[1] == "55H04"
    assert list(state.parent.glob("state.damaged-*"))
    change(source, random.Random(2), 3)
    check(running, source, most=MOST)
    running.stop()


def test_a_view_waits_for_its_worker_before_it_begins(source, database, start, worker):
    worker.kill()
    running = start()
    view = placed(running, source, database, "sums", SUMS, adopt=False)
    running.on(lambda: running.engine.lifecycle.adopt(view))
    change(source, random.Random(1), 5)
    wait_until(lambda: status_of(source, "sums")[0] == Status.SINK_ERROR, "it stands still")
    worker.start()
    goes(running, source, view)
    check(running, source, sums=SUMS)
    running.stop()


def test_a_worker_is_lost_while_a_checkpoint_is_written(
    source, database, start, worker, monkeypatch
):
    """It comes back with that checkpoint: nothing before it is needed, and nothing is there."""
    running = start(checkpoint_txids=1_000, checkpoint_interval_ms=600_000)
    worker.wait()
    view = placed(running, source, database, "sums", SUMS)
    create(running, database, "most", MOST)
    change(source, random.Random(1), 5)
    settle(running, source)
    change(source, random.Random(2), 5)
    check(running, source, sums=SUMS, most=MOST)
    written, killed, point = threading.Event(), threading.Event(), faults.point

    def wait_there(name: str) -> None:
        point(name)
        if name == faults.AWAY_WRITTEN and not killed.is_set():
            written.set()
            killed.wait(PATIENCE_S)

    monkeypatch.setattr(faults, "point", wait_there)
    told(running, running.engine.durability.begin)
    assert written.wait(PATIENCE_S)
    found, before = running.book.views[view], running.book.reconnects
    worker.kill(signal.SIGSTOP)
    change(source, random.Random(3), 1)
    host = running.book.hosts["w1"]
    wait_until(lambda: host.awaited_since is not None, "a batch is on its way there")
    worker.kill()
    wait_until(lambda: status_of(source, "sums")[0] == Status.SINK_ERROR, "it stands still")
    killed.set()
    told(running, running.engine.durability.still)
    assert found.durable == found.mark
    worker.start()
    goes(running, source, view)
    check(running, source, sums=SUMS, most=MOST)
    assert running.book.reconnects == before
    running.stop()


def test_a_worker_gives_up_a_checkpoint_between_snapshot_and_write(
    source, database, start, worker, monkeypatch
):
    """The checkpoint fails and is repeated; its answer comes, and no view sees any of it."""
    running = start(checkpoint_txids=1_000, checkpoint_interval_ms=600_000)
    worker.wait()
    view = placed(running, source, database, "sums", SUMS)
    change(source, random.Random(1), 5)
    check(running, source, sums=SUMS)
    taken, dropped, point = threading.Event(), threading.Event(), faults.point

    def wait_there(name: str) -> None:
        point(name)
        if name == faults.QUEUES_SYNCED and not dropped.is_set():
            taken.set()
            dropped.wait(PATIENCE_S)

    monkeypatch.setattr(faults, "point", wait_there)
    before = running.book.checkpoints.written
    told(running, running.engine.durability.begin)
    assert taken.wait(PATIENCE_S)
    host = running.book.hosts["w1"]
    before_it = host.link
    before_it.send(Drop(999))
    # Batches are on their way to the worker when it is asked to write.
    change(source, random.Random(2), 3)
    dropped.set()
    told(running, running.engine.durability.still)
    assert running.book.checkpoints.failures == 1
    assert running.book.checkpoints.written == before
    change(source, random.Random(3), 3)
    check(running, source, sums=SUMS)
    assert host.link is before_it
    assert running.book.views[view].left_at is None
    told(running, running.engine.durability.finish)
    assert running.book.checkpoints.written > before
    running.stop()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 40))]
)
def test_it_goes_on_after_anything(source, database, start, worker, seed):
    """Kills and stops of either side, lost connections, locks, pauses."""
    rng = random.Random(seed)
    changes = {"lock_timeout_ms": 100, "checkpoint_txids": 3}
    running = start(**changes)
    worker.wait()
    view = placed(running, source, database, "sums", SUMS)
    clock = "SELECT id, n FROM orders WHERE now() > '2020-01-01' AND n < 100"
    late = placed(running, source, database, "late", clock)
    create(running, database, "most", MOST)
    for _ in range(20):
        change(source, rng, 3)
        what = rng.choice(("nothing", "kill", "pause", "lock", "lose", "stop", "settle", "both"))
        running = disturb_processes(
            what, running, rng, worker, partial(change, source, rng), partial(start, **changes)
        )
        tables = ("sums", "most")
        disturb(what, running, source, rng, view, tables, partial(change, source, rng))
    reached(running, view)
    reached(running, late)
    wait_until(lambda: all(v.live for v in list(running.book.views.values())), "all go on again")
    check(running, source, sums=SUMS, late=clock, most=MOST)
    running.stop()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]
)
def test_three_workers_go_on_after_anything(source, database, start, tmp_path, seed):
    """Views of one transaction on three workers, each of which is killed or stopped at any time."""
    rng = random.Random(seed)
    changes = {"checkpoint_txids": 3}
    running = start(**changes)
    with (
        hosted.process(running.settings, "w1") as one,
        hosted.process(running.settings, "w2") as two,
    ):
        for worker in (one, two):
            worker.wait()
        views = {
            placed(running, source, database, name, query, worker)
            for name, query, worker in (("sums", SUMS, "w1"), ("most", MOST, "w2"))
        }
        create(running, database, "rows", ROWS)
        for _ in range(12):
            change(source, rng, 3)
            what = rng.choice(("kill", "kill", "stop", "halt", "settle", "both"))
            victim = rng.choice((one, two))
            if what in ("kill", "both"):
                victim.kill()
                change(source, rng, 2)
                victim.start()
            if what == "halt":
                victim.kill(signal.SIGSTOP)
                threading.Event().wait(rng.choice((0.05, 0.3)))
                victim.kill(signal.SIGCONT)
            if what in ("stop", "both"):
                running.stop()
                running = start(**changes)
            if what == "settle":
                settle(running, source)
        for view in views:
            reached(running, view)
        check(running, source, sums=SUMS, most=MOST, rows=ROWS)
        running.stop()


@pytest.mark.slow
def test_who_has_begun_later_is_the_coordinator(database, tmp_path):
    """The earlier coordinator may not know it: its link is cut silently, or it was stopped."""
    settings = settings_for(database, tmp_path / "data")
    with hosting(settings, "w1"), contextlib.ExitStack() as stack:

        def linked(epoch: int) -> link.FlightLink:
            made = link.FlightLink("w1", Near(settings.flight_socket("w1")), lambda: None)
            stack.callback(made.close)
            made.join(Greeting([], epoch=epoch))
            return made

        first = linked(5)
        # Reconnect while the old link is still open; the new link does not wait for its end.
        again = linked(5)
        wait_until(lambda: not first.up, "the first one is let go")
        with pytest.raises(OutOfReach):
            linked(4)
        assert again.up, "nobody minds who was refused"
        later = linked(6)
        wait_until(lambda: not again.up, "it is let go")
        with pytest.raises(OutOfReach):
            linked(5)
        assert later.up


def test_patience_grows_with_a_worker_that_is_silent_again_and_again():
    outpost = RemoteWorker("w1")
    seen = []
    for silent, lasted in (
        *((False, 0), (True, 1), (True, 1), (False, 9), (True, 1), (True, 1), (True, 1)),
        *((True, 1), (True, 400)),
    ):
        outpost.link = SimpleNamespace(silent=silent, begun=clock.monotonic() - lasted)
        outpost.lost_again()
        seen.append((outpost.patience_s, outpost.leading_s))
    assert [patience_s for patience_s, _ in seen] == [5, 10, 20, 20, 40, 60, 60, 60, 5]
    assert [leading_s for _, leading_s in seen] == [0.5, 1, 2, 2, 4, 5, 5, 5, 0.5]


def test_marks_beside_records_that_are_lost_are_void(source, database, start, worker):
    """The writer's disk is lost: txids then mean other rows, and states elsewhere are useless."""
    running = start()
    worker.wait()
    placed(running, source, database, "sums", SUMS)
    change(source, random.Random(1), 30)
    check(running, source, sums=SUMS)
    running.stop()
    shutil.rmtree(running.settings.state_dir)
    running = start()
    wait_until(lambda: status_of(source, "sums")[0] == Status.ERROR, "it has stopped")
    assert status_of(source, "sums")[1] == "55H02"
    # The new records cover later placements, also after a restart.
    placed(running, source, database, "most", MOST)
    change(source, random.Random(2), 5)
    check(running, source, most=MOST)
    running.stop()
    running = start()
    change(source, random.Random(3), 5)
    check(running, source, most=MOST)
    running.stop()
