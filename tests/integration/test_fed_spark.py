"""Views fed from a connection point whose first rows are computed on Spark, in many tasks."""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.integration import test_fed
from tests.integration.test_fed import SUMS, change, check, feed, inlined, writing
from tests.integration.test_resync import wait
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.engine_with(HEADRACE_SPARK_PARTITION_ROWS="300", HEADRACE_SPARK_WARM="true"),
    pytest.mark.slow,
]

TABLES = test_fed.TABLES
VIEWS = test_fed.VIEWS
OVER = {
    "w1": "SELECT n, max(total) AS most, count(*) AS c FROM v GROUP BY n",
    "w2": "SELECT a.g, a.total - b.total AS d, m.name FROM v a JOIN v b ON b.g = a.g + 1"
    " LEFT JOIN names m ON m.g = a.g",
    "w3": "SELECT g, total FROM v WHERE n > 15",
}


def test_a25_on_spark_while_writers_go_on(engine, commander, source):
    """The rows that the view has written since the snapshot are in any of the block ranges."""
    source.execute("INSERT INTO items SELECT i, i, i FROM generate_series(2000, 6000) i")
    wait(commander, "v")
    commander.execute("CALL headrace.create_connection_point('p', 'v', storage_key => 'n')")
    source.execute("ANALYZE v")
    wait_until(lambda: "spark is warm" in engine.log, "Spark starts", 400)
    notices: list[str] = []
    commander.add_notice_handler(lambda notice: notices.append(notice.message_primary))

    def also(conn: psycopg.Connection, rng: random.Random, seed: int) -> None:
        conn.execute("UPDATE items SET x = x + 1 WHERE g %% 50 = %s", (seed * 2,))
        # One of the rows just updated, for the other writer must not wait for this one as well.
        conn.execute("DELETE FROM items WHERE id = %s", (50 * rng.randint(40, 119) + seed * 2,))

    with writing(engine.source, also):
        for name, query in OVER.items():
            feed(commander, name, query, population="spark")
            assert any("on Spark" in text for text in notices), notices
            notices.clear()
    queries = {"v": SUMS} | {name: inlined(query) for name, query in OVER.items()}
    check(commander, queries)
    for seed in range(3):
        change(source, random.Random(seed))
    source.execute("DELETE FROM items WHERE id % 7 = 3")
    check(commander, queries)
    for name in OVER:
        assert commander.execute(f"SELECT * FROM headrace.verify_view('{name}')").fetchall() == []
    commander.execute("CALL headrace.resync_view('w2')")
    change(source, random.Random(9))
    check(commander, queries)
