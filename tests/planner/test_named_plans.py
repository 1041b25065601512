"""Views and WITH queries are planned once, however often a query refers to them."""

from __future__ import annotations

import itertools
import random

import psycopg
import pytest

from headrace.collections import plan as p
from headrace.planner import PlanRequest, plan
from headrace.planner.logical import repeats
from headrace.planner.logical.nodes import AgainNode, children, expressions
from headrace.planner.logical.repeats import named
from headrace.planner.logical.scalar import parts
from tests.amounts import seeds
from tests.planner.plan_sql import FUNCTIONS, texts, walk
from tests.planner.test_decorrelate import fill, rows

TABLES = """
CREATE SCHEMA nested;
SET search_path = nested, public;
CREATE TABLE da (id int PRIMARY KEY, x int, n numeric, s text, f float8, arr int[]);
CREATE TABLE db (id int PRIMARY KEY, x int, n numeric, s text, a int);
CREATE TABLE dc (id int PRIMARY KEY, y int, b int);
"""
PATH = {"search_path": "nested, public"}
BASES = ("da", "db", "(SELECT id, y AS x, b::text AS s FROM dc)")
SHAPES = (
    "SELECT p.id, q.x, p.s FROM {0} p JOIN {1} q ON q.id = p.x",
    "SELECT p.id, q.x, q.s FROM {0} p LEFT JOIN {1} q ON q.id = p.x WHERE p.id > 0",
    "SELECT p.id, q.x, coalesce(p.s, q.s) AS s FROM {0} p FULL JOIN {1} q ON q.x = p.id",
    "SELECT p.x AS id, count(*)::int AS x, max(p.s) AS s FROM {0} p GROUP BY p.x",
    "SELECT max(p.id) AS id, count(*)::int AS x, min(p.s) AS s FROM {0} p WHERE p.x > 1",
    "SELECT id, x, s FROM {0} p WHERE x > 1 UNION ALL SELECT x, id, s FROM {1} q WHERE id = 2",
    "SELECT id, x, s FROM {0} p EXCEPT SELECT id, x, s FROM {1} q WHERE x = 2",
    "SELECT DISTINCT id, x, s FROM {0} p WHERE id < 4",
    "SELECT id, x, s FROM {0} p WHERE EXISTS (SELECT FROM {1} q WHERE q.x = p.id)",
    "SELECT id, x, s FROM {0} p WHERE id NOT IN (SELECT x FROM {1} q WHERE x IS NOT NULL)",
    "SELECT p.id, (SELECT max(q.x) FROM {1} q WHERE q.id = p.id) AS x, p.s FROM {0} p",
    "SELECT p.id, (SELECT count(*)::int FROM {1} q WHERE q.id < p.x) AS x, p.s FROM {0} p",
    "SELECT p.id, l.x, p.s FROM {0} p, LATERAL (SELECT max(q.x) AS x FROM {1} q"
    " WHERE q.id <= p.x HAVING count(*) > 1) l",
    "SELECT p.id, (WITH c AS (SELECT q.x FROM {1} q WHERE q.id <> p.id)"
    " SELECT count(*)::int FROM c c1 JOIN c c2 ON c1.x = c2.x) AS x, p.s FROM {0} p",
    "SELECT id, (count(*) OVER (PARTITION BY x))::int AS x, s FROM {0} p",
)
"""Queries of two relations with the columns id, x and s, that have these columns."""


@pytest.fixture(scope="module")
def data(planner_dsn):
    with psycopg.connect(planner_dsn, autocommit=True) as conn:
        conn.execute(TABLES)
        conn.execute(FUNCTIONS)
        yield conn
        conn.execute("DROP SCHEMA nested CASCADE")


def nested(conn, rng, number):
    """Return a query over WITH queries and views that read each other, mostly several times."""
    names = [f"{base} " for base in BASES]
    ctes = []
    for place in range(3):
        first = rng.choice(names[-3:])
        second = first if rng.random() < 0.5 else rng.choice(names)
        query = rng.choice(SHAPES).format(first, second)
        if place % 2:
            query = f"SELECT DISTINCT * FROM ({query}) every"  # joins of joins have many rows
        # A view cannot read a WITH query.
        if not ctes and rng.random() < 0.6:
            names.append(f"v{number}_{place}")
            conn.execute(f"CREATE VIEW {names[-1]} AS {query}")
        else:
            names.append(f"c{place}")
            ctes.append(f"{names[-1]} AS ({query})")
    head = f"WITH {', '.join(ctes)} " if ctes else ""
    return head + rng.choice(SHAPES).format(names[-1], rng.choice(names[-2:]))


@pytest.mark.parametrize("copied", [0, 30, 200])
@pytest.mark.parametrize("seed", seeds(0, 10))
def test_all_stages_mean_the_query(seed, copied, data, monkeypatch):
    monkeypatch.setattr(repeats, "COPIED_MAX", copied)
    monkeypatch.setattr(repeats, "SMALL", min(copied, 8))
    rng = random.Random(seed)
    queries = [nested(data, rng, f"{seed}_{copied}_{i}") for i in range(6)]
    stages = {query: texts(data, monkeypatch, query, **PATH) for query in queries}
    monkeypatch.undo()
    for _ in range(3):
        fill(data, rng)
        for query, by_stage in stages.items():
            want = rows(data, query)
            for stage, text in by_stage.items():
                assert rows(data, text) == want, f"{stage}: {query}\n{text}"
    for query in queries:
        plan(data, PlanRequest(query, settings=PATH))


def size(plan_):
    """Count the nodes of a logical plan; named plans count once."""
    return sum(1 for each in (plan_, *named(plan_).values()) for _ in walk(each))


PAIRS = "SELECT a.id, b.k FROM {0} a JOIN {0} b ON a.id = b.id"
STEPS = (
    PAIRS,
    "SELECT a.id, count(*)::int AS k FROM {0} a JOIN {0} b ON b.k < a.k GROUP BY a.id",
    "SELECT id, k FROM {0} a WHERE k > 1 UNION SELECT k, id FROM {0} b",
    "SELECT id, k FROM {0} a WHERE NOT EXISTS (SELECT FROM {0} b WHERE b.k = a.id)",
    "SELECT id, (SELECT max(b.k) FROM {0} b WHERE b.id = a.k) AS k FROM {0} a",
    "SELECT a.id, b.k FROM {0} a LEFT JOIN LATERAL (SELECT min(b.k) AS k FROM {0} b"
    " WHERE b.id < a.k) b ON true",
    "SELECT a.id, (row_number() OVER (ORDER BY a.id, b.k))::int AS k FROM {0} a, {0} b",
)


def chain(depth, base="SELECT id, k FROM t", step=PAIRS):
    """Return a chain of WITH queries, each of which reads the previous one twice."""
    queries = [f"c0 AS ({base})"]
    queries += [f"c{i} AS ({step.format(f'c{i - 1}')})" for i in range(1, depth + 1)]
    return f"WITH {', '.join(queries)} SELECT id, k FROM c{depth}"


@pytest.mark.parametrize(
    "base",
    [
        "SELECT id, k FROM t",
        "SELECT id, k FROM t WHERE tz > now() - interval '1 day'",
        "SELECT id, (SELECT count(*)::int FROM u WHERE u.k < t.k) AS k FROM t",
    ],
)
def test_plans_grow_with_the_text_not_with_the_mentions(base, conn):
    def sizes(depth):
        planned = plan(conn, PlanRequest(chain(depth, base)))
        return [size(planned.logical), size(planned.optimised), len(planned.physical.nodes)]

    # From 9 on the copies that are allowed are used up.
    for shorter, longer in itertools.pairwise(sizes(depth) for depth in (9, 11, 13)):
        assert all(b - a <= 30 for a, b in zip(shorter, longer, strict=True))


@pytest.mark.parametrize("step", STEPS)
def test_every_reader_of_a_plan_finds_it_named(step, conn):
    """Each pass over a plan of 2 ** 20 copies visits one of them."""
    planned = plan(conn, PlanRequest(chain(20, step=step)))
    assert size(planned.logical) <= 10 * repeats.COPIED_MAX
    assert {origin.table for _, origins in planned.lineage for origin in origins} == {"t"}


def test_nested_views_are_read_once(data):
    """Each view of a layer reads all three views of the layer below it."""
    layers, width = 5, 3
    below = ["t"] * width
    for layer in range(layers):
        names = [f"layer{layer}_{n}" for n in range(width)]
        for name, turn in zip(names, range(width), strict=True):
            a, b, c = below[turn:] + below[:turn]
            data.execute(
                f"CREATE VIEW {name} AS SELECT a.id, b.k, coalesce(c.s, a.s) AS s FROM {a} a"
                f" JOIN {b} b ON b.id = a.k LEFT JOIN {c} c ON c.id = b.k AND c.s <> '{name}'"
            )
        below = names
    planned = plan(data, PlanRequest(f"SELECT id, k, s FROM {below[0]}", settings=PATH))
    # A copy for each mention has some 1 500 nodes.
    assert size(planned.logical) < repeats.COPIED_MAX + 12 * layers * width
    assert size(planned.optimised) < repeats.COPIED_MAX + 12 * layers * width
    joins = [node for node in planned.physical.nodes if isinstance(node, p.JoinSpec)]
    assert len(joins) >= 2 * (1 + (layers - 1) * width)


def all_named(monkeypatch):
    monkeypatch.setattr(repeats, "COPIED_MAX", 0)
    monkeypatch.setattr(repeats, "SMALL", 0)


def test_only_what_shows_the_clock_is_copied(conn, monkeypatch):
    all_named(monkeypatch)
    filtered = "SELECT id, k FROM t WHERE tz > now() - interval '1 day'"
    shown = plan(conn, PlanRequest(chain(1, filtered)))
    assert len(named(shown.optimised)) == 1
    assert len([n for n in shown.physical.nodes if isinstance(n, p.TemporalSpec)]) == 1
    late = "SELECT id, k, now() - interval '1 day' AS early, tz FROM t"
    query = f"WITH c AS ({late}) SELECT a.id FROM c a JOIN c b ON a.id = b.k AND a.tz > b.early"
    assert not named(plan(conn, PlanRequest(query)).optimised)


def test_what_is_known_of_a_plan_is_known_of_its_name(conn, monkeypatch):
    all_named(monkeypatch)
    query = (
        "WITH c AS (SELECT id, k, s FROM t WHERE k > 1)"
        " SELECT n.id, (SELECT parent.s FROM c parent WHERE parent.id = n.k) AS s FROM c n"
    )
    planned = plan(conn, PlanRequest(query))
    assert any(isinstance(n, AgainNode) for n in walk(planned.optimised))
    # At most one row has the id: no aggregate counts them.
    assert not any(isinstance(n, p.ReduceSpec) for n in planned.physical.nodes)
    assert planned.physical.sink.key == ("id",)


def test_expressions_do_not_grow_exponentially(conn):
    """A filter over expressions, each of which uses the previous one twice."""
    query = "SELECT id, k AS x0 FROM t"
    for i in range(14):
        query = f"SELECT id, greatest(x{i}, least(x{i}, id)) AS x{i + 1} FROM ({query}) q{i}"
    planned = plan(conn, PlanRequest(f"SELECT id FROM ({query}) q WHERE x14 > 3"))

    def largest(node):
        mine = max((parts(e) for e in expressions(node)), default=0)
        return max([mine, *map(largest, children(node))])

    assert largest(planned.optimised) <= 1_100
