"""Views on four workers, two of them remote, and seeded troubles of workers and their links.

Ten seeds have a hundred troubles; to run one: ``pytest tests/faults/test_linked.py -k seed7``. A
seed prints its actions and the ends of the logs.
"""

from __future__ import annotations

import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from tests.conftest import drop_database
from tests.faults.matrix import linked
from tests.faults.matrix.linked import LinkedWorld

SEEDS = 10
TROUBLES = 10
"""Number of troubles of a seed."""


@pytest.fixture(scope="module")
def server():
    with EmbeddedPostgres(None, 16, {"deadlock_timeout": "50ms"}, durable=False) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1), ids=lambda seed: f"seed{seed}")
def test_nothing_is_lost_or_doubled(seed, server, tmp_path):
    world = LinkedWorld(server, seed, tmp_path)
    try:
        world.open()
        world.settle()
        for trouble in linked.deal(seed - 1, TROUBLES):
            world.say(f"=== {trouble}")
            linked.bring_about(world, trouble)
            world.settle()
        world.finish()
    except BaseException:
        print(world.logs())
        raise
    finally:
        world.close()
        server.start()
        drop_database(server.dsn(), world.name)


def test_every_trouble_is_dealt():
    dealt = {str(t) for seed in range(SEEDS) for t in linked.deal(seed, TROUBLES)}
    assert dealt == {str(trouble) for trouble in linked.DECK}
