"""Workers that never come back: their views are placed and populated elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator

import psycopg
import pytest

from tests.far import FarWorker, token
from tests.integration import test_workers
from tests.integration.test_far import FEW, SIZES, Writer, follows, workers
from tests.integration.test_fed import change
from tests.integration.test_workers import MOST, SUMS, check, place, placed_on, refused, running
from tests.waiting import at_any_moment, wait_until

TABLES = test_workers.TABLES
SOON = pytest.mark.engine_with(HEADRACE_WORKER_LOST_S="2")


@contextlib.contextmanager
def elsewhere(engine, folder, *names: str) -> Iterator[list[FarWorker]]:
    """Yield workers that have joined."""
    with contextlib.ExitStack() as stack:
        made = []
        for name in names:
            with psycopg.connect(engine.dsn, autocommit=True) as conn:
                given = token(conn, name)
            worker = FarWorker(engine.source, folder / name, given)
            made.append(stack.enter_context(contextlib.closing(worker)))
            worker.start()
        for worker in made:
            worker.ready()
        yield made


def where(conn: psycopg.Connection, name: str) -> object:
    [(placement, parts)] = conn.execute(
        "SELECT options -> 'placement', placed_parts FROM headrace.views WHERE view_name = %s",
        (name,),
    ).fetchall()
    return parts or placement


@SOON
def test_views_of_a_lost_worker_go_on_elsewhere(engine, commander, source, tmp_path):
    rng = random.Random(1)
    with elsewhere(engine, tmp_path, "w2") as [far]:
        place(commander, "sums", SUMS, "w2", sharing=False)
        place(commander, "most", MOST, "main", sharing=False)
        place(commander, "few", FEW, "auto", sharing=False)
        to = json.dumps({"reduce": "w2"})
        commander.execute("CALL headrace.set_placement('few', %s)", (to,))
        place(commander, "kept", SUMS, "w2", sharing=False, on_damage="stop")
        for _ in range(5):
            change(source, rng)
        queries = {"sums": SUMS, "most": MOST, "few": FEW}
        check(commander, kept=SUMS, **queries)
        assert list(where(commander, "few").values()) == ["w2"]
        far.die()
        for _ in range(5):
            change(source, rng)
        check(commander, most=MOST)
        for name in queries:
            wait_until(lambda n=name: follows(commander, n), f"{name} goes on")
        for _ in range(5):
            change(source, rng)
        check(commander, **queries)
        assert (where(commander, "sums"), where(commander, "few")) == ("main", "main")
        [(told,)] = commander.execute(
            "SELECT message FROM headrace.views WHERE view_name = 'kept'"
        ).fetchall()
        assert 'worker "w2", which had states of the view, is considered lost' in told
        assert workers(commander)["w2"][:2] == ("lost", 1)
        for call in (
            "CALL headrace.set_placement('most', 'w2')",
            f"CALL headrace.set_placement('few', '{to}')",
            """CALL headrace.create_view('v', 'TABLE items', options => '{"placement": "w2"}')""",
        ):
            error = refused(commander, call)
            assert (error.sqlstate, error.message_primary) == (
                "55000",
                'worker "w2" is considered lost',
            )
        assert commander.execute("SELECT * FROM headrace.rebalance()").fetchall() == []
        # The same holds after a restart.
        engine.kill9()
        engine.start()
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            assert refused(conn, "CALL headrace.set_placement('most', 'w2')").sqlstate == "55000"
            conn.execute("CALL headrace.resync_view('kept')")
            assert where(conn, "kept") == "main"
            check(conn, kept=SUMS, **queries)
            far.start()  # no view owns its states
            wait_until(lambda: moved(conn, "most", "w2"), "it is back")
            change(source, rng)
            check(conn, kept=SUMS, **queries)
            assert where(conn, "most") == "w2"
            conn.execute("CALL headrace.drain_worker('w2')")
            check(conn, **queries)
            conn.execute("CALL headrace.remove_worker('w2')")


@SOON
def test_a_part_below_another_one_goes_on_with_its_reader(engine, commander, source, tmp_path):
    rng = random.Random(2)
    commander.execute("CALL headrace.add_worker('w1')")
    with elsewhere(engine, tmp_path, "w2") as [far]:
        place(commander, "sizes", SIZES, {"reduce_1": "w2", "reduce_2": "w1"})
        change(source, rng)
        check(commander, sizes=SIZES)
        assert where(commander, "sizes") == {"reduce_1": "w2", "reduce_2": "w1"}
        far.die()
        change(source, rng)
        wait_until(lambda: where(commander, "sizes") == {"reduce_2": "w1"}, "it is rebuilt")
        wait_until(lambda: follows(commander, "sizes"), "it goes on")
        change(source, rng)
        check(commander, sizes=SIZES)


def moved(conn: psycopg.Connection, name: str, worker: str) -> bool:
    try:
        conn.execute("CALL headrace.set_placement(%s, %s)", (name, worker))
    except psycopg.errors.ObjectNotInPrerequisiteState:
        return False
    return True


@pytest.mark.slow
def test_who_knows_it_for_certain_need_not_wait(engine, commander, source, tmp_path):
    """The default timeout is ten minutes; draining the worker declares it lost at once."""
    rng = random.Random(2)
    with elsewhere(engine, tmp_path, "w2") as [far]:
        for name in ("sums", "stopped", "paused"):
            place(commander, name, SUMS, "w2", sharing=False, on_damage="stop")
        check(commander, sums=SUMS, stopped=SUMS)
        commander.execute("CALL headrace.pause_view('paused')")
        source.execute("ALTER TABLE stopped ADD COLUMN more int")
        wait_until(lambda: not running(commander, "stopped"), "it is seen")
        far.die()
        change(source, rng)
        wait_until(lambda: not running(commander, "sums"), "it stands still")
        error = refused(commander, "CALL headrace.drain_worker('w2')")
        assert (error.sqlstate, error.message_detail) == ("55000", "public.paused: it is paused")
        check(commander, sums=SUMS)
        commander.execute("CALL headrace.drop_view('paused')")
        commander.execute("CALL headrace.drain_worker('w2')")
        commander.execute("CALL headrace.remove_worker('w2')")
        change(source, rng)
        check(commander, sums=SUMS)
        source.execute("ALTER TABLE stopped DROP COLUMN more")
        commander.execute("CALL headrace.resync_view('stopped')")
        check(commander, stopped=SUMS)


@SOON
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.timeout(600)
def test_whoever_dies_meanwhile(engine, source, tmp_path, seed):
    """A worker is lost, or comes back meanwhile, while other processes are killed, too."""
    rng = random.Random(seed)
    queries = {"sums": SUMS, "most": MOST, "few": FEW, "all_items": "SELECT * FROM items"}
    with elsewhere(engine, tmp_path, "w2", "w3") as others:
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            for (name, query), worker in zip(
                queries.items(), ("w2", "w3", "w2", "main"), strict=True
            ):
                place(conn, name, query, worker, sharing=False)
        for _ in range(3):
            gone = rng.choice(others)
            with Writer(engine.source, rng.random()):
                gone.die()
                at_any_moment(rng, 0.0, 4.0)
                match rng.randrange(4):
                    case 0:
                        engine.kill9()
                        engine.start()
                    case 1 | 2:
                        module = rng.choice(("headrace.runtime.worker", "headrace.views.builder"))
                        pid = wait_until(lambda m=module: engine.child(m), "it runs")
                        os.kill(pid, signal.SIGKILL)
                at_any_moment(rng, 0.0, 2.0)
                if rng.random() < 0.5:
                    shutil.rmtree(gone.folder / "data")
                gone.start()
            with psycopg.connect(engine.dsn, autocommit=True) as conn:
                for name in queries:
                    wait_until(lambda n=name, c=conn: follows(c, n), f"{name} goes on")
                check(conn, **queries)
                for name, worker in zip(queries, ("w2", "w3", "w2"), strict=False):
                    if placed_on(conn, name) != worker:
                        wait_until(lambda n=name, w=worker, c=conn: moved(c, n, w), "it is back")
                check(conn, **queries)
