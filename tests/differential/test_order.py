"""ORDER BY with LIMIT, DISTINCT ON and window functions under random transactions.

Where Postgres may choose among ties, the queries leave it no choice: a key comes last in ORDER BY,
or the function does not depend on the order of peers. A failure prints the seed.
"""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.amounts import seeds
from tests.compared import create_view, follow, numbered
from tests.waiting import create_marker

DDL = """
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad');
    CREATE TABLE items (id int PRIMARY KEY, g int, k int, n numeric, t text, d date, f float8,
        e mood);
    CREATE TABLE bag (k int, n numeric);
    ALTER TABLE bag REPLICA IDENTITY FULL;
"""
TRANSACTIONS = 12


def _behind(rows: int) -> str:
    if rows == 0:
        return "CURRENT ROW"
    return f"{-rows} PRECEDING" if rows < 0 else f"{rows} FOLLOWING"


class Writer:
    """Random statements and queries over ``DDL``; small pools, so that rows tie."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def _value(self, column: str) -> str:
        pools = {
            "g": ["NULL", "1", "2", "3"],
            "k": ["NULL", "-1", "0", "1", "2", "5"],
            "n": ["NULL", "1", "1.0", "1.00", "0.97", "0.970", "-2.45", "'NaN'"],
            "t": ["NULL", "''", "'a'", "'B'", "'b'", "'ä'", "'Z'"],
            "d": ["NULL", "'2024-01-01'", "'2024-02-29'", "'infinity'"],
            "e": ["NULL", "'glad'", "'ok'", "'sad'"],
            "f": ["NULL", "0", "'-0'", "1.5", "'NaN'", "'-Infinity'"],
        }
        return self.rng.choice(pools[column])

    def statement(self) -> str:
        """Return one INSERT, UPDATE, DELETE or, rarely, TRUNCATE."""
        r = self.rng
        kind, key = r.randrange(13), r.randrange(24)
        if kind < 5:
            values = ", ".join(self._value(c) for c in "gkntdfe")
            return (
                f"INSERT INTO items VALUES ({key}, {values}) ON CONFLICT (id) DO UPDATE"
                " SET k = excluded.k, t = excluded.t, n = excluded.n, e = excluded.e"
            )
        if kind < 8:
            column = r.choice("gkntdfe")
            return f"UPDATE items SET {column} = {self._value(column)} WHERE id % 8 = {key % 8}"
        if kind < 10:
            return f"DELETE FROM items WHERE id % 7 < {r.choice([1, 1, 2, 5])}"
        if kind == 10:
            return f"INSERT INTO bag VALUES ({self._value('k')}, {self._value('n')})"
        if kind == 11:
            return f"DELETE FROM bag WHERE k = {self._value('k')}"
        return r.choice(["TRUNCATE items", "TRUNCATE bag", "UPDATE bag SET k = k + 1", "SELECT 1"])

    def transaction(self) -> list[str]:
        return [self.statement() for _ in range(self.rng.randrange(1, 6))]

    def _items(self) -> list[str]:
        r = self.rng
        some = r.sample(
            [
                *("k", "n", "t", "d", "f", "g", "e", "ARRAY[k, g]", 't COLLATE "C"'),
                *("(k, n)", "ROW(t, g)", "(e, (f, d))", '(t COLLATE "C", k + 1)'),
            ],
            r.randrange(3),
        )
        some += r.choice([[], ["k + 1"]])
        return [
            c + r.choice(["", "", " DESC"]) + r.choice(["", " NULLS FIRST", " NULLS LAST"])
            for c in some
        ]

    def order(self) -> str:
        """Return an ORDER BY that leaves no ties."""
        return ", ".join([*self._items(), self.rng.choice(["id", "id DESC"])])

    def limited(self) -> str:
        r = self.rng
        kind = r.randrange(6)
        limit = r.choice(["LIMIT 3", "LIMIT 1", "LIMIT 0", "LIMIT 7 OFFSET 2", "OFFSET 4"])
        if kind == 0:
            first = r.choice(["k", "n", "t", "f", "e"])
            direction = r.choice(["", " DESC", " DESC NULLS LAST", " NULLS FIRST"])
            offset = r.choice([0, 1, 3]) if first in "kte" else 0
            # The peers that an offset removes are undefined.
            return (
                f"SELECT {'' if offset else 'id, '}{first} FROM items"
                f" ORDER BY {first}{direction} OFFSET {offset} FETCH FIRST {r.choice([1, 2, 4])} ROWS WITH TIES"
            )
        if kind == 1:
            keys = r.sample(["g", "k", "t"], r.choice([1, 1, 2]))
            return (
                f"SELECT DISTINCT ON ({', '.join(keys)}) * FROM items"
                f" ORDER BY {', '.join(keys)}, {self.order()} {r.choice(['', '', limit])}"
            )
        if kind == 2:
            return (
                "SELECT k, count(*) AS c, sum(n) AS s FROM items WHERE n <> 'NaN' GROUP BY k"
                f" ORDER BY count(*) DESC, k {limit}"
            )
        if kind == 3:
            return f"SELECT * FROM bag ORDER BY k, n, scale(n) {limit}"
        if kind == 4:
            return (
                f"SELECT a.id, b.k FROM (SELECT * FROM items ORDER BY {self.order()} {limit}) a"
                f" JOIN bag b ON a.k = b.k"
            )
        return f"SELECT id, k, t FROM items ORDER BY {self.order()} {limit}"

    def window(self) -> str:
        r = self.rng
        calls = [self._call(i) for i in range(r.choice([1, 1, 2, 3]))]
        return f"SELECT id, {', '.join(calls)} FROM items" + r.choice(
            ["", "", " WHERE k > 0", " WHERE n <> 'NaN'"]
        )

    def _call(self, number: int) -> str:
        r = self.rng
        keys = r.choice(["", "PARTITION BY g ", "PARTITION BY g ", "PARTITION BY k, t "])
        condition = r.choice(["", "", " FILTER (WHERE k > 0)"])
        aggregate = r.choice(
            ["count(*)", "count(n)", "sum(k)", "min(t)", "max(k)", "bool_and(k > 0)", "count(*) "]
        )
        if r.random() < 0.45:  # peers are equal before these
            call = r.choice(
                ["rank()", "dense_rank()", "percent_rank()", "cume_dist()"]
                + [aggregate + condition] * 4
            )
            items = ", ".join(self._items()) or "k"
            frame = r.choice(["", "", "", *self._frames("GROUPS", "RANGE")])
            if "OFFSET" in frame:
                frame = ""
            return f"{call} OVER ({keys}ORDER BY {items} {frame}) AS c{number}"
        call = r.choice(
            [
                "row_number()",
                "rank()",
                "lag(k)",
                "lead(t, 2)",
                "lag(n, 1, 0.5)",
                "lag(1 / (id + 1), 1)",
                "first_value(k)",
                "last_value(t)",
                "nth_value(k, 2)",
                "ntile(3)",
                "array_agg(k)",
                "string_agg(t, ',')",
                aggregate + condition,
                aggregate + condition,
            ]
        )
        frame = r.choice(["", "", *self._frames("ROWS", "GROUPS")])
        return f"{call} OVER ({keys}ORDER BY {self.order()} {frame}) AS c{number}"

    def moving(self) -> str:
        """Return a query of which Headrace computes each window function itself."""
        r = self.rng
        calls = []
        for number in range(r.choice([1, 1, 2, 3])):
            call = r.choice(
                [
                    *(
                        "avg(k)",
                        "avg(n)",
                        "avg(id::bigint)",
                        "sum(n)",
                        "sum(k)",
                        "min(n)",
                        "max(k)",
                    ),
                    *("count(*)", "count(n)", "avg(n * 1e15)", "sum(n * 1e17)"),
                ]
            )
            if r.random() < 0.3:
                call += " FILTER (WHERE k > 0)"
            elif r.random() < 0.2:
                call = r.choice(["first_value(n)", "last_value(t)"])
            low = r.randrange(-4, 3)
            bounds = [_behind(low), _behind(r.randrange(low, 4))]
            frame = r.choice(["", f"ROWS BETWEEN {' AND '.join(bounds)}"])
            calls.append(f"{call} OVER (w {frame}) AS c{number}")
        keys = r.choice(["", "PARTITION BY g ", "PARTITION BY k, e "])
        order = r.choice(["k, id", "n DESC, id", "d, id DESC"])
        return f"SELECT id, {', '.join(calls)} FROM items WINDOW w AS ({keys}ORDER BY {order})"

    def _frames(self, *modes: str) -> list[str]:
        r = self.rng
        out = []
        for mode in modes:
            bounds = ["UNBOUNDED PRECEDING", "CURRENT ROW", "UNBOUNDED FOLLOWING"]
            if mode != "RANGE":
                bounds[1:1] = ["2 PRECEDING", "1 PRECEDING"]
                bounds[-1:-1] = ["1 FOLLOWING", "3 FOLLOWING"]
            low = r.randrange(len(bounds) - 1)
            high = r.randrange(max(low, 1), len(bounds))
            exclude = r.choice(
                ["", "", " EXCLUDE TIES", " EXCLUDE GROUP", " EXCLUDE NO OTHERS"]
                + (["  EXCLUDE CURRENT ROW"] if mode == "ROWS" else [])
            )
            out.append(f"{mode} BETWEEN {bounds[low]} AND {bounds[high]}{exclude}")
        return out


FIXED = (
    # Several definitions, a named one, windows over aggregates, a window in ORDER BY.
    "SELECT id, row_number() OVER w AS r, sum(k) OVER (w ROWS 1 PRECEDING) AS s,"
    " count(*) OVER () AS c FROM items WINDOW w AS (PARTITION BY g ORDER BY k, id)",
    "SELECT g, sum(k) AS s, rank() OVER (ORDER BY sum(k) DESC) AS r,"
    " sum(sum(k)) OVER () AS whole FROM items GROUP BY g",
    "SELECT id FROM items ORDER BY row_number() OVER (PARTITION BY g ORDER BY id DESC), id LIMIT 3",
    "SELECT * FROM (SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY k DESC, id) AS r"
    " FROM items) s WHERE r <= 2",
    "SELECT id, sum(k) OVER (ORDER BY d RANGE BETWEEN '31 days' PRECEDING AND CURRENT ROW) AS s"
    " FROM items WHERE d < '2030-01-01'",
    "SELECT id, count(*) OVER (ORDER BY k RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS c FROM items",
    "SELECT k, n, count(*) OVER (PARTITION BY k) AS c, rank() OVER (ORDER BY k DESC) AS r FROM bag",
    "SELECT DISTINCT g, count(*) OVER (PARTITION BY g) AS c FROM items",
    "SELECT id, k FROM items ORDER BY 1 LIMIT NULL OFFSET NULL",
    "SELECT k FROM bag UNION ALL SELECT id FROM items ORDER BY 1 DESC NULLS LAST LIMIT 3",
    "(SELECT id FROM items ORDER BY id LIMIT 2) UNION (SELECT id FROM items ORDER BY id DESC LIMIT 2)",
    "SELECT i.id FROM items i ORDER BY i.k NULLS FIRST, i.id LIMIT 2 + 1",
    "SELECT id, t FROM items ORDER BY e DESC, id LIMIT 4",
    "SELECT DISTINCT ON (g) g, t FROM items ORDER BY g, e, id",
    "SELECT id, rank() OVER (PARTITION BY g ORDER BY e) AS r FROM items",
    "SELECT e FROM items ORDER BY e FETCH FIRST 3 ROWS WITH TIES",
    "SELECT id, t FROM items ORDER BY e, id OFFSET 2",
    "SELECT id, percentile FROM (SELECT id, ntile(4) OVER (ORDER BY id) AS percentile FROM items) s",
    "SELECT id, lag(10 / k) OVER (ORDER BY id) AS l FROM items WHERE k <> 0",
)

INSIDE = (
    # In LATERAL and in subqueries: the first rows of each group, and windows of each group.
    "SELECT b.k, x.id FROM bag b,"
    " LATERAL (SELECT id, n FROM items i WHERE i.k = b.k ORDER BY n, id LIMIT 2) x",
    "SELECT b.k, x.id FROM bag b LEFT JOIN LATERAL (SELECT id FROM items i WHERE i.k = b.k"
    " ORDER BY n DESC, id OFFSET 1 FETCH FIRST 1 ROWS WITH TIES) x ON true",
    "SELECT b.k, x.id, x.r FROM bag b, LATERAL ("
    "SELECT id, row_number() OVER (ORDER BY n, id) AS r FROM items i WHERE i.k = b.k) x",
    "SELECT id, (SELECT b.n FROM bag b WHERE b.k = i.k ORDER BY trim_scale(b.n), scale(b.n)"
    " LIMIT 1) AS m FROM items i",
    "SELECT id FROM items i WHERE EXISTS (SELECT 1 FROM bag b WHERE b.k = i.k LIMIT 1)",
    "SELECT id FROM items i WHERE k IN (SELECT k FROM bag ORDER BY k LIMIT 2)",
    "SELECT id, sum(k) OVER (PARTITION BY g ORDER BY id) + (SELECT count(*) FROM bag) AS s"
    " FROM items",
    "SELECT id, avg(k) OVER (PARTITION BY g) AS a, share"
    " FROM (SELECT *, cume_dist() OVER (ORDER BY k) AS share FROM items) s",
    "SELECT id, lead(t, 2, 'none') OVER w AS l, last_value(k) OVER w AS v,"
    " sum(n) FILTER (WHERE k > 0) OVER w AS s FROM items WHERE n <> 'NaN'"
    " WINDOW w AS (PARTITION BY g ORDER BY id DESC)",
    "SELECT g, k, count(*) OVER (PARTITION BY g ORDER BY k) AS c, min(t) OVER (PARTITION BY g"
    " ORDER BY k) AS m, dense_rank() OVER (PARTITION BY g ORDER BY k) AS d FROM items",
)


def run(seed: int, source, commander, queries: list[str], writer: Writer) -> None:
    """Create the views and hold them against their queries after every transaction."""
    source.execute(DDL)
    for _ in range(writer.rng.choice([0, 15, 15])):
        source.execute(writer.statement())
    create_marker(source, commander)
    views = numbered(queries)
    for name, query in views.items():
        create_view(commander, name, query)
    transactions = (writer.transaction() for _ in range(TRANSACTIONS))
    follow(source, views, transactions, f"seed {seed}")


@pytest.mark.parametrize("seed", seeds(30, 2))
def test_inside_of_other_queries(seed, source, commander):
    run(seed, source, commander, list(INSIDE), Writer(seed))


@pytest.mark.parametrize("seed", seeds(0, 3))
def test_limits(seed, source, commander):
    writer = Writer(seed)
    run(seed, source, commander, [writer.limited() for _ in range(16)], writer)


@pytest.mark.parametrize("seed", seeds(10, 3))
def test_windows(seed, source, commander):
    writer = Writer(seed)
    run(seed, source, commander, [writer.window() for _ in range(16)], writer)


@pytest.mark.parametrize("seed", seeds(40, 8, 2))
def test_moving_frames(seed, source, commander):
    writer = Writer(seed)
    queries = [writer.moving() for _ in range(16)]
    run(seed, source, commander, queries, writer)
    for query in queries:
        plan = commander.execute("SELECT plan FROM headrace.explain_view(%s)", [query]).fetchall()
        assert any("rows that become different" in line for (line,) in plan), (query, plan)


@pytest.mark.parametrize("seed", seeds(20, 2))
def test_fixed_queries(seed, source, commander):
    run(seed, source, commander, list(FIXED), Writer(seed))


COMPUTED = (
    "SELECT id, k FROM items ORDER BY k DESC, id LIMIT (SELECT k FROM wanted WHERE w = 1)",
    "SELECT id FROM items ORDER BY t, id LIMIT (SELECT count(*) / 2 FROM items)"
    " OFFSET (SELECT k FROM wanted WHERE w = 2)",
    "SELECT id FROM items ORDER BY n NULLS FIRST, id OFFSET (SELECT max(k) FROM wanted)",
    "SELECT w, l.id FROM wanted, LATERAL (SELECT id FROM items WHERE g = w"
    " ORDER BY k, id LIMIT wanted.k) l",
    "SELECT w, (SELECT id FROM items WHERE g >= w ORDER BY id LIMIT 1 OFFSET wanted.k) AS i FROM wanted",
    "SELECT g FROM items UNION SELECT w FROM wanted ORDER BY 1 LIMIT (SELECT sum(w) FROM wanted)",
)


def test_computed_limits(source, commander):
    source.execute(DDL)
    source.execute("CREATE TABLE wanted (w int PRIMARY KEY, k int)")
    create_marker(source, commander)
    writer = Writer(11)
    for _ in range(15):
        source.execute(writer.statement())
    source.execute("INSERT INTO wanted VALUES (1, 3), (2, 1)")
    views = numbered(COMPUTED)
    for name, query in views.items():
        create_view(commander, name, query)
    changes = [
        [*writer.transaction(), more]
        for more in (
            "UPDATE wanted SET k = k + 1",
            "UPDATE wanted SET k = 0 WHERE w = 1",
            "INSERT INTO wanted VALUES (3, NULL)",
            "DELETE FROM wanted WHERE w = 1",
            "INSERT INTO wanted VALUES (1, 100)",
            "DELETE FROM wanted",
        )
    ]
    follow(source, views, changes, "computed limits")
    source.execute("INSERT INTO wanted VALUES (1, -1)")
    for run in (source.execute, lambda q: create_view(commander, "negative", q)):
        with pytest.raises(psycopg.errors.DataError, match="negative"):
            run(COMPUTED[0])
