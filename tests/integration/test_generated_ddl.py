"""Random DDL between random writes: each view shows what a view of Postgres shows.

No step needs a call: views go on, or are filled anew by themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests import seeds
from tests.integration.test_follow import World
from tests.waiting import wait_until

TABLES = """
CREATE SCHEMA s;
CREATE TYPE mood AS ENUM ('a', 'b', 'c');
CREATE TYPE pair AS (x int, m mood);
CREATE TABLE t (id int PRIMARY KEY, v int, m mood, ms mood[], p pair);
INSERT INTO t SELECT i, i % 5, (enum_range(NULL::mood))[1 + i % 3], '{b,a}', ROW(i, 'b')::pair
  FROM generate_series(1, 12) i;
CREATE TABLE apart (id int PRIMARY KEY, n int);
INSERT INTO apart VALUES (1, 0);
CREATE FUNCTION f(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x + 1';
CREATE FUNCTION g(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN x * 2; END';
CREATE VIEW u AS SELECT id, m, v FROM t WHERE m IN ('b', 'c');
"""
QUERIES = {
    "equal": "SELECT id, m, v FROM t WHERE m = 'b'",
    "cases": "SELECT id, CASE m WHEN 'a' THEN 1 WHEN 'b' THEN f(v) END AS n FROM t",
    "arrays": "SELECT id, ms || '{c,NULL,b}'::mood[] AS ms, 'c' = ANY (ms) AS has FROM t",
    "rows": "SELECT id, coalesce(p, '(7,c)'::pair)::text AS p FROM t WHERE (p).m < 'c'",
    "best": "SELECT id, m FROM t WHERE m IS NOT NULL ORDER BY m DESC, id LIMIT 3",
    "groups": "SELECT m, count(*) AS n, max(g(v)) AS g, min(m) AS least FROM t GROUP BY m",
    "of_view": "SELECT m, sum(v) AS s FROM u WHERE m <> 'c' GROUP BY m",
}
WATCHED = {"watched": "SELECT id, n FROM apart"}
ROUNDS, STEPS = 3, 5


class Generator:
    """Random statements about the objects of ``TABLES``, under their present names."""

    def __init__(self, world: World, chosen: random.Random) -> None:
        self._source = world.source
        self._random = chosen
        self._numbers = iter(range(1000))

    def statement(self) -> str:
        """Return a write, or DDL."""
        kinds: list[Callable[[], str]] = [
            *(self._insert, self._update, self._delete),
            *(self._label, self._exchange, self._more_labels, self._attribute),
            *(self._renamed, self._column, self._function, self._moved),
        ]
        return self._random.choice(kinds)()

    def _shown(self, of: str, kind: str) -> str:
        """Return the present name of an object: ``of`` is in its comment."""
        row = self._source.execute(
            f"SELECT i.identity FROM pg_description d, pg_identify_object(classoid, objoid, 0) i"
            f" WHERE d.description = %s AND i.type = '{kind}' AND objsubid = 0",
            (of,),
        ).fetchone()
        return str(row[0])

    def _table(self) -> str:
        return self._shown("t", "table")

    def _mood(self) -> str:
        return self._shown("mood", "type")

    def _labels(self) -> list[str]:
        query = "SELECT enumlabel FROM pg_enum WHERE enumtypid = %s::regtype"
        return [row[0] for row in self._source.execute(query, (self._mood(),))]

    def _v(self) -> str:
        query = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 2"
        return str(self._source.execute(query, (self._table(),)).fetchone()[0])

    def _value(self) -> str:
        return f"'{self._random.choice(self._labels())}'"

    def _insert(self) -> str:
        ids = self._random.randrange(1000, 1_000_000)
        columns = f"(id, {self._v()}, m)"
        return f"INSERT INTO {self._table()} {columns} VALUES ({ids}, 3, {self._value()})"

    def _update(self) -> str:
        changed = (
            f"m = {self._value()}, ms = ARRAY[{self._value()}, {self._value()}]::{self._mood()}[]"
        )
        by = self._random.randrange(2, 5)
        return f"UPDATE {self._table()} SET {changed}, {self._v()} = id % 7 WHERE id % {by} = 1"

    def _delete(self) -> str:
        return f"DELETE FROM {self._table()} WHERE id % 9 = {self._random.randrange(9)}"

    def _label(self) -> str:
        old = self._random.choice(self._labels())
        return f"ALTER TYPE {self._mood()} RENAME VALUE '{old}' TO 'l,{next(self._numbers)}'"

    def _exchange(self) -> str:
        one, other = self._random.sample(self._labels(), 2)
        rename = f"ALTER TYPE {self._mood()} RENAME VALUE"
        return (
            f"BEGIN; {rename} '{one}' TO 'headrace'; {rename} '{other}' TO '{one}';"
            f" {rename} 'headrace' TO '{other}'; COMMIT"
        )

    def _more_labels(self) -> str:
        before = self._random.choice(self._labels())
        return f"ALTER TYPE {self._mood()} ADD VALUE 'n{next(self._numbers)}' BEFORE '{before}'"

    def _attribute(self) -> str:
        kind = self._shown("pair", "type")
        return f"ALTER TYPE {kind} ADD ATTRIBUTE a{next(self._numbers)} text"

    def _renamed(self) -> str:
        what = self._random.choice((f"TABLE {self._table()}", f"TYPE {self._mood()}"))
        return f"ALTER {what} RENAME TO r{next(self._numbers)}"

    def _column(self) -> str:
        return f"ALTER TABLE {self._table()} RENAME {self._v()} TO c{next(self._numbers)}"

    def _function(self) -> str:
        name, of = self._shown("f", "function"), next(self._numbers)
        head = f"CREATE OR REPLACE FUNCTION {name.replace('(', '(x ')} RETURNS int IMMUTABLE"
        return f"{head} LANGUAGE sql AS 'SELECT x + {of}'"

    def _moved(self) -> str:
        what = self._random.choice(
            (
                f"TABLE {self._table()}",
                f"TYPE {self._mood()}",
                f"FUNCTION {self._shown('g', 'function')}",
            )
        )
        schema = "public" if " s." in what else "s"
        return f"ALTER {what} SET SCHEMA {schema}"


@pytest.mark.timeout(300)
def test_views_show_what_views_of_postgres_show(engine, source, commander):
    world = World(engine, source, commander)
    for kind, name in (("TABLE", "t"), ("TYPE", "mood"), ("TYPE", "pair")):
        source.execute(f"COMMENT ON {kind} {name} IS '{name}'")
    for name in ("f", "g"):
        source.execute(f"COMMENT ON FUNCTION {name} IS '{name}'")
    source.execute("GRANT USAGE ON SCHEMA s TO PUBLIC")
    world.create(QUERIES)
    world.create(WATCHED)
    generator = Generator(world, random.Random(seeds.chosen("HEADRACE_DDL_SEED")))
    for number in range(ROUNDS):
        done = []
        for _ in range(STEPS):
            done.append(generator.statement())
            source.execute(done[-1])
        source.execute("UPDATE apart SET n = n + 1")
        wait_until(lambda: "watched" not in world.differences(), "another view goes on", 20.0)
        world.settle(f"round {number}: {'; '.join(done)}")
