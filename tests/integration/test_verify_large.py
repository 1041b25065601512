"""verify_view of views that Postgres would compute slowly: Headrace computes the rows, on Spark."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests.integration.conftest import ITEMS
from tests.integration.test_sources import at, other, united  # noqa: F401  fixtures
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.shared_engine,
    # One session of Spark for all tests of the module.
    pytest.mark.engine_with(
        HEADRACE_SPARK_PARALLELISM="2",
        HEADRACE_SPARK_IDLE_MS="0",
        HEADRACE_SPARK_PARTITION_ROWS="200",
    ),
]

TABLES = f"""
{ITEMS}
CREATE TABLE kinds (g int PRIMARY KEY, name text);
INSERT INTO kinds SELECT i, 'k' || i FROM generate_series(0, 9) i;
CREATE TABLE orders (id int PRIMARY KEY, g int, x numeric, note text);
INSERT INTO orders SELECT i, i % 7, i * 1.50, 'n' || i FROM generate_series(1, 300) i;
CREATE TABLE events (id int PRIMARY KEY, at timestamptz);
INSERT INTO events SELECT i, now() + interval '1 h' * (i - 50) FROM generate_series(1, 100) i;
"""
JOINED = "SELECT i.id + 0 AS id, i.x, k.name FROM items i JOIN kinds k ON k.g = i.g WHERE i.x > 1"
VERIFY = "SELECT * FROM headrace.verify_view(%s)"
ON_SPARK = "computed by Headrace on Spark from a snapshot, because"


_warm: set[str] = set()
"""Engines whose Spark has started."""


@pytest.fixture(autouse=True)
def warm(engine, commander) -> None:
    """Wait until Spark has started: a view would be computed in process otherwise."""
    if engine.source in _warm:
        return

    def is_warm() -> bool:
        with heard(commander) as notices:
            create(commander, "tried", JOINED)
        commander.execute("CALL headrace.drop_view('tried')")
        return not any("in process," in notice for notice in notices)

    wait_until(is_warm, "Spark does not start", 400)
    _warm.add(engine.source)


def create(conn: psycopg.Connection, name: str, query: str, **options: object) -> None:
    given = json.dumps({"threshold_rows": 1} | options)
    conn.execute("CALL headrace.create_view(%s, %s, options => %s)", (name, query, given))


@contextlib.contextmanager
def heard(conn: psycopg.Connection) -> Iterator[list[str]]:
    """Yield the notices that the connection gets during the block."""
    notices: list[str] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        notices.append(str(notice.message_primary))

    conn.add_notice_handler(hear)
    yield notices
    conn.remove_notice_handler(hear)


def proved(conn: psycopg.Connection, name: str) -> list[tuple]:
    """Return the rows that differ; they were computed on Spark."""
    with heard(conn) as notices:
        found = conn.execute(VERIFY, (name,)).fetchall()
    assert any(ON_SPARK in notice for notice in notices), notices
    return found


@contextlib.contextmanager
def written(dsn: str) -> Iterator[None]:
    """Write into the tables during the block; at least one transaction is committed."""
    stop, wrote = threading.Event(), threading.Event()

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            n = 0
            while not stop.wait(0.005):
                n += 1
                # Several rows a transaction, so that a partial one would show.
                with conn.transaction():
                    conn.execute("INSERT INTO items VALUES (%s, %s, 2.5)", (1000 + n, n % 9))
                    conn.execute("UPDATE items SET x = x + 1 WHERE id = %s", (1000 + n // 2,))
                    conn.execute("DELETE FROM items WHERE id = %s", (980 + n,))
                wrote.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert wrote.wait(90)
        yield
    finally:
        stop.set()
        thread.join(90)


def nothing_left(engine, source) -> None:
    slots = (
        "SELECT count(*) FROM pg_replication_slots WHERE temporary"
        " AND database = current_database()"
    )
    wait_until(lambda: source.execute(slots).fetchone() == (0,), "a slot is left")
    folders = (engine.data_dir / "tmp", "tap-*"), (engine.data_dir / "staging", "*proof-*")
    for folder, pattern in folders:
        wait_until(lambda: not list(folder.glob(pattern)), f"{pattern} is left")  # noqa: B023


def test_damaged_rows_are_found_while_a_writer_writes(engine, commander, source):
    create(commander, "j", JOINED)
    with written(engine.source):
        assert proved(commander, "j") == []
        source.execute("DELETE FROM j WHERE id = 7")
        source.execute("INSERT INTO j SELECT * FROM j WHERE id = 8")
        source.execute("UPDATE j SET x = 15.0 WHERE id = 10")
        source.execute("UPDATE j SET name = NULL WHERE id = 11")
        expected = [
            (1, 0, "(10,15.0,k0)"),
            (0, 1, "(10,15.00,k0)"),
            (1, 0, "(11,16.50,)"),
            (0, 1, "(11,16.50,k1)"),
            (0, 1, "(7,10.50,k2)"),
            (1, 0, "(8,12.00,k3)"),
        ]
        assert proved(commander, "j") == expected
    nothing_left(engine, source)


def test_the_notice_says_who_computed_and_how_postgres_would(commander, source):
    create(commander, '"J\'s"', JOINED)
    with heard(commander) as notices:
        assert commander.execute(VERIFY, ('"J\'s"',)).fetchall() == []
    [told] = [notice for notice in notices if ON_SPARK in notice]
    assert re.search(r"would have read about \d+ rows", told)
    statement = re.search(r"SELECT \* FROM headrace\.verify_view\(.*\)", told)
    source.execute('DELETE FROM "J\'s" WHERE id = 7')
    for conn in (commander, source):
        with heard(conn) as notices:
            found = conn.execute(statement[0]).fetchall()
            assert found == [(0, 1, "(7,10.50,k2)")]
            [shown] = conn.execute("CALL headrace.verify(%s, true)", ('"J\'s"',)).fetchone()
            assert [row["missing"] for row in shown] == [1]
        assert not any("Headrace" in notice for notice in notices), notices


def test_a_small_view_is_left_to_postgres(commander, source):
    commander.execute("CALL headrace.create_view('j', %s)", (JOINED,))
    with heard(commander) as notices:
        assert commander.execute(VERIFY, ("j",)).fetchall() == []
    assert not any("Headrace" in notice for notice in notices), notices


KINDS = {
    "groups": "SELECT g, count(*) AS n, sum(x) AS total, avg(x) AS mean FROM items GROUP BY g",
    "total": "SELECT count(*) AS n, sum(x) AS total FROM items",
    "first": "SELECT id, x FROM items ORDER BY x DESC, id LIMIT 7",
    "clock": "SELECT id FROM events WHERE at > now()",
    "order": "SELECT g, array_agg(x) AS xs, string_agg(id::text, ',') AS ids FROM items GROUP BY g",
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_finds_what_postgres_finds(engine, commander, source, kind):
    create(commander, "w", KINDS[kind])
    with written(engine.source):
        assert proved(commander, "w") == []
    commander.execute("CALL headrace.wait_for('w')")
    source.execute("DELETE FROM w WHERE ctid = (SELECT min(ctid) FROM w)")
    found = proved(commander, "w")
    assert [row[:2] for row in found] == [(0, 1)]
    in_postgres = "SELECT * FROM headrace.verify_view('w', in_postgres => true)"
    if kind != "order":  # Postgres reads the rows of a group in another order
        assert commander.execute(in_postgres).fetchall() == found


def test_views_over_views(commander, source):
    """Neither the rows of the view below nor its states count: its query is computed, too."""
    create(commander, "v", KINDS["groups"])
    commander.execute("CALL headrace.create_connection_point('p', 'v')")
    over = "SELECT n, max(total) AS most FROM v GROUP BY n"
    create(commander, "named", over)
    create(commander, "fed", over, **{"from": "p"})
    source.execute("UPDATE items SET x = x + 0.25 WHERE id % 3 = 0")
    for name in ("named", "fed"):
        commander.execute("CALL headrace.wait_for(%s)", (name,))
        assert proved(commander, name) == []
        source.execute(f"UPDATE {name} SET most = most + 1")
        assert len(proved(commander, name)) == 2


def test_views_over_several_databases(united, source, other):  # noqa: F811
    """Each database is read by block ranges, in a snapshot of its own; population included."""
    commander = united
    query = "SELECT shard, g, count(*) AS n, sum(x) AS total FROM all_orders GROUP BY shard, g"
    rows = "SELECT id, note FROM all_orders WHERE note >= 'e300' AND id % 2 = 0"
    for name, text in (("sums", query), ("found", rows)):
        with heard(commander) as notices:
            create(commander, name, text)
        assert any("population: on Spark" in notice for notice in notices), notices
    other.execute("UPDATE orders SET g = (g + 1) % 7, note = 'f' || id WHERE id > 300")
    for name in ("sums", "found"):
        commander.execute("CALL headrace.wait_for(%s)", (name,))
        assert proved(commander, name) == []
        in_postgres = "SELECT * FROM headrace.verify_view(%s, in_postgres => true)"
        assert commander.execute(in_postgres, (name,)).fetchall() == []
        source.execute(f"DELETE FROM {name}")
        found = proved(commander, name)
        assert found
        assert found == commander.execute(in_postgres, (name,)).fetchall()


def test_an_altered_view_is_rebuilt_on_spark(commander, source):
    create(commander, "v", KINDS["groups"])
    query = "SELECT g, count(*) AS n, max(x) AS most, count(DISTINCT x) AS d FROM items GROUP BY g"
    with heard(commander) as notices:
        commander.execute("CALL headrace.alter_view('v', %s)", (query,))
    assert any("population: on Spark" in notice for notice in notices), notices
    source.execute("UPDATE items SET x = 3 WHERE id % 4 = 0")
    commander.execute("CALL headrace.wait_for('v')")
    in_postgres = "SELECT * FROM headrace.verify_view('v', in_postgres => true)"
    assert commander.execute(in_postgres).fetchall() == []


def test_rights_of_the_caller(commander, source):
    create(commander, "j", JOINED)
    source.execute("DROP ROLE IF EXISTS e_large; CREATE ROLE e_large LOGIN")
    try:
        commander.execute("SET ROLE e_large")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="table j"):
            commander.execute(VERIFY, ("j",))
        source.execute("GRANT SELECT ON j, items TO e_large; GRANT SELECT (g) ON kinds TO e_large")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="that view"):
            commander.execute(VERIFY, ("j",))
        source.execute("GRANT SELECT (name) ON kinds TO e_large")
        # It does not own the view: Postgres computes the rows as this role.
        with heard(commander) as notices:
            assert commander.execute(VERIFY, ("j",)).fetchall() == []
        assert not any("Headrace" in notice for notice in notices), notices
        commander.execute("RESET ROLE")
    finally:
        source.execute("DROP OWNED BY e_large; DROP ROLE e_large")


SECURED = """
DROP ROLE IF EXISTS e_member; DROP ROLE IF EXISTS e_owner;
CREATE ROLE e_owner LOGIN BYPASSRLS; CREATE ROLE e_member LOGIN IN ROLE e_owner;
ALTER TABLE items ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON items USING (id < 50);
GRANT SELECT ON items TO e_owner; GRANT CREATE ON SCHEMA public TO e_owner;
"""


def test_rows_that_row_security_hides_are_not_shown(commander, source):
    """A member of the owner may act for it, but does not inherit BYPASSRLS."""
    source.execute(SECURED)
    try:
        commander.execute("SET ROLE e_owner")
        create(commander, "s", "SELECT id, x FROM items")
        source.execute("DELETE FROM s WHERE id IN (7, 77)")
        found = proved(commander, "s")
        assert found == [(0, 1, "(7,10.50)"), (0, 1, "(77,115.50)")]
        commander.execute("SET ROLE e_member")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            commander.execute(VERIFY, ("s",))
        commander.execute("RESET ROLE")
    finally:
        source.execute("DROP OWNED BY e_owner, e_member CASCADE; DROP ROLE e_member, e_owner")


def test_a_cancel_in_the_middle_leaves_nothing(engine, commander, source):
    create(commander, "v", "SELECT x, count(*) AS n FROM items GROUP BY x")
    source.execute("INSERT INTO items SELECT i, i % 5, i FROM generate_series(1001, 12000) i")
    commander.execute("CALL headrace.wait_for('v')")
    source.execute("ANALYZE items")
    staging = engine.data_dir / "staging"

    def cancel() -> None:
        wait_until(lambda: list(staging.glob("proof-*/progress/*")), "rows are not read")
        commander.cancel_safe()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        commander.execute(VERIFY, ("v",))
    thread.join(90)
    nothing_left(engine, source)
    assert proved(commander, "v") == []
