"""Subqueries that may fail, where CASE and similar expressions keep rows from them.

The rows of ``u`` with k > 6 make every subquery here fail; rows of ``o`` with such a k never have
the flag. Postgres therefore always answers the queries, and a view that evaluates too much stops.
"""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.compared import create_view, follow, numbered
from tests.waiting import create_marker

DDL = """
    CREATE TABLE o (id int PRIMARY KEY, k int, d int, flag boolean);
    CREATE TABLE u (id int PRIMARY KEY, k int, x int, y int, s text);
"""
RATIO = "(SELECT sum(x / y) FROM u WHERE u.k = o.k)"
NUMBER = "(SELECT max(s::int) FROM u WHERE u.k = o.k)"
QUERIES = (
    f"SELECT id, CASE WHEN flag THEN {RATIO} END AS v FROM o",
    f"SELECT id, CASE WHEN flag THEN {NUMBER} ELSE -1 END AS v FROM o",
    "SELECT id, CASE WHEN flag IS NOT TRUE THEN 0 ELSE"
    " (SELECT sum(x) / sum(y) FROM u WHERE u.k = o.k) END AS v FROM o",
    f"SELECT id, CASE flag WHEN true THEN {RATIO} WHEN false THEN d END AS v FROM o",
    f"SELECT id, coalesce(CASE WHEN flag IS NOT TRUE THEN d END, {RATIO}, 7) AS v FROM o",
    "SELECT id FROM o WHERE flag IS NOT TRUE OR EXISTS"
    " (SELECT FROM u WHERE u.k = o.k HAVING sum(x / y) > 1)",
    f"SELECT id, d FROM o WHERE NOT (flag IS NOT TRUE OR coalesce({NUMBER}, 0) > 2)",
    "SELECT id, flag IS TRUE AND d IN (SELECT s::int FROM u WHERE u.k = o.k) AS v FROM o",
    "SELECT id, CASE WHEN flag THEN d > ALL (SELECT x / y FROM u WHERE u.k = o.k)"
    " ELSE flag END AS v FROM o",
    "SELECT id, CASE WHEN flag THEN d = ANY (SELECT x / y FROM u WHERE u.k < o.k) END"
    " AS v FROM o WHERE d < 3",
    "SELECT id, CASE WHEN flag THEN ARRAY(SELECT x / y FROM u WHERE u.k = o.k"
    " ORDER BY 1) END AS v FROM o",
    "SELECT id, CASE WHEN (SELECT count(*) FROM u WHERE y = 0) = 0"
    " THEN (SELECT sum(x / y) FROM u) END AS v FROM o",
    "SELECT CASE WHEN EXISTS (SELECT FROM u WHERE s = 'bad') THEN -1"
    " ELSE (SELECT max(s::int) FROM u) END AS v",
    f"SELECT k, CASE WHEN bool_and(flag) THEN {RATIO} END AS v FROM o"
    " WHERE flag IS NOT NULL GROUP BY k",
    f"SELECT k, count(*) AS c FROM o GROUP BY k HAVING every(flag IS TRUE) IS FALSE OR {RATIO} > 2",
    f"SELECT k, sum({RATIO}) FILTER (WHERE flag) AS v, count(*) AS c FROM o GROUP BY k",
    f"SELECT id, CASE WHEN flag THEN coalesce({NUMBER}, {RATIO}, 0) END AS v FROM o",
    f"SELECT id, CASE WHEN flag IS TRUE AND {NUMBER} > 1 THEN {RATIO} END AS v FROM o",
    "SELECT id, (SELECT sum(CASE WHEN o.flag THEN (SELECT max(w.x / w.y) FROM u w"
    " WHERE w.k = u.k) ELSE u.id END) FROM u WHERE u.k = o.k) AS v FROM o",
    "SELECT o.id, u.id AS n FROM o JOIN u ON o.k = u.k AND (flag IS NOT TRUE"
    " OR x >= (SELECT max(w.x / w.y) FROM u w WHERE w.k = o.k))",
    "SELECT o.id, u.id AS n FROM o LEFT JOIN u ON o.k = u.k AND (flag IS NOT TRUE"
    " OR x >= (SELECT max(w.x / w.y) FROM u w WHERE w.k = o.k))",
    f"SELECT id, rank() OVER (ORDER BY d) AS r, CASE WHEN flag THEN {RATIO} END AS v FROM o",
    f"SELECT d, sum(CASE WHEN flag THEN {RATIO} ELSE d END) AS s FROM o GROUP BY d",
    f"SELECT DISTINCT CASE WHEN flag THEN {RATIO} END AS v FROM o",
    "SELECT id, CASE WHEN flag THEN (SELECT x / y FROM u WHERE u.k = o.k"
    " ORDER BY u.id LIMIT 1) END AS v FROM o",
    "SELECT id, v FROM o, LATERAL (SELECT CASE WHEN flag THEN"
    " (SELECT sum(x / y) FROM u WHERE u.k = o.k AND u.id > o.d) END AS v) l",
)


class Writer:
    """Statements that preserve the condition of ``QUERIES``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def statement(self) -> str:
        r = self.rng
        kind, key = r.randrange(10), r.randrange(20)
        if kind < 4:
            k = r.choice(["NULL", "1", "2", "3", "7", "8"])
            flag = r.choice(["NULL", "false"] + ["true"] * 3 * (k < "7" or k == "NULL"))
            return (
                f"INSERT INTO o VALUES ({key}, {k}, {r.randrange(5)}, {flag})"
                " ON CONFLICT (id) DO UPDATE SET k = excluded.k, flag = excluded.flag"
            )
        if kind < 7:
            k = r.choice(["NULL", "1", "2", "3", "7", "8"])
            bad = k in ("7", "8")
            y, s = ("0", "bad") if bad else (str(r.choice([1, -2, 3])), key)
            return (
                f"INSERT INTO u VALUES ({key}, {k}, {r.randrange(9)}, {y}, '{s}')"
                " ON CONFLICT (id) DO UPDATE SET k = excluded.k, x = excluded.x,"
                " y = excluded.y, s = excluded.s"
            )
        return r.choice(
            [
                f"DELETE FROM {r.choice('ou')} WHERE id % 5 = {key % 5}",
                f"UPDATE o SET d = d + 1, flag = flag AND d < 4 WHERE id % 4 = {key % 4}",
                f"UPDATE u SET x = x + 3 WHERE id % 3 = {key % 3}",
                "DELETE FROM u WHERE k > 6",
            ]
        )

    def transaction(self) -> list[str]:
        return [self.statement() for _ in range(self.rng.randrange(1, 5))]


@pytest.mark.parametrize(
    ("queries", "transactions"),
    [(QUERIES[1::3], 6), pytest.param(QUERIES, 20, marks=pytest.mark.slow)],
)
def test_nobody_asks_for_what_fails(source, commander, queries, transactions):
    source.execute(DDL)
    create_marker(source, commander)
    writer = Writer(5)
    for _ in range(30):
        source.execute(writer.statement())
    source.execute("INSERT INTO u VALUES (90, 7, 1, 0, 'bad')")
    source.execute("INSERT INTO o VALUES (91, 7, 1, false), (92, 7, 1, NULL)")
    views = numbered(queries)
    for name, query in views.items():
        create_view(commander, name, query)
    follow(source, views, (writer.transaction() for _ in range(transactions)), "seed 5")


def test_who_asks_gets_the_error(source, commander):
    source.execute("CREATE TABLE ask (id int PRIMARY KEY, flag boolean)")
    source.execute("CREATE TABLE fail (id int PRIMARY KEY, y int)")
    create_marker(source, commander)
    source.execute("INSERT INTO ask VALUES (1, true)")
    source.execute("INSERT INTO fail VALUES (1, 0)")
    query = "SELECT id, CASE WHEN flag THEN (SELECT sum(1 / y) FROM fail) END AS v FROM ask"
    for run in (source.execute, lambda q: create_view(commander, "asked", q)):
        with pytest.raises(psycopg.errors.DivisionByZero):
            run(query)
