"""Views are exact while a standby decodes: with writers, kills, restarts, and populations."""

from __future__ import annotations

import random

import pytest

from tests.compared import differs
from tests.failover.drill import VIEWS, Writer, connect
from tests.standby.reader import Reading, reading
from tests.standby.reader import trio as trio
from tests.waiting import at_any_moment, wait_until

SEEDS = 40
QUICK = 4
"""Seeds of `make test`."""
LATER = "SELECT item, count(*) AS n, max(amount) AS most FROM orders GROUP BY item"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(n, id=f"seed{n}", marks=[pytest.mark.slow] if n > QUICK else [])
        for n in range(1, SEEDS + 1)
    ],
)
def test_views_are_exact_amid_kills_and_restarts(trio, tmp_path, seed):
    rng = random.Random(seed)
    env = {
        "HEADRACE_WAL_RETENTION": rng.choice(("local", "local", "source")),
        "HEADRACE_BATCH_INTERVAL_MS": str(rng.choice((2, 50))),
        "HEADRACE_CHECKPOINT_TXIDS": str(rng.choice((5, 100))),
    }
    steps = [stop_reader, kill_reader, kill_engine, kill_engine, populate, populate, pause, verify]
    with reading(trio, f"seed{seed}", tmp_path, **env) as made:
        ids = made.open(("averages", "ranks") if rng.random() < 0.3 else ())
        assert trio.slots(reader=True) == [made.slot]
        writer = Writer(trio.dsn(made.name), rng)
        try:
            wait_until(lambda: writer.written > 50, "it writes")
            for step in rng.sample(steps, 4):
                at_any_moment(rng, 0.0, 0.5)
                step(made, rng)
                view = rng.choice(list(VIEWS))
                covers_all(made, view, VIEWS[view])
        finally:
            writer.stop()
        made.equal()
        assert {view: made.ids()[view] for view in ids} == ids, "no view was filled anew"
        verify(made, rng)


def stop_reader(made: Reading, rng: random.Random) -> None:
    made.trio.reader.stop(rng.choice(("fast", "immediate")))
    at_any_moment(rng, 0.0, 1.0)
    made.trio.reader.start()


def kill_reader(made: Reading, rng: random.Random) -> None:
    made.trio.reader.kill()
    made.trio.reader.start()


def kill_engine(made: Reading, rng: random.Random) -> None:
    made.engine.kill9()
    at_any_moment(rng, 0.0, 0.5)
    made.engine.start()


def populate(made: Reading, rng: random.Random) -> None:
    """Create a view while a writer is at work; it has each commit from before a ``wait_for``."""
    name = f"later{rng.randint(1, 10**6)}"
    with connect(made.engine.dsn) as conn:
        conn.execute(f"CALL headrace.create_view('{name}', $q${LATER}$q$)")
        covers_all(made, name, LATER)
        conn.execute(f"CALL headrace.drop_view('{name}')")


def pause(made: Reading, rng: random.Random) -> None:
    with connect(made.engine.dsn) as conn:
        conn.execute("CALL headrace.pause_view('large')")
        at_any_moment(rng, 0.0, 0.5)
        conn.execute("CALL headrace.resume_view('large')")


def verify(made: Reading, rng: random.Random) -> None:
    with connect(made.engine.dsn) as conn:
        query = f"SELECT surplus, missing FROM headrace.verify_view('{rng.choice(list(VIEWS))}')"
        assert conn.execute(query).fetchall() == []


def covers_all(made: Reading, view: str, query: str) -> None:
    """Check that a view has, after ``wait_for``, each commit from before the call."""
    with made.pair.connect(made.name) as locked, locked.transaction():
        locked.execute("LOCK TABLE orders IN SHARE MODE")
        with connect(made.engine.dsn) as conn:
            conn.execute(f"CALL headrace.wait_for('{view}')")
            assert not differs(conn, view, query)
