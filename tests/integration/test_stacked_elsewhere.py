"""Views over views (option ``first_rows``) with workers, with Spark, and over another database."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest

from tests.integration import test_fed
from tests.integration.test_fed import SUMS, change, inlined, plan_of, writing
from tests.integration.test_resync import wait
from tests.integration.test_sources import THERE, at
from tests.integration.test_stacked import FROM_V, OVER, check, create, id_of, told, verify
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

TABLES = test_fed.TABLES
VIEWS = {"v": SUMS}
JOIN = "SELECT a.g, a.total - w.most AS d, m.name FROM v a JOIN w ON w.n = a.n LEFT JOIN names m ON m.g = a.g"


@pytest.fixture
def other(databases) -> Iterator[psycopg.Connection]:
    """Take another database of the same server, with tables."""
    name = databases.take()
    dsn = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
        conn.execute(THERE)
        yield conn
    databases.give_back(name)


def test_the_views_move_to_other_workers_and_back(engine, commander, source):
    """A view that moves is planned over its tables there; the one above keeps the subplan."""
    commander.execute("CALL headrace.add_worker('w1')")
    create(commander, "w", OVER)
    rng, queries = random.Random(1), {"v": SUMS, "w": inlined(OVER)}
    before = id_of(source, "w")
    assert {row[0] for row in explained(commander, "w")} >= {"collection", "strategy"}
    for worker in ("w1", "main"):
        commander.execute("CALL headrace.set_placement('v', %s)", (worker,))
        change(source, rng)
        check(commander, queries)
        assert id_of(source, "w") == before
    for worker in ("w1", "main"):
        commander.execute("CALL headrace.set_placement('w', %s)", (worker,))
        change(source, rng)
        check(commander, queries)
    assert "Feed" not in plan_of(commander, "w")
    commander.execute("CALL headrace.set_placement('v', 'w1')")
    commander.execute("CALL headrace.resync_view('w')")
    why = 'view "public"."v" is on another worker'
    assert told(commander, "w") == f"first rows: from the tables, because {why}"
    commander.execute("CALL headrace.set_placement('w', 'w1')")
    engine.kill9()
    change(source, rng)
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        check(conn, queries)
        for name in ("w", "v"):
            conn.execute("CALL headrace.set_placement(%s, 'main')", (name,))
        conn.execute("CALL headrace.resync_view('w')")
        assert told(conn, "w") == FROM_V
        conn.execute("CALL headrace.set_placement('w', '{\"reduce\": \"w1\"}')")
        change(source, rng)
        check(conn, queries)


def explained(conn, name: str) -> list[tuple]:
    call = "SELECT * FROM headrace.explain_placement(%s)"
    return conn.execute(call, (name,)).fetchall()


def test_the_lower_view_is_over_another_database(engine, commander, source, other):
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, g int, x numeric, note text)")
    commander.execute("CALL headrace.add_source('eu', %s)", (at(other),))
    commander.execute("CALL headrace.create_logical_table('all_orders', 'orders', 'shard')")
    below = "SELECT shard, g, count(*) AS n FROM all_orders GROUP BY shard, g"
    create(commander, "u", below)
    query = "SELECT u.g, sum(u.n) AS n, count(m.name) AS c FROM u LEFT JOIN names m USING (g) GROUP BY u.g"
    create(commander, "w", query)
    create(commander, "x", "SELECT max(n) AS n FROM u")
    assert told(commander, "w") == told(commander, "x") == 'first rows: from view "public"."u"'
    for number in range(5):
        other.execute("UPDATE orders SET g = (g + 1) %% 9 WHERE id %% 7 = %s", (number,))
        source.execute("INSERT INTO orders VALUES (%s, %s, 1, 'x')", (number, number % 3))
        change(source, random.Random(number))
    verify(commander, "u", "w", "x")
    engine.kill9()
    other.execute("DELETE FROM orders WHERE id % 5 = 0")
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        for name in ("u", "w", "x"):
            wait(conn, name)
        verify(conn, "u", "w", "x")


@pytest.mark.engine_with(HEADRACE_SPARK_PARTITION_ROWS="300", HEADRACE_SPARK_WARM="true")
def test_on_spark_while_writers_go_on(engine, commander, source):
    source.execute("INSERT INTO items SELECT i, i, i FROM generate_series(2000, 6000) i")
    wait(commander, "v")
    source.execute("ANALYZE v")
    create(commander, "w", OVER)
    wait_until(lambda: "spark is warm" in engine.log, "Spark starts", 120)

    def also(conn: psycopg.Connection, rng: random.Random, seed: int) -> None:
        conn.execute("UPDATE items SET x = x + 1 WHERE g %% 50 = %s", (seed * 2,))
        conn.execute("DELETE FROM items WHERE id = %s", (50 * rng.randint(40, 119) + seed * 2,))

    with writing(engine.source, also):
        create(commander, "pair", JOIN, population="spark")
    queries = {"v": SUMS, "w": inlined(OVER), "pair": f"WITH v AS ({SUMS}), w AS ({OVER}) {JOIN}"}
    check(commander, queries)
    commander.execute("CALL headrace.resync_view('pair')")
    assert told(commander, "pair") == 'first rows: from views "public"."v", "public"."w"'
    source.execute("DELETE FROM items WHERE id % 7 = 3")
    check(commander, queries)
    verify(commander, *queries)
