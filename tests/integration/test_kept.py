"""alter_view with a query that changes only above the stateful part: its states are reused.

Results are compared with Postgres, which runs the new query, while the tables change.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from functools import partial

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from tests.amounts import seeds
from tests.compared import differs
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE items (id int PRIMARY KEY, g int, x numeric, f float8, s text, m mood, d date,
                    a int[], w varchar(7) COLLATE "C");
INSERT INTO items SELECT i, nullif(i % 7, 6), CASE i % 9 WHEN 0 THEN 'NaN' WHEN 1 THEN NULL
  ELSE i * 1.50 END, CASE i % 11 WHEN 0 THEN '-0' WHEN 1 THEN 'Infinity' ELSE i / 3.0 END,
  CASE WHEN i % 5 > 0 THEN E'a\\\\b\\t' || i % 4 END, CASE WHEN i % 2 = 0 THEN 'good' ELSE 'bad' END::mood,
  date '2020-01-01' + i, ARRAY[i, NULL, i % 3], 'w' || i % 3 FROM generate_series(1, 200) i;
CREATE TABLE kinds (g int PRIMARY KEY, name text, ok bool);
INSERT INTO kinds SELECT i, 'kind ' || i, i <> 3 FROM generate_series(0, 5) i;
"""
GROUPS = "SELECT g, count(*) AS n, sum(x) AS s, min(f) AS lo, max(m) AS m FROM items GROUP BY g"
JOINED = "SELECT i.id, i.x, i.s, k.name FROM items i LEFT JOIN kinds k ON k.g = i.g"
PLAIN = "SELECT id, g, x, f, s, m, d, a, w FROM items"
KEPT = "its states were kept"
ANEW = "it was rebuilt because "


class Writer:
    """Changes the tables until its block ends."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        rng = random.Random(1)
        statements = (
            "UPDATE items SET g = (coalesce(g, 2) + 1) % 7 WHERE id % 13 = {0}",
            "UPDATE items SET x = x + 0.10, f = -f WHERE id % 11 = {0}",
            "DELETE FROM items WHERE id % 17 = {0}",
            "INSERT INTO items SELECT i, i % 7, i, i, 'new', 'bad', '2021-01-01', '{{}}', 'v'"
            " FROM generate_series(1, 300, {0} + 1) i ON CONFLICT DO NOTHING",
            "UPDATE kinds SET name = name || {0} WHERE g = {0} % 6",
        )
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not self._over.wait(0.01):
                conn.execute(rng.choice(statements).format(rng.randrange(11)))


class Altering:
    """A view that is altered, and the notices about it."""

    def __init__(self, conn: psycopg.Connection, source: psycopg.Connection, name: str) -> None:
        self._conn, self._source, self.name = conn, source, name
        self._said: list[str] = []
        conn.add_notice_handler(lambda d: self._said.append(d.message_primary or ""))

    def create(self, query: str, options: str = '{"sharing": false}') -> None:
        self._conn.execute("CALL headrace.create_view(%s, %s, %s)", (self.name, query, options))

    def alter(self, query: str, options: str = "{}") -> str:
        """Alter the view and return what happened to its states."""
        self._said.clear()
        self._conn.execute("CALL headrace.alter_view(%s, %s, %s)", (self.name, query, options))
        said = [n for n in self._said if KEPT in n or ANEW in n]
        assert len(said) == 1, self._said
        return KEPT if KEPT in said[0] else said[0].partition(ANEW)[2]

    def is_right(self, query: str) -> None:
        """Check the view against its query, now and after changes."""
        for _ in range(2):
            self._source.execute(
                "UPDATE items SET g = (coalesce(g, 2) + 1) % 7, x = x - 1 WHERE id % 3 = 0"
            )
            self._conn.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (self.name,))
            assert differs(self._source, self.name, query) == []

    def drop(self) -> None:
        self._conn.execute(f"CALL headrace.drop_view('{self.name}')")


@pytest.fixture
def view(commander, source):
    made = Altering(commander, source, "v")
    yield made
    with contextlib.suppress(psycopg.Error):
        made.drop()


OVER_GROUPS = (
    ("SELECT *, s / n AS mean, g + 1 AS h FROM ({}) q", KEPT),
    ("SELECT * FROM ({}) q", KEPT),
    ("SELECT g, n AS many, s, lo, m, coalesce(lo, 0) * 2 AS twice FROM ({}) q", KEPT),
    ("SELECT g, n, s, lo, m FROM ({}) q WHERE n > 25", KEPT),
    ("SELECT g, n, s, lo, m FROM ({}) q WHERE n > 2", ""),
    ("SELECT m::text || n AS t, g, s, lo, n, m FROM ({}) q", KEPT),
    ("SELECT lo, m, s, n, g, upper(m::text) AS u FROM ({}) q", KEPT),
    ("SELECT *, rank() OVER (ORDER BY n) AS r FROM ({}) q", "its new part has state of its own"),
    ("SELECT *, n * 2 AS r FROM ({}) q", "the rows that it was computed from are not"),
)


def test_what_is_made_of_groups(view, source, engine):
    view.create(GROUPS)
    before = GROUPS
    for shape, wanted in OVER_GROUPS:
        query = shape.format(GROUPS)
        with Writer(engine.source):
            done = view.alter(query)
        # The table lacks the groups that the old query filters out.
        lacks = "WHERE n" in before
        assert done.startswith("the rows that it was computed from are not" if lacks else wanted), (
            shape,
            lacks,
            done,
            before,
        )
        view.is_right(query)
        before = query


def test_rows_of_tables_and_of_joins(view, source, engine):
    view.create(PLAIN)
    wider = "SELECT *, x * 2 AS twice, f / 2 AS half, s || w AS t, a[1] AS first, d + 1 AS next FROM items"
    with Writer(engine.source):
        assert view.alter(wider) == KEPT
    view.is_right(wider)
    view.drop()
    view.create(JOINED, '{"sharing": false, "key": ["id"]}')
    source.execute("CREATE TABLE refers (id int REFERENCES v DEFERRABLE INITIALLY DEFERRED)")
    wider = JOINED.replace(" FROM", ", x * 3 AS m, k.name || i.s AS both FROM")
    assert view.alter(wider) == KEPT
    view.is_right(wider)
    assert view.alter(JOINED) == KEPT
    view.is_right(JOINED)
    source.execute("DROP TABLE refers")


def test_rows_that_are_there_several_times(view):
    view.create("SELECT g, m FROM items")
    assert view.alter("SELECT g, m, g + 1 AS h, m::text AS t FROM items") == KEPT
    view.is_right("SELECT g, m, g + 1 AS h, m::text AS t FROM items")


def test_a_column_that_goes_leaves_the_rows_where_they_are(view, source):
    query = f"SELECT *, s / n AS mean, n + 1 AS more FROM ({GROUPS}) q"
    view.create(query)
    places = source.execute("SELECT g, ctid FROM v ORDER BY g").fetchall()
    fewer = f"SELECT *, s / n AS mean FROM ({GROUPS}) q"
    assert view.alter(fewer) == KEPT
    assert source.execute("SELECT g, ctid FROM v ORDER BY g").fetchall() == places
    view.is_right(fewer)


def test_what_cannot_be_kept_is_filled_anew(view, commander, source):
    wide = f"SELECT *, s / n AS mean FROM ({GROUPS}) q"
    view.create(GROUPS)
    commander.execute("CALL headrace.pause_view('v')")
    assert view.alter(wide) == "it does not run"
    view.is_right(wide)
    commander.execute("CALL headrace.set_history('v', '1 hour')")
    assert view.alter(GROUPS) == "its changes are kept"
    view.is_right(GROUPS)
    commander.execute("CALL headrace.set_history('v', NULL)")
    commander.execute("SET timezone = 'Asia/Tokyo'")
    assert view.alter(wide) == (
        "the settings of the session differ from those under which it was created"
    )
    assert view.alter(GROUPS) == KEPT
    commander.execute("SET timezone = 'UTC'")
    view.alter(wide)
    view.is_right(wide)


def test_the_key_of_many_rows_is_there_again(view, source):
    source.execute(
        "CREATE TABLE many AS SELECT i AS id, i % 9 AS g FROM generate_series(1, 21000) i"
    )
    source.execute("ALTER TABLE many ADD PRIMARY KEY (id)")
    keys = "SELECT oid, pg_get_constraintdef(oid), conname FROM pg_constraint WHERE conrelid = 'v'::regclass AND contype = 'p'"
    view.create("SELECT id, g FROM many")
    before = source.execute(keys).fetchall()
    wide = "SELECT id, g, g + 1 AS h FROM many"
    assert view.alter(wide) == KEPT
    (after,) = source.execute(keys).fetchall()
    assert [after[1:]] == [row[1:] for row in before] == [("PRIMARY KEY (id)", "v_pkey")]
    known = "SELECT attname FROM pg_stats WHERE tablename = 'v' AND n_distinct <> 0 ORDER BY 1"
    assert source.execute(known).fetchall() == [("g",), ("h",), ("id",)]
    view.is_right(wide)
    # A constraint with a comment stays as it is.
    source.execute("COMMENT ON CONSTRAINT v_pkey ON v IS 'mine'")
    wide = "SELECT id, g, g + 1 AS h, g + 2 AS i FROM many"
    assert view.alter(wide) == KEPT
    assert source.execute(keys).fetchall() == [after]
    view.is_right(wide)


def test_a_row_that_cannot_be_computed_changes_nothing(view, source):
    view.create(GROUPS)
    with pytest.raises(psycopg.errors.DivisionByZero):
        view.alter(f"SELECT *, 1 / (n - n) AS z FROM ({GROUPS}) q")
    view.is_right(GROUPS)


def test_what_a_function_means_changes_just_before(view, source):
    source.execute(
        "CREATE OR REPLACE FUNCTION weigh(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 * 2"
    )
    query = "SELECT g, sum(weigh(id)) AS w FROM items GROUP BY g"
    view.create(query)
    source.execute(
        "CREATE OR REPLACE FUNCTION weigh(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 * 3"
    )
    wider = f"SELECT *, w + 1 AS more FROM ({query}) q"
    view.alter(wider)
    view.is_right(wider)


def shares(conn: psycopg.Connection, name: str) -> bool:
    rows = conn.execute("SELECT * FROM headrace.explain_view(%s, 'physical')", (name,)).fetchall()
    return any("kept once" in str(row) for row in rows)


def test_what_is_shared_is_read_on(view, commander, source, engine):
    other = Altering(commander, source, "w")
    view.create(GROUPS, "{}")
    over = f"SELECT *, n + 1 AS more FROM ({GROUPS}) q"
    other.create(over, "{}")
    wait_until(lambda: shares(commander, "v") and shares(commander, "w"), "they share")
    wide = f"SELECT *, s / n AS mean FROM ({GROUPS}) q"
    with Writer(engine.source):
        assert view.alter(wide) == KEPT
        assert shares(commander, "v")
        commander.execute("CALL headrace.pause_view('w')")
        assert view.alter(GROUPS) == KEPT
    view.is_right(GROUPS)
    commander.execute("CALL headrace.resume_view('w')")
    other.is_right(over)
    # The shared subplan is not the common part of the old and the new query.
    fewer = "SELECT g, sum(x) AS s FROM items GROUP BY g"
    assert other.alter(fewer) != KEPT
    other.is_right(fewer)
    view.is_right(GROUPS)
    other.drop()
    view.is_right(GROUPS)


POINTS = (
    *("cp06", "cp07b", "cp08", "cp08b", "cp08c", "cp08f", "cp08g"),
    *("cp25", "cp25b", "cp16", "cp17"),
)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", [False, True], ids=["alone", "sharing"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point(start_engine, database, tmp_path, point, sharing):
    """Under writers, the view is the old or the new one, whole, if the builder or worker dies."""
    traps = tmp_path / "traps"
    traps.mkdir()
    engine = start_engine(database, HEADRACE_FAULT_DIR=str(traps))
    wide = f"SELECT *, s / n AS mean FROM ({GROUPS}) q"
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as commander,
    ):
        source.execute(TABLES)
        view, other = (Altering(commander, source, name) for name in "vw")
        view.create(GROUPS, "{}")
        if sharing:
            other.create(GROUPS, "{}")
            wait_until(lambda: shares(commander, "v"), "they share")
        with Writer(engine.source):
            (traps / point).write_text("kill:1")
            with contextlib.suppress(psycopg.Error):
                view.alter(wide)
            wait_until((traps / f"{point}.sprung").exists, "it was killed")
            query = wait_until(lambda: settled(source, wide), "it runs again")
            another = GROUPS if query == wide else wide
            wait_until(lambda: again(view, another), "it can be altered")
        view.is_right(another)
        if sharing:
            other.is_right(GROUPS)


def settled(source: psycopg.Connection, wide: str) -> str | None:
    """Return the query of the view, once it follows."""
    try:
        source.execute("CALL headrace.wait_for('v', timeout => '20 s')")
    except psycopg.Error:
        return None
    row = source.execute("SELECT query FROM headrace.views WHERE view_name = 'v'").fetchone()
    assert row is not None
    return str(row[0])


def again(view: Altering, query: str) -> bool:
    try:
        view.alter(query)
    except (psycopg.errors.ObjectInUse, psycopg.OperationalError):
        return False
    return True


CORES = {
    GROUPS: ("g", "n", "s", "lo"),
    "SELECT i.id, i.x, i.f, k.name, k.g FROM items i JOIN kinds k ON k.g = i.g WHERE k.ok": (
        *("id", "x", "f", "g"),
    ),
    "SELECT DISTINCT g, id % 40 AS x, m FROM items": ("g", "x"),
    "SELECT id, g, x, f FROM items WHERE g < 5": ("id", "g", "x", "f"),
    "SELECT g, x FROM items UNION ALL SELECT g, id FROM items": ("g", "x"),
    "SELECT g, id, x, row_number() OVER (PARTITION BY g ORDER BY id) AS n FROM items": (
        *("g", "id", "x", "n"),
    ),
    "SELECT g, array_agg(s ORDER BY id) AS a, count(DISTINCT m) AS n FROM items GROUP BY g": (
        *("g", "n"),
    ),
    "SELECT id, x, g FROM items i WHERE EXISTS (SELECT FROM kinds k WHERE k.g = i.g AND k.ok)": (
        *("id", "x", "g"),
    ),
}


def derived(rng: random.Random, core: str, numbers: tuple[str, ...]) -> str:
    """Return a query over ``core`` with computed columns, another order or number, or a filter."""
    made = [
        rng.choice(
            ("{0} + {1} AS c{2}", "coalesce({0}, 0) * 2 AS c{2}", "({0})::text || 'x' AS c{2}")
        ).format(rng.choice(numbers), rng.choice(numbers), number)
        for number in range(rng.randrange(3))
    ]
    wanted = rng.choice(("*", "*", ", ".join(rng.sample(numbers, len(numbers)))))
    where = f" WHERE {rng.choice(numbers)} > 1" if rng.random() < 0.2 else ""
    return f"SELECT {', '.join([wanted, *made])} FROM ({core}) q{where}"


@pytest.mark.parametrize("seed", seeds(0, 8, quick=0))
def test_altered_again_and_again(start_engine, database, seed):
    """Pairs of queries under writers, while processes die; the result equals that of Postgres."""
    rng = random.Random(seed)
    engine = start_engine(database)
    core, numbers = list(CORES.items())[seed % len(CORES)]
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as commander,
    ):
        source.execute(TABLES)
        view, query = Altering(commander, source, "v"), core
        view.create(core, rng.choice(("{}", '{"sharing": false}')))
        # With the same query, the shared subplan would be the whole old query.
        other = f"SELECT *, {numbers[0]} AS other FROM ({core}) q"
        commander.execute("CALL headrace.create_view('w', %s)", (other,))
        for _ in range(10):
            wanted = derived(rng, core, numbers)
            victim = rng.choice((None, None, "headrace.runtime.worker", "headrace.views.builder"))
            killer = threading.Timer(rng.uniform(0, 0.4), kill, (engine, victim))
            with Writer(engine.source):
                killer.start()
                with contextlib.suppress(psycopg.OperationalError, psycopg.errors.ObjectInUse):
                    view.alter(wanted)
                killer.join()
                query = wait_until(partial(settled, source, wanted), "it runs again")
            view.is_right(query)
        wait_until(lambda: again(view, core), "it can be altered")
        more = f"SELECT *, {numbers[0]} + {numbers[-1]} AS more FROM ({core}) q"
        assert view.alter(more) == KEPT, "when nobody dies"
        view.is_right(more)


def kill(engine: EmbeddedEngine, victim: str | None) -> None:
    pid = engine.child(victim) if victim is not None else None
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_the_worker_finds_the_altered_view_by_itself(start_engine, database, tmp_path):
    """Its connections end between the commit and the call about it: no state is dropped."""
    traps = tmp_path / "traps"
    traps.mkdir()
    engine = start_engine(database, HEADRACE_FAULT_DIR=str(traps))
    wide = f"SELECT *, s / n AS mean FROM ({GROUPS}) q"
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as commander,
    ):
        source.execute(TABLES)
        view = Altering(commander, source, "v")
        view.create(GROUPS)
        with Writer(engine.source):
            (traps / "cp08b").write_text("hang:1")
            call = threading.Thread(target=again, args=(view, wide))
            call.start()
            wait_until((traps / "cp08b.sprung").exists, "it is committed")
            begin = len(engine.log)
            source.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND (application_name LIKE 'headrace%' OR backend_type = 'walsender')"
            )
            wait_until(lambda: "states inherited" in engine.log[begin:], "it has the states")
            assert settled(source, wide) == wide
            assert "population" not in engine.log[begin:], "nothing is rebuilt"
            call.join()
        view.is_right(wide)
