"""Seeded faults, several in a row on one engine; after each one nothing is lost or doubled.

To run one failing seed: ``pytest tests/faults/test_matrix.py -k seed17``. A seed prints its actions
and the ends of the logs.
"""

from __future__ import annotations

import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from tests.conftest import drop_database
from tests.faults.matrix import deck
from tests.faults.matrix.world import World

SEEDS = 47
"""The number of cards of the largest deck; 47 seeds of six faults each are 282."""
QUICK = 1, 3
"""The seed that `make test` runs, and the number of its faults."""
KEPT_HERE = 1000
"""An even seed: those have `wal_retention = local`."""


@pytest.fixture(scope="module")
def server():
    """A server that no other test uses: it may be killed."""
    settings = {"deadlock_timeout": "50ms"}
    with EmbeddedPostgres(None, 16, settings, durable=False) as made:
        yield made


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "cards"),
    [
        pytest.param(*QUICK, id="quick"),
        pytest.param(KEPT_HERE, None, id="kept-here", marks=pytest.mark.slow),
        *(
            pytest.param(n, None, id=f"seed{n}", marks=pytest.mark.slow)
            for n in range(1, SEEDS + 1)
        ),
    ],
)
def test_nothing_is_lost_or_doubled(seed, cards, server, tmp_path):
    hand = deck.kept_here() if seed == KEPT_HERE else deck.deal(seed)[:cards]
    small_disk = any(card.small_disk for card in hand)
    world = World(server, seed, tmp_path, small_disk=small_disk)
    try:
        world.open()
        world.settle()
        told = "population starts again"
        assert not (world.local and told in world.engine.log), "what it needs is kept here"
        for card in hand:
            world.say(f"=== {card.name}")
            card.do(world)
            deck.second_blow(world)
            world.settle()
        world.finish()
    except BaseException:
        print(world.logs())
        raise
    finally:
        world.close()
        server.start()
        drop_database(server.dsn(), world.name)
