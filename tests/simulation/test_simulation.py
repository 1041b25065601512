"""Random troubles, repeatable by their seed."""

from __future__ import annotations

import pytest

from tests.simulation import world as worlds
from tests.simulation.script import Script


def run(seed: int | str) -> worlds.World:
    with worlds.made(seed) as world:
        try:
            world.scheduler.run(Script(world).run)
        except BaseException as error:
            error.add_note(worlds.report(world, seed))
            raise
    return world


@pytest.mark.parametrize("seed", range(50))
def test_seed(seed):
    run(seed)
