"""A view does no work for changes that do not concern it, and misses none that do."""

from __future__ import annotations

import random

import psycopg
import pytest

from headrace.planner.plan import plan
from headrace.planner.request import PlanRequest
from tests.compared import differs
from tests.runtime.harness import create_view, settle

QUERIES = {
    "one": "SELECT k, sum(n) AS s FROM public.items WHERE k = 1 GROUP BY k",
    "many": "SELECT id, k, n FROM public.items WHERE n > 50",
    "joined": "SELECT i.id, o.w FROM public.items i JOIN public.others o ON o.id = i.id"
    " WHERE i.k = 2 AND o.w IS NOT NULL",
    "texts": "SELECT id, note FROM public.items WHERE k = 3",
    "whole": "SELECT k, n FROM public.rows WHERE k = 1",
    "none": "SELECT id FROM public.items WHERE k = 1000",
}


TABLES = """
CREATE TABLE items (id int PRIMARY KEY, k int, n int, note text);
CREATE TABLE others (id int PRIMARY KEY, w int);
CREATE TABLE rows (k int, n int);
ALTER TABLE rows REPLICA IDENTITY FULL;
INSERT INTO items SELECT i, i % 5, i, repeat('x', i) FROM generate_series(1, 40) i;
INSERT INTO others SELECT i, i FROM generate_series(1, 30) i;
INSERT INTO rows SELECT i % 3, i FROM generate_series(1, 30) i;
"""


def changes(seed: int) -> list[str]:
    """Return statements, each a transaction: rows enter the view, leave it, or do not match it."""
    draw = random.Random(seed)
    out = []
    for step in range(60):
        row, k, n = draw.randint(1, 60), draw.randint(0, 4), draw.randint(0, 100)
        out.append(
            draw.choice(
                [
                    f"INSERT INTO items VALUES ({100 + step}, {k}, {n}, 'new')",
                    f"UPDATE items SET k = {k} WHERE id = {row}",
                    f"UPDATE items SET n = {n} WHERE k = {k}",
                    f"UPDATE items SET id = id + 1000 WHERE id = {row}",
                    f"UPDATE items SET note = repeat(md5('{n}'), 200) WHERE id = {row}",
                    f"UPDATE items SET n = {n} WHERE id = {row}",
                    f"DELETE FROM items WHERE id = {row}",
                    f"DELETE FROM items WHERE id = {row}; INSERT INTO items VALUES ({row}, {k}, 1)",
                    f"UPDATE others SET w = nullif({n}, 50) WHERE id = {row}",
                    f"DELETE FROM others WHERE id = {row}",
                    f"UPDATE rows SET k = {k} WHERE n = {row}",
                    f"INSERT INTO rows VALUES ({k}, {n})",
                ]
            )
        )
    fill = "INSERT INTO items SELECT i, i % 5, i, 'again' FROM generate_series(1, 40) i"
    return [*out, "TRUNCATE items", fill, *out]


def assert_equal(source: psycopg.Connection, where: int) -> None:
    for name, query in QUERIES.items():
        assert differs(source, name, query) == [], (name, where)


@pytest.mark.parametrize("seed", [1, 2])
def test_views_that_are_passed_by_stay_equal(source, database, start, seed):
    running = start(batch_rows_max=1)
    views = {}
    with psycopg.connect(database) as conn:
        for name, query in QUERIES.items():
            physical = plan(conn, PlanRequest(query, None, {})).physical
            views[name] = create_view(running, database, name, physical, query)
    for place, statement in enumerate(changes(seed)):
        source.execute(statement)
        if place % 15 == 14:
            settle(running, source)
            assert_equal(source, place)
        if place == 75:
            running.stop()
            running = start(batch_rows_max=1)
    settle(running, source)
    assert_equal(source, place)
    works = {n: running.book.views[view].works for n, view in views.items()}
    # The truncation concerns all views; no other change concerns the view without rows.
    assert works["none"] <= 2 < works["one"]
    running.stop()
