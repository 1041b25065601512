"""Joins of every kind, over NULLs, duplicates and empty tables, under random transactions.

Every view equals its query, run in Postgres, after every transaction.  A failure prints the seed.
"""

from __future__ import annotations

import random

import pytest

from tests.amounts import seeds
from tests.compared import create_view, follow, numbered
from tests.waiting import create_marker

TABLES = ("r", "s", "w", "bag")
DDL = """
    CREATE TABLE r (id int PRIMARY KEY, a int, b int, n numeric, t text);
    CREATE TABLE s (id int PRIMARY KEY, a int, b bigint, n numeric, t varchar);
    CREATE TABLE w (id int PRIMARY KEY, a smallint, b int, n int, t text);
    CREATE TABLE bag (id int, a int, b int, n numeric, t text);
    ALTER TABLE bag REPLICA IDENTITY FULL;
"""
COLUMNS = ("id", "a", "b", "n", "t")
TRANSACTIONS = 14


class Writer:
    """Random statements and queries over ``DDL``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def value(self, column: str) -> str:
        r = self.rng
        if r.random() < 0.2:
            return "NULL"
        if column == "t":
            return r.choice(["''", "'x'", "'yy'"])
        if column == "n":
            return r.choice(["1", "2", "3"])
        return str(r.randrange(4))

    def statement(self) -> str:
        r = self.rng
        table, kind = r.choice(TABLES), r.randrange(20)
        if kind < 8:
            values = ", ".join(self.value(c) for c in COLUMNS[1:])
            insert = f"INSERT INTO {table} VALUES ({r.randrange(12)}, {values})"
            return insert + ("" if table == "bag" else " ON CONFLICT DO NOTHING")
        if kind < 13:
            column = r.choice(COLUMNS[1:])
            return (
                f"UPDATE {table} SET {column} = {self.value(column)}"
                f" WHERE id % 3 = {r.randrange(3)}"
            )
        if kind < 18:
            return f"DELETE FROM {table} WHERE id % 4 = {r.randrange(4)}"
        if kind == 18:
            return f"UPDATE {table} SET id = id + 12 WHERE id = {r.randrange(12)}"
        return r.choice([f"TRUNCATE {table}", f"DELETE FROM {table}"])

    def transaction(self) -> list[str]:
        return [self.statement() for _ in range(self.rng.randrange(1, 7))]

    # -- queries

    def condition(self, left: list[str], right: str, *, equal: bool) -> str:
        """Return an ON condition; with ``equal`` one that Postgres can use for a full join."""
        r = self.rng
        mine, column = r.choice(left), r.choice(["a", "b", "n", "id"])
        keys = [f"{mine}.{r.choice(['a', 'b', 'id'])} = {right}.{column}"]
        if r.random() < 0.3:
            keys.append(f"{r.choice(left)}.t = {right}.t")
        if equal:
            subqueries = r.choice([0, 0, 0, 1, 2])
            keys += [self.subquery(r.choice([mine, right])) for _ in range(subqueries)]
            return " AND ".join(keys)
        more = [
            f"{mine}.b < {right}.b",
            f"{mine}.t IS NOT DISTINCT FROM {right}.t",
            f"{mine}.a > 1",
            f"{right}.b IS NOT NULL",
            f"({mine}.a = 1 OR {right}.n > 1)",
            f"({mine}.b = 1 AND {right}.b > 1 OR {mine}.b IS NULL AND {right}.a = 2)",
            f"({mine}.a = {right}.a AND {mine}.b > 1 OR {right}.n = 2 AND {mine}.a = {right}.a)",
            f"12 / (coalesce({mine}.b, 0) + 9) > {right}.a",
            f"{mine}.n IS NULL",
            "true",
            "false",
        ]
        chosen = r.sample(more, r.choice([0, 0, 1, 1, 2]))
        if r.random() < 0.2:
            keys = []
        return " AND ".join([*keys, *chosen]) or "true"

    def subquery(self, side: str) -> str:
        """Return a condition with a subquery that reads no more than one side of a join."""
        r = self.rng
        table, column = r.choice(TABLES), r.choice(["a", "b", "id"])
        return r.choice(
            [
                f"EXISTS (SELECT FROM {table} q WHERE q.a = {side}.{column})",
                f"({side}.b = 1 OR NOT EXISTS (SELECT FROM {table} q WHERE q.b > {side}.{column}))",
                f"{side}.{column} IN (SELECT q.b FROM {table} q)",
                f"{side}.{column} NOT IN (SELECT q.b FROM {table} q WHERE q.a = {side}.b)",
                f"{side}.{column} <= (SELECT max(q.b) FROM {table} q WHERE q.a = {side}.a)",
                f"{side}.{column} >= (SELECT min(q.b) FROM {table} q)",
                f"(SELECT count(*) FROM {table} q) > {r.randrange(6)}",
            ]
        )

    def join(self) -> tuple[str, list[str]]:
        """Return a random tree of joins and its aliases."""
        r = self.rng
        aliases = ["x0"]
        text = f"{r.choice(TABLES)} x0"
        for number in range(1, r.choice([2, 2, 3, 4])):
            alias = f"x{number}"
            kind = r.choice(["LEFT", "LEFT", "RIGHT", "FULL", "INNER"])
            on = self.condition(aliases, alias, equal=kind == "FULL")
            right = r.choice(TABLES)
            if r.random() < 0.2:
                right = (
                    f"(SELECT id, a, b, n, coalesce(t, 'x') AS t FROM {right}"
                    f" WHERE a IS NOT NULL OR b > 1)"
                )
            text = f"({text} {kind} JOIN {right} {alias} ON {on})"
            aliases.append(alias)
        return text, aliases

    def where(self, aliases: list[str]) -> str:
        r = self.rng
        alias = r.choice(aliases)
        tests = [
            f"{alias}.id IS NULL",
            f"{alias}.a > 0",
            f"{alias}.b IS NOT NULL",
            f"coalesce({alias}.a, 7) > 1",
            f"({alias}.a = 1 OR {alias}.b IS NULL)",
            f"{alias}.t LIKE 'y%'",
            f"{alias}.n = {r.choice(aliases)}.n",
            f"NOT ({alias}.b > 2)",
        ]
        chosen = r.sample(tests, r.choice([0, 0, 1, 2]))
        return f" WHERE {' AND '.join(chosen)}" if chosen else ""

    def query(self) -> str:
        r = self.rng
        text, aliases = self.join()
        tail = self.where(aliases)
        if r.random() < 0.2:
            key = f"{r.choice(aliases)}.a"
            return (
                f"SELECT {key} AS k, count(*) AS c, sum({r.choice(aliases)}.b) AS s"
                f" FROM {text}{tail} GROUP BY 1"
            )
        shown = [f"{a}.{c}" for a in aliases for c in r.sample(COLUMNS, 2)]
        items = ", ".join(f"{e} AS c{i}" for i, e in enumerate(shown))
        return f"SELECT {items} FROM {text}{tail}"


FIXED = (
    "SELECT * FROM r NATURAL LEFT JOIN s",
    "SELECT * FROM r NATURAL FULL JOIN w",
    "SELECT a, r.b, s.t FROM r FULL JOIN s USING (a)",
    "SELECT a, count(*) AS c FROM r RIGHT JOIN bag USING (a, b) GROUP BY a",
    "SELECT x.id, y.id AS i FROM r x LEFT JOIN r y ON x.a = y.b",
    "SELECT x.id, y.id AS i FROM r x FULL JOIN r y ON x.a = y.id WHERE x.b > 1 OR y.b > 1",
    "SELECT r.id, s.id AS i FROM r FULL JOIN s ON r.a = s.a AND r.b IN (SELECT a FROM w)",
    "SELECT r.id, s.id AS i FROM r FULL JOIN s ON r.a = (SELECT max(a) FROM w WHERE w.b = s.b)",
    "SELECT r.id, s.id AS i FROM r FULL JOIN s ON r.a = s.a AND 1 < (SELECT min(a) FROM w)",
    "SELECT id, (SELECT count(*) FROM w FULL JOIN s ON w.a = s.a AND EXISTS (SELECT FROM bag"
    " WHERE bag.a = w.b AND bag.b < r.id)) AS n FROM r",
    # TPC-H 13: a group per customer, with and without orders.
    "SELECT c, count(*) AS n FROM (SELECT r.id, count(s.id) AS c FROM r LEFT JOIN s"
    " ON r.id = s.a AND s.t NOT LIKE '%y%' GROUP BY r.id) x GROUP BY c",
    "SELECT r.id FROM r LEFT JOIN s ON r.a = s.a WHERE s.id IS NULL",
    "SELECT r.id, s.one FROM r LEFT JOIN (SELECT 1 AS one, a FROM s) s ON r.a = s.a",
    "SELECT count(*) AS c FROM r FULL JOIN s ON false WHERE r.a = 1",
    # TPC-H 19 and TPC-DS 41: the condition common to all arms of an OR is the key.
    "SELECT r.id, s.id AS i FROM r, s WHERE (r.a = s.a AND r.b IN (1, 2) AND s.t = 'x')"
    " OR (s.b > 1 AND r.a = s.a AND r.b = 3) OR (r.a = s.a AND r.b IS NULL)",
    "SELECT id FROM r WHERE (SELECT count(*) FROM s WHERE (s.a = r.a AND s.b > 1 AND"
    " (s.t = 'x' OR s.n = 2)) OR (s.a = r.a AND s.id > 5) OR (s.b IS NULL AND s.a = r.a)) > 1",
    "SELECT r.id, s.id AS i FROM r LEFT JOIN s ON r.id = s.a"
    " AND (r.a = 1 AND s.b > 1 AND s.n = 1 OR r.b = 2 AND s.b IS NULL)",
    "SELECT r.id FROM r WHERE NOT EXISTS (SELECT FROM s WHERE r.a = s.a"
    " AND (r.b = 1 AND s.b > 1 OR r.b IS NULL AND s.t = 'x'))",
)


def comparison(writer: Writer) -> str:
    """Return a query that shows only rows which compare with a subquery's value."""
    r = writer.rng
    column, operator = r.choice(["a", "b", "n", "id", "t"]), r.choice(["<", "<=", ">", ">="])
    left, right = r.choice(TABLES), r.choice(TABLES)
    keys = r.choice(["o.a = i.a", "o.a = i.b", "o.b = i.a", "o.a = i.a AND o.b = i.b", "true"])
    shown = r.choice(["o.a", "o.n", "count(*)"])
    tail = "" if shown != "count(*)" else " GROUP BY o.b"
    head = f"SELECT o.b AS b, {shown} AS x FROM {left} o WHERE"
    if r.random() < 0.4:
        word = r.choice(["EXISTS", "NOT EXISTS"])
        test = f"o.{column} {operator} i.{column}"
        return f"{head} {word} (SELECT FROM {right} i WHERE {keys} AND {test}){tail}"
    kinds = ["min", "max"] if column == "t" else ["min", "max", "avg", "sum", "count"]
    value = f"{r.choice(kinds)}(i.{column})"
    if column != "t":
        value = r.choice([value, f"0.5 * {value}", f"{value} + 1"])
        column = r.choice([column, "a"])
    test = f"o.{column} {operator} (SELECT {value} FROM {right} i WHERE {keys})"
    return f"{head} {test}{tail}"


def run(source, commander, seed: int, queries: list[str], writer: Writer) -> None:
    """Create the views over some rows, then change the rows."""
    source.execute(DDL)
    create_marker(source, commander)
    for _ in range(14):
        for statement in writer.transaction():
            source.execute(statement)
    views = numbered(queries)
    for name, query in views.items():
        create_view(commander, name, query)
    transactions = (writer.transaction() for _ in range(TRANSACTIONS))
    follow(source, views, transactions, f"seed {seed}")


def test_joins_of_every_kind(source, commander):
    run(source, commander, 0, list(FIXED), Writer(0))


@pytest.mark.parametrize("seed", seeds(1, 35, 2))
def test_random_chains_of_joins(seed, source, commander):
    writer = Writer(seed)
    run(source, commander, seed, [writer.query() for _ in range(12)], writer)


@pytest.mark.parametrize("seed", seeds(1, 35, 2))
def test_random_comparisons_with_subqueries(seed, source, commander):
    writer = Writer(seed)
    run(source, commander, seed, [comparison(writer) for _ in range(16)], writer)
