"""Decks of faults by kind; a seed deals one fault of each kind, in its own order.

Seeds take the cards of each deck in turn, so enough seeds play all cards. The seed also determines
the random choices in a card.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import psycopg

from headrace.process import faults
from headrace.storage.blocks import BLOCK_BYTES
from tests.faults.helpers import ENDLESS, WORKER, slot, wal_end
from tests.faults.matrix import load
from tests.faults.matrix.world import BUILDER, OTHER, PATIENCE_S, World, connect
from tests.waiting import at_any_moment, time_passes, wait_until

Deed = Callable[[World], None]


@dataclass(frozen=True)
class Card:
    """A fault: its name, and the action that causes it and waits until it has taken effect."""

    name: str
    do: Deed
    small_disk: bool = False


# --- the worker, at named points


def at_worker_point(name: str, how: str) -> Card:
    def do(world: World) -> None:
        world.trap(name, how)
        wait_until(lambda: world.sprung(name), f"{name} is passed", PATIENCE_S)

    return Card(f"worker {name} {how}", do)


WORKER_POINTS = (
    faults.BATCH_RECORDED, faults.BATCH_KEPT, faults.COLLECTIONS_DONE, faults.PIPELINE_SENT, faults.ROWS_SENT,
    faults.COMMIT_SENT, faults.COMMIT_ANSWERED, faults.BEFORE_CHECKPOINT,
    faults.CHECKPOINT_BEGUN, faults.QUEUES_SYNCED, faults.CHECKPOINT_WRITTEN,
    faults.FEEDBACK_SENT,
)  # fmt: skip


def worker_cards(rng: random.Random) -> list[Card]:
    return [
        at_worker_point(point, how.format(rng.randint(1, 9), rng.choice((0.1, 1, 5))))
        for point in WORKER_POINTS
        for how in ("kill:{}", "alarm:{}:{}", "raise:{}")
    ]


# --- creating and dropping, with a fault at named points


def attempt_create(world: World, name: str, query: str) -> Exception | None:
    """Call create_view, which may succeed or fail; return its error."""
    error = world.attempt_create(name, query)
    world.say(f"create_view {name}: {describe(error)}")
    return error


def attempt_drop(world: World, name: str) -> Exception | None:
    error = world.call(f"CALL headrace.drop_view('{name}')")
    world.say(f"drop_view {name}: {describe(error)}")
    return error


def describe(error: Exception | None) -> str:
    return "done" if error is None else f"{type(error).__name__}: {error}".strip()


def decide(world: World, name: str, query: str) -> bool:
    """Wait until the view is either created or gone; record and return which."""

    def status() -> str | None:
        with contextlib.suppress(psycopg.OperationalError), connect(world.dsn) as conn:
            found = world.statuses(conn).get(name)
            return found[0] if found else "gone"
        return None

    found = wait_until(
        lambda: (s := status()) not in (None, "pending", "populating") and s,
        f"the builder decides on {name}",
        PATIENCE_S,
    )
    if found == "gone":
        world.views.pop(name, None)
    else:
        world.views[name] = query
    return found != "gone"


def at_create_point(point: str, how: str) -> Card:
    def do(world: World) -> None:
        name, query = world.rng.choice(list(world.spare.items()))
        world.trap(point, how)
        error = attempt_create(world, name, query)
        assert world.untrap(point), f"{point} must have been passed"
        there = decide(world, name, query)
        world.say(f"{name} is {'there' if there else 'not there'}")
        assert there or error is not None, "create_view said that it had succeeded"
        if there:
            world.settle()
            world.drop(name)

    return Card(f"create {point} {how}", do)


def at_drop_point(point: str, how: str) -> Card:
    def do(world: World) -> None:
        name, query = world.rng.choice(list(world.spare.items()))
        world.create(name, query)
        world.trap(point, how)
        error = attempt_drop(world, name)
        assert world.untrap(point), f"{point} must have been passed"
        there = decide(world, name, query)
        assert not there or error is not None, "drop_view said that it had succeeded"
        world.settle()
        if there:
            world.drop(name)

    return Card(f"drop {point} {how}", do)


def at_move_point(point: str, how: str) -> Card:
    """Move a view to another worker and back; after any kill it is on one of them and goes on."""

    def do(world: World) -> None:
        if not world.placed:
            error = world.call(f"CALL headrace.add_worker('{OTHER}')")
            assert error is None, error
            world.placed = True
        # A view whose states are not shared, and which may stop for a moment.
        name, query = "moved", "SELECT tag, count(*) AS n, sum(size) AS s FROM notes GROUP BY tag"
        error = world.attempt_create(name, query, sharing=False, placement="main")
        assert error is None, error
        world.views[name] = query
        world.trap(point, how)
        for worker in (OTHER, "main"):
            error = world.call(f"CALL headrace.set_placement('{name}', '{worker}')")
            world.say(f"set_placement {worker}: {describe(error)}")
        assert world.untrap(point), f"{point} must have been passed"
        assert decide(world, name, query), "it stays"
        world.settle()
        world.drop(name)

    return Card(f"move {point} {how}", do)


def at_alter_point(point: str, how: str) -> Card:
    """Alter a view, reusing its states, and back; after any kill it has one of the two queries."""

    def do(world: World) -> None:
        name, query = "altered", "SELECT tag, count(*) AS n, sum(size) AS s FROM notes GROUP BY tag"
        wider = f"SELECT *, s / n AS mean FROM ({query}) q"
        error = world.attempt_create(name, query, placement="main")
        assert error is None, error
        world.views[name] = query
        world.trap(point, how)
        for wanted in (wider, query):
            error = world.call(f"CALL headrace.alter_view('{name}', '{wanted}')")
            world.say(f"alter_view: {describe(error)}")
        wait_until(lambda: world.sprung(point), f"{point} is passed", PATIENCE_S)
        with connect(world.dsn) as conn:
            row = conn.execute(
                "SELECT query FROM headrace.views WHERE view_name = %s", (name,)
            ).fetchone()
        assert row is not None, "it stays"
        assert decide(world, name, str(row[0])), "it stays"
        world.settle()
        world.drop(name)

    return Card(f"alter {point} {how}", do)


CREATE_POINTS = (
    faults.TABLES_PUBLISHED, faults.SLOT_ASKED, faults.SLOT_MADE,
    faults.POPULATION_BEGINS, faults.POPULATION_LOADED, faults.POPULATION_SEALED,
    faults.RESULT_MADE, faults.BEFORE_PUBLISH, faults.PUBLISHED, faults.ADOPTED,
)  # fmt: skip
DROP_POINTS = (faults.BEFORE_DROP, faults.DROPPED, faults.WORKER_FORGOT)


def churn(victim: str | None) -> Card:
    """Create and drop several views at once, and kill the victim meanwhile."""

    def do(world: World) -> None:
        threads = []
        for name, query in world.spare.items():

            def come_and_go(name: str = name, query: str = query) -> None:
                attempt_create(world, name, query)
                attempt_drop(world, name)

            threads.append(threading.Thread(target=come_and_go))
        for thread in threads:
            thread.start()
        if victim is not None:
            at_any_moment(world.rng, 0.0, 0.5)
            kill(world, victim)
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a call does not return"
        for name, query in world.spare.items():
            if decide(world, name, query):
                world.drop(name)

    return Card(f"come and go, {victim or 'nobody'} killed", do)


def builder_cards(rng: random.Random) -> list[Card]:
    cards = [
        at_create_point(point, how.format(rng.choice((0.1, 2))))
        for point in CREATE_POINTS
        for how in ("kill:1", "alarm:1:{}", "raise:1")
        # Steps after the commit handle their own failures.
        if how != "raise:1" or point not in (faults.PUBLISHED, faults.ADOPTED)
    ]
    cards += [
        at_drop_point(point, how) for point in DROP_POINTS for how in ("kill:1", "alarm:1:0.1")
    ]
    cards += [
        at_move_point(point, how)
        for point in (faults.MOVE_STAGED, faults.MOVE_SAID)
        for how in ("kill:1", "alarm:1:0.1", "raise:1")
    ]
    cards += [
        at_alter_point(point, "kill:1")
        for point in (faults.STATES_KEPT, faults.PUBLISHED, faults.BEFORE_INHERIT)
    ]
    return cards + [churn(victim) for victim in (None, "worker", "builder", "engine")]


# --- processes


def a_worker(world: World) -> str:
    """Return the worker that writes, or another one if there is one."""
    return world.rng.choice((WORKER, f"worker {OTHER}")) if world.placed else WORKER


def kill(world: World, victim: str) -> None:
    """Kill a process with kill -9; if the commander dies, the other processes end."""
    if victim in ("engine", "commander"):
        if victim == "engine":
            world.engine.kill9()
        else:
            # Only the commander: its children notice by themselves.
            pid = world.engine.pid
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not world.engine.running, "the commander is dead")
            world.engine._process = None
            world.engine._dismiss_watchdog()
        world.engine.start()
        return
    module = a_worker(world) if victim == "worker" else BUILDER
    pid = wait_until(lambda: world.child(module), f"a {victim}")
    world.say(f"kill -9 {module}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def killed(victim: str, times: int = 1) -> Card:
    def do(world: World) -> None:
        for _ in range(times):
            at_any_moment(world.rng, 0.0, 0.3)
            kill(world, victim)

    return Card(f"kill -9 {victim} × {times}", do)


def terminated(world: World) -> None:
    at_any_moment(world.rng, 0.0, 0.2)
    begin = len(world.engine.log)
    assert world.engine.stop() == 0, "SIGTERM ends it cleanly"
    assert "child killed" not in world.engine.log[begin:], "so it does its children"
    world.engine.start()


def worker_terminated(world: World) -> None:
    pid = wait_until(lambda: world.child(WORKER), "a worker")
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: world.child(WORKER) not in (pid, None), "another worker")


def stopped(world: World) -> None:
    """Stop a worker with SIGSTOP for a while, then continue it."""
    module = a_worker(world)
    pid = wait_until(lambda: world.child(module), "a worker")
    os.kill(pid, signal.SIGSTOP)
    at_any_moment(world.rng, 0.05, 0.6)
    os.kill(pid, signal.SIGCONT)


def process_cards(rng: random.Random) -> list[Card]:
    return [
        killed("worker"),
        killed("engine"),
        killed("commander"),
        killed("worker", 2),
        Card("SIGTERM engine", terminated),
        Card("SIGTERM worker", worker_terminated),
        killed("builder"),
        Card("SIGSTOP worker", stopped),
    ]


# --- the source and the network


def server_stopped(mode: Literal["kill", "smart", "fast", "immediate"]) -> Card:
    def do(world: World) -> None:
        at_any_moment(world.rng, 0.0, 0.2)
        log = world.server.log
        begin = log.stat().st_size
        if mode == "kill":
            world.server.kill()
        else:
            world.server.stop(mode)
        time_passes(world.rng.choice((0.0, 0.0, 0.4)))
        world.server.start()
        if mode == "fast":
            # A server stops only when every position was confirmed to it.
            said = log.read_bytes()[begin:]
            assert b"immediate shutdown" not in said, "it had to be forced"

    return Card(f"server {mode}", do)


def sessions_ended(world: World) -> None:
    """End some or all of the engine's sessions, as an administrator may."""
    part = world.rng.choice((1, 1, 2, 3))
    with connect(world.dsn) as conn:
        rows = conn.execute(
            "SELECT application_name, pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND (application_name LIKE 'headrace%%' OR backend_type = 'walsender')"
            " AND pid %% %s = 0",
            (part,),
        ).fetchall()
    world.say(f"ended: {[name for name, _ in rows]}")


def server_cards(rng: random.Random) -> list[Card]:
    return [
        server_stopped("fast"),
        server_stopped("immediate"),
        Card("sessions ended", sessions_ended),
        server_stopped("kill"),
    ]


def cut(world: World) -> None:
    for _ in range(world.rng.randint(1, 3)):
        world.proxy.cut()
        at_any_moment(world.rng, 0.0, 0.2)


def stalled(world: World) -> None:
    world.proxy.stall()
    at_any_moment(world.rng, 0.1, 0.7)
    if world.rng.random() < 0.5:
        world.proxy.cut()
    world.proxy.resume()


def half_closed(world: World) -> None:
    world.proxy.half_close(towards_client=world.rng.random() < 0.5)


def commits_unanswered(world: World) -> None:
    """Lose the answers of some COMMITs together with their connections."""
    before = world.proxy.dropped
    world.proxy.drop_commit_every = world.rng.randint(1, 3)
    wait_until(lambda: world.proxy.dropped > before, "a COMMIT lost its answer")
    at_any_moment(world.rng, 0.0, 0.3)
    world.proxy.drop_commit_every = 0


def network_cards(rng: random.Random) -> list[Card]:
    return [
        Card("COMMIT unanswered", commits_unanswered),
        Card("connections cut", cut),
        Card("connections half closed", half_closed),
        Card("connections stalled", stalled),
    ]


# --- the rest


def slot_dropped(world: World) -> None:
    """Drop the slot: every view stops with its table intact, then is populated again."""
    ids = "SELECT id FROM headrace.views ORDER BY id"
    world.witness.absent.set()  # populated one after the other: views disagree meanwhile
    with connect(world.dsn) as conn:
        lost = conn.execute(ids).fetchall()

        def dropped() -> bool:
            conn.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE slot_name = %s AND active_pid IS NOT NULL",
                (world.slot_name,),
            )
            try:
                conn.execute("SELECT pg_drop_replication_slot(%s)", (world.slot_name,))
            except psycopg.errors.ObjectInUse:
                return False
            return True

        wait_until(dropped, "the slot is dropped")

        def mended() -> bool:
            running = {s for s, _ in world.statuses(conn).values()} == {"running"}
            return running and not {*lost} & {*conn.execute(ids).fetchall()}

        wait_until(mended, "all views are filled anew", PATIENCE_S)
        world.say(f"{len(lost)} views were filled anew")
    world.witness.absent.clear()


def rebuild(world: World) -> None:
    """Bring stopped views back: by resync_view, else by dropping and creating them."""
    world.witness.absent.set()
    for name, query in list(world.views.items()):
        error = world.call(f"CALL headrace.resync_view('{name}')")
        if error is None:
            world.say(f"{name}: resync")
            continue
        if not isinstance(
            error, psycopg.errors.FeatureNotSupported | psycopg.errors.UndefinedFunction
        ):
            raise error
        world.drop(name)
        world.create(name, query)
    world.witness.absent.clear()


def second_engine(world: World) -> None:
    """Start another engine by mistake: it must report why it does not run."""
    program = (
        "import sys; from headrace.runtime import ownership;"
        " ownership._LOCK_WAIT_S = 0.2; from headrace.server.cli import main;"
        " sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", program, "start", "--source", world.engine.source),
            *("--data-dir", str(world.folder / "second"), "--listen", "127.0.0.1:0"),
        ],
        env=os.environ | world.engine.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    world.say(f"the second engine: {done.stderr.strip()[-300:]}")
    assert done.returncode == 1
    assert "another headrace engine" in done.stderr


def table_locked(world: World) -> None:
    """Lock a view's table: the view leaves its group, and catches up afterwards."""
    name = world.rng.choice(list(world.views))
    with psycopg.connect(world.dsn) as blocker:
        blocker.execute(f"LOCK TABLE {name} IN SHARE MODE")
        at_any_moment(world.rng, 0.1, 0.8)
        if world.rng.random() < 0.4:
            kill(world, "worker")
            at_any_moment(world.rng, 0.1, 0.8)


def disk_full(world: World) -> None:
    """Fill the disk of the state for a while: the engine reports it, and nothing is lost."""
    assert world.disk is not None, "mounted"
    begin = len(world.engine.log)
    ballast = world.disk / "ballast"

    def filled() -> bool:
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while file.write(bytes(65536)):
                pass
        said = world.engine.log[begin:]
        return "the disk of the state is full" in said or "No space left" in said

    try:
        wait_until(filled, "the engine says that its disk is full", PATIENCE_S)
        at_any_moment(world.rng, 0.0, 0.5)
    finally:
        ballast.unlink()


def hardly_writing(world: World) -> None:
    """Insert many rows while the sink's sessions are mostly stopped; the worker may be killed."""
    with connect(world.dsn) as conn:
        conn.execute(
            "INSERT INTO notes SELECT 2000000 + i, 'burst ' || i % 7, i, repeat('x', 50)"
            " FROM generate_series(1, 4000) i"
        )
        for _ in range(world.rng.randint(2, 5)):
            rows = conn.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'headrace sink%'"
                " AND datname = current_database()"
            ).fetchall()
            for how in (signal.SIGSTOP, signal.SIGCONT):
                for (pid,) in rows:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, how)
                if how == signal.SIGSTOP:
                    at_any_moment(world.rng, 0.1, 0.5)
                    if world.rng.random() < 0.3:
                        kill(world, "worker")
        conn.execute("DELETE FROM notes WHERE id > 2000000")


def bits_flipped(world: World) -> None:
    """Flip a bit in every block of the intake queue while the engine is down.

    Batches that the source or a state still has are read from there. A view that needs a batch
    which only the damaged queue had stops with an error.
    """
    assert world.load is not None, "opened"
    behind = world.rng.choice([n for n in world.views if n not in load.CORE])
    with connect(world.dsn) as conn:
        error = world.call(f"CALL headrace.pause_view('{behind}')")
        assert error is None, error
        at_any_moment(world.rng, 0.3, 0.6)
        if world.local:
            last = wal_end(conn)
            wait_until(lambda: slot(conn, world.slot_name)[0] >= last, "the WAL may go", PATIENCE_S)
        world.engine.kill9()
        _flip(world.engine.data_dir / "queues" / "blocks", world.rng)
        world.engine.start()
        world.load.pause()

        def told(name: str) -> bool:
            said = world.call(f"CALL headrace.wait_for('{name}')")
            return said is None or world.statuses(conn)[name][0] == "error"

        def resumed() -> bool:
            said = world.call(f"CALL headrace.resume_view('{behind}')")
            return said is None or world.statuses(conn)[behind][0] == "error"

        wait_until(resumed, "the view is resumed, or has stopped", PATIENCE_S)
        for name in world.views:
            wait_until(partial(told, name), f"{name} follows, or has stopped", PATIENCE_S)
        stopped = conn.execute(
            "SELECT view_name, sqlstate, headrace.view_message(id) FROM headrace.views"
            " WHERE status = 'error'"
        ).fetchall()
    world.load.resume()
    world.say(f"{behind} was paused; stopped: {stopped}")
    # 55H02: the stream lost batches; 55000: a subplan that the view shares lost them.
    assert {state for _, state, _ in stopped} <= {"55H02", "55000"}, stopped
    if stopped:
        wait_until(lambda: _mended(world), "the views are filled anew", PATIENCE_S)


def _mended(world: World) -> bool:
    """Return whether no view has stopped; resync those that have."""
    world.witness.absent.set()
    with connect(world.dsn) as conn:
        stopped = [name for name, said in world.statuses(conn).items() if said[0] != "running"]
    for name in stopped:
        error = world.call(f"CALL headrace.resync_view('{name}')")
        # The view may already be populated again automatically.
        if error is not None and not isinstance(error, psycopg.errors.ObjectInUse):
            raise error
    if not stopped:
        world.witness.absent.clear()
    return not stopped


def _flip(blocks: Path, rng: random.Random) -> None:
    with blocks.open("r+b", buffering=0) as file:
        begin = 0
        # Past the data is a hole, in which SEEK_DATA fails.
        with contextlib.suppress(OSError):
            while True:
                begin = os.lseek(file.fileno(), begin, os.SEEK_DATA)
                at = begin + rng.randrange(BLOCK_BYTES)
                if byte := os.pread(file.fileno(), 1, at):
                    os.pwrite(file.fileno(), bytes([byte[0] ^ 16]), at)
                begin = (begin // BLOCK_BYTES + 1) * BLOCK_BYTES


def paused(world: World) -> None:
    """Pause a view, kill the engine or the worker, and resume the view."""
    name = world.rng.choice([n for n in world.views if n not in ("seen", "entries")])
    error = world.call(f"CALL headrace.pause_view('{name}')")
    world.say(f"pause_view {name}: {describe(error)}")
    kill(world, world.rng.choice(("worker", "engine")))
    if error is None:

        def resumed() -> bool:
            # Fails as long as there is no worker.
            error = world.call(f"CALL headrace.resume_view('{name}')")
            return not isinstance(error, psycopg.OperationalError)

        wait_until(resumed, "the view is resumed", PATIENCE_S)


def paused_for_long(world: World) -> None:
    """Pause a view while other views go on; the source or the local queue retains its changes."""
    name = world.rng.choice([n for n in world.views if n not in ("seen", "entries")])
    with connect(world.dsn) as conn:
        world.settle()
        error = world.call(f"CALL headrace.pause_view('{name}')")
        assert error is None, error
        at_any_moment(world.rng, 0.3, 0.6)
        if world.local:
            last = wal_end(conn)
            wait_until(lambda: slot(conn, world.slot_name)[0] >= last, "the WAL may go", PATIENCE_S)
        kill(world, world.rng.choice(("worker", "engine")))
        at_any_moment(world.rng, 0.1, 0.4)

    def resumed() -> bool:
        error = world.call(f"CALL headrace.resume_view('{name}')")
        return error is None

    wait_until(resumed, "the view is resumed", PATIENCE_S)


def resync_killed(world: World) -> None:
    """Resync a view while it runs, and kill a process meanwhile."""
    # A view that may return to the snapshot of its resync for a moment.
    name = world.rng.choice([n for n in world.views if n not in load.CORE])
    victim = world.rng.choice(("worker", "builder", "engine"))
    errors: list[Exception | None] = []
    thread = threading.Thread(
        target=lambda: errors.append(world.call(f"CALL headrace.resync_view('{name}')"))
    )
    thread.start()
    at_any_moment(world.rng, 0.0, 0.4)
    kill(world, victim)
    thread.join(PATIENCE_S)
    assert errors, "resync_view does not return"
    world.say(f"resync_view {name}, {victim} killed: {describe(errors[0])}")


def first_checkpoint(world: World) -> None:
    """Kill the worker after it took the states of a new view, before their first checkpoint."""
    name, query = world.rng.choice(list(world.spare.items()))
    point = world.rng.choice(
        (faults.STATES_TAKEN, faults.BEFORE_CHECKPOINT, faults.CHECKPOINT_BEGUN)
    )
    if point != faults.STATES_TAKEN:
        world.create(name, query)
    world.trap(point, "kill:1")
    error = None if point != faults.STATES_TAKEN else attempt_create(world, name, query)
    wait_until(lambda: world.sprung(point), f"{point} is passed", PATIENCE_S)
    there = decide(world, name, query)
    assert there or error is not None, "create_view said that it had succeeded"
    if there:
        world.settle()
        world.drop(name)


def killed_by_a_row(world: World) -> None:
    """Insert a row that kills the worker whenever one view processes it: only that view stops."""
    assert world.load is not None, "opened"
    name, query = "poisoned", "SELECT id, tag FROM notes"
    world.create(name, query)
    with connect(world.dsn) as conn:
        row = conn.execute("SELECT id FROM headrace.views WHERE view_name = %s", (name,)).fetchone()
        world.trap(faults.ROWS_TAKEN, f"{row[0]} poison")
        # No writer uses such an id.
        conn.execute("INSERT INTO notes VALUES (1000003, 'poison', 1, '')")

        def stopped() -> bool:
            return world.statuses(conn)[name][0] == "error"

        world.load.pause()
        wait_until(stopped, "the view that kills the worker is stopped", PATIENCE_S)
        world.load.resume()
        said = world.statuses(conn)
        world.say(f"told: {said[name]}")
        assert "the worker died while processing this view" in str(said[name][1])
        wrong = {n: s for n, s in said.items() if s[0] == "error" and n != name}
        assert not wrong, wrong
    world.untrap(faults.ROWS_TAKEN)
    world.drop(name)


def never_returns(world: World) -> None:
    """Run a view's function that never ends: the view leaves, and it can be dropped."""
    assert world.load is not None, "opened"
    name = "stuck"
    with connect(world.dsn) as conn:
        conn.execute(ENDLESS)
        world.create(name, "SELECT id, endless(tag) AS tag FROM notes")
        # No writer uses such an id.
        conn.execute("INSERT INTO notes VALUES (1000004, 'poison', 1, '')")

        def left() -> bool:
            row = conn.execute(
                "SELECT sqlstate FROM headrace.views WHERE view_name = %s", (name,)
            ).fetchone()
            return bool(row and row[0] == "54H01")

        # The load never ends, and it is faster than some engines can follow.
        world.load.pause()
        wait_until(left, "the view leaves", PATIENCE_S)
        world.load.resume()
        if world.rng.random() < 0.5:
            kill(world, world.rng.choice(("worker", "builder")))
        before = world.load.written
        wait_until(lambda: world.load.written > before + 10, "the load", PATIENCE_S)
        said = world.statuses(conn)
        world.say(f"told: {said[name]}")
        wrong = {n: s for n, s in said.items() if s[0] == "error" and n != name}
        assert not wrong, wrong
        conn.execute("DELETE FROM notes WHERE id = 1000004")
    error = world.call(f"CALL headrace.drop_view('{name}', if_exists => true)")
    world.say(f"drop_view {name}: {describe(error)}")
    assert error is None, error
    world.views.pop(name, None)


def published_for_all(world: World) -> None:
    """Publish all tables: views whose rows cannot be deleted then stop; a resync repairs them."""
    assert world.load is not None, "opened"
    with connect(world.dsn) as conn:
        before = world.load.written
        conn.execute("CREATE PUBLICATION everything FOR ALL TABLES")

        def met() -> bool:
            stopped = any(s == "error" for s, _ in world.statuses(conn).values())
            return stopped or world.load.written > before + 100

        wait_until(met, "the views meet it", PATIENCE_S)
        if world.rng.random() < 0.5:
            kill(world, "worker")
        conn.execute("DROP PUBLICATION everything")
        # Changes written before may still fail.
        last = wal_end(conn)
        wait_until(lambda: slot(conn, world.slot_name)[0] >= last, "it is behind", PATIENCE_S)
        told = {n: s for n, s in world.statuses(conn).items() if s[0] == "error"}
    world.say(f"told: {told}")
    for status, message in told.values():
        assert "replica identity" in str(message), (status, message)
    if told:
        rebuild(world)


def special_cards(rng: random.Random) -> list[Card]:
    full = [Card("disk full", disk_full, small_disk=True)]
    return [
        Card("table locked", table_locked),
        Card("slot dropped", slot_dropped),
        *(full if can_mount() else [Card("SIGTERM engine", terminated)]),
        Card("second engine", second_engine),
        Card("a sink that hardly writes", hardly_writing),
        Card("bits of queues flipped", bits_flipped),
        Card("resync, then a kill", resync_killed),
        Card("a new view, killed before its first checkpoint", first_checkpoint),
        Card("paused, then a kill", paused),
        Card("paused for long, then a kill", paused_for_long),
        Card("killed by a view's row", killed_by_a_row),
        Card("an evaluator that never returns", never_returns),
        Card("a publication for all tables", published_for_all),
    ]


def can_mount() -> bool:
    """Return whether this process may mount a small file system."""
    if os.geteuid() != 0:
        return False
    done = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


# --- dealing

KINDS = (worker_cards, builder_cards, process_cards, server_cards, network_cards, special_cards)
FAULTS_PER_SEED = len(KINDS)


def deal(seed: int) -> list[Card]:
    """Return the faults of a seed, in order."""
    shuffle = random.Random(2026)
    hand = []
    for number, kind in enumerate(KINDS):
        cards = kind(shuffle)
        shuffle.shuffle(cards)
        # Decks of one size are played in another order every time.
        hand.append(cards[(seed + number * (seed // len(cards))) % len(cards)])
    random.Random(seed).shuffle(hand)
    return hand


def kept_here() -> list[Card]:
    """Return the faults of a quick seed with ``wal_retention = local``."""
    return [
        Card("paused for long, then a kill", paused_for_long),
        at_worker_point(faults.BATCH_KEPT, "kill:3"),
        at_worker_point(faults.BATCH_AHEAD, "kill:3"),
        at_worker_point(faults.QUEUES_SYNCED, "alarm:2:1"),
    ]


def second_blow(world: World) -> None:
    """Sometimes cause another fault during the recovery from the first."""
    if world.rng.random() < 0.25:
        at_any_moment(world.rng, 0.0, 0.6)
        blow = world.rng.choice(("worker", "worker", "cut"))
        world.say(f"second blow: {blow}")
        if blow == "cut":
            world.proxy.cut()
        else:
            kill(world, "worker")
