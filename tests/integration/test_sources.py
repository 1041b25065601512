"""Views over tables of several databases: add_source, logical tables, kills, DDL and outages."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.amounts import Run, seeds
from tests.compared import differs
from tests.integration.test_workers import refused
from tests.security.roles import connect, role
from tests.waiting import at_any_moment, wait_until

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, g int, x numeric, note text);
INSERT INTO orders SELECT i, i % 7, i * 1.50, 'n' || i FROM generate_series(1, 300) i;
CREATE TABLE groups (g int PRIMARY KEY, name text);
INSERT INTO groups SELECT i, 'group ' || i FROM generate_series(0, 6) i;
"""
THERE = """
CREATE TABLE orders (pad bytea, x numeric, id int PRIMARY KEY, note text, g int);
ALTER TABLE orders DROP COLUMN pad;
INSERT INTO orders (id, g, x, note)
SELECT i, i % 7, i * 0.25, 'e' || i FROM generate_series(200, 900) i;
CREATE TABLE mine (k text PRIMARY KEY, at timestamptz);
"""
SUMS = "SELECT shard, g, count(*) AS n, sum(x) AS total FROM all_orders GROUP BY shard, g"
NAMED = "SELECT o.shard, o.id, o.note, g.name FROM all_orders o JOIN groups g USING (g)"
MOST = "SELECT g, max(x) AS most, count(DISTINCT note) AS notes FROM all_orders GROUP BY g"


@pytest.fixture
def other(databases) -> Iterator[psycopg.Connection]:
    """Take another database of the same server, and fill it by ``THERE``."""
    name = databases.take()
    dsn = make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
        conn.execute(THERE)
        yield conn
    databases.give_back(name)


@pytest.fixture
def united(commander, other) -> psycopg.Connection:
    commander.execute("CALL headrace.add_source('eu', %s)", (at(other),))
    commander.execute("CALL headrace.create_logical_table('all_orders', 'orders', 'shard')")
    return commander


def at(conn: psycopg.Connection) -> str:
    """Return the DSN of the database of ``conn``."""
    return make_conninfo(conn.info.dsn, password=conn.info.password)


def change(conn: psycopg.Connection, rng: random.Random) -> None:
    """Run a transaction of a few changes."""
    with conn.transaction():
        for _ in range(rng.randint(1, 6)):
            key = rng.randint(1, 1000)
            match rng.randint(0, 9):
                case 0 | 1 | 2 | 3:
                    conn.execute(
                        "INSERT INTO orders (id, g, x, note) VALUES (%s, %s, %s, %s)"
                        " ON CONFLICT (id) DO UPDATE SET x = excluded.x",
                        (key, key % 7, rng.randint(1, 999), f"c{key}"),
                    )
                case 4 | 5 | 6:
                    conn.execute("UPDATE orders SET g = (g + 1) %% 7 WHERE id = %s", (key,))
                case _:
                    conn.execute("DELETE FROM orders WHERE id = %s", (key,))


def check(commander, source, other, **queries: str) -> None:
    """Check views against their queries over the rows of both databases, once they have arrived."""
    fetched = "SELECT id, g, x, note FROM orders"
    for name, query in queries.items():
        commander.execute("CALL headrace.wait_for(%s)", (name,))
        with source.transaction(force_rollback=True):
            source.execute("CREATE TEMPORARY TABLE theirs (id int, g int, x numeric, note text)")
            with source.cursor().copy("COPY theirs FROM STDIN") as into:
                for row in other.execute(fetched):
                    into.write_row(row)
            source.execute(
                "CREATE TEMPORARY TABLE all_orders AS SELECT 'main' AS shard, id, g, x, note"
                " FROM orders UNION ALL SELECT 'eu', id, g, x, note FROM theirs"
            )
            assert differs(source, name, query) == [], name


def test_a_view_over_two_databases(engine, united, source, other):
    commander = united
    for name, query in (("sums", SUMS), ("named", NAMED), ("most", MOST)):
        commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
    views = {"sums": SUMS, "named": NAMED, "most": MOST}
    check(commander, source, other, **views)
    rng = random.Random(5)
    for _ in range(30):
        change(rng.choice((source, other)), rng)
    check(commander, source, other, **views)
    other.execute("TRUNCATE orders")
    other.execute("INSERT INTO orders (id, g, x) SELECT i, i % 7, i FROM generate_series(1, 50) i")
    check(commander, source, other, **views)
    assert commander.execute("SELECT * FROM headrace.verify_view('most')").fetchall() == []
    assert commander.execute("SELECT * FROM headrace.verify_view('named')").fetchall() == []
    assert source.execute("SELECT count(*) FROM eu.orders").fetchall() == [(0,)]
    [row] = commander.execute("SELECT * FROM headrace.sources()").fetchall()
    assert (row[0], row[1], row[6:]) == ("eu", "running", (3, 1, None))
    assert row[4] > 50
    # verify_view detects a wrong view.
    source.execute("UPDATE most SET notes = 77 WHERE g = 3")
    shown = commander.execute("SELECT * FROM headrace.verify_view('most')").fetchall()
    assert sorted((much, little) for much, little, _ in shown) == [(0, 1), (1, 0)]


STEPS = """
CREATE TABLE steps (n int PRIMARY KEY, k int, amount numeric);
"""
WHOLE = (
    "SELECT shard, count(*) AS n, count(DISTINCT k) AS steps, max(k) AS last, sum(amount) AS sum"
    " FROM all_steps GROUP BY shard"
)


class Writer(threading.Thread):
    """Writer whose transaction k, from 1 on, adds three rows with the sum zero."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self.done = 0
        self.ended = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not self.ended.is_set():
                k = self.done + 1
                with conn.transaction():
                    for place, amount in enumerate((k, -2 * k, k)):
                        conn.execute(
                            "INSERT INTO steps VALUES (%s, %s, %s)", (3 * k + place, k, amount)
                        )
                self.done = k


def txids(conn: psycopg.Connection, view: str) -> list[dict[str, tuple]]:
    """Return the view's rows by first column at each txid with retained changes, in order."""
    now = {tuple(row): 1 for row in conn.execute(f"SELECT * FROM {view}")}
    found = conn.execute(
        f"SELECT c.txid, c.weight, (c.data::{view}).* FROM headrace.view_changes('{view}') c"
    ).fetchall()
    out = []
    # The history lacks the first contents, so go backwards from the current ones.
    for _, rows in itertools.groupby(reversed(found), lambda row: row[0]):
        out.append({row[0]: row[1:] for row, n in now.items() if n})
        for _, weight, *row in rows:
            now[tuple(row)] = now.get(tuple(row), 0) - weight
        assert set(now.values()) <= {0, 1}
    return [*reversed(out)]


@pytest.mark.parametrize("seed", seeds(1, 32))
def test_every_txid_is_whole_transactions_of_each_source(start_engine, database, databases, seed):
    """After any kill, each source is at the end of one of its transactions at each txid."""
    rng = random.Random(seed)
    local = {"HEADRACE_WAL_RETENTION": "local"} if rng.random() < 0.5 else {}
    engine = start_engine(database, **local)
    name = databases.take()
    there = make_conninfo(databases.server, dbname=name)
    for dsn in (engine.source, there):
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(STEPS)
    writers = [Writer(engine.source), Writer(there)]
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.add_source('eu', %s)", (there,))
        conn.execute("CALL headrace.create_logical_table('all_steps', 'steps', 'shard')")
        for writer in writers:
            writer.start()
        wait_until(lambda: writers[1].done > 5, "somebody writes")
        # Created while they write: its first contents match the later changes.
        options = json.dumps({"history": "1 hour"})
        conn.execute("CALL headrace.create_view('whole', %s, options => %s)", (WHOLE, options))
    victims = ("source eu", "headrace.runtime.worker", "source eu", "headrace.views.builder", "all")
    for _ in range(2 if Run.quick else rng.randint(3, 6)):
        at_any_moment(rng, 0.05, 0.5)
        victim = rng.choice(victims)
        if victim == "all":
            engine.kill9()
            engine.start()
        elif (pid := engine.child(victim)) is not None:
            os.kill(pid, rng.choice((signal.SIGKILL, signal.SIGTERM)))
        if rng.random() < 0.4:
            second = f"v{rng.randint(0, 10**9)}"
            with (
                contextlib.suppress(psycopg.Error),
                psycopg.connect(engine.dsn, autocommit=True) as conn,
            ):
                conn.execute("CALL headrace.create_view(%s, %s)", (second, WHOLE))
    for writer in writers:
        writer.ended.set()
        writer.join()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        wait_until(lambda: waited(conn, "whole"), "the view covers both")
        for view in conn.execute("SELECT name FROM headrace.list_views()").fetchall():
            wait_until(lambda view=view: waited(conn, view[0]), "the view covers both")
            shown = conn.execute(f"SELECT * FROM {view[0]} ORDER BY shard").fetchall()
            assert shown == [
                (shard, 3 * writer.done, writer.done, writer.done, 0)
                for shard, writer in (("eu", writers[1]), ("main", writers[0]))
            ], view
        seen = txids(conn, "whole")
    assert len(seen) > 10
    last: dict[str, int] = {}
    for rows in seen:
        for shard, (n, steps, most, total) in rows.items():
            assert (n, steps, total) == (3 * most, most, 0), rows
            assert most >= last.get(shard, 0)
            last[shard] = most
    engine.stop()
    databases.give_back(name)


def waited(conn: psycopg.Connection, view: str) -> bool:
    try:
        conn.execute("CALL headrace.wait_for(%s, timeout => '20s')", (view,))
    except psycopg.errors.OperationalError:
        return False
    return True


def running(conn: psycopg.Connection, state: str) -> bool:
    return [row[1] for row in conn.execute("SELECT * FROM headrace.sources()")] == [state]


def test_a_source_that_is_down_holds_up_its_own_part_only(united, source, other, databases):
    commander, name = united, other.info.dbname
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    commander.execute("CALL headrace.create_view('mine', 'SELECT count(*) AS n FROM orders')")
    with psycopg.connect(databases.server, autocommit=True) as server:
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            " AND application_name LIKE 'headrace%%'",
            (name,),
        )
        wait_until(lambda: running(commander, "down"), "it is seen to be down")
        [row] = commander.execute("SELECT * FROM headrace.sources()").fetchall()
        assert row[8]
        source.execute("DELETE FROM orders WHERE id < 100")
        other.execute("DELETE FROM orders WHERE id < 300")
        commander.execute("CALL headrace.wait_for('mine')")
        [(lsn,)] = commander.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
        commander.execute("CALL headrace.wait_for('sums', %s)", (lsn,))  # a position of `main`
        counts = "SELECT sum(n) FROM sums WHERE shard = %s"
        assert commander.execute(counts, ("main",)).fetchall() == [(201,)]
        assert commander.execute(counts, ("eu",)).fetchall() == [(701,)]
        why = refused(commander, "CALL headrace.wait_for('sums', timeout => '5s')")
        assert 'source "eu" cannot be reached' in why.message_primary
        why = refused(commander, f"CALL headrace.create_view('more', $${SUMS}$$)")
        assert (why.sqlstate, "down" in why.message_primary) == ("55000", True)
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    wait_until(lambda: running(commander, "running"), "it comes back")
    check(commander, source, other, sums=SUMS)


def test_the_stream_goes_on_if_the_source_of_its_last_change_ends(engine, united, source, other):
    """That change is repeated as all others, though it is only carried by a transaction."""
    commander = united
    commander.execute("CALL headrace.create_view('direct', 'SELECT id, x FROM eu.orders')")
    commander.execute("CALL headrace.create_view('local', 'SELECT g, name FROM groups')")
    made = "SELECT id FROM headrace.views WHERE view_name = 'local'"
    before = source.execute(made).fetchall()
    other.execute("INSERT INTO orders (id, g, x) VALUES (1000, 1, 1)")
    commander.execute("CALL headrace.wait_for('direct')")
    commander.execute("CALL headrace.drop_view('direct')")
    source.execute("DROP VIEW all_orders")
    commander.execute("CALL headrace.drop_source('eu')")
    os.kill(engine.child("headrace.runtime.worker"), signal.SIGKILL)
    source.execute("INSERT INTO groups VALUES (100, 'new')")
    commander.execute("CALL headrace.wait_for('local')")
    assert differs(source, "local", "SELECT g, name FROM groups") == []
    assert source.execute(made).fetchall() == before
    assert "continuity lost" not in engine.log


def test_a_source_ends(united, source, other):
    commander = united
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    why = refused(commander, "CALL headrace.drop_source('eu')")
    assert (why.sqlstate, why.message_primary) == ("2BP01", 'source "eu" is in use')
    commander.execute("CALL headrace.drop_view('sums')")
    commander.execute("CALL headrace.create_view('direct', 'SELECT id, x FROM eu.orders')")
    source.execute("DROP VIEW all_orders")
    why = refused(commander, "CALL headrace.drop_source('eu')")
    assert (why.sqlstate, "public.direct" in why.message_detail) == ("55006", True)
    commander.execute("CALL headrace.drop_view('direct')")
    commander.execute("CALL headrace.drop_source('eu')")
    assert commander.execute("SELECT * FROM headrace.sources()").fetchall() == []
    assert source.execute("SELECT to_regnamespace('eu')").fetchall() == [(None,)]
    left = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert other.execute(left).fetchall() == []
    assert other.execute("SELECT pubname FROM pg_publication").fetchall() == []
    why = refused(commander, "CALL headrace.drop_source('eu')")
    assert why.sqlstate == "42704"
    # The name can be used again.
    commander.execute("CALL headrace.add_source('eu', %s, 'orders, public.mine')", (at(other),))
    other.execute("INSERT INTO mine VALUES ('a', '2026-01-01')")
    commander.execute("CALL headrace.create_view('times', 'SELECT k, at FROM eu.mine')")
    other.execute("INSERT INTO mine VALUES ('b', 'infinity')")
    commander.execute("CALL headrace.wait_for('times')")
    assert commander.execute("SELECT k, at::text FROM times ORDER BY 1").fetchall() == [
        ("a", "2026-01-01 00:00:00+00"),
        ("b", "infinity"),
    ]


def test_what_cannot_be_a_source_is_refused(commander, source, other):
    def add(*arguments: str) -> psycopg.errors.Diagnostic:
        quoted = ", ".join(f"$a${a}$a$" for a in arguments)
        return refused(commander, f"CALL headrace.add_source({quoted})")

    assert add("Eu", at(other)).sqlstate == "42602"
    assert add("main", at(other)).sqlstate == "42710"
    assert add("public", at(other)).sqlstate == "42P06"
    assert "database itself" in add("eu", at(source)).message_primary
    wrong = add("eu", "password=geheim nonsense")
    assert wrong.message_primary == "invalid connection string"
    assert "geheim" not in str(wrong.message_detail) + str(wrong.message_hint)
    assert add("eu", at(other), "nowhere").sqlstate == "42P01"
    assert add("eu", at(other) + " user=nobody_there").sqlstate is not None
    other.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    other.execute("CREATE TABLE moods (id int PRIMARY KEY, m mood)")
    other.execute("CREATE TABLE keyless (id int)")
    other.execute("CREATE COLLATION sideways (locale = 'C')")
    other.execute("CREATE TABLE sorted (t text COLLATE sideways PRIMARY KEY)")
    assert (add("eu", at(other), "moods").sqlstate) == "0A000"
    assert "primary key" in add("eu", at(other), "keyless").message_hint
    assert (add("eu", at(other), "sorted").sqlstate) == "0A000"
    assert (add("eu", at(other), "pg_catalog.pg_class").sqlstate) == "0A000"
    # Nothing was left behind.
    left = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert other.execute(left).fetchall() == []
    assert source.execute("SELECT to_regnamespace('eu')").fetchall() == [(None,)]
    assert commander.execute("SELECT * FROM headrace.sources()").fetchall() == []


@pytest.mark.parametrize(
    ("since", "table", "primary"),
    [
        (
            150000,
            "(v int, k int GENERATED ALWAYS AS (v * 2) STORED PRIMARY KEY)",
            "a generated col",
        ),
        (
            180000,
            "(v int, k int GENERATED ALWAYS AS (v * 2) STORED); ALTER TABLE made REPLICA IDENTITY FULL",
            "a generated col",
        ),
        (
            180000,
            "(v int, k int); INSERT INTO made VALUES (1, NULL); CREATE UNIQUE INDEX made_k ON made (k);"
            "ALTER TABLE made ADD NOT NULL k NOT VALID, REPLICA IDENTITY USING INDEX made_k",
            'column "k"',
        ),
    ],
)
def test_a_table_without_a_sound_identity_is_not_published(
    commander, source, other, since, table, primary
):
    """Postgres would refuse the updates of its owner, or the stream has no key."""
    if source.info.server_version < since:
        pytest.skip("this server has no such tables, or accepts their updates")
    other.execute(f"CREATE TABLE made {table}")
    add = f"CALL headrace.add_source('eu', $a${at(other)}$a$, 'made')"
    why = refused(commander, add)
    assert why.sqlstate == "55000" and primary in why.message_primary
    assert other.execute("SELECT pubname FROM pg_publication").fetchall() == []
    other.execute("DELETE FROM made")


def test_old_nulls_of_a_source_are_read(commander, source, other):
    """A constraint that was not validated does not become one of the shadow table."""
    if source.info.server_version < 180000:
        pytest.skip("NOT NULL … NOT VALID came with Postgres 18")
    other.execute("UPDATE orders SET note = NULL WHERE id = 300")
    other.execute("ALTER TABLE orders ADD NOT NULL note NOT VALID")
    commander.execute("CALL headrace.add_source('eu', %s, 'orders')", (at(other),))
    query = "SELECT note, count(*) AS n FROM eu.orders WHERE id < 302 GROUP BY note"
    commander.execute("CALL headrace.create_view('noted', %s)", (query,))
    other.execute("DELETE FROM orders WHERE id = 301")
    commander.execute("CALL headrace.wait_for('noted')")
    unsaid = "SELECT n FROM noted WHERE note IS NULL"
    assert source.execute(unsaid).fetchall() == [(1,)]


def test_stand_ins_are_not_written_and_messages_not_forged(engine, united, source, other):
    commander = united
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    why = refused(commander, "INSERT INTO eu.orders (id, g, x) VALUES (1, 1, 1)")
    assert (why.sqlstate, "stand-in" in why.message_primary) == ("0A000", True)
    # A role without any privilege may emit messages, also with our prefix.
    with role(source, "stranger") as name:
        with connect(engine.dsn, name) as stranger:
            for prefix in ("headrace", "headrace carrier", "headrace carrier " + 32 * "0"):
                for kept in (True, False):
                    stranger.execute(
                        "SELECT pg_logical_emit_message(%s, %s, 'nonsense')", (kept, prefix)
                    )
            assert stranger.execute("SELECT * FROM headrace.sources()").fetchall() == []
            view = f"CALL headrace.create_view('his', $${SUMS}$$)"
            denied = (
                *("CALL headrace.add_source('us', 'host=x')", "CALL headrace.drop_source('eu')"),
                *(f"SELECT * FROM headrace.{t}" for t in ("origins", "stand_ins", "carrier")),
                *(view, "SELECT * FROM eu.orders"),
            )
            for statement in denied:
                assert refused(stranger, statement).sqlstate == "42501", statement
        source.execute(f"GRANT USAGE ON SCHEMA eu TO {name}")
        source.execute(f"GRANT SELECT ON eu.orders TO {name}")
        with connect(engine.dsn, name) as friend:
            friend.execute("CALL headrace.create_view('his', 'SELECT id, note FROM eu.orders')")
        check(commander, source, other, sums=SUMS)
        [(mine,)] = commander.execute(f"SELECT count(*) FROM {name}.his").fetchall()
        assert other.execute("SELECT count(*) FROM orders").fetchall() == [(mine,)]
        commander.execute(f"CALL headrace.drop_view('{name}.his')")


def carried_out(conn: psycopg.Connection, statement: str) -> bool:
    """Return whether the statement succeeded, after ending the sessions that use a slot."""
    conn.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
        " WHERE database = current_database()"
    )
    try:
        conn.execute(statement)
    except (psycopg.errors.ObjectInUse, psycopg.errors.ObjectNotInPrerequisiteState):
        return False
    return True


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("ALTER TABLE orders ALTER COLUMN x TYPE float8", "was altered"),
        ("SELECT pg_drop_replication_slot('{}')", "is gone|does not exist"),
        *(
            pytest.param(statement, problem, marks=pytest.mark.slow)
            for statement, problem in (
                ("ALTER TABLE orders RENAME COLUMN x TO y", "was altered"),
                ("ALTER TABLE orders DROP COLUMN note", "was altered"),
                ("ALTER PUBLICATION {} DROP TABLE orders", "was changed"),
                ("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "was changed"),
            )
        ),
    ],
)
def test_a_source_of_which_changes_may_be_missed_is_lost(united, source, other, statement, problem):
    """Its part of views stays as it is, and sources() gives the reason; other views go on."""
    commander = united
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    commander.execute("CALL headrace.create_view('mine', 'SELECT count(*) AS n FROM orders')")
    other.execute("ALTER TABLE orders ADD COLUMN more int")  # no view reads it
    other.execute("UPDATE orders SET more = x, g = 3 WHERE id < 300")
    other.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    other.execute("UPDATE orders SET more = 1, x = x + 1 WHERE id < 250")
    other.execute("DELETE FROM orders WHERE id = 201")
    other.execute("INSERT INTO orders (more, id, g, x) VALUES (1, 201, 2, 3)")
    other.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    other.execute("UPDATE orders SET id = 202, more = NULL WHERE id = 201 AND more = 2")
    check(commander, source, other, sums=SUMS)
    [(name,)] = other.execute("SELECT pubname FROM pg_publication").fetchall()
    wait_until(lambda: carried_out(other, statement.format(name)), "it is done")
    other.execute("INSERT INTO orders (id, g) VALUES (5000, 5)")
    update = "UPDATE orders SET g = 6 WHERE id = 5000"
    wait_until(lambda: carried_out(other, update), "the source's own statements succeed")
    wait_until(lambda: running(commander, "lost"), "it is seen")
    [row] = commander.execute("SELECT * FROM headrace.sources()").fetchall()
    assert re.search(problem, row[8])
    source.execute("DELETE FROM orders WHERE id < 10")
    commander.execute("CALL headrace.wait_for('mine')")
    [(n,)] = commander.execute("SELECT sum(n) FROM sums WHERE shard = 'eu'").fetchall()
    assert n == 701


@pytest.mark.engine_with(HEADRACE_WAL_RETENTION="local")
def test_a_paused_view_and_one_that_is_filled_anew(united, source, other):
    commander = united
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    commander.execute("CALL headrace.create_view('named', %s)", (NAMED,))
    rng = random.Random(9)
    commander.execute("CALL headrace.pause_view('sums')")
    for _ in range(20):
        change(rng.choice((source, other)), rng)
    commander.execute("CALL headrace.resync_view('named')")
    commander.execute("CALL headrace.resume_view('sums')")
    for _ in range(5):
        change(rng.choice((source, other)), rng)
    check(commander, source, other, sums=SUMS, named=NAMED)
    # A large transaction arrives in several messages, but is one transaction here.
    other.execute("UPDATE orders SET note = repeat(note, 300)")
    other.execute(
        "INSERT INTO orders (id, g, x) SELECT i, i % 7, i FROM generate_series(1001, 30000) i"
    )
    check(commander, source, other, sums=SUMS, named=NAMED)
    commander.execute("CALL headrace.add_worker('w1')")
    commander.execute("CALL headrace.set_placement('sums', 'w1')")
    for _ in range(5):
        change(rng.choice((source, other)), rng)
    check(commander, source, other, sums=SUMS, named=NAMED)


def test_a_role_that_holds_advisory_locks_stops_no_view(engine, united, source, other):
    """Any role may take such locks, so views and sources do not depend on them."""
    united.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    with role(source, "keeper") as name, connect(engine.source, name) as keeper:
        for number in range(0x4844_5200, 0x4844_5210):
            keeper.execute("SELECT pg_advisory_lock(%s, hashtext('eu'))", (number,))
        united.execute("CALL headrace.create_view('named', %s)", (NAMED,))
        with source.transaction():  # as a builder that died would leave it
            source.execute("UPDATE headrace.origins SET hold = position WHERE name = 'eu'")
        change(other, random.Random(7))
        check(united, source, other, sums=SUMS, named=NAMED)
