"""Constants decide expressions as in Postgres' planner: the same columns remain to be evaluated.

Postgres shows the simplified expression in EXPLAIN (VERBOSE). Headrace's expression must not read a
column that Postgres has folded away: a row must not fail in a part that Postgres never evaluates.
"""

from __future__ import annotations

import random
import re

import psycopg
import pytest

from headrace.planner import PlanRequest, plan
from headrace.planner.logical.nodes import ProjectNode, ScanNode, children
from headrace.planner.logical.scalar import references
from tests.amounts import seeds

TABLES = """
    CREATE TABLE folded (id int PRIMARY KEY, a int, b int, c int, p bool, q bool, s text, z text);
    CREATE FUNCTION strict_of_user(int, int) RETURNS int IMMUTABLE STRICT LANGUAGE plpgsql
        AS 'BEGIN RETURN $1 / $2; END';
    CREATE FUNCTION lax_of_user(int, int) RETURNS int IMMUTABLE LANGUAGE plpgsql
        AS 'BEGIN RETURN $1 / $2; END';
"""
NUMBERS = ("a", "b", "c", "1", "0", "NULL::int")
TRUTHS = ("p", "q", "true", "false", "NULL::bool")
STRINGS = ("s", "z", "'x'", "NULL::text")


class Expressions:
    """Random expressions of constants and columns."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def any(self) -> str:
        depth = self._rng.randrange(1, 4)
        return self._rng.choice((self.number, self.truth, self.string))(depth)

    def number(self, depth: int) -> str:
        if depth == 0:
            return self._rng.choice(NUMBERS)
        x, y = self.number(depth - 1), self.number(depth - 1)
        p, s = self.truth(depth - 1), self.string(depth - 1)
        return self._rng.choice(
            (
                f"({x} * 1000000 + {y})",
                f"({x} / {y})",
                f"(-({x}))",
                f"abs({x})",
                f"div({x}, {y})::int",
                f"strict_of_user({self._rng.choice(NUMBERS[:3])}, {y})",
                f"lax_of_user({x}, {self._rng.choice(NUMBERS[:3])})",
                f"CASE WHEN {p} THEN {x} ELSE {y} END",
                f"CASE WHEN {p} THEN {x} WHEN {self.truth(depth - 1)} THEN {y} END",
                f"CASE {x} WHEN {y} THEN {self.number(depth - 1)} ELSE {x} END",
                f"coalesce({x}, {y}, {self.number(depth - 1)})",
                f"nullif({x}, {y})",
                f"length({s})",
                f"({s})::int",
            )
        )

    def truth(self, depth: int) -> str:
        if depth == 0:
            return self._rng.choice(TRUTHS)
        x, y, s = self.number(depth - 1), self.number(depth - 1), self.string(depth - 1)
        p, q = self.truth(depth - 1), self.truth(depth - 1)
        return self._rng.choice(
            (
                f"({x} = {y})",
                f"({x} < {y})",
                f"({x} BETWEEN {y} AND 5)",
                f"({p} AND {q} AND {self.truth(depth - 1)})",
                f"({p} OR {q} OR {self.truth(depth - 1)})",
                f"(NOT {p})",
                f"({s} LIKE 'x%')",
            )
        )

    def string(self, depth: int) -> str:
        if depth == 0:
            return self._rng.choice(STRINGS)
        s, x = self.string(depth - 1), self.number(depth - 1)
        return self._rng.choice(
            (
                f"({s} || {self.string(depth - 1)})",
                f"substr({s}, {x})",
                f"repeat({s}, {x})",
                f"({x})::text",
                f"coalesce({s}, {self.string(depth - 1)})",
            )
        )


@pytest.fixture(scope="module")
def tables(databases):
    name = databases.take()
    dsn = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(TABLES)
        yield conn
    databases.give_back(name)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_columns_that_postgres_evaluates(tables, seed):
    made = Expressions(seed)
    folded = 0
    for _ in range(60):
        expression = made.any()
        query = f"SELECT id, {expression} AS x FROM folded"
        try:
            explained = tables.execute(f"EXPLAIN (VERBOSE) {query}").fetchall()
        except psycopg.DataError:
            continue  # a constant part fails in Postgres' planner
        [shown] = [line for (line,) in explained if line.strip().startswith("Output: ")]
        wanted = set(re.findall(r"\b[abcpqsz]\b", re.sub(r"'[^']*'", "", shown)))
        written = set(re.findall(r"\b[abcpqsz]\b", re.sub(r"'[^']*'", "", expression)))
        found = _columns_read(plan(tables, PlanRequest(query)).logical)
        assert found == wanted, f"{expression}\n{shown}"
        folded += written != wanted
    assert folded > 5


def _columns_read(node):
    """Return the names of the table's columns that the last column of the query reads."""
    assert isinstance(node, ProjectNode)
    read = {r.id for r in references(node.items[-1][1])}
    while not isinstance(node, ScanNode):
        [node] = children(node)
    return {c.name for c in node.columns if c.id in read}
