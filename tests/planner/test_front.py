"""The query that the front composes from sqlglot's tree: the same plan, or a difference is found.

Each query is planned with its syntax tree and without.  Then single nodes of the tree are changed:
the front must find each such tree different from Postgres'.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import psycopg
import pytest

from headrace.planner import PlanRequest, plan, readings
from headrace.planner.analyse import session
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.front import front
from headrace.planner.front.front import compose
from headrace.planner.front.names import Names, read
from headrace.planner.front.syntax import Ast, Different
from headrace.planner.front.walk import QueryLevel, Walk
from headrace.reading.trees import parsed, plain

QUERIES = (
    "SELECT t.id, u.n FROM t JOIN u ON u.k = t.id WHERE t.s LIKE 'a%' AND NOT t.ok",
    "SELECT t.id, u.id AS other FROM t LEFT JOIN u ON u.k = t.id AND u.f > 1, w WHERE w.a = t.k OR w.b = 2",
    "SELECT * FROM w NATURAL JOIN (SELECT a, b AS c FROM w) z RIGHT JOIN bag ON x = a",
    "SELECT k, id, b.* FROM (numbers_table JOIN t USING (id)) CROSS JOIN w b",
    "SELECT k, count(*), sum(DISTINCT n) FILTER (WHERE ok) AS total FROM t GROUP BY k"
    " HAVING count(*) > 1 AND max(s) IS NOT NULL",
    "SELECT k, s, grouping(k), avg(n) FROM t GROUP BY ROLLUP (k, s), GROUPING SETS ((ok), ())",
    "SELECT string_agg(s, ',' ORDER BY id DESC), percentile_cont(0.5) WITHIN GROUP (ORDER BY f)"
    " FROM t",
    "SELECT id, row_number() OVER (PARTITION BY k ORDER BY d DESC), sum(n) OVER v FROM t"
    " WINDOW v AS (PARTITION BY s ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)",
    "WITH x AS (SELECT id, k FROM t), y (z) AS (SELECT k FROM x) SELECT z FROM y JOIN x ON k = z",
    "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r",
    "SELECT id FROM t UNION ALL (SELECT a FROM w EXCEPT SELECT b FROM w) ORDER BY 1 LIMIT 3",
    "SELECT DISTINCT ON (k) k, id FROM t ORDER BY k, id DESC",
    "SELECT DISTINCT s FROM t ORDER BY s NULLS FIRST LIMIT 5 OFFSET 2",
    "SELECT v.a, b, c FROM (VALUES (1, 'x'), (2, 'y')) AS v (a, c) JOIN w ON w.a = v.a",
    "SELECT t.id, x.m FROM t, LATERAL (SELECT max(u.n) AS m FROM u WHERE u.k = t.k) x",
    "SELECT t.id, g FROM t, generate_series(1, t.k) AS g, unnest(t.tags) WITH ORDINALITY e (q, o)",
    "SELECT id::text, CAST(n AS int), '2020-01-01'::date, s || 'x', -id AS m, coalesce(k, 0), -1 AS"
    " one FROM t",
    "SELECT CASE WHEN id > 1 THEN 'a' ELSE s END, CASE k WHEN 1 THEN 2 END AS c, greatest(id, k)"
    " FROM t",
    "SELECT id FROM t WHERE id IN (1, 2, k) AND k NOT IN (3, 4) AND n BETWEEN 1 AND 2"
    " AND s NOT LIKE 'b' AND k = ANY (ARRAY[1, 2]) AND big <> ALL (SELECT id FROM u)",
    "SELECT id, (SELECT count(*) FROM u WHERE u.k = t.id) FROM t"
    " WHERE EXISTS (SELECT 1 FROM w WHERE a = id) AND id NOT IN (SELECT b FROM w)",
    "SELECT jb -> 'a' ->> 'b' AS x, tags[1], ROW(id, k) = ROW(1, 2) AS y,"
    " (id, k) IN (SELECT a, b FROM w) AS z"
    " FROM t WHERE jb @> '{}' AND m IS DISTINCT FROM 'ok' AND ok IS NOT TRUE",
    "SELECT extract(year FROM d), ts AT TIME ZONE 'utc', date_trunc('month', ts), d + i AS x,"
    " substring(s from 2 for 1), position('a' in s), trim(both 'x' from s),"
    " d - interval '1 day' AS y, to_char(ts, 'YYYY') FROM t",
    'SELECT "order" AS "Odd", "{}" FROM "Odd ""Table" WHERE "Odd, col" > 1',
    "SELECT i FROM wider WHERE d > '2020-01-01' ORDER BY d FETCH FIRST 2 ROWS WITH TIES",
)


@pytest.fixture(scope="module")
def conn(planner_dsn):
    with psycopg.connect(planner_dsn, autocommit=True) as conn:
        yield conn


def syntax(query: str) -> list[dict]:
    return plain(parsed(query, "postgres"), query)


@pytest.mark.parametrize("query", QUERIES)
def test_the_plan_of_the_front_is_that_of_postgres_tree(conn, query):
    alone = plan(conn, PlanRequest(query))
    both = plan(conn, PlanRequest(query, syntax=syntax(query)))
    [tree] = [graph for graph in both.graphs if graph.stage == readings.AST]
    assert tree.notes == (readings.ALIKE,)
    assert both.logical == alone.logical
    assert both.physical == alone.physical
    assert [graph.stage for graph in alone.graphs] == [
        graph.stage for graph in both.graphs if graph.stage != readings.AST
    ]


@pytest.mark.parametrize("query", QUERIES)
def test_every_change_of_a_node_is_found(conn, query):
    mine = readings.bound(conn, PlanRequest(query)).tree
    with session.reading(conn):
        names = read(conn, mine)
    nodes = syntax(query)
    assert compose(nodes, mine, names).tree is not None
    missed = [told for told, other in changes(nodes) if compose(other, mine, names).tree]
    assert missed == []


def changes(nodes: list[dict]) -> Iterator[tuple[str, list[dict]]]:
    """Yield the tree with one node left out, exchanged with the next one, or of another class.

    Names are not left out, as their parents have them too.  The values of intervals are Postgres'.
    Items of IN that read columns are compared after the others, wherever they stand.
    """
    by_id = {node["id"]: node for node in nodes}
    for place, node in enumerate(nodes):
        for name, value in node["args"].items():
            if name == "alias" or node["kind"] in ("TableAlias", "Interval", "JSONPath"):
                continue
            told = f"{node['kind']}.{name}"
            if isinstance(value, list):
                for at, one in enumerate(value):
                    yield f"{told} without {at}", without(nodes, place, name, at)
                    mixed = node["kind"] == "In" and by_id[one]["kind"] == "Column"
                    if at and not mixed and not alike(by_id, value[at - 1], one):
                        yield f"{told}: {at} before", exchanged(nodes, place, name, at)
            elif value in node["inputs"]:
                yield f"{told}: none", without(nodes, place, name, None)
        for told, change in CHANGES.get(node["kind"], {}).items():
            made = copy.deepcopy(nodes)
            change(made[place])
            yield f"{node['kind']}: {told}", made


def alike(by_id, one: str, other: str) -> bool:
    first, second = by_id[one], by_id[other]
    return all(first.get(k) == second.get(k) for k in ("kind", "detail")) and not first["inputs"]


def without(nodes, place, name, at):
    made = copy.deepcopy(nodes)
    args = made[place]["args"]
    gone = args.pop(name) if at is None else args[name].pop(at)
    made[place]["inputs"].remove(gone)
    return below(made)


def exchanged(nodes, place, name, at):
    made = copy.deepcopy(nodes)
    items = made[place]["args"][name]
    items[at - 1], items[at] = items[at], items[at - 1]
    return made


def below(nodes: list[dict]) -> list[dict]:
    """Return the nodes that the first one still leads to."""
    by_id = {node["id"]: node for node in nodes}
    found, waiting = {nodes[0]["id"]}, [nodes[0]]
    while waiting:
        for one in waiting.pop()["inputs"]:
            found.add(one)
            waiting.append(by_id[one])
    return [node for node in nodes if node["id"] in found]


def put(**facts):
    return lambda node: node.update(facts)


def put_args(**facts):
    return lambda node: node["args"].update(facts)


CHANGES = {
    "Join": {
        "side": lambda node: node["args"].update(
            side="LEFT" if node["args"].get("side") != "LEFT" else "RIGHT"
        ),
    },
    "Union": {"kind": put(kind="Intersect"), "distinct": put_args(distinct=True)},
    "Except": {"kind": put(kind="Union")},
    "Ordered": {"direction": lambda node: node["args"].update(desc=not node["args"].get("desc"))},
    "GT": {"kind": put(kind="LT")},
    "EQ": {"kind": put(kind="NEQ")},
    "And": {"kind": put(kind="Or")},
    "Or": {"kind": put(kind="And")},
    "Add": {"kind": put(kind="Sub")},
    "Rollup": {"kind": put(kind="Cube")},
    "Greatest": {"kind": put(kind="Least")},
    "Between": {"negated": put_args(negate=True)},
    "In": {"negated": put_args(negate=True)},
    "Is": {"negated": lambda node: node["args"].update(negate=not node["args"].get("negate"))},
    "Column": {"name": put(column="no_such"), "table": put(of="no_such")},
    "Table": {"name": lambda node: node.update(parts=["no_such"]) or node["args"].pop("this", 0)},
    "JSONPathKey": {"key": put_args(this="no_such")},
    "Alias": {"name": put(name="no_such")},
    "Sum": {"function": put(called="avg")},
    "Anonymous": {"function": put(called="no_such")},
    "WindowSpec": {"start": put_args(start_side="FOLLOWING"), "kind": put_args(kind="RANGE")},
    "LimitOptions": {"ties": put_args(with_ties=False)},
    "DataType": {"type": put(detail="BYTEA")},
}


def test_a_tree_of_another_text_is_found_to_be_different(conn):
    for query in QUERIES:
        request = PlanRequest(query, syntax=syntax("SELECT id FROM t"))
        [tree] = [g for g in plan(conn, request).graphs if g.stage == readings.AST]
        assert tree.notes[0].startswith("it is planned as Postgres reads it: ")


def test_a_query_that_was_not_parsed_says_why(conn):
    [tree] = [
        graph
        for graph in plan(conn, PlanRequest("SELECT id FROM t", unread="it is too long")).graphs
        if graph.stage == readings.AST
    ]
    assert tree.notes == ("it is planned as Postgres reads it: it is too long",)


def test_nodes_are_annotated_with_what_postgres_has_bound(conn):
    query = "SELECT t.id + 1 AS a, sum(u.n) FROM t JOIN u ON u.k = t.id GROUP BY t.id"
    found = plan(conn, PlanRequest(query, syntax=syntax(query)))
    [tree] = [graph for graph in found.graphs if graph.stage == readings.AST]
    more = {(node.kind, node.detail.split(" = ")[0]): node.more for node in tree.nodes}
    assert more["Add", ""]["operator"] == "+(integer,integer)"
    assert more["Sum", ""]["function"] == "sum(numeric)"
    assert more["Sum", ""]["type"] == "numeric"
    assert more["EQ", ""]["operator"] == "=(bigint,integer)"
    column = more["Column", "u.n"]
    assert (column["relation"], column["column"], column["type"]) == ("public.u", "n", "numeric")


def test_an_attempt_that_fails_leaves_no_trace():
    known, tried = Ast("1", "Known", None, {}), Ast("2", "Tried", None, {})
    coercion = Tree("RELABELTYPE", {"relabelformat": "2", "arg": Tree("CONST", {})})

    def fails(walk, ast, node, level):
        walk.mark("1", "3")
        raise Different("it is another one")

    walk = Walk(Names({}), {}, (fails, ()), fails, 10)
    walk.mark("1")
    assert walk.attempt(tried, coercion, QueryLevel(Tree("QUERY", {}))) is None
    assert walk.coercions == []
    assert walk.has_read(known)
    assert not walk.has_read(Ast("3", "Read", None, {}))


def test_a_query_with_too_many_alternatives_is_planned_as_postgres_reads_it(conn, monkeypatch):
    terms = [f"id + {number}" for number in range(50)]
    named = [f"{term} AS x{number}" for number, term in enumerate(terms)]
    # Postgres leaves out those that come again: each is compared with all before it.
    query = f"SELECT {', '.join(named)} FROM t GROUP BY {', '.join(terms + terms[-1:] * 50)}"
    mine = readings.bound(conn, PlanRequest(query)).tree
    with session.reading(conn):
        names = read(conn, mine)
    assert compose(syntax(query), mine, names).differs == ""
    monkeypatch.setattr(front, "_STEPS_PER_NODE", 1)
    found = compose(syntax(query), mine, names)
    assert (found.tree, found.differs) == (None, "the query has too many alternatives")


def test_a_name_of_one_relation_is_annotated_wherever_it_stands(conn):
    """Up to Postgres 15 the tree of a view has the view itself in it, with columns of the names."""
    query = "SELECT s, count(*) FROM t GROUP BY s"
    found = plan(conn, PlanRequest(query, syntax=syntax(query)))
    [tree] = [graph for graph in found.graphs if graph.stage == readings.AST]
    columns = [node.detail for node in tree.nodes if node.kind == "Column"]
    assert columns == ["s = public.t.s"] * 2
