"""Promotions of a source (``add_source``), and of the main database that has one."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from tests.engines import Engine
from tests.failover.drill import connect
from tests.failover.pair import pair as pair
from tests.waiting import at_any_moment, wait_until

QUERY = "SELECT g, count(*) AS n, sum(x) AS total FROM all_orders GROUP BY g"
TABLE = "CREATE TABLE orders (id int PRIMARY KEY, g int, x numeric)"
ROWS = "INSERT INTO orders SELECT i, i % 7, i FROM generate_series({}, {}) i"


@contextlib.contextmanager
def united(main: str, there: str, folder: Path, slot: str) -> Iterator[EmbeddedEngine]:
    """Run an engine on ``main`` with source ``eu``, and a view over the rows of both."""
    env = {"HEADRACE_SLOT_NAME": slot, "HEADRACE_SPARK_WARM": "false"}
    engine = Engine(main, folder / "engine", env=env)
    engine.start()
    try:
        with connect(engine.dsn) as conn:
            conn.execute("CALL headrace.add_source('eu', %s)", (there,))
            conn.execute("CALL headrace.create_logical_table('all_orders', 'orders', 'shard')")
            conn.execute(f"CALL headrace.create_view('sums', $q${QUERY}$q$)")
        yield engine
    except BaseException:
        print(engine.log[-20_000:])
        raise
    finally:
        engine.kill9()


def sums(*conns: psycopg.Connection) -> list[tuple[object, ...]]:
    """Return the rows that the view must have, computed from the tables of both databases."""
    rows = [row for conn in conns for row in conn.execute("SELECT g, x FROM orders").fetchall()]
    groups = sorted({g for g, _ in rows})
    return [(g, len(xs := [x for h, x in rows if h == g]), sum(xs)) for g in groups]


def shows(main: str, *dsns: str) -> None:
    """Wait until the view has the rows of all databases."""

    def found() -> tuple[object, object]:
        with contextlib.ExitStack() as stack:
            conns = [stack.enter_context(connect(dsn)) for dsn in dsns]
            here = stack.enter_context(connect(main))
            return here.execute("TABLE sums ORDER BY g").fetchall(), sums(*conns)

    def equal() -> bool:
        mine, wanted = found()
        return mine == wanted

    wait_until(equal, found, every_s=0.1)


@pytest.mark.timeout(300)
def test_a_source_is_promoted(pair, database, tmp_path):
    with pair.connect() as conn:
        conn.execute("CREATE DATABASE there")
    there = pair.dsn("there")
    with connect(there) as far, connect(database) as here:
        far.execute(f"{TABLE}; {ROWS.format(1, 100)}")
        here.execute(f"{TABLE}; {ROWS.format(101, 200)}")
    with united(database, there, tmp_path, "promoted_source") as engine:
        with pair.connect("there") as conn:
            [(slot,)] = conn.execute(
                "SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'logical'"
            ).fetchall()
        for kill in (True, False):
            pair.renew()
            pair.guard()
            pair.wait_synchronised(slot)
            with connect(there) as far:
                far.execute(ROWS.format(1000 + kill, 1000 + kill))
            pair.promote(kill=kill)
            with connect(there) as far:
                far.execute(ROWS.format(2000 + kill, 2000 + kill))
            shows(database, database, there)
        assert "source switched" in engine.log
        with connect(database) as here:
            states = here.execute("SELECT name, state FROM headrace.origins").fetchall()
            assert states == [("eu", "running")]
            assert here.execute("SELECT id FROM headrace.views").fetchall() == [(1,)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_the_main_database_loses_commits_that_a_source_has_sent(pair, database, tmp_path, seed):
    """The source keeps its changes until the standby of the main database has them."""
    rng = random.Random(seed)
    pair.renew()
    name = f"main{seed}"
    with pair.connect() as conn:
        conn.execute(f"CREATE DATABASE {name}")
    main = pair.dsn(name)
    with connect(database) as far, connect(main) as here:
        far.execute(f"{TABLE}; {ROWS.format(1, 100)}")
        here.execute(f"{TABLE}; {ROWS.format(101, 200)}")
    with united(main, database, tmp_path, name), connect(database) as far:
        pair.wait_synchronised(name)
        for i in range(1000, 1060):
            if i == 1030:
                pair.stall()
            far.execute(ROWS.format(i, i))
            at_any_moment(rng, 0.0, 0.04)
        pair.promote(kill=True)
        far.execute(ROWS.format(2000, 2000))
        shows(main, main, database)
        with connect(main) as here:
            states = here.execute("SELECT name, state FROM headrace.origins").fetchall()
            assert states == [("eu", "running")]
            assert here.execute("SELECT id FROM headrace.views").fetchall() == [(1,)]
