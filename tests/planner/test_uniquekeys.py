"""Keys that the planner proposes: certain ones, and uncertain ones."""

from __future__ import annotations

import random

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
        ("SELECT e.id, e.b, count(*) FROM t JOIN example_table e ON e.b = t.k GROUP BY e.id, e.b", "key: (id), proved"),
        ("SELECT e.id, count(*) FROM t JOIN example_table e ON e.b = t.k GROUP BY e.id, e.b", "key: (id), proved"),
        ("SELECT e.b, count(*) FROM t JOIN example_table e ON e.b = t.k GROUP BY e.id, e.b", NONE),
        ("SELECT t.k, e.b, count(*) FROM t JOIN example_table e ON e.id = t.k GROUP BY t.k, e.b", "could have key (k), proved" + NULLS.format("k")),
        ("SELECT e.id, e.b FROM t LEFT JOIN example_table e ON e.b = t.k GROUP BY e.id, e.b", "could have key (id), proved" + NULLS.format("id")),
        ("SELECT DISTINCT e.id, e.b FROM t JOIN example_table e ON e.b = t.k", "key: (id), proved"),
        ("SELECT t.id, x.b FROM t LEFT JOIN (SELECT DISTINCT k, s AS b FROM t) x ON x.k = t.k GROUP BY t.id, x.b", "could have key (id, b), proved" + NULLS.format("b")),
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


TABLES = """
CREATE TABLE fa (id int PRIMARY KEY, x int, y int);
CREATE TABLE fb (id int PRIMARY KEY, x bigint, y int NOT NULL);
CREATE TABLE fc (x int, y int, z int, PRIMARY KEY (x, y));
INSERT INTO fa SELECT i, nullif(i % 4, 3), i % 3 FROM generate_series(1, 12) i;
INSERT INTO fb SELECT i, nullif(i % 5, 2), i % 2 FROM generate_series(3, 14) i;
INSERT INTO fc SELECT i % 4, i / 4, nullif(i % 3, 1) FROM generate_series(1, 15) i;
"""
COLUMNS = {"fa": ("id", "x", "y"), "fb": ("id", "x", "y"), "fc": ("x", "y", "z")}


def random_query(rng: random.Random) -> str:
    """Return a query that groups, or makes distinct, columns of joined tables."""
    tables = rng.choices([*COLUMNS], k=rng.randint(1, 3))
    joined = f"{tables[0]} t0"
    columns = [f"t0.{c}" for c in COLUMNS[tables[0]]]
    for number, table in enumerate(tables[1:], 1):
        mine = [f"t{number}.{c}" for c in COLUMNS[table]]
        pairs = {(rng.choice(columns), rng.choice(mine)) for _ in range(rng.randint(1, 2))}
        how = rng.choice(["JOIN", "JOIN", "LEFT JOIN"])
        joined += f" {how} {table} t{number} ON {' AND '.join(f'{a} = {b}' for a, b in pairs)}"
        columns += mine
    taken = rng.sample(columns, k=min(len(columns), rng.randint(1, 4)))
    shown = ", ".join(f"{c} AS c{n}" for n, c in enumerate(taken))
    if rng.random() < 0.3:
        return f"SELECT DISTINCT {shown} FROM {joined}"
    more = rng.sample(columns, k=rng.randint(0, 1))
    return f"SELECT {shown}, count(*) AS n FROM {joined} GROUP BY {', '.join({*taken, *more})}"


def test_keys_of_random_queries(conn):
    """Postgres finds no two rows that are equal in a key."""
    rng = random.Random(20261129)
    conn.execute(TABLES)
    smaller = 0
    for _ in range(80):
        query = random_query(rng)
        planned = plan(conn, PlanRequest(query))
        names = [f.name for f in planned.columns]
        for key in uniquekeys.unique(planned.optimised):
            mine = [n for c, n in zip(planned.optimised.columns, names, strict=True) if c.id in key]
            counted = f"SELECT count(*), count(DISTINCT ROW({', '.join(mine)})) FROM ({query}) q"
            [(rows, different)] = conn.execute(counted).fetchall()
            assert rows == different, (query, mine)
            smaller += len(mine) < len(names) - ("count" in query)
    assert smaller > 25, "columns that others determine are left out"
