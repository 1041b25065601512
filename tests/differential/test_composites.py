"""Rows and arrays whose parts are equal but look different, as keys, under random transactions.

A group shows one form of its key, which Postgres chooses freely. Queries therefore show which rows
are grouped, and never the key.
"""

from __future__ import annotations

import random

import pytest

from tests.amounts import seeds
from tests.compared import create_view, follow
from tests.waiting import create_marker

DDL = """
    CREATE TYPE cost AS (n numeric, i interval, c char(4), f float8, j jsonb, t text);
    CREATE DOMAIN amount AS numeric;
    CREATE TYPE deal AS (a amount, cost cost, spans interval[], costs cost[]);
    CREATE TABLE pieces (id int PRIMARY KEY, k int, n numeric, cost cost, deal deal, costs cost[],
        spans interval[], letters bpchar[], documents jsonb[]);
    CREATE TABLE lines (id int PRIMARY KEY, k int, n numeric, i interval);
    ALTER TABLE lines DROP COLUMN k, ADD COLUMN k int;
    CREATE DOMAIN word AS varchar(3) NOT NULL CHECK (value <> 'x');
    ALTER TABLE lines ADD COLUMN w word DEFAULT 'ab'
"""
KEYS = ("cost", "deal", "costs", "spans", "letters", "documents")
VIEWS = {
    **{f"grouped_{k}": f"SELECT count(*), min(id) FROM pieces GROUP BY {k}" for k in KEYS},
    **{
        f"numbered_{k}": f"SELECT id, row_number() OVER (PARTITION BY {k} ORDER BY id) FROM pieces"
        for k in KEYS
    },
    "distinct_": "SELECT count(*) FROM (SELECT DISTINCT cost, spans FROM pieces) d",
    "united": "SELECT count(*) FROM (SELECT deal FROM pieces WHERE k = 1 UNION"
    " SELECT deal FROM pieces WHERE k = 2) u",
    "first_": "SELECT DISTINCT ON (cost) id FROM pieces ORDER BY cost, id",
    "counted": "SELECT k, count(DISTINCT cost) FROM pieces GROUP BY k",
    "joined": "SELECT a.id, b.id AS other FROM pieces a JOIN pieces b ON a.cost = b.cost AND a.k = b.k",
    "part": "SELECT count(*), min(id) FROM pieces GROUP BY (deal).cost",
    "several": "SELECT count(*), k FROM pieces GROUP BY GROUPING SETS ((cost), (k), (k, spans), ())",
    "made": "SELECT count(*), min(id) FROM pieces GROUP BY ROW(n, spans)",
    "whole": "SELECT count(*), min(l.id) FROM lines l GROUP BY l",
    "wholes": "SELECT count(*) FROM (SELECT DISTINCT l FROM lines l) d",
    "inner_": "SELECT id, (SELECT count(*) FROM (SELECT DISTINCT p.cost FROM pieces p"
    " WHERE p.k = l.k) d) AS n FROM lines l",
    "before_": "SELECT id, lag(w) OVER (PARTITION BY k ORDER BY id) AS w, lead(w, 2, 'z') OVER"
    " (PARTITION BY k ORDER BY id) AS z, first_value(w) OVER (PARTITION BY k ORDER BY id) AS f FROM lines",
    "amounts": "SELECT id, lag((deal).a) OVER (ORDER BY id) AS a, last_value((deal).a) OVER"
    " (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS l FROM pieces",
    "records": "SELECT k, array_agg(ROW(n, i, w) ORDER BY id)::text AS a, cardinality(array_agg((id, n)"
    " ORDER BY id) FILTER (WHERE n > 0)) AS c, array_length(array_agg(ROW(id)), 1) AS l FROM lines GROUP BY k",
    "named_records": "SELECT k, to_jsonb(array_agg(q ORDER BY id)) AS j, array_to_json(array_agg(q"
    " ORDER BY id DESC), true)::text AS p FROM (SELECT id, k, n, cost FROM pieces) q GROUP BY k",
    "all_records": "SELECT array_agg((k, l.w) ORDER BY l.id)::text AS a, count(*) AS c FROM lines l WHERE k = 2"
    " HAVING to_jsonb(array_agg((k, l.w) ORDER BY l.id)) IS DISTINCT FROM '[]'",
    "filtered": "SELECT n FROM (SELECT cost, count(*) AS n FROM pieces GROUP BY cost) g"
    " WHERE (cost).n > 0",
}  # fmt: skip
NUMBERS = ("1", "1.0", "1.00", "-2.50", "-2.5", "0", "0.0", "NaN")
SPANS = ("1 mon 1 day", "31 days", "1 day", "24:00:00", "-1 days", "1 year 1 day", "0")
LETTERS = ("a", "a ", "", "  ", 'q"', "b\\", "NULL", "a,b", "(x)")
DOCUMENTS = ('{"a": 1.0}', '{"a": 1}', '"1.0"', "[1, 2.50]", "[1.0, 2.5]", '"x\\"y"')


class Values:
    """Random SQL expressions of each type."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def _one(self, texts: tuple[str, ...], sql: str) -> str:
        text = self._rng.choice(texts)
        quoted = text.replace("'", "''")
        return "NULL" if self._rng.random() < 0.1 else f"'{quoted}'::{sql}"

    def _array(self, texts: tuple[str, ...], sql: str) -> str:
        parts = ", ".join(self._one(texts, sql) for _ in range(self._rng.randrange(3)))
        return "NULL" if self._rng.random() < 0.1 else f"ARRAY[{parts}]::{sql}[]"

    def cost(self) -> str:
        if self._rng.random() < 0.1:
            return "NULL::cost"
        parts = (
            self._one(NUMBERS, "numeric"),
            self._one(SPANS, "interval"),
            self._one(("a", "b "), "char(4)"),
            self._rng.choice(("0", "-0", "NULL")) + "::float8",
            self._one(DOCUMENTS[:2], "jsonb"),
            self._rng.choice(("NULL", "'q\"\\(,'", "''")),
        )
        return f"ROW({', '.join(parts)})::cost"

    def costs(self) -> str:
        return f"ARRAY[{', '.join(self.cost() for _ in range(self._rng.randrange(3)))}]::cost[]"

    def deal(self) -> str:
        number, spans = self._one(NUMBERS, "numeric"), self._array(SPANS[:3], "interval")
        return f"ROW({number}, {self.cost()}, {spans}, {self.costs()})::deal"

    def piece(self, key: int) -> str:
        return (
            f"({key}, {self._rng.randrange(3)}, {self._one(NUMBERS, 'numeric')}, {self.cost()},"
            f" {self.deal()}, {self.costs()}, {self._array(SPANS, 'interval')},"
            f" {self._array(LETTERS, 'bpchar')}, {self._array(DOCUMENTS, 'jsonb')})"
        )

    def line(self, key: int) -> str:
        number, span = self._one(NUMBERS, "numeric"), self._one(SPANS, "interval")
        return f"({key}, {number}, {span}, {self._rng.randrange(3)})"


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_groups_of_rows_and_arrays_follow_every_transaction(seed, source, commander):
    rng = random.Random(seed)
    values = Values(rng)
    columns = {"cost": values.cost, "deal": values.deal, "costs": values.costs}

    def statement() -> str:
        key, (column, value) = rng.randrange(60), rng.choice(list(columns.items()))
        return rng.choice(
            (
                f"INSERT INTO pieces VALUES {values.piece(key)} ON CONFLICT DO NOTHING",
                f"UPDATE pieces SET {column} = {value()} WHERE id % 5 = {key % 5}",
                f"UPDATE pieces SET cost.n = {rng.choice(NUMBERS[:-1])} WHERE cost IS NOT NULL AND k = 1",
                f"DELETE FROM pieces WHERE id % 9 = {key % 9}",
                f"INSERT INTO lines (id, n, i, k) VALUES {values.line(key)} ON CONFLICT DO NOTHING",
                f"UPDATE lines SET w = '{rng.choice('abc')}' WHERE id % 3 = {key % 3}",
                f"UPDATE lines SET n = {rng.choice(NUMBERS[:-1])} WHERE id % 4 = {key % 4}",
            )
        )

    for ddl in DDL.strip().split(";\n"):
        source.execute(ddl)
    source.execute(f"INSERT INTO pieces VALUES {', '.join(map(values.piece, range(30)))}")
    source.execute(
        f"INSERT INTO lines (id, n, i, k) VALUES {', '.join(map(values.line, range(20)))}"
    )
    create_marker(source, commander)
    for name, query in VIEWS.items():
        create_view(commander, name, query)
    transactions = ([statement() for _ in range(rng.randint(1, 4))] for _ in range(10))
    follow(source, VIEWS, transactions, f"seed {seed}")
