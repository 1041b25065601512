"""Subqueries and LATERAL: bound, decorrelated and optimised plans have the query's meaning.

Each plan is written as SQL (``plan_sql``) and run in Postgres over random rows, as is the query:
the rows or the error must be the same.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import psycopg
import pytest

from headrace.planner import PlanRequest
from headrace.planner.logical import repeats
from headrace.planner.logical.repeats import named
from headrace.planner.plan import plan
from tests.amounts import seeds
from tests.differential.subqueries import DDL, Maker
from tests.planner.plan_sql import FUNCTIONS, texts, walk

TABLES = """
CREATE TABLE da (id int PRIMARY KEY, x int, n numeric, s text, f float8, arr int[]);
CREATE TABLE db (id int PRIMARY KEY, x int, n numeric, s text, a int);
CREATE TABLE dc (id int PRIMARY KEY, y int, b int);
"""
QUERIES = """
SELECT id, (SELECT s FROM db WHERE db.id = da.x) AS v FROM da
SELECT id, (SELECT max(x) FROM db WHERE db.a = da.id) AS v FROM da
SELECT id, (SELECT count(*) FROM db WHERE db.a = da.x) AS v FROM da
SELECT id, (SELECT count(*) + 1 FROM db WHERE db.a = da.x AND db.x > 1) AS v FROM da
SELECT id, (SELECT count(*) FROM db WHERE db.a < da.x) AS v FROM da
SELECT id, (SELECT sum(db.x) + da.x FROM db WHERE db.a = da.x) AS v FROM da
SELECT id, (SELECT sum(db.x + da.x) FROM db WHERE db.a = da.x) AS v FROM da
SELECT id, (SELECT count(db.x + da.x) FROM db WHERE db.a <= da.x) AS v FROM da
SELECT id, (SELECT count(*) FROM db) AS v FROM da
SELECT id, (SELECT max(x) FROM db WHERE false) AS v FROM da
SELECT (SELECT count(*) FROM da) AS v, (SELECT max(id) FROM db) AS w
SELECT id FROM da WHERE x = (SELECT max(x) FROM db)
SELECT id FROM da WHERE x > (SELECT avg(x) FROM db WHERE db.a = da.x)
SELECT id FROM da WHERE x >= (SELECT 0.5 * sum(x) FROM db WHERE db.a = da.id AND db.s = da.s)
SELECT id FROM da WHERE EXISTS (SELECT 1 FROM db WHERE db.a = da.id)
SELECT id FROM da WHERE NOT EXISTS (SELECT 1 FROM db WHERE db.a = da.x)
SELECT id FROM da WHERE EXISTS (SELECT 1 FROM db WHERE db.a <> da.x AND db.s = da.s)
SELECT id FROM da WHERE EXISTS (SELECT count(*) FROM db WHERE db.a = da.x)
SELECT id FROM da WHERE NOT EXISTS (SELECT max(x) FROM db WHERE db.a = da.x HAVING count(*) > 1)
SELECT id FROM da WHERE EXISTS (SELECT a FROM db WHERE db.x = da.x GROUP BY a HAVING count(*) > 1)
SELECT id FROM da WHERE x IN (SELECT x FROM db)
SELECT id FROM da WHERE x NOT IN (SELECT x FROM db)
SELECT id FROM da WHERE x NOT IN (SELECT x FROM db WHERE x IS NOT NULL)
SELECT id FROM da WHERE id NOT IN (SELECT id FROM db)
SELECT id FROM da WHERE x IN (SELECT x FROM db WHERE db.a = da.id)
SELECT id FROM da WHERE x NOT IN (SELECT x FROM db WHERE db.a = da.id)
SELECT id FROM da WHERE x NOT IN (SELECT x + 1 FROM db WHERE db.a < da.id)
SELECT id FROM da WHERE (x, s) IN (SELECT x, s FROM db)
SELECT id FROM da WHERE (x, s) NOT IN (SELECT x, s FROM db)
SELECT id FROM da WHERE (x, id) NOT IN (SELECT x, a FROM db WHERE db.s = da.s)
SELECT id, x IN (SELECT x FROM db) AS v FROM da
SELECT id, x NOT IN (SELECT x FROM db) AS v FROM da
SELECT id, x IN (SELECT x FROM db WHERE db.a = da.id) AS v FROM da
SELECT id, (x, s) IN (SELECT x, s FROM db) AS v FROM da
SELECT id, x = ANY (SELECT x FROM db WHERE a > 2) AS v FROM da
SELECT id, x < ANY (SELECT x FROM db WHERE a = da.x) AS v FROM da
SELECT id, x < ALL (SELECT x FROM db WHERE a = da.x) AS v FROM da
SELECT id, x <> ALL (SELECT x FROM db WHERE a = da.id) AS v FROM da
SELECT id, x <> ANY (SELECT x FROM db WHERE a = da.id) AS v FROM da
SELECT id, x = ALL (SELECT x FROM db WHERE a > da.id) AS v FROM da
SELECT id FROM da WHERE x < ALL (SELECT x FROM db WHERE a = da.x)
SELECT id FROM da WHERE NOT (x < ALL (SELECT x FROM db WHERE a = da.x))
SELECT id FROM da WHERE x <> ALL (SELECT x FROM db)
SELECT id FROM da WHERE NOT (x = ANY (SELECT x FROM db)) OR id = 3
SELECT id FROM da WHERE x > ANY (SELECT x FROM db)
SELECT id, EXISTS (SELECT 1 FROM db WHERE db.a = da.id) AS v FROM da
SELECT id, NOT EXISTS (SELECT 1 FROM db WHERE db.a > da.id AND db.x < da.x) AS v FROM da
SELECT id FROM da WHERE x = 1 OR EXISTS (SELECT 1 FROM db WHERE db.a = da.id)
SELECT id, CASE WHEN x > 1 THEN (SELECT max(x) FROM db WHERE db.a = da.x) ELSE 0 END AS v FROM da
SELECT id, coalesce((SELECT s FROM db WHERE db.id = da.x), 'none') AS v FROM da
SELECT id, (SELECT x FROM db WHERE db.a = da.id) AS v FROM da
SELECT id FROM da WHERE x = (SELECT x FROM db WHERE db.a = da.x)
SELECT (SELECT x FROM db WHERE a > 3) AS v
SELECT x, count(*), (SELECT max(a) FROM db WHERE db.x = da.x) AS v FROM da GROUP BY x
SELECT x, (SELECT count(*) FROM db WHERE db.x = da.x AND db.a < sum(da.id)) AS v FROM da GROUP BY x
SELECT x, sum((SELECT max(a) FROM db WHERE db.x = da.id)) AS v FROM da GROUP BY x
SELECT (SELECT max(a) FROM db WHERE db.x = da.id) AS v, count(*) FROM da GROUP BY 1
SELECT x, count(*) AS c FROM da GROUP BY x HAVING count(*) > (SELECT count(*) FROM db WHERE db.x = da.x)
SELECT x, count(*) AS c FROM da GROUP BY x HAVING EXISTS (SELECT 1 FROM db WHERE db.x = da.x AND db.a > count(da.id))
SELECT id, (SELECT sum(da.x) FROM db) AS v FROM da GROUP BY id
SELECT (SELECT count(*) FROM db WHERE db.a > count(da.id)) AS v FROM da
SELECT (SELECT sum(da.x) FROM db LIMIT 1) AS v FROM da
SELECT id, (SELECT s FROM db WHERE db.a = da.x ORDER BY db.id LIMIT 1) AS v FROM da
SELECT id, (SELECT s FROM db WHERE db.a < da.x ORDER BY db.id DESC OFFSET 1 LIMIT 1) AS v FROM da
SELECT da.id, q.id AS z FROM da, LATERAL (SELECT id, s FROM db WHERE db.a = da.x ORDER BY id LIMIT 2) q
SELECT da.id, q.id AS z, q.n FROM da LEFT JOIN LATERAL (SELECT id, da.n FROM db WHERE db.a = da.x ORDER BY id LIMIT 2) q ON true
SELECT da.id, q.id AS z FROM da, LATERAL (SELECT id, s FROM db WHERE db.a > da.x ORDER BY db.x + da.x, id LIMIT 2) q
SELECT da.id, q.x AS z FROM da, LATERAL (SELECT DISTINCT ON (x) x, id FROM db WHERE db.a = da.x ORDER BY x, id) q
SELECT id, ARRAY(SELECT db.id FROM db WHERE db.a = da.x ORDER BY s DESC, db.id) AS v FROM da
SELECT id, ARRAY(SELECT db.id FROM db WHERE db.a > da.x ORDER BY db.id DESC LIMIT 2) AS v FROM da
SELECT id, ARRAY(SELECT x FROM db WHERE a = da.x UNION SELECT y FROM dc ORDER BY 1) AS v FROM da
SELECT db.id, ARRAY(SELECT arr FROM da WHERE da.x = db.x AND cardinality(arr) > 0 ORDER BY da.id) AS v FROM db
SELECT (SELECT max((SELECT i.x FROM db i WHERE i.id = o.id)) FROM dc LIMIT 1) AS v FROM da o
SELECT da.id, u AS z FROM da, unnest(da.arr) u
SELECT da.id, u AS z FROM da LEFT JOIN LATERAL unnest(da.arr) u ON true
SELECT da.id, u AS z FROM da LEFT JOIN LATERAL unnest(da.arr) u ON u > da.x
SELECT da.id, (SELECT sum(u) FROM unnest(da.arr) u) AS z FROM da
SELECT da.id, (SELECT sum(u) FROM unnest(da.arr) u, db WHERE db.a = u) AS z FROM da
SELECT id FROM da WHERE EXISTS (SELECT 1 FROM generate_series(1, da.x) g WHERE g = da.id)
SELECT da.id, q.c FROM da, LATERAL (SELECT count(*) AS c FROM db WHERE db.a = da.x) q
SELECT da.id, q.c FROM da, LATERAL (SELECT count(*) AS c FROM db WHERE db.a = da.x HAVING count(*) > 1) q
SELECT da.id, q.c FROM da LEFT JOIN LATERAL (SELECT count(*) AS c FROM db WHERE db.a = da.x HAVING count(*) > 1) q ON true
SELECT da.id, q.z FROM da LEFT JOIN LATERAL (SELECT db.x + da.x AS z FROM db WHERE db.a = da.x) q ON q.z > 3
SELECT da.id, q.z FROM da LEFT JOIN LATERAL (SELECT 1 AS z FROM db WHERE db.a = da.x) q ON true
SELECT da.id, q.z FROM da LEFT JOIN LATERAL (SELECT da.s AS z FROM db WHERE db.a = da.x) q ON true
SELECT da.id, q.z FROM da, LATERAL (SELECT da.x + 1 AS z) q
SELECT da.id, q.z FROM da, LATERAL (SELECT DISTINCT x AS z FROM db WHERE db.a = da.x) q
SELECT da.id, q.z FROM da, LATERAL (SELECT DISTINCT db.x + da.x AS z FROM db WHERE db.a = da.x) q
SELECT da.id, q.z FROM da, LATERAL (SELECT x AS z FROM db WHERE a = da.x UNION ALL SELECT y FROM dc WHERE b = da.id) q
SELECT da.id, q.z FROM da, LATERAL (SELECT x AS z FROM db WHERE a = da.x UNION SELECT y FROM dc WHERE b = da.id) q
SELECT da.id, q.z FROM da, LATERAL (SELECT x AS z FROM db WHERE a = da.x EXCEPT SELECT y FROM dc WHERE b = da.id) q
SELECT da.id, q.z FROM da, LATERAL (SELECT x AS z FROM db WHERE a >= da.x INTERSECT ALL SELECT y FROM dc WHERE b = da.id) q
SELECT da.id, q.z FROM da, LATERAL (VALUES (da.x), (da.id + 1)) q (z)
SELECT da.id, q.x, r.y FROM da, LATERAL (SELECT x, a FROM db WHERE db.a = da.x) q, LATERAL (SELECT y FROM dc WHERE dc.b = q.a AND dc.y > da.x) r
SELECT id, (SELECT max((SELECT max(y) FROM dc WHERE dc.b = db.id AND dc.y < da.x)) FROM db WHERE db.a = da.x) AS v FROM da
SELECT id FROM da WHERE EXISTS (SELECT 1 FROM db WHERE db.a = da.x AND NOT EXISTS (SELECT 1 FROM dc WHERE dc.b = db.id AND dc.y = da.id))
SELECT id FROM da WHERE NOT EXISTS (SELECT 1 FROM db WHERE NOT EXISTS (SELECT 1 FROM dc WHERE dc.b = db.a AND dc.y = da.x))
SELECT id FROM da WHERE x IN (SELECT x FROM db WHERE a IN (SELECT b FROM dc WHERE dc.y <> da.id))
SELECT id, (SELECT count(*) FROM db LEFT JOIN dc ON dc.b = db.id AND dc.y = da.x WHERE db.a = da.x) AS v FROM da
SELECT id, (SELECT count(y) FROM db LEFT JOIN (SELECT * FROM dc WHERE dc.y > da.x) c ON c.b = db.id) AS v FROM da
SELECT id, (SELECT count(*) FROM (SELECT * FROM db WHERE a = da.x) p FULL JOIN (SELECT * FROM dc WHERE y = da.id) c ON c.b = p.x) AS v FROM da
SELECT id, (SELECT count(*) FROM (SELECT * FROM db WHERE a > da.x) p FULL JOIN dc ON dc.b = p.x) AS v FROM da
SELECT id, (SELECT max(c) FROM (SELECT x, count(*) AS c FROM db WHERE a = da.x GROUP BY x) q) AS v FROM da
SELECT id, (SELECT max(c) FROM (SELECT x, count(*) AS c FROM db WHERE a > da.x GROUP BY x) q) AS v FROM da
SELECT id, (SELECT n FROM db WHERE db.id = da.id AND db.n = da.n) AS v FROM da
SELECT id, (SELECT count(*) FROM db WHERE db.n = da.n) AS v FROM da
SELECT id, (SELECT min(da.n::text || db.s) FROM db WHERE db.a >= da.x) AS v FROM da
SELECT id, q.z FROM da, LATERAL (SELECT DISTINCT da.n AS z FROM db WHERE db.a > da.x) q
SELECT id, q.z FROM da, LATERAL (SELECT da.f AS z, count(*) FROM db WHERE db.a > da.x GROUP BY db.x) q
SELECT da.id, db.id AS b FROM da JOIN db ON da.x = db.x AND EXISTS (SELECT 1 FROM dc WHERE dc.b = da.id AND dc.y = db.a)
SELECT da.id, db.id AS b FROM da LEFT JOIN db ON da.x = db.x AND EXISTS (SELECT 1 FROM dc WHERE dc.b = da.id AND dc.y = db.a)
SELECT da.id, db.id AS b FROM da LEFT JOIN db ON da.x = (SELECT max(y) FROM dc WHERE dc.b = db.id)
SELECT da.id, db.id AS b FROM da LEFT JOIN db ON db.x = (SELECT max(y) FROM dc WHERE dc.b = da.id)
SELECT da.id, db.id AS b FROM da LEFT JOIN db ON db.x NOT IN (SELECT y FROM dc WHERE dc.b = da.id)
WITH w AS (SELECT a, max(x) AS m FROM db GROUP BY a) SELECT id, (SELECT m FROM w WHERE w.a = da.x) AS v FROM da
SELECT id, (WITH w AS (SELECT x FROM db WHERE db.a = da.x) SELECT count(*) FROM w, w v WHERE w.x = v.x) AS v FROM da
SELECT id, (SELECT (SELECT max(x) FROM db) + da.x) AS v FROM da
SELECT id FROM da WHERE (x, s) = (SELECT x, s FROM db WHERE db.id = da.id)
SELECT id, (x, s) = (SELECT x, s FROM db WHERE db.id = da.id) AS v FROM da
SELECT id, (SELECT 10 / x FROM db WHERE db.id = da.id AND x <> 0) AS v FROM da
SELECT id, (SELECT sum(10 / x) FROM db WHERE db.a = da.id AND x <> 0) AS v FROM da
SELECT id, (SELECT sum(10 / x) FROM db WHERE db.a < da.id AND x <> 0 AND da.x > 1) AS v FROM da
SELECT id, (SELECT count(*) / nullif(count(x), 0) FROM db WHERE db.a = da.x) AS v FROM da
SELECT id, (SELECT max(x) FROM db WHERE da.x > 2) AS v FROM da
SELECT id, (SELECT count(*) FROM db WHERE da.x > 2) AS v FROM da
SELECT id, (SELECT count(*) FROM db WHERE db.a IS NOT DISTINCT FROM da.x) AS v FROM da
SELECT id FROM da WHERE EXISTS (SELECT 1 FROM db WHERE db.a IS NOT DISTINCT FROM da.x GROUP BY db.x)
SELECT da.id, q.z FROM da, LATERAL (SELECT max(db.x + da.x) OVER () AS z FROM db) q
SELECT da.id, q.z FROM da, LATERAL (SELECT lag(db.x + da.x) OVER (ORDER BY db.id) AS z FROM db WHERE db.a = da.x) q
SELECT da.id, q.z FROM da, LATERAL (SELECT max(db.x) FILTER (WHERE db.x + da.x > 2) OVER (PARTITION BY db.a + da.x) AS z FROM db) q
SELECT id FROM da WHERE EXISTS (SELECT max(db.x + da.x) OVER () FROM db WHERE db.a = da.x)
SELECT id, (SELECT sum(max(db.x) + da.x) OVER (ORDER BY db.a) FROM db GROUP BY db.a ORDER BY db.a LIMIT 1) AS v FROM da
SELECT id, (SELECT max(db.x + (SELECT max(y + db.x + da.x) OVER () FROM dc WHERE dc.b = da.x LIMIT 1)) OVER () FROM db LIMIT 1) AS v FROM da
SELECT DISTINCT (SELECT max(a) FROM db WHERE db.x = da.x) AS v FROM da
SELECT id FROM da UNION ALL SELECT (SELECT max(a) FROM db WHERE db.x = dc.y) FROM dc
"""


FAILING = """
SELECT id, (SELECT 10 / min(x) FROM db) AS v FROM da
SELECT id, (SELECT 10 / x FROM db WHERE db.id = 1) AS v FROM da
SELECT id, (SELECT 10 / x FROM db WHERE db.id = da.x) AS v FROM da
SELECT id, (SELECT sum(10 / x) FROM db) AS v FROM da
SELECT id, (SELECT sum(10 / x) FROM db WHERE db.a = da.x) AS v FROM da
SELECT id, (SELECT sum(10 / x) FROM db WHERE db.a < da.x) AS v FROM da
SELECT id, (SELECT count(*) FROM db WHERE 10 / x > 1) AS v FROM da
SELECT id, (SELECT max(q) FROM (SELECT DISTINCT 10 / x AS q FROM db) d) AS v FROM da
SELECT id, (SELECT count(*) FROM db HAVING 10 / min(x) > 1) AS v FROM da
SELECT id FROM da WHERE x = (SELECT 10 / min(x) FROM db)
SELECT id FROM da WHERE NOT EXISTS (SELECT 1 FROM db WHERE 10 / x > 1 AND db.a = da.x)
SELECT id FROM da WHERE x IN (SELECT 10 / x FROM db)
SELECT id FROM da WHERE x NOT IN (SELECT 10 / x FROM db)
SELECT id FROM da WHERE x NOT IN (SELECT 10 / x FROM db WHERE db.a = da.x)
SELECT id, x IN (SELECT 10 / x FROM db) AS v FROM da
SELECT id FROM da WHERE x < ALL (SELECT 10 / x FROM db)
SELECT id, x > ANY (SELECT 10 / x FROM db) AS v FROM da
SELECT id, ARRAY(SELECT 10 / x FROM db ORDER BY db.id) AS v FROM da
SELECT x, count(*) AS c FROM da GROUP BY x HAVING count(*) > (SELECT 10 / min(x) FROM db)
SELECT id, q.z FROM da, LATERAL (SELECT 10 / db.x AS z FROM db WHERE db.a = da.x) q
SELECT id, q.z FROM da LEFT JOIN LATERAL (SELECT 10 / db.x AS z FROM db WHERE db.a = da.x) q ON true
SELECT id, q.z FROM da, LATERAL (SELECT sum(10 / db.x) AS z FROM db WHERE db.a = da.x) q
SELECT id, (SELECT x FROM db WHERE a > 1) AS v FROM da
SELECT id, q.z FROM da, LATERAL (SELECT max(da.x / db.x) OVER () AS z FROM db WHERE db.a = da.x) q
SELECT id FROM da WHERE EXISTS (SELECT sum(da.x / db.x) OVER (ORDER BY db.id) FROM db)
"""
"""Subqueries that fail on some row of ``db``; they are not evaluated while ``da`` is empty."""


def rows(conn, query):
    try:
        result = conn.execute(query).pgresult
    except psycopg.errors.CardinalityViolation as error:
        return error.sqlstate
    return Counter(
        tuple(result.get_value(i, j) for j in range(result.nfields)) for i in range(result.ntuples)
    )


def fill(conn, rng):
    def value(items):
        return rng.choice(["NULL", *items])

    def table(name, count, *columns):
        rows = []
        for number in range(rng.randint(0, count)):
            values = ", ".join(value(c) for c in columns)
            rows.append(f"({number}, {values})")
        return f"INSERT INTO {name} VALUES {', '.join(rows)}" if rows else ""

    few, numbers = ["0", "1", "2", "3"], ["1.0", "1.00", "2", "2.0"]
    words, floats = ["'a'", "'b'"], ["0", "'-0'", "1.5"]
    inserts = (
        table("da", 7, few, numbers, words, floats, ["'{1,2}'", "'{}'"]),
        table("db", 7, few, numbers, words, few),
        table("dc", 6, few, few),
    )
    conn.execute(f"TRUNCATE da, db, dc; {'; '.join(inserts)}")


@pytest.fixture(scope="module")
def data(planner_dsn):
    with psycopg.connect(planner_dsn, autocommit=True) as conn:
        conn.execute(TABLES)
        conn.execute(FUNCTIONS)
        yield conn


@pytest.fixture(params=["copied", "named"])
def again(request, monkeypatch):
    """Copy repeated subplans, or name them: deep queries do both."""
    if request.param == "named":
        monkeypatch.setattr(repeats, "COPIED_MAX", 0)
        monkeypatch.setattr(repeats, "SMALL", 0)


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize("query", QUERIES.strip().splitlines())
def test_all_stages_mean_the_query(query, data, monkeypatch):
    stages = texts(data, monkeypatch, query)
    rng = random.Random(1)
    for _ in range(12):
        fill(data, rng)
        want = rows(data, query)
        for stage, text in stages.items():
            assert rows(data, text) == want, f"{stage}: {query}\n{text}"


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize("query", FAILING.strip().splitlines())
def test_nothing_fails_for_rows_that_nobody_asks_for(query, data, monkeypatch):
    if data.info.server_version < 160000 and "NOT IN" in query:
        pytest.skip("Postgres 15 computes the inner rows of this join first")
    stages = texts(data, monkeypatch, query)
    for table in ("da", "db", "dc"):
        data.execute(f"TRUNCATE {table}")
    data.execute("INSERT INTO db VALUES (1, 0, 1, 'a', 2), (2, 0, 1, 'a', 2)")
    data.execute("INSERT INTO dc VALUES (1, 0, 2)")
    want = rows(data, query)
    assert want == Counter()
    for stage in ("decorrelated", "optimised"):
        assert rows(data, stages[stage]) == want, f"{stage}: {query}\n{stages[stage]}"
    # With rows that need the subquery, and none that fails.
    data.execute("UPDATE db SET x = id, a = id")
    data.execute("INSERT INTO da VALUES (1, 1, 1, 'a', 1), (2, NULL, 1, 'a', 1)")
    want = rows(data, query)
    for stage, text in stages.items():
        assert rows(data, text) == want, f"{stage}: {query}\n{text}"


RANDOM = int(os.environ.get("HEADRACE_SUBQUERY_SHAPES", "150"))


@pytest.fixture(scope="module")
def random_data(data):
    data.execute("CREATE SCHEMA random_shapes")
    data.execute("SET search_path = random_shapes, public")
    for statement in DDL:
        data.execute(statement)
    yield data
    data.execute("RESET search_path")


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize("seed", seeds(0, 5, 2))
def test_random_shapes(seed, random_data, monkeypatch):
    maker = Maker(seed)
    compare(random_data, monkeypatch, maker, maker.query)


@pytest.mark.usefixtures("again")
@pytest.mark.parametrize("seed", seeds(0, 9))
def test_outer_columns_stand_at_every_place(seed, random_data, monkeypatch):
    maker = Maker(seed)
    compare(random_data, monkeypatch, maker, maker.placed)


def compare(random_data, monkeypatch, maker, make):
    """Check that all stages of random queries return the query's rows while the data change."""
    path = "random_shapes, public"
    stages = {}
    while len(stages) < RANDOM // 5:
        query = make()
        stages[query] = texts(random_data, monkeypatch, query, search_path=path)
    for _ in range(4):
        for _ in range(8):
            random_data.execute(maker.change())
        for query, by_stage in stages.items():
            want = rows(random_data, query)
            for stage, text in by_stage.items():
                assert rows(random_data, text) == want, f"{stage}: {query}\n{text}"


PUBLIC = {"search_path": "public"}


def nested(depth, level=1):
    """Return a query whose subqueries read columns of all queries around them, two in each."""
    mine = f"t{level}"
    outer = " + ".join(f"t{i}.x" for i in range(level))
    more = "true"
    if level < depth:
        inner = nested(depth, level + 1)
        more = f"{mine}.id < ({inner}) AND {mine}.a > ({inner})"
    return (
        f"SELECT sum({mine}.x) FROM db {mine} JOIN db u{level} ON u{level}.a <= {mine}.x + t0.x"
        f" WHERE {mine}.a < {outer} AND {more}"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_plans_do_not_grow_exponentially_with_the_depth(data):
    """Each level has twice the subqueries of the one around it."""

    def size(depth):
        query = f"SELECT id, ({nested(depth)}) AS v FROM da t0"
        planned = plan(data, PlanRequest(query, settings=PUBLIC))
        plans = [planned.logical, *named(planned.logical).values()]
        return sum(1 for p in plans for _ in walk(p))

    assert size(4) < 5 * size(3)  # with a copy of everything it is ten times


def test_what_is_named_stands_in_the_plan_once(data, monkeypatch):
    arms = "SELECT x FROM db WHERE a < da.x UNION ALL SELECT y FROM dc WHERE b < da.x"
    query = f"SELECT id, (SELECT sum(q.x) FROM ({arms}) q) AS v FROM da"
    copied = plan(data, PlanRequest(query, settings=PUBLIC))
    assert "Again" not in copied.explain["optimised"]
    monkeypatch.setattr(repeats, "COPIED_MAX", 0)
    monkeypatch.setattr(repeats, "SMALL", 0)
    planned = plan(data, PlanRequest(query, settings=PUBLIC))
    lines = [line.strip() for line in planned.explain["optimised"].splitlines()]
    names = [line for line in lines if line.startswith("Again")]
    assert len(names) > len(named(planned.optimised))
    scans = [line for line in lines if line.startswith("Scan public.da")]
    assert len(scans) == 2, "the query's own, and that of the domain, which is read twice"
    assert len(planned.physical.nodes) <= len(copied.physical.nodes)
