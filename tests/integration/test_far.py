"""Workers on other machines: ``headrace worker --join``, tokens, TLS, networks that fail."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyarrow import flight

from headrace.errors import OutOfReach
from headrace.network.ends import Far
from headrace.network.link import INTERRUPT, FlightLink
from headrace.network.messages import Greeting
from headrace.process import keys
from headrace.sql import nodes
from tests.far import FarWorker, token
from tests.integration import test_workers
from tests.integration.test_fed import change
from tests.integration.test_workers import MOST, SUMS, check, place, refused, running
from tests.security.roles import connect, role
from tests.waiting import at_any_moment, wait_until

TABLES = test_workers.TABLES
FEW = "SELECT g, avg(x) AS mean FROM items GROUP BY g HAVING count(*) < 20"
SIZES = f"SELECT n, count(*) AS groups, sum(total) AS total FROM ({SUMS}) s GROUP BY n"
LEVELS = f"SELECT groups, count(*) AS sizes, sum(n) AS n FROM ({SIZES}) s GROUP BY groups"


@pytest.fixture
def far(engine, commander, source, tmp_path) -> Iterator[FarWorker]:
    """Start worker w2, and wait until it has joined."""
    made = FarWorker(engine.source, tmp_path / "far", token(commander, "w2"))
    try:
        made.start()
        made.ready()
        yield made
    finally:
        made.close()


def workers(conn: psycopg.Connection) -> dict[str, tuple]:
    rows = conn.execute("SELECT * FROM headrace.workers()").fetchall()
    return {name: (state, views, address) for name, state, _, views, _, _, address, *_ in rows}


def test_a_view_lives_on_another_machine(commander, source, far):
    rng, address = random.Random(3), f"127.0.0.1:{far.network.port}"
    assert workers(commander)["w2"] == ("running", 0, address)
    place(commander, "sums", SUMS, "w2", sharing=False)
    commander.execute("CALL headrace.create_view('most', %s)", (MOST,))
    for _ in range(10):
        change(source, rng)
        check(commander, sums=SUMS, most=MOST)
    assert workers(commander)["w2"] == ("running", 1, address)
    assert far.network.connections, "it goes over the network"
    for worker in ("main", "w2"):
        commander.execute("CALL headrace.set_placement('sums', %s)", (worker,))
        change(source, rng)
        check(commander, sums=SUMS, most=MOST)
    assert far.end() == 0
    wait_until(lambda: workers(commander)["w2"][0] == "down", "it is missed")
    change(source, rng)
    check(commander, most=MOST)
    far.start()
    wait_until(lambda: running(commander, "sums"), "it goes on")
    change(source, rng)
    check(commander, sums=SUMS, most=MOST)
    assert commander.execute("SELECT * FROM headrace.verify_view('sums')").fetchall() == []


def test_parts_read_parts_of_another_machine(engine, commander, source, far):
    """Rows go from there to here and back, also after a kill and a cut."""
    commander.execute("CALL headrace.add_worker('w1')")
    levels = {"reduce_1": "w2", "reduce_2": "w1", "reduce_3": "w2"}
    place(commander, "sizes", SIZES, {"reduce_1": "w1", "reduce_2": "w2"})
    place(commander, "levels", LEVELS, levels)
    commander.execute("CALL headrace.create_view('most', %s)", (MOST,))
    rng = random.Random(3)
    for _ in range(10):
        change(source, rng)
    check(commander, sizes=SIZES, levels=LEVELS, most=MOST)
    found = commander.execute("SELECT * FROM headrace.view_stats('levels')").fetchall()
    assert {name: worker for name, kind, _, worker, *_ in found if kind == "reduce"} == levels
    os.kill(far.child(), signal.SIGKILL)
    change(source, rng)
    far.network.cut()
    change(source, rng)
    check(commander, most=MOST)
    for name in ("sizes", "levels"):
        wait_until(lambda n=name: follows(commander, n), f"{name} goes on")
    change(source, rng)
    check(commander, sizes=SIZES, levels=LEVELS, most=MOST)


def listens(pid: int, port: int) -> bool:
    """Return whether a process listens on a TCP port (``/proc/net/tcp``, proc(5))."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
    held = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    return any(f"socket:[{inode}]" in held for inode in inodes)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_slow_link_does_not_hold_up_other_commit_groups(commander, source, far):
    rng, queries = random.Random(8), {"sums": SUMS, "most": MOST}
    place(commander, "sums", SUMS, "w2", sharing=False, commit_group="far")
    place(commander, "most", MOST, "main", sharing=False)
    far.network.delay_s = 0.1

    def apart() -> bool:
        change(source, rng)
        check(commander, most=MOST)
        found = commander.execute("SELECT name, cursor FROM headrace.list_views()").fetchall()
        return dict(found) == {"public.sums": "catching_up", "public.most": "leading"}

    wait_until(apart, "the view behind the link lags")
    check(commander, **queries)
    far.network.delay_s = 0.0
    change(source, rng)
    check(commander, **queries)


def test_the_process_that_computes_does_not_relay(far):
    """Otherwise each byte would wait until that process releases the interpreter lock."""
    assert listens(far.pid, far.port)
    assert not listens(far.child(), far.port)


@pytest.mark.slow
def test_a_port_that_is_not_free(engine, commander, tmp_path):
    worker = FarWorker(engine.source, tmp_path / "far", token(commander, "w2"))
    try:
        with socket.create_server((worker.host, worker.port)):
            worker.start()
            assert worker.end(signal.SIGCONT) == 1
        assert worker.said(f"cannot listen on {worker.host}:{worker.port}")
        assert not worker.said("Traceback")
        worker.start()
        worker.ready()
    finally:
        worker.close()


def test_who_has_no_token_does_not_join(engine, commander, source, tmp_path):
    given = token(commander, "w2")
    name, _, secret = given.partition(".")
    assert workers(commander)["w2"] == ("invited", 0, None)
    for wrong, said in {
        "": "has no token in it",
        "w2": "has no token in it",
        "w2.": "has no token in it",
        f"w3.{secret}": "the worker's token is not valid",
        f"{name}.{secret[1:]}": "the worker's token is not valid",
    }.items():
        worker = FarWorker(engine.source, tmp_path / f"far{len(wrong)}", wrong)
        try:
            worker.start()
            assert worker.end(signal.SIGCONT) == 1
            assert worker.said(said)
            assert not worker.said("Traceback")
        finally:
            worker.close()
    assert workers(commander)["w2"] == ("invited", 0, None)
    newer = token(commander, "w2")
    old, new = (
        FarWorker(engine.source, tmp_path / name, text)
        for name, text in (("old", given), ("new", newer))
    )
    try:
        old.start()
        assert old.end(signal.SIGCONT) == 1
        new.start()
        new.ready()
        # The token's secret is not in the catalog.
        stored = source.execute("SELECT n::text FROM headrace.nodes n").fetchall()
        assert secret not in str(stored)
        place(commander, "sums", SUMS, "w2")
        check(commander, sums=SUMS)
        # A removed worker cannot join with its token.
        commander.execute("CALL headrace.drop_view('sums')")
        commander.execute("CALL headrace.remove_worker('w2')")
        with pytest.raises(psycopg.errors.InvalidAuthorizationSpecification):
            nodes.join(source, newer, "x:1", b"y")
    finally:
        old.close()
        new.close()


def test_what_is_refused(engine, commander, source):
    commander.execute("CALL headrace.add_worker('w1')")
    for call, code in {
        "CALL headrace.create_worker_token('w1')": "42710",
        "CALL headrace.create_worker_token('main')": "42710",
        "CALL headrace.create_worker_token('W 2')": "42602",
        "CALL headrace.create_worker_token(NULL)": "22004",
    }.items():
        assert refused(commander, call).sqlstate == code, call
    token(commander, "w2")
    assert refused(commander, "CALL headrace.add_worker('w2')").sqlstate == "42710"
    with role(source, "stranger") as stranger, connect(engine.dsn, stranger) as conn:
        for call in ("create_worker_token('w3')", "create_worker_token('w2')"):
            assert refused(conn, f"CALL headrace.{call}").sqlstate == "42501"
        assert conn.execute("SELECT * FROM headrace.workers()").fetchall() == []
    [(given,)] = source.execute("CALL headrace.create_worker_token('w4')").fetchall()
    assert given.startswith("w4.")


def test_who_shows_no_certificate_is_not_heard(commander, source, far, tmp_path):
    """Not even one with another certificate: the worker accepts only that of its engine."""
    place(commander, "sums", SUMS, "w2")
    [(theirs,)] = source.execute("SELECT certificate FROM headrace.nodes").fetchall()
    address, own = f"127.0.0.1:{far.port}", keys.load_or_create(tmp_path / "mine")
    for end in (
        Far(address, theirs.encode(), own),
        Far(address, own.certificate, own),
    ):
        with pytest.raises(OutOfReach):
            FlightLink("w2", end, lambda: None).join(Greeting([]))
    bare = flight.connect(
        f"grpc+tls://{address}", tls_root_certs=theirs, override_hostname=keys.HOST_NAME
    )
    with pytest.raises(flight.FlightUnavailableError):
        list(bare.do_action(flight.Action(INTERRUPT, b"[]")))
    plain = flight.connect(f"grpc+tcp://{address}")
    with pytest.raises(flight.FlightUnavailableError):
        list(plain.do_action(flight.Action(INTERRUPT, b"[]")))
    change(source, random.Random(1))
    check(commander, sums=SUMS)


@pytest.mark.slow
def test_states_that_take_long_hold_up_nobody(engine, commander, source, far):
    """A view's states go over a slow link; other views follow meanwhile, and this one afterwards.

    They are staged until they are complete: a sender that is killed sends them again.
    """
    source.execute(
        "CREATE TABLE words (id int PRIMARY KEY, w text);"
        "INSERT INTO words SELECT i, md5(i::text) FROM generate_series(1, 20000) i"
    )
    query = "SELECT id, w, count(*) OVER (PARTITION BY id % 100) AS n FROM words"
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    far.network.bytes_per_s = 400_000
    creating = threading.Thread(target=created, args=(engine.dsn, "words_n", query))
    creating.start()
    kept = far.folder / "data" / "tmp" / "sent"
    wait_until(lambda: list(kept.glob(".*.new")), "they are on their way")
    [(number,)] = source.execute(NUMBER).fetchall()
    engine.kill9()
    creating.join()
    engine.start()
    again = psycopg.connect(engine.dsn, autocommit=True)
    for call in ("pause_view", "resume_view"):  # the builder has resumed the creation by then
        again.execute(f"CALL headrace.{call}('sums')")
    rng = random.Random(2)
    for _ in range(5):
        change(source, rng)
        check(again, sums=SUMS)
    source.execute("UPDATE words SET w = 'x' WHERE id < 50")
    # The link is cut during the transfer, which is repeated.
    wait_until(lambda: list(kept.glob(".*.new")), "they are on their way")
    assert not running(again, "words_n"), "it takes longer than that"
    far.network.cut()
    far.network.bytes_per_s = 0
    wait_until(lambda: running(again, "words_n"), "they have arrived")
    check(again, words_n=query, sums=SUMS)
    assert source.execute(NUMBER).fetchall() == [(number,)], "it was not filled anew"
    assert [p.name for p in kept.iterdir() if not p.name.startswith(".")] == []
    again.close()


NUMBER = "SELECT id FROM headrace.views WHERE view_name = 'words_n'"


def created(dsn: str, name: str, query: str) -> None:
    """Create a view on w2, until the engine dies."""
    with contextlib.suppress(psycopg.Error), psycopg.connect(dsn, autocommit=True) as conn:
        place(conn, name, query, "w2")


@pytest.mark.slow
def test_the_key_of_the_engine_is_lost(engine, commander, source, far):
    place(commander, "sums", SUMS, "w2")
    engine.stop()
    shutil.rmtree(engine.data_dir / "keys")
    engine.start()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        wait_until(lambda: running(conn, "sums"), "they know each other again")
        change(source, random.Random(1))
        check(conn, sums=SUMS)


FAULTS = (
    *("kill", "end", "stop", "cut", "stall", "slow", "disk"),
    *("engine", "main", "near"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "faults"),
    [(0, 3), *((seed, 10) for seed in range(1, 11))],
)
@pytest.mark.timeout(600)
def test_three_workers_go_on_after_anything(engine, source, tmp_path, seed, faults):
    """One worker here, two elsewhere, with networks that fail: no row is lost or doubled."""
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            conn.execute("CALL headrace.add_worker('w1')")
            others = [
                stack.enter_context(
                    contextlib.closing(FarWorker(engine.source, tmp_path / name, token(conn, name)))
                )
                for name in ("w2", "w3")
            ]
            for other in others:
                other.start()
                other.ready()
            queries = {"sums": SUMS, "most": MOST, "few": FEW, "all_items": "SELECT * FROM items"}
            for (name, query), worker in zip(
                queries.items(), ("w2", "w3", "w1", "main"), strict=True
            ):
                place(conn, name, query, worker, sharing=False)
            for name, query, at in (
                ("sizes", SIZES, {"reduce_1": "w1", "reduce_2": "w2"}),
                ("levels", LEVELS, {"reduce_1": "w2", "reduce_2": "w3", "reduce_3": "w1"}),
            ):
                place(conn, name, query, at)
                queries[name] = query
        hand = [FAULTS[(seed * faults + n) % len(FAULTS)] for n in range(faults)]
        rng.shuffle(hand)
        for fault in hand:
            writer = Writer(engine.source, rng.random())
            with writer:
                bring_about(fault, engine, rng.choice(others), rng)
                at_any_moment(rng, 0.0, 0.5)
            for other in others:
                other.network.resume()
                other.network.delay_s = other.network.bytes_per_s = 0
            with psycopg.connect(engine.dsn, autocommit=True) as conn:
                for name in queries:
                    wait_until(
                        lambda n=name, c=conn: follows(c, n), f"{name} goes on after {fault}"
                    )
                check(conn, **queries)


def follows(conn: psycopg.Connection, name: str) -> bool:
    """Return whether a view covers all; False if a worker has lost its disk meanwhile."""
    try:
        conn.execute("CALL headrace.wait_for(%s)", (name,))
    except psycopg.errors.ObjectNotInPrerequisiteState:
        return False
    return running(conn, name)


def bring_about(fault: str, engine, other: FarWorker, rng: random.Random) -> None:
    match fault:
        case "kill":
            os.kill(other.child(), signal.SIGKILL)
        case "end" | "disk":
            other.die() if fault == "disk" else other.end(signal.SIGKILL)
            at_any_moment(rng, 0.0, 0.5)
            if fault == "disk":
                shutil.rmtree(other.folder / "data")
            other.start()
        case "stop":
            child = other.child()
            os.kill(child, signal.SIGSTOP)
            at_any_moment(rng, 0.0, 1.0)
            os.kill(child, signal.SIGCONT)
        case "cut":
            for _ in range(rng.randint(1, 3)):
                other.network.cut()
                at_any_moment(rng, 0.0, 0.3)
        case "stall":
            other.network.stall()
            at_any_moment(rng, 0.1, 1.5)
            if rng.random() < 0.5:
                other.network.cut()
        case "slow":
            other.network.delay_s, other.network.bytes_per_s = rng.choice((0.01, 0.1)), 50_000
            at_any_moment(rng, 0.5, 1.5)
        case "engine":
            engine.kill9()
            engine.start()
        case "main" | "near":
            module = "headrace.runtime.worker" if fault == "main" else "worker w1"
            pid = wait_until(lambda: engine.child(module), fault)
            os.kill(pid, signal.SIGKILL)


class Writer:
    """A concurrent writer."""

    def __init__(self, source: str, seed: float) -> None:
        self._source, self._rng = source, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with psycopg.connect(self._source, autocommit=True) as conn:
            while not self._stop.is_set():
                change(conn, self._rng)
                self._stop.wait(0.01)
