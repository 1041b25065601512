"""A world whose views are on four workers: main, another local one, and two remote ones.

The remote workers have their own addresses, behind lines with latency and bandwidth. The troubles
of workers and lines are dealt from a deck, as in ``deck.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.config import Settings
from headrace.embedded.postgres import EmbeddedPostgres
from tests.far import FarWorker, token
from tests.faults.helpers import WORKER
from tests.faults.matrix import load
from tests.faults.matrix.world import PATIENCE_S, World, connect
from tests.waiting import at_any_moment, wait_until

MAIN, NEAR = "main", "w1"
FAR = {"w2": "127.0.0.2", "w3": "127.0.0.3"}
ALL = (MAIN, NEAR, *FAR)
LINES = {"w2": (0.002, 3e6), "w3": (0.005, 4e5)}
"""Latency one way in seconds, and bytes per second."""
LONG = bool(os.environ.get("HEADRACE_TEST_LONG"))
"""Whether a trouble lasts longer than a missing worker is waited for."""


class LinkedWorld(World):
    """A world with remote workers."""

    def __init__(self, server: EmbeddedPostgres, seed: int, folder: Path) -> None:
        super().__init__(server, seed, folder, small_disk=False)
        self.placed = True
        # Recorded batches of one transaction each take an exchange over the slowest line.
        self.patience_s *= 3
        self._turn = itertools.cycle(self.rng.sample(ALL, len(ALL)))
        self.far: dict[str, FarWorker] = {}

    def begin(self) -> None:
        """Join the remote workers."""
        with connect(self.engine.dsn) as conn:
            for name, host in FAR.items():
                made = FarWorker(self.dsn, self.folder / name, token(conn, name), host)
                self.far[name] = made
                self.ordinary(name)
                made.start()
        for made in self.far.values():
            made.ready()

    def ordinary(self, name: str) -> None:
        """Give a line its ordinary latency and bandwidth."""
        line = self.far[name].network
        line.deaf = None
        line.delay_s, line.bytes_per_s = LINES[name]
        line.resume()

    def place(self, name: str) -> str:
        # Views that the witness compares must not stop, as a view does whose worker is gone.
        return MAIN if name in load.CORE else next(self._turn)

    def close(self) -> None:
        for made in self.far.values():
            made.close()
        super().close()

    def logs(self) -> str:
        parts = [super().logs()]
        for name, made in self.far.items():
            parts += [f"--- {name}", *made.log.read_text().splitlines()[-60:]]
        return "\n".join(parts)

    def pid(self, name: str) -> int:
        """Return the pid of the process that has the states of a worker."""
        if name in self.far:
            return self.far[name].child()
        module = WORKER if name == MAIN else f"worker {name}"
        return wait_until(lambda: self.child(module), f"worker {name}", PATIENCE_S)


Deed = Callable[[LinkedWorld, str], None]


@dataclass(frozen=True)
class Trouble:
    """A trouble and the worker that it concerns."""

    name: str
    worker: str
    do: Deed

    def __str__(self) -> str:
        return f"{self.name} of {self.worker}"


def kill(world: LinkedWorld, name: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(world.pid(name), signal.SIGKILL)


def stop(world: LinkedWorld, name: str) -> None:
    """Stop a worker with SIGSTOP, sometimes for so long that it counts as missing."""
    pid = world.pid(name)
    os.kill(pid, signal.SIGSTOP)
    longest = 7.0 if name != MAIN and (LONG or world.rng.random() < 0.25) else 1.0
    at_any_moment(world.rng, longest / 2, longest)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def cut(world: LinkedWorld, name: str) -> None:
    for _ in range(world.rng.randint(1, 3)):
        world.far[name].network.cut()
        at_any_moment(world.rng, 0.0, 0.4)


def slow(world: LinkedWorld, name: str) -> None:
    line = world.far[name].network
    line.delay_s, line.bytes_per_s = world.rng.choice((0.05, 0.3)), world.rng.choice((2e4, 1e5))
    at_any_moment(world.rng, 0.5, 2.0)
    if world.rng.random() < 0.3:
        line.cut()
        at_any_moment(world.rng, 0.1, 0.5)
    world.ordinary(name)


def half_open(world: LinkedWorld, name: str) -> None:
    """Drop the data of one direction while both ends see the connection open; finally cut it."""
    line = world.far[name].network
    line.deaf = world.rng.random() < 0.5
    longest = 7.0 if LONG or world.rng.random() < 0.3 else 1.0
    at_any_moment(world.rng, longest / 2, longest)
    line.deaf = None
    # A gap within a TLS stream ends the connection by itself; otherwise nothing would end it.
    if world.rng.random() < 0.5:
        line.cut()


def stalled(world: LinkedWorld, name: str) -> None:
    line = world.far[name].network
    line.stall()
    longest = 7.0 if LONG or world.rng.random() < 0.2 else 1.0
    at_any_moment(world.rng, longest / 2, longest)
    line.resume()


def lose_disk(world: LinkedWorld, name: str) -> None:
    """Remove the data of a worker: its views are populated again automatically."""
    # Views are populated one after the other, so they disagree meanwhile.
    world.witness.absent.set()
    begin = len(world.engine.log)
    # Without main's records, the states of the other workers cannot be matched either
    # (runtime/worker_service.py).
    ids = set().union(*(world.ids(worker) for worker in (ALL if name == MAIN else (name,))))
    if name in world.far:
        made = world.far[name]
        made.die()
        shutil.rmtree(made.folder / "data")
        made.start()
    else:
        settings = Settings(source="", data_dir=world.engine.data_dir)
        folder = settings.state_dir if name == MAIN else settings.of_worker(name).state_dir
        world.engine.kill9()
        shutil.rmtree(folder)
        world.engine.start()
    wait_until(lambda: filled(world, ids), lambda: f"views {ids} are filled anew", PATIENCE_S)
    world.say(f"{len(ids)} views were filled anew; {len(world.engine.log) - begin} bytes of log")
    world.witness.absent.clear()


def filled(world: LinkedWorld, ids: set[int]) -> bool:
    """Return whether the views were populated again: they have new ids and run."""
    with connect(world.dsn) as conn:
        there = {i for (i,) in conn.execute("SELECT id FROM headrace.views").fetchall()}
        running = {status for status, _ in world.statuses(conn).values()} == {"running"}
    return running and not there & ids


def engine_killed(world: LinkedWorld, name: str) -> None:
    world.engine.kill9()
    world.engine.start()


EVERYWHERE: dict[str, Deed] = {"kill": kill, "stop": stop, "lost disk": lose_disk}
ELSEWHERE: dict[str, Deed] = {
    "cut link": cut, "slow link": slow, "half-open link": half_open, "stalled link": stalled,
}  # fmt: skip
DECK = (
    *(Trouble(kind, name, do) for kind, do in EVERYWHERE.items() for name in ALL),
    *(Trouble(kind, name, do) for kind, do in ELSEWHERE.items() for name in FAR),
    Trouble("kill -9 of all", MAIN, engine_killed),
)


def deal(seed: int, count: int) -> list[Trouble]:
    """Return the troubles of a seed; consecutive seeds go through the whole deck."""
    at = seed * count
    shuffled = random.Random(15).sample(DECK, len(DECK))
    hand = [shuffled[n % len(DECK)] for n in range(at, at + count)]
    random.Random(seed).shuffle(hand)
    return hand


def bring_about(world: LinkedWorld, trouble: Trouble) -> None:
    """Cause one trouble, and sometimes another one during the recovery."""
    trouble.do(world, trouble.worker)
    if world.rng.random() < 0.25:
        at_any_moment(world.rng, 0.0, 0.6)
        act = world.rng.choice((partial(kill), partial(cut)))
        name = world.rng.choice(tuple(FAR))
        world.say(f"second blow: {act.func.__name__} {name}")
        act(world, name)
