"""Functions, labels, operators, casts, domains … change under views, and change back.

Rows are written meanwhile, and the worker is killed or suspended.  In the end every view must equal
its query in Postgres, without any call.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal

import psycopg
import pytest

from tests.waiting import bump, create_marker, wait_until

TABLES = """
CREATE SCHEMA one;
CREATE SCHEMA two;
CREATE SCHEMA three;
GRANT USAGE ON SCHEMA one, two, three TO PUBLIC;
CREATE TYPE one.mood AS ENUM ('ok', 'bad', 'odd');
CREATE TYPE one.pair AS (x int, y text);
CREATE FUNCTION one.inner_(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 + 1; END';
CREATE FUNCTION one.deep(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT one.inner_($1) * 2';
CREATE FUNCTION one.top(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN one.deep($1) + 3;
CREATE FUNCTION one.plus(int, int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 + $2;
CREATE FUNCTION one.minus(int, int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 - $2;
CREATE OPERATOR one.|+| (FUNCTION = one.plus, LEFTARG = int, RIGHTARG = int);
CREATE OPERATOR two.|-| (FUNCTION = one.minus, LEFTARG = int, RIGHTARG = int);
CREATE AGGREGATE one.total(int) (SFUNC = one.plus, STYPE = int, INITCOND = '0');
CREATE FUNCTION one.small_enough(int) RETURNS boolean IMMUTABLE LANGUAGE sql RETURN $1 < 1000000;
CREATE DOMAIN one.small AS int CHECK (one.small_enough(VALUE));
CREATE FUNCTION one.told(one.pair) RETURNS text IMMUTABLE LANGUAGE sql RETURN 'told ' || ($1).x;
CREATE FUNCTION one.number(one.mood) RETURNS int IMMUTABLE LANGUAGE sql RETURN 1;
CREATE FUNCTION one.count_(one.mood) RETURNS int IMMUTABLE LANGUAGE sql RETURN 2;
CREATE CAST (one.mood AS int) WITH FUNCTION one.number(one.mood);
CREATE FUNCTION two.moved(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 * 7;
CREATE FUNCTION three.named(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 * 5;
CREATE TEXT SEARCH DICTIONARY one.words (TEMPLATE = simple, StopWords = english);
CREATE TEXT SEARCH CONFIGURATION one.config (COPY = simple);
CREATE TABLE t (id int PRIMARY KEY, v int, w text, m one.mood, p one.pair);
CREATE TABLE u (id int PRIMARY KEY, v int);
CREATE VIEW uv AS SELECT id, v + 1 AS v FROM u;
INSERT INTO t SELECT i, i % 9, 'the ' || i, (enum_range(NULL::one.mood))[1 + i % 3], ROW(i, 'y')::one.pair
  FROM generate_series(1, 12) i;
INSERT INTO u SELECT i, i FROM generate_series(1, 12) i;
"""
QUERIES = {
    "calls": "SELECT id, one.top(v) AS n FROM t",
    "sums": "SELECT m, sum(one.deep(v)) AS n FROM t GROUP BY m",
    "totals": "SELECT v % 2 AS k, one.total(id) AS n FROM t GROUP BY 1",
    "plain_moods": "SELECT id, m FROM t WHERE m <> 'bad'",
    "told_moods": "SELECT m::text || '!' AS m, count(*) AS n FROM t GROUP BY 1",
    "operators": "SELECT t.id, t.v OPERATOR(one.|+|) u.v AS n FROM t JOIN u USING (id)",
    "filtered": "SELECT id FROM t WHERE v OPERATOR(two.|-|) id > -4",
    "casts": "SELECT id, p::text AS p, m::int AS m FROM t",
    "domains": "SELECT id, (v::one.small) + 1 AS n FROM t",
    "moves": "SELECT id, two.moved(v) + three.named(v) AS n FROM t",
    "fields": "SELECT id, to_json(p)::text AS p FROM t",
    "searched": "SELECT id, to_tsvector('one.config', w)::text AS n FROM t",
    "above": "SELECT count(*) AS n, max(uv.v) AS m FROM uv JOIN t USING (id) WHERE one.top(t.v) > 5",
}
BODY = "CREATE OR REPLACE FUNCTION one.{} IMMUTABLE LANGUAGE {}"
TOGGLES = {
    "inner": (
        BODY.format("inner_(int) RETURNS int", "plpgsql AS 'BEGIN RETURN -$1; END'"),
        BODY.format("inner_(int) RETURNS int", "plpgsql AS 'BEGIN RETURN $1 + 1; END'"),
    ),
    "failing": (
        BODY.format("deep(int) RETURNS int", "sql AS 'SELECT 100 / ($1 - 4)'"),
        BODY.format("deep(int) RETURNS int", "sql AS 'SELECT one.inner_($1) * 2'"),
    ),
    "label": (
        "ALTER TYPE one.mood RENAME VALUE 'ok' TO 'fine'",
        "ALTER TYPE one.mood RENAME VALUE 'fine' TO 'ok'",
    ),
    "swapped labels": (
        "BEGIN; ALTER TYPE one.mood RENAME VALUE 'bad' TO 'x'; ALTER TYPE one.mood RENAME VALUE 'odd' TO 'bad';"
        " ALTER TYPE one.mood RENAME VALUE 'x' TO 'odd'; COMMIT",
    )
    * 2,
    "operator": (
        "BEGIN; DROP OPERATOR one.|+| (int, int);"
        " CREATE OPERATOR one.|+| (FUNCTION = one.minus, LEFTARG = int, RIGHTARG = int); COMMIT",
        "BEGIN; DROP OPERATOR one.|+| (int, int);"
        " CREATE OPERATOR one.|+| (FUNCTION = one.plus, LEFTARG = int, RIGHTARG = int); COMMIT",
    ),
    "no operator": (
        "DROP OPERATOR two.|-| (int, int)",
        "CREATE OPERATOR two.|-| (FUNCTION = one.minus, LEFTARG = int, RIGHTARG = int)",
    ),
    "new cast": (
        "CREATE CAST (one.pair AS text) WITH FUNCTION one.told(one.pair) AS ASSIGNMENT",
        "DROP CAST (one.pair AS text)",
    ),
    "other cast": (
        "BEGIN; DROP CAST (one.mood AS int); CREATE CAST (one.mood AS int) WITH FUNCTION one.count_(one.mood); COMMIT",
        "BEGIN; DROP CAST (one.mood AS int); CREATE CAST (one.mood AS int) WITH FUNCTION one.number(one.mood); COMMIT",
    ),
    "check": (
        "ALTER DOMAIN one.small ADD CONSTRAINT few CHECK (VALUE < 6)",
        "ALTER DOMAIN one.small DROP CONSTRAINT few",
    ),
    "checked": (
        BODY.format("small_enough(int) RETURNS boolean", "sql RETURN $1 <> 3"),
        BODY.format("small_enough(int) RETURNS boolean", "sql RETURN $1 < 1000000"),
    ),
    "aggregate": (
        "CREATE OR REPLACE AGGREGATE one.total(int) (SFUNC = one.plus, STYPE = int, INITCOND = '50')",
        "CREATE OR REPLACE AGGREGATE one.total(int) (SFUNC = one.plus, STYPE = int, INITCOND = '0')",
    ),
    "attribute": (
        "ALTER TYPE one.pair RENAME ATTRIBUTE y TO why",
        "ALTER TYPE one.pair RENAME ATTRIBUTE why TO y",
    ),
    "schema": ("ALTER SCHEMA three RENAME TO drei", "ALTER SCHEMA drei RENAME TO three"),
    "moved": (
        "ALTER FUNCTION two.moved(int) SET SCHEMA one ;; ALTER FUNCTION one.moved(int) RENAME TO m",
        "ALTER FUNCTION one.m(int) RENAME TO moved ;; ALTER FUNCTION one.moved(int) SET SCHEMA two",
    ),
    "mapping": (
        "ALTER TEXT SEARCH CONFIGURATION one.config ALTER MAPPING FOR asciiword WITH one.words",
        "ALTER TEXT SEARCH CONFIGURATION one.config ALTER MAPPING FOR asciiword WITH simple",
    ),
    "user's view": (
        "CREATE OR REPLACE VIEW uv AS SELECT id, v * 2 AS v FROM u",
        "CREATE OR REPLACE VIEW uv AS SELECT id, v + 1 AS v FROM u",
    ),
    "grant": ("GRANT EXECUTE ON FUNCTION one.top(int) TO PUBLIC",) * 2,
}
WRITES = (
    "INSERT INTO t SELECT max(id) + 1, {n}, 'a the ' || max(id), (enum_range(NULL::one.mood))[1 + {n} % 3],"
    " ROW({n}, 'z')::one.pair FROM t",
    "UPDATE t SET v = (v + {n}) % 11 WHERE id % 3 = {n} % 3",
    "UPDATE t SET m = (enum_range(NULL::one.mood))[1 + (id + {n}) % 3], w = w || {n} WHERE id % 4 = {n} % 4",
    "DELETE FROM t WHERE id % 17 = {n}",
    "UPDATE t SET p = ROW(v, 'q' || {n})::one.pair",
    "UPDATE u SET v = v + {n} WHERE id % 2 = {n} % 2",
)


class EventLog:
    """A random sequence of changes of definitions and rows."""

    def __init__(self, engine, source, queries: dict[str, str], seed: int) -> None:
        self.engine = engine
        self.source = source
        self.queries = queries
        self.random = random.Random(seed)
        self.changed: set[str] = set()
        self.told: list[str] = [f"seed {seed}"]
        self.frozen: int | None = None

    def run(self, statements: str) -> None:
        for statement in statements.split(" ;; "):
            self.source.execute(statement)

    def toggle(self, name: str) -> None:
        back = name in self.changed
        self.told.append(f"{name} {'back' if back else 'away'}")
        self.run(TOGGLES[name][back])
        self.changed ^= {name}

    def write(self) -> None:
        n = self.random.randrange(11)
        statement = self.random.choice(WRITES).format(n=n)
        self.told.append(statement)
        self.source.execute(statement)

    def kill(self) -> None:
        self.thaw()
        self.told.append("killed")
        os.kill(self.worker(), signal.SIGKILL)

    def freeze(self) -> None:
        if self.frozen is None:
            self.told.append("frozen")
            self.frozen = self.worker()
            os.kill(self.frozen, signal.SIGSTOP)

    def thaw(self) -> None:
        if self.frozen is not None:
            self.told.append("thawed")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.frozen, signal.SIGCONT)
            self.frozen = None

    def worker(self) -> int:
        return wait_until(lambda: self.engine.child("headrace.runtime.worker"), "a worker")

    def cover(self) -> None:
        """Wait until the marker's view covers all earlier writes, unless the worker is frozen."""
        if self.frozen is None:
            number = bump(self.source)
            shown = "SELECT n FROM marker_view"
            wait_until(lambda: self.source.execute(shown).fetchone()[0] >= number, "covered")

    def step(self) -> None:
        dice = self.random.random()
        if dice < 0.4:
            self.toggle(self.random.choice(sorted(TOGGLES)))
        elif dice < 0.75:
            self.write()
        elif dice < 0.92:
            self.cover()
        elif dice < 0.94:
            self.kill()
        elif dice < 0.97:
            self.freeze()
        else:
            self.thaw()

    def end(self) -> None:
        """Restore the initial definitions."""
        for name in sorted(self.changed):
            self.toggle(name)
        self.thaw()

    def wrong(self) -> dict[str, object]:
        """Return the views that have stopped or differ from their queries."""
        found: dict[str, object] = dict(
            self.source.execute(
                "SELECT view_name, headrace.view_message(id) FROM headrace.views WHERE status <> 'running'"
            ).fetchall()
        )
        for name, query in self.queries.items():
            have, want = (
                sorted(str(row) for row in self.source.execute(text).fetchall())
                for text in (f"SELECT * FROM {name}", query)
            )
            if have != want:
                found.setdefault(name, (have, want))
        return found

    def settle(self) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.wrong(), "the views settle", 180.0)
        assert self.wrong() == {}, self.told

    def views(self) -> list[tuple]:
        return self.source.execute("SELECT id FROM headrace.views ORDER BY 1").fetchall()


BLIND = pytest.mark.parametrize("engine", ["3600000"], indirect=True)
"""Without the look at the whole catalog each second; only the one as rows arrive is left."""


@pytest.fixture
def engine(database, start_engine, request):
    poll = getattr(request, "param", "1000")
    return start_engine(database, HEADRACE_CATALOG_POLL_MS=poll)


@pytest.fixture
def story(engine, source):
    stories = []

    def begin(seed: int, names: tuple[str, ...] = tuple(QUERIES)) -> EventLog:
        queries = {name: QUERIES[name] for name in names}
        with psycopg.connect(engine.dsn, autocommit=True) as commander:
            create_marker(source, commander)
            for name, query in queries.items():
                commander.execute(f"CALL headrace.create_view('{name}', $q${query}$q$)")
        stories.append(EventLog(engine, source, queries, seed))
        return stories[-1]

    yield begin
    for one in stories:
        one.thaw()


SOME = ("calls", "plain_moods", "told_moods", "casts", "totals", "domains")


QUICK = ("inner", "swapped labels", "check")


def away_and_back(told: EventLog, name: str) -> None:
    """Change a definition and back, and check rows computed in between and later."""
    before = told.views()
    told.toggle(name)
    told.source.execute("UPDATE t SET v = v + 1, m = (enum_range(m))[1 + id % 3]")
    told.cover()
    told.toggle(name)
    told.source.execute("UPDATE t SET v = v + 3 WHERE id % 2 = 0")
    told.settle()
    after = told.views()
    assert after != before, f"{name}: some were filled anew"
    told.source.execute("UPDATE t SET v = v + 2")
    told.settle()
    assert told.views() == after, f"{name}: and only once"


@BLIND
def test_what_was_changed_back_leaves_nothing(story):
    told = story(1, ("calls", "plain_moods", "casts", "domains"))
    for name in QUICK:
        away_and_back(told, name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@BLIND
def test_nothing_that_was_changed_back_leaves_anything(story):
    told = story(1)
    for name in sorted(TOGGLES.keys() - {"user's view", *QUICK}):
        away_and_back(told, name)


@BLIND
def test_a_row_is_not_blamed_for_what_was_altered(story):
    """While the worker is frozen, a label goes and rows are written: it sees both at once."""
    told = story(2, ("plain_moods", "told_moods", "casts"))
    # The stream has described the table by now, and does not do it again.
    told.source.execute("UPDATE t SET v = v + 1")
    told.cover()
    told.freeze()
    told.source.execute("UPDATE t SET m = 'ok'")
    told.toggle("label")
    told.source.execute("UPDATE t SET m = 'fine' WHERE id < 5")
    told.thaw()
    codes: set[str | None] = set()

    def settled() -> bool:
        codes.update(row[0] for row in told.source.execute("SELECT sqlstate FROM headrace.views"))
        return not told.wrong()

    with contextlib.suppress(AssertionError):
        wait_until(settled, "right by itself")
    assert told.wrong() == {}
    assert codes <= {None, "55H01"}, "no row was to blame"


def test_a_view_that_a_row_has_stopped_comes_back_when_its_function_does(story):
    told = story(3, ("calls",))
    told.toggle("failing")
    told.source.execute("DELETE FROM t WHERE v = 4")
    told.settle()
    told.source.execute("INSERT INTO t (id, v) VALUES (100, 4)")
    failed = "SELECT headrace.view_message(id) FROM headrace.views WHERE sqlstate = '22012'"
    wait_until(lambda: told.source.execute(failed).fetchone(), "stopped by the row")
    told.toggle("failing")
    told.settle()


@pytest.mark.parametrize("seed", [20])
def test_a_short_story(story, seed):
    told = story(seed, SOME)
    for _ in range(15):
        told.step()
    told.end()
    told.settle()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 112))
def test_a_long_story(story, seed):
    told = story(seed)
    for _ in range(3):
        for _ in range(25):
            told.step()
        told.end()
        told.settle()
    ids = told.views()
    for _ in range(5):
        told.write()
        told.cover()
    told.settle()
    assert told.views() == ids, "nothing is filled anew for ever"
