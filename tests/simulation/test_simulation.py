"""Random troubles, repeatable by their seed."""

from __future__ import annotations

import threading

import pytest

from headrace.postgres import reuse
from headrace.runtime import engine
from tests.simulation import world as worlds
from tests.simulation.script import Script

SEEDS = 1_000
QUICK = 50
"""Seeds of ``make test``."""
OPEN: dict[int, str] = {}
"""Seeds that find an error of the engine that is not repaired yet."""


def marks(seed: int) -> list[pytest.MarkDecorator]:
    slow = [pytest.mark.slow] if seed >= QUICK else []
    return [*slow, pytest.mark.xfail(reason=OPEN[seed], strict=True)] if seed in OPEN else slow


def run(seed: int) -> worlds.World:
    with worlds.made(seed) as world:
        try:
            world.scheduler.run(Script(world).run)
        except BaseException as error:
            error.add_note(worlds.report(world, seed))
            raise
    return world


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=marks(n)) for n in range(SEEDS)],
)
def test_seed(seed):
    run(seed)


def test_threads_of_other_tests_keep_their_clock():
    """A connection that an earlier test returned is closed by a timer, perhaps during a run."""
    with worlds.made(7):
        assert reuse.threading is threading
        assert engine.threading is not threading


def test_seed_repeats_its_run():
    first, second = run(7), run(7)
    assert first.scheduler.trace.digest() == second.scheduler.trace.digest()
    assert first.kills
