"""Keys that the planner proposes: certain ones, and uncertain ones."""

from __future__ import annotations

import pytest

from headrace.planner import PlanRequest, plan
from headrace.planner.logical import uniquekeys

NONE = 'key: none proved; what option "key" names would be checked'
ONE = "key: none; there is one row at most, and no key in Postgres has no column"
NULLS = "; that there is no NULL in {} would be checked"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT id, k FROM t", "key: (id), proved"),
        ("SELECT k, id AS name FROM t WHERE k > 2", "key: (name), proved"),
        ("SELECT b, a FROM w", "key: (b, a), proved"),
        ("SELECT k FROM t", NONE),
        ("SELECT a FROM w", NONE),
        ("SELECT id + 1 AS id FROM t", NONE),
        ("SELECT x FROM bag", NONE),
        ("SELECT id FROM t UNION ALL SELECT id FROM t", NONE),
        ("SELECT id FROM t UNION SELECT k FROM t", "could have key (id), proved" + NULLS.format("id")),
        ("SELECT DISTINCT x FROM bag", "could have key (x), proved" + NULLS.format("x")),
        ("SELECT k, count(*) FROM t GROUP BY k", "could have key (k), proved" + NULLS.format("k")),
        ("SELECT k, count(*) FROM t WHERE k > 0 GROUP BY k", "could have key (k), proved" + NULLS.format("k")),
        ("SELECT count(*) FROM t GROUP BY k", NONE),
        ("SELECT id, k, count(*) FROM t GROUP BY id, k", "key: (id), proved"),
        ("SELECT k, s, count(*) FROM t GROUP BY ROLLUP (k, s)", NONE),
        ("SELECT count(*) FROM t", ONE),
        ("SELECT id, k FROM t ORDER BY k LIMIT 1", ONE),
        ("SELECT id, k FROM t ORDER BY k LIMIT 2", "key: (id), proved"),
        ("SELECT DISTINCT ON (k) k, s FROM t WHERE k > 0 ORDER BY k, s", "could have key (k), proved" + NULLS.format("k")),
        ("SELECT id, row_number() OVER (ORDER BY k) FROM t", "key: (id), proved"),
        ("SELECT t.id, e.b FROM t JOIN example_table e ON e.id = t.k", "key: (id), proved"),
        ("SELECT t.id, e.b FROM t LEFT JOIN example_table e ON e.id = t.k", "key: (id), proved"),
        ("SELECT t.id, e.b FROM t JOIN example_table e ON e.b = t.k", NONE),
        ("SELECT t.id FROM t JOIN example_table e ON e.id < t.k", NONE),
        ("SELECT t.id, e.id AS e FROM t JOIN example_table e ON e.b = t.k", "key: (id, e), proved"),
        ("SELECT e.id FROM t LEFT JOIN example_table e ON e.b = t.id", NONE),
        ("SELECT t.id, e.id AS e FROM t FULL JOIN example_table e ON e.id = t.id", NONE),
        ("SELECT id FROM t WHERE EXISTS (SELECT FROM bag WHERE x = t.k)", "key: (id), proved"),
        ("SELECT id FROM t INTERSECT SELECT id FROM u", "could have key (id), proved" + NULLS.format("id")),
        ("SELECT id FROM t INTERSECT ALL SELECT id FROM t", NONE),
    ],
)  # fmt: skip
def test_keys(conn, query, told):
    assert plan(conn, PlanRequest(query)).explain["key"] == told


@pytest.mark.parametrize(
    ("query", "key", "told"),
    [
        ("SELECT id, k FROM t", ("id",), "key: (id), proved"),
        ("SELECT id, k FROM t", ("k", "id"), "key: (k, id), unique as proved, NULLs in k checked at each write"),
        ("SELECT id, k FROM t", ("k",), "key: (k), checked at each write"),
        ("SELECT count(*) AS n FROM t", ("n",), "key: (n), proved"),
    ],
)  # fmt: skip
def test_a_key_that_was_asked_for(conn, query, key, told):
    planned = plan(conn, PlanRequest(query))
    names = tuple(f.name for f in planned.columns)
    assert uniquekeys.given(planned.optimised, names, key) == told
