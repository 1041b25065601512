"""Objects of a query are renamed or moved to another schema: its view recovers by itself.

Each view is compared with a view of Postgres over the same query, which follows names as it should.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.integration.test_follow import World
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE SCHEMA one;
CREATE SCHEMA two;
GRANT USAGE ON SCHEMA one, two TO PUBLIC;
CREATE TYPE one.mood AS ENUM ('ok', 'bad');
CREATE TYPE one.pair AS (x int, y one.mood);
CREATE DOMAIN one.small AS int CHECK (VALUE < 1000000);
CREATE COLLATION one.plain FROM "C";
CREATE FUNCTION one.mix(int, int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 * 10 + $2;
CREATE FUNCTION one.mix(text, text) RETURNS text IMMUTABLE LANGUAGE sql RETURN $1 || '+' || $2;
CREATE FUNCTION one.helper(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 + 7;
CREATE FUNCTION one.outer_(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN one.helper($1) * 2;
CREATE OPERATOR one.|+| (FUNCTION = one.mix, LEFTARG = int, RIGHTARG = int);
CREATE OPERATOR one.|+| (FUNCTION = one.mix, LEFTARG = text, RIGHTARG = text);
CREATE FUNCTION one.alike(one.mood, one.mood) RETURNS boolean IMMUTABLE LANGUAGE sql
  RETURN ($1)::text <> ($2)::text;
CREATE OPERATOR one.= (FUNCTION = one.alike, LEFTARG = one.mood, RIGHTARG = one.mood);
CREATE AGGREGATE one.total(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0');
CREATE TEXT SEARCH CONFIGURATION one.words (COPY = simple);
CREATE TABLE t (id int PRIMARY KEY, v int, w text, m one.mood, p one.pair);
INSERT INTO t SELECT i, i * 3, chr(97 + i % 7), CASE WHEN i % 2 = 0 THEN 'ok' ELSE 'bad' END::one.mood,
  ROW(i, 'ok'::one.mood)::one.pair FROM generate_series(1, 20) i;
"""
QUERIES = {
    "operators": "SELECT id OPERATOR(one.|+|) v AS n FROM t",
    "texts": "SELECT w OPERATOR(one.|+|) w AS n, count(*) AS c FROM t GROUP BY 1",
    "pairs": "SELECT id OPERATOR(one.|+|) v AS n, w OPERATOR(one.|+|) 'x' AS x FROM t",
    "functions": "SELECT id, one.outer_(v) AS o, one.mix(id, v) AS m FROM t",
    "two_of_a_name": "SELECT one.mix(id, v) AS i, one.mix(w, w) AS m FROM t",
    "totals": "SELECT w, one.total(v) AS s FROM t GROUP BY w",
    "ordered": "SELECT id, w FROM t ORDER BY w COLLATE one.plain DESC, id LIMIT 7",
    "moods": "SELECT m, count(*) AS n FROM t WHERE m::text = 'ok' OR m = 'bad'::one.mood GROUP BY m",
    "casts": "SELECT id, (v::one.small + 1) AS n, (w || 'x')::text AS x FROM t",
    "fields": "SELECT id, (p).x AS x, (p).y AS y, ROW(v, m)::one.pair::text AS q FROM t",
    "searched": "SELECT id FROM t WHERE to_tsvector('one.words', w) @@ 'b'::tsquery",
    "columns": 'SELECT t.id, r.a, r.b FROM t, json_to_record(\'{"a": 5, "b": "ok"}\') r (a one.small, b one.mood)',
}
HIDDEN = {
    # The operator is not printed, but found by the search path.
    "simple_case": "SELECT id, CASE m WHEN 'ok'::one.mood THEN 1 ELSE 2 END AS n FROM t",
    "named_join": "SELECT a.id AS a, b.id AS b FROM t a JOIN t b USING (m) WHERE a.id < 4 AND b.id < 4",
}
STEPS = (
    "ALTER OPERATOR one.|+| (int, int) SET SCHEMA two",
    "ALTER FUNCTION one.mix(int, int) SET SCHEMA two",
    'ALTER FUNCTION one.mix(text, text) RENAME TO "Mix \'"',
    "ALTER FUNCTION one.helper RENAME TO helped",
    "ALTER FUNCTION one.outer_ SET SCHEMA two; ALTER FUNCTION two.outer_ RENAME TO outside",
    "ALTER AGGREGATE one.total(int) SET SCHEMA two",
    'ALTER AGGREGATE two.total(int) RENAME TO "Total"',
    "ALTER COLLATION one.plain RENAME TO plainer; ALTER COLLATION one.plainer SET SCHEMA two",
    "ALTER DOMAIN one.small RENAME TO little; ALTER DOMAIN one.little SET SCHEMA two",
    "ALTER TEXT SEARCH CONFIGURATION one.words RENAME TO terms;"
    " ALTER TEXT SEARCH CONFIGURATION one.terms SET SCHEMA two",
    "ALTER TYPE one.mood SET SCHEMA two; ALTER TYPE two.mood RENAME TO state",
    "ALTER TYPE one.pair SET SCHEMA two",
    "ALTER OPERATOR one.|+| (text, text) SET SCHEMA two",
    "ALTER OPERATOR one.= (two.state, two.state) SET SCHEMA two",
    'ALTER SCHEMA two RENAME TO "Three, four"',
    "ALTER SCHEMA one RENAME TO two",
)


@pytest.fixture
def world(engine, source, commander):
    return World(engine, source, commander)


def make(world: World, queries: dict[str, str], path: str) -> None:
    for conn in (world.source, world.commander):
        conn.execute(f"SET search_path = {path}")
    world.create(queries)
    for conn in (world.source, world.commander):
        conn.execute("RESET search_path")


def check(world: World, steps: tuple[str, ...]) -> None:
    for number, step in enumerate(steps):
        world.run(step)
        world.source.execute(f"UPDATE t SET v = v + 1 WHERE id % 5 = {number % 5}")
        world.source.execute(f"UPDATE t SET m = (enum_range(m))[1 + (id + {number}) % 2]")
        world.settle(step)
    for name in world.names:
        world.commander.execute(f"CALL headrace.resync_view('{name}')")
    world.settle("resynced by hand")


@pytest.mark.slow
def test_moved_objects_are_followed(world):
    make(world, {n: QUERIES[n] for n in ("operators", "functions", "ordered", "casts")}, "public")
    check(world, STEPS[:2] + STEPS[3:5] + STEPS[7:9] + STEPS[14:])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_moved_objects_are_followed(world):
    make(world, QUERIES, "public")
    make(world, HIDDEN, "public, one")
    check(world, STEPS)


def test_an_extension_may_be_moved(world, source):
    try:
        source.execute("CREATE EXTENSION citext SCHEMA one")
    except psycopg.Error as error:
        pytest.skip(f"the server has no citext: {error}")
    source.execute("CREATE TABLE c (id int PRIMARY KEY, c one.citext)")
    source.execute("CREATE TABLE d (id int PRIMARY KEY, c one.citext)")
    for table in ("c", "d"):
        source.execute(
            f"INSERT INTO {table} SELECT i, chr(65 + (i + i % 2 * 32) % 64) FROM generate_series(1, 20) i"
        )
    make(
        world,
        {
            "equal": "SELECT id FROM c WHERE c = 'b'",
            "joined": "SELECT c.id AS i, d.id AS j FROM c JOIN d USING (c)",
            "nulls": "SELECT id, NULLIF(c, 'C') AS n FROM c",
            "groups": "SELECT lower(c::text) AS l, count(*) AS n FROM c GROUP BY c",
            "like_": "SELECT id FROM c WHERE c ~ 'b' OR c LIKE 'D%'",
        },
        "public, one",
    )
    source.execute("ALTER EXTENSION citext SET SCHEMA two")
    source.execute("INSERT INTO c VALUES (50, 'b'), (51, 'B'), (52, 'D')")
    world.settle("moved")
    world.seen.clear()
    source.execute("INSERT INTO d VALUES (50, 'b'), (51, 'B'), (52, 'D')")
    world.settle("followed")
    wait_until(lambda: not world.stopped(), "nothing stops")
    assert world.seen == set()
