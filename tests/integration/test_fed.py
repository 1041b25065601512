"""Views that are fed from a connection point: option ``from`` of create_view (A-25, A-45)."""

from __future__ import annotations

import json
import random

import pytest

from tests.compared import differs
from tests.integration.test_resync import wait

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int, x numeric);
CREATE TABLE names (g int PRIMARY KEY, name text);
INSERT INTO items SELECT i, i % 50, i * 1.50 FROM generate_series(1, 1000) i;
INSERT INTO names SELECT i, 'n' || i FROM generate_series(0, 49, 2) i;
"""
SUMS = "SELECT g, count(*) AS n, sum(x) AS total FROM items GROUP BY g"
VIEWS = {"v": SUMS}
OVER = "SELECT n, max(total) AS most FROM v GROUP BY n"


def inlined(query: str, view: str = "v", of: str = SUMS) -> str:
    return query.replace(f"FROM {view}", f"FROM ({of}) {view}")


def feed(conn, name: str, query: str, **options: object) -> None:
    conn.execute(
        "CALL headrace.create_view(%s, %s, options => %s)",
        (name, query, json.dumps({"from": "p", **options})),
    )


def change(conn, rng: random.Random) -> None:
    for _ in range(5):
        number = rng.randint(1, 1100)
        conn.execute(
            "INSERT INTO items VALUES (%s, %s, %s) ON CONFLICT (id)"
            " DO UPDATE SET x = items.x + 0.25, g = excluded.g",
            (number, rng.randint(0, 55), rng.randint(1, 9)),
        )
        conn.execute("DELETE FROM items WHERE id = %s", (rng.randint(1, 1100),))


def check(conn, queries: dict[str, str]) -> None:
    for name, query in queries.items():
        wait(conn, name)
        assert differs(conn, name, query) == [], name


def test_a45_first_contents_come_from_the_point(commander, source):
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    feed(commander, "w", OVER)
    check(commander, {"v": SUMS, "w": inlined(OVER)})
    rng = random.Random(1)
    for _ in range(10):
        change(source, rng)
    check(commander, {"v": SUMS, "w": inlined(OVER)})
    assert commander.execute("SELECT * FROM headrace.verify_view('w')").fetchall() == []
