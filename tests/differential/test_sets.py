"""Set operations, VALUES, set-returning functions and WITH RECURSIVE under random transactions.

Every view equals its query, run in Postgres, after every transaction.  A failure prints the seed.
"""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.amounts import seeds
from tests.compared import check, commit, create_view, follow, numbered
from tests.waiting import bump, create_marker, wait_until

DDL = """
    CREATE TABLE edges (id int PRIMARY KEY, a int, b int, w text, tags int[], j jsonb);
    CREATE TABLE nodes (id int PRIMARY KEY, parent int, name text, k int);
    CREATE TABLE bag (a bigint, w varchar);
    ALTER TABLE bag REPLICA IDENTITY FULL;
"""
TRANSACTIONS = 12


class Writer:
    """Random statements over ``DDL``; small pools, so that rows match, repeat and disappear."""

    def __init__(self, seed: int, nodes: int = 7) -> None:
        self.rng = random.Random(seed)
        self._nodes = nodes

    def _node(self) -> str:
        one = self.rng.randrange(self._nodes + 1)
        return "NULL" if one == self._nodes else str(one)

    def _word(self) -> str:
        return self.rng.choice(["NULL", "''", "'a'", "'b'", "'c d'"])

    def _tags(self) -> str:
        some = [self._node() for _ in range(self.rng.randrange(4))]
        return self.rng.choice(["NULL", f"'{{{','.join(some)}}}'"])

    def _json(self) -> str:
        return self.rng.choice(
            ["NULL", "'{}'", """'{"a": 1, "b": [1, null]}'""", """'{"c": {"a": "x"}}'"""]
        )

    def statement(self) -> str:
        """Return one INSERT, UPDATE, DELETE or, rarely, TRUNCATE."""
        r = self.rng
        kind, key = r.randrange(12), r.randrange(20)
        if kind < 4:
            return (
                f"INSERT INTO edges VALUES ({key}, {self._node()}, {self._node()},"
                f" {self._word()}, {self._tags()}, {self._json()}) ON CONFLICT DO NOTHING"
            )
        if kind < 6:
            what = r.choice(
                [
                    f"a = {self._node()}",
                    f"b = {self._node()}, w = {self._word()}",
                    f"tags = {self._tags()}, j = {self._json()}",
                    f"id = id + {r.choice([20, 40])}",
                ]
            )
            return f"UPDATE edges SET {what} WHERE id % 20 = {key} AND id < 100"
        if kind < 8:
            table, below = r.choice(["edges", "nodes"]), r.choice([1, 2, 3])
            return f"DELETE FROM {table} WHERE id % 9 < {below} AND id > {key}"
        if kind == 8:
            return f"INSERT INTO bag VALUES ({self._node()}, {self._word()})"
        if kind == 9:
            return (
                f"INSERT INTO nodes VALUES ({key}, {key} / 2 - {r.choice([0, 0, 1])},"
                f" {self._word()}, {self._node()}) ON CONFLICT (id) DO UPDATE"
                " SET parent = excluded.parent, name = excluded.name"
            )
        if kind == 10:
            return f"DELETE FROM bag WHERE a = {self._node()} OR w = {self._word()}"
        return r.choice(["TRUNCATE bag", "TRUNCATE edges", "UPDATE bag SET a = a + 1"])

    def transaction(self) -> list[str]:
        return [self.statement() for _ in range(self.rng.randrange(1, 7))]

    def set_operation(self, depth: int = 0) -> str:
        """Return a random tree of set operations over two columns, a number and a word."""
        r = self.rng
        if depth and (depth > 2 or r.random() < 0.4):
            return r.choice(
                [
                    "SELECT a, w FROM edges",
                    "SELECT b, w::varchar FROM edges WHERE id > 3",
                    "SELECT id::bigint, name FROM nodes",
                    "SELECT a, w FROM bag",
                    "SELECT k::smallint, name::varchar FROM nodes",
                    "VALUES (1, 'a'), (NULL, NULL), (2, 'b'), (1, 'a')",
                    "SELECT DISTINCT a, NULL FROM edges",
                ]
            )
        op = r.choice(["UNION", "INTERSECT", "EXCEPT"]) + r.choice(["", " ALL"])
        left, right = (self.set_operation(depth + 1) for _ in range(2))
        return f"(({left}) {op} ({right}))"


def run(source, commander, seed: int, queries: list[str], writer: Writer) -> None:
    """Create the views over some rows, then change the rows."""
    source.execute(DDL)
    create_marker(source, commander)
    for _ in range(10):
        for statement in writer.transaction():
            source.execute(statement)
    views = numbered(queries)
    for name, query in views.items():
        create_view(commander, name, query)
    transactions = (writer.transaction() for _ in range(TRANSACTIONS))
    follow(source, views, transactions, f"seed {seed}")


@pytest.mark.parametrize("seed", seeds(0, 3))
def test_set_operations(seed, source, commander):
    writer = Writer(seed)
    queries = [f"SELECT a, w FROM {writer.set_operation()} s(a, w)" for _ in range(12)]
    queries.append(
        "SELECT a, x FROM edges, (VALUES (1, 'u'), (1 + length('x'), upper('v')))"
        " v(n, x) WHERE a = n"
    )
    run(source, commander, seed, queries, writer)


FUNCTIONS = (
    "SELECT id, t FROM edges, unnest(tags) t",
    "SELECT id, t, o FROM edges, unnest(tags) WITH ORDINALITY u(t, o) WHERE t > 1",
    "SELECT e.id, k, v FROM edges e, jsonb_each_text(e.j) x(k, v)",
    "SELECT id, n FROM nodes, generate_series(1, k) n",
    "SELECT n, count(b) FROM generate_series(0, 4) n JOIN edges ON a = n GROUP BY n",
    "SELECT e.id, f.* FROM edges e, ROWS FROM (unnest(tags), generate_series(a, b))"
    " WITH ORDINALITY f(x, y, z)",
    "SELECT e.id, r.* FROM edges e, jsonb_to_record(j) AS r(a int, c jsonb)",
    "SELECT id, unnest(tags) AS t, generate_series(1, a) AS s FROM edges",
    "SELECT id, generate_series(1, unnest(tags)) AS t, a FROM edges",
    "SELECT id, unnest(tags) + generate_series(1, 2) AS t FROM edges"
    " ORDER BY generate_series(1, 3)",
    "SELECT id, unnest(tags) AS x, generate_series(1, generate_series(1, a)) AS y FROM edges",
    "SELECT DISTINCT unnest(tags) AS t FROM edges",
    "SELECT unnest(tags) AS t, count(*), sum(id) FROM edges GROUP BY 1",
    "SELECT w, generate_series(1, count(*)) AS n FROM edges GROUP BY w",
    "SELECT id, (jsonb_each_text(j)).key AS k FROM edges",
    "SELECT id, (jsonb_each(j)).key AS k, (jsonb_each(j)).value AS v FROM edges",
    "SELECT id, x FROM edges, regexp_split_to_table(w, ' ') x",
    "SELECT id, m FROM edges, regexp_matches(w, '([a-c])', 'g') m",
    "SELECT id, x FROM nodes, upper(name) x",
    "SELECT a.id, x FROM nodes a JOIN edges b ON a.id = b.a, unnest(b.tags) x WHERE x = a.k",
)


@pytest.mark.parametrize("seed", seeds(10, 2))
def test_set_returning_functions(seed, source, commander):
    run(source, commander, seed, list(FUNCTIONS), Writer(seed))


RECURSIVE = (
    # Reachable nodes, cycles included.
    "WITH RECURSIVE r(a, b) AS (SELECT a, b FROM edges UNION"
    " SELECT r.a, e.b FROM r JOIN edges e ON e.a = r.b) SELECT * FROM r",
    # The same in the other direction and from one node.
    "WITH RECURSIVE r(n) AS (VALUES (0) UNION SELECT e.b FROM r, edges e"
    " WHERE e.a = r.n) SELECT n FROM r",
    # Walks up to a length, each as often as it exists.
    "WITH RECURSIVE r(a, b, d) AS (SELECT a, b, 1 FROM edges UNION ALL"
    " SELECT r.a, e.b, d + 1 FROM r JOIN edges e ON e.a = r.b WHERE d < 3)"
    " SELECT a, b, d FROM r",
    # Shortest hops.
    "WITH RECURSIVE r(a, b, d) AS (SELECT a, b, 1 FROM edges UNION"
    " SELECT r.a, e.b, d + 1 FROM r JOIN edges e ON e.a = r.b WHERE d < 6)"
    " SELECT a, b, min(d) AS hops FROM r GROUP BY a, b",
    # A tree with levels and paths, from its roots.
    "WITH RECURSIVE t(id, level, path) AS ("
    " SELECT id, 1, name FROM nodes WHERE parent IS NULL OR parent = 0 OR id = 0"
    " UNION ALL SELECT n.id, level + 1, coalesce(path, '-') || '/' || coalesce(n.name, '')"
    " FROM nodes n JOIN t ON n.parent = t.id WHERE level < 8 AND n.id <> 0)"
    " SELECT * FROM t",
    # A division that fails on combinations of old and new rows only.
    "WITH RECURSIVE r(n, q) AS (SELECT 1, 100 UNION SELECT e.b, 100 / (e.b * e.b + 1)"
    " FROM r JOIN edges e ON e.a = r.n WHERE e.b IS NOT NULL) SELECT n, q FROM r",
    # A counter, no table at all.
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)"
    " SELECT i, w FROM n JOIN edges ON id = i",
    # DISTINCT, GROUP BY and a set-returning function in the step.
    "WITH RECURSIVE r(n) AS (SELECT a FROM bag UNION SELECT DISTINCT t::bigint"
    " FROM r JOIN edges e ON e.a = r.n, unnest(e.tags) t) SELECT n FROM r",
    "WITH RECURSIVE r(n, d) AS (SELECT a, 0 FROM bag UNION ALL SELECT e.b::bigint, d + 1"
    " FROM r JOIN edges e ON e.a = r.n WHERE d < 4 GROUP BY 1, 2) SELECT * FROM r",
    # Two of them, one over the other, used twice.
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT e.b FROM r JOIN edges e ON e.a = r.n),"
    " s(n) AS (SELECT n FROM r UNION SELECT nodes.id FROM s JOIN nodes ON parent = s.n)"
    " SELECT x.n, y.n AS m FROM s x JOIN r y ON x.n = y.n + 1",
    # Cycles by the clause, walks by the clause; the order column is not shown.
    "WITH RECURSIVE r(a, b) AS (SELECT a, b FROM edges WHERE id < 4 UNION ALL"
    " SELECT e.a, e.b FROM r, edges e WHERE e.a = r.b AND e.id % 2 = 0)"
    " CYCLE a, b SET c USING p SELECT a, b, c FROM r",
    "WITH RECURSIVE r(a, b, w) AS (SELECT a, b, w FROM edges WHERE id < 4 UNION"
    " SELECT e.a, e.b, r.w FROM r, edges e WHERE e.a = r.b AND e.id % 2 = 0)"
    " CYCLE b SET c TO 'Y' DEFAULT 'N' USING p SELECT a, b, w, c FROM r WHERE c = 'N'",
    "WITH RECURSIVE r(a, b, d) AS (SELECT a, b, 1 FROM edges UNION ALL"
    " SELECT r.a, e.b, d + 1 FROM r JOIN edges e ON e.a = r.b WHERE d < 3)"
    " SEARCH DEPTH FIRST BY a, b SET o SELECT a, b, d FROM r ORDER BY o",
    # Outer joins, and subqueries over the rows of the iteration.
    "WITH RECURSIVE r(n, d) AS (SELECT a, 0 FROM edges UNION"
    " SELECT coalesce(e.b, -1), d + 1 FROM r LEFT JOIN edges e ON e.a = r.n WHERE d < 3)"
    " SELECT n, d FROM r",
    "WITH RECURSIVE r(n) AS (SELECT a FROM edges UNION SELECT e.b FROM r JOIN edges e"
    " ON e.a = r.n WHERE NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.id = e.b"
    " AND nodes.k = r.n)) SELECT n FROM r",
    "WITH RECURSIVE r(n, c) AS (SELECT a, 0::bigint FROM edges UNION SELECT e.b,"
    " (SELECT count(*) FROM nodes WHERE parent < r.n) FROM r JOIN edges e ON e.a = r.n)"
    " SELECT n, c FROM r",
    "WITH RECURSIVE r(n, d) AS (SELECT a, 0 FROM edges UNION ALL SELECT x.n, d + 1"
    " FROM (SELECT n, d, row_number() OVER (PARTITION BY n ORDER BY d) AS k FROM r) x"
    " WHERE k < 3 AND d < 4) SELECT n, d FROM r",
    # Set operations of the rows of the iteration with rows from outside.
    "WITH RECURSIVE r(n) AS (SELECT a FROM edges UNION (SELECT e.b FROM r JOIN edges e"
    " ON e.a = r.n EXCEPT SELECT id FROM nodes WHERE k > 2)) SELECT n FROM r",
    "WITH RECURSIVE r(n) AS (SELECT a FROM edges WHERE id < 4 UNION (SELECT e.b FROM r"
    " JOIN edges e ON e.a = r.n INTERSECT SELECT parent FROM nodes)) SELECT n FROM r",
    "WITH RECURSIVE r(n, d) AS (SELECT a, 0 FROM edges UNION ALL SELECT x.n, d + 1 FROM"
    " (SELECT k AS n, 1 AS d FROM nodes INTERSECT SELECT n, d FROM r WHERE d < 3) x)"
    " SELECT n, d FROM r",
    "WITH RECURSIVE r(n, d) AS (SELECT a, 0 FROM edges UNION (SELECT x.n, d + 1 FROM"
    " (SELECT n, d FROM r INTERSECT SELECT parent, k % 3 FROM nodes) x WHERE d < 2"
    " EXCEPT SELECT id, 2 FROM nodes)) SELECT n, d FROM r",
    # One recursion for each row of a table.
    "SELECT nodes.id, x.a FROM nodes, LATERAL (WITH RECURSIVE r(a) AS (SELECT nodes.k UNION"
    " SELECT a + 1 FROM r WHERE a < 6) SELECT a FROM r) x",
    "SELECT n.id, (WITH RECURSIVE r(m) AS (SELECT n.id UNION SELECT e.b FROM r JOIN edges e"
    " ON e.a = r.m WHERE e.b <> n.id) SELECT count(*) FROM r) AS c FROM nodes n",
    "SELECT n.id, (WITH RECURSIVE r(m) AS (SELECT n.id UNION SELECT e.b FROM r JOIN"
    " (SELECT a, b FROM edges WHERE id > n.k) e ON e.a = r.m) SELECT sum(m) FROM r) AS c"
    " FROM nodes n",
    # The outside of the step is itself recursive.
    "WITH RECURSIVE r(a, b) AS (SELECT a, b FROM edges UNION"
    " SELECT r.a, q.b FROM r JOIN (WITH RECURSIVE p(a, b) AS (SELECT parent, id FROM nodes"
    " UNION SELECT p.a, n.id FROM p JOIN nodes n ON n.parent = p.b) SELECT * FROM p) q"
    " ON q.a = r.b) SELECT * FROM r",
)


@pytest.mark.parametrize("seed", seeds(20, 3))
def test_recursive_queries(seed, source, commander):
    run(source, commander, seed, list(RECURSIVE), Writer(seed))


def test_a_recursion_without_an_end_is_refused_and_later_stops_the_view(source, commander):
    source.execute(DDL)
    create_marker(source, commander)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n"
    with pytest.raises(psycopg.Error, match="iterations") as caught:
        commander.execute(f"CALL headrace.create_view('endless', $q${endless}$q$)")
    assert caught.value.sqlstate == "54001"
    walks = (
        "WITH RECURSIVE r(a, b) AS (SELECT a, b FROM edges UNION ALL"
        " SELECT r.a, e.b FROM r JOIN edges e ON e.a = r.b) SELECT * FROM r"
    )
    commander.execute(f"CALL headrace.create_view('walks', $q${walks}$q$)")
    commander.execute("CALL headrace.create_view('plain', 'SELECT a FROM edges')")
    commit(source, ["INSERT INTO edges VALUES (1, 1, 2), (2, 2, 3)"])
    check(source, {"walks": walks}, "a path")
    source.execute("INSERT INTO edges VALUES (3, 3, 1)")
    with source.transaction():
        source.execute("INSERT INTO edges VALUES (4, 7, 8)")
        marker = bump(source)
    wait_until(
        lambda: source.execute("SELECT n FROM marker_view").fetchone() == (marker,),
        "the marker is covered",
    )
    check(source, {"plain": "SELECT a FROM edges"}, "the others go on")
    kept = source.execute("SELECT a, b FROM walks ORDER BY 1, 2").fetchall()
    assert kept == [(1, 2), (1, 3), (2, 3)]
    status = commander.execute(
        "SELECT headrace.view_message(id) FROM headrace.views WHERE view_name = 'walks'"
    ).fetchone()
    assert "iterations" in str(status)


def test_the_depth_of_a_recursion_is_an_option_of_the_view(source, commander):
    source.execute(DDL)
    create_marker(source, commander)
    deep = (
        "WITH RECURSIVE r(a, b) AS (SELECT a, b FROM edges WHERE a = 0 UNION"
        " SELECT e.a, e.b FROM r JOIN edges e ON e.a = r.b) SELECT a, b FROM r"
    )

    def create(name: str, options: str) -> None:
        call = f"CALL headrace.create_view('{name}', $q${deep}$q$, options => '{options}')"
        commander.execute(call)

    source.execute("INSERT INTO edges SELECT i, i, i + 1 FROM generate_series(0, 19) i")
    with pytest.raises(psycopg.Error, match="after 12 iterations") as caught:
        create("shallow", '{"max_recursion_iterations": 12}')
    assert caught.value.sqlstate == "54001"
    hint = str(caught.value.diag.message_hint)
    assert '{"max_recursion_iterations": 120}' in hint
    source.execute("INSERT INTO edges SELECT 100 + i, 1, 50 + i FROM generate_series(1, 9) i")
    with pytest.raises(psycopg.Error, match="more than 3 rows"):
        create("narrow", '{"max_recursion_rows": 3}')
    create("deep", '{"max_recursion_iterations": 2000}')
    commit(source, ["INSERT INTO edges SELECT i, i, i + 1 FROM generate_series(20, 99) i"])
    more = "INSERT INTO edges SELECT i, i, i + 1 FROM generate_series(200, 1299) i"
    commit(source, [more, "UPDATE edges SET b = 200 WHERE id = 99"])
    check(source, {"deep": deep}, "1 200 iterations deep")
    commander.execute("CALL headrace.resync_view('deep')")
    commander.execute(f"CALL headrace.alter_view('deep', $q${deep}$q$)")
    commit(source, ["DELETE FROM edges WHERE id = 250"])
    check(source, {"deep": deep}, "kept by resync and alter")


MIXED = (
    "SELECT x, count(*) FROM edges, LATERAL unnest(tags) x GROUP BY ROLLUP (x)",
    "SELECT w, generate_series(1,2) g, count(*) FROM edges GROUP BY CUBE(w, g)",
    "SELECT DISTINCT ON (a) a, unnest(tags) AS x FROM edges ORDER BY a, 2 DESC",
    "SELECT a, unnest(tags) AS x FROM edges ORDER BY a, 2 LIMIT 3",
    "SELECT a, sum(x) OVER (PARTITION BY a) FROM edges, unnest(tags) x",
    "SELECT a, row_number() OVER (ORDER BY id) AS n, unnest(tags) AS x FROM edges",
    "SELECT id FROM edges WHERE 3 = ANY (SELECT unnest(tags))",
    "SELECT id, (SELECT max(x) FROM unnest(tags) x) AS m FROM edges",
    "SELECT id, (SELECT string_agg(k, ',' ORDER BY k) FROM "
    "jsonb_object_keys(j) k) AS keys FROM edges",
    "SELECT e.id, x.* FROM edges e LEFT JOIN LATERAL (SELECT n.name, t FROM"
    " nodes n, unnest(e.tags) t WHERE n.id = t) x ON true",
    "SELECT e.id, t FROM edges e LEFT JOIN LATERAL unnest(e.tags) t ON t > e.a",
    "SELECT a FROM edges INTERSECT SELECT unnest(tags) FROM edges",
    "(SELECT a FROM edges EXCEPT SELECT b FROM edges) ORDER BY a LIMIT 2",
    "SELECT * FROM (VALUES ((SELECT max(a) FROM edges), 'm'), ((SELECT "
    "min(b) FROM edges), 'n')) v(x, y)",
    "SELECT e.id, v.x FROM edges e, LATERAL (VALUES (e.a), (e.b), (e.a + e.b)) v(x)",
    "SELECT e.id FROM edges e WHERE EXISTS (SELECT e.a INTERSECT SELECT n.k FROM nodes n)",
    "SELECT e.id, (SELECT count(*) FROM (SELECT k FROM nodes WHERE id = e.a"
    " EXCEPT ALL SELECT k FROM nodes WHERE id = e.b) x) AS c FROM edges e",
    "SELECT n, (SELECT count(*) FROM edges WHERE a = n) AS c FROM generate_series(0, 5) n",
    "SELECT d.n, count(e.id) FROM generate_series(0, 5) AS d(n) LEFT JOIN "
    "edges e ON e.a = d.n GROUP BY d.n",
    "SELECT id, jsonb_path_query(j, '$.*') AS x FROM edges",
    "WITH RECURSIVE t AS (SELECT id, parent, ARRAY[id] AS path FROM nodes "
    "WHERE parent IS NULL UNION ALL SELECT n.id, n.parent, path || n.id "
    "FROM nodes n JOIN t ON n.parent = t.id WHERE NOT n.id = ANY (path)) "
    "SELECT id, path FROM t",
    "WITH RECURSIVE t AS (SELECT id, 0 AS d FROM nodes WHERE parent IS NULL"
    " UNION ALL SELECT n.id, d + 1 FROM nodes n JOIN t ON n.parent = t.id "
    "WHERE d < 20) SELECT d, count(*) FROM t GROUP BY d ORDER BY d LIMIT 5",
    "WITH RECURSIVE f(a, b) AS (SELECT 0, 1 UNION ALL SELECT b, a + b FROM "
    "f WHERE b < 1000) SELECT a FROM f",
    "WITH RECURSIVE t AS (SELECT id FROM nodes WHERE id = (SELECT min(id) "
    "FROM nodes) UNION SELECT n.id FROM nodes n, t WHERE n.parent = t.id "
    "AND n.k IN (SELECT a FROM edges)) SELECT * FROM t",
)


def grouped_calls(r: random.Random) -> str:
    """Return a query that groups by a set-returning call, and shows that value several times."""
    call = r.choice(("unnest(tags)", "unnest(ARRAY[a, b])", "generate_series(1, a)"))
    key = r.choice((call, f"({call} + 1)", f"abs({call})", f"greatest({call}, b)"))
    forms = (key, f"{key} * 2", f"{key} + count(*)", f"({key})::text || 'x'", f"{key} + {key}")
    shown = [f"{form} AS c{i}" for i, form in enumerate(r.choices(forms, k=r.randint(1, 3)))]
    if r.random() < 0.3:
        shown.append("generate_series(1, 2) AS more")
    by = r.choice((key, f"GROUPING SETS (({key}), ())", f"{key}, a % 2"))
    return f"SELECT {', '.join(shown)}, count(*) AS n, sum(id) AS s FROM edges GROUP BY {by}"


@pytest.mark.parametrize("seed", seeds(50, 2))
def test_groups_by_the_rows_of_a_call(seed, source, commander):
    """An expression that is equal to one of GROUP BY is its value, not another call."""
    writer = Writer(seed)
    run(source, commander, seed, [grouped_calls(writer.rng) for _ in range(12)], writer)


@pytest.mark.parametrize("seed", seeds(30, 2))
def test_together_with_everything_else(seed, source, commander):
    run(source, commander, seed, list(MIXED), Writer(seed))
