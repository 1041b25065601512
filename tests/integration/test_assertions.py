"""Assertions: queries that must stay empty, and the violations that are recorded."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql

from headrace.config import Settings
from headrace.server import janitor
from tests.waiting import PATIENCE_S, at_any_moment, time_passes, wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE stock (sku text PRIMARY KEY, units int NOT NULL);
CREATE TABLE reservations (id bigserial PRIMARY KEY, sku text NOT NULL, units int NOT NULL);
INSERT INTO stock VALUES ('lamp', 10), ('chair', 5);
"""
QUERY = """
SELECT s.sku, sum(r.units) - s.units AS oversold FROM stock s JOIN reservations r USING (sku)
 GROUP BY s.sku, s.units HAVING sum(r.units) > s.units"""


def resolve(conn) -> None:
    conn.execute("DELETE FROM reservations WHERE sku = 'lamp'")


def violate(conn, units: int = 11) -> None:
    conn.execute("INSERT INTO reservations (sku, units) VALUES ('lamp', %s)", (units,))


def covered(conn, name: str = "no_oversell") -> None:
    conn.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (name,))


def create(conn, name: str = "no_oversell", query: str = QUERY, **options) -> None:
    conn.execute("CALL headrace.create_assertion(%s, %s, %s)", (name, query, json.dumps(options)))


def state(conn, name: str = "public.no_oversell"):
    return conn.execute(
        "SELECT state, rows FROM headrace.assertions() WHERE name = %s", (name,)
    ).fetchone()


def is_now(conn, wanted: str, rows: int, name: str = "public.no_oversell") -> None:
    """Wait for a state: just after a start, and while a view lags, it is unknown."""
    wait_until(lambda: state(conn, name) == (wanted, rows), lambda: f"{state(conn, name)}")


def violations(conn, name: str = "public.no_oversell") -> list[dict]:
    with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(
            "SELECT * FROM headrace.violations WHERE assertion = %s ORDER BY id", (name,)
        ).fetchall()


def recorded(conn, begun: int, over: int, name: str = "public.no_oversell") -> list[dict]:
    """Wait for that many violations, of which ``over`` are over."""

    def found():
        rows = violations(conn, name)
        done = [row for row in rows if row["resolved_at"]]
        return rows if (len(rows), len(done)) == (begun, over) else None

    return wait_until(found, lambda: f"{violations(conn, name)}")


def test_a_violation_is_recorded_and_its_end(commander, source):
    create(commander)
    is_now(source, "holds", 0)
    with psycopg.connect(source.info.dsn, autocommit=True) as listening:
        listening.execute('LISTEN "headrace.violations"')
        with source.transaction():
            source.execute("INSERT INTO reservations (sku, units) VALUES ('lamp', 7), ('lamp', 4)")
            [xid] = source.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        [row] = recorded(source, 1, 0)
        assert (row["rows"], row["sample"]) == (1, [{"sku": "lamp", "oversold": "1"}])
        assert (row["xids"], row["transactions"]) == ([xid], 1)
        is_now(source, "violated", 1)
        source.execute("UPDATE stock SET units = 11 WHERE sku = 'lamp'")
        [row] = recorded(source, 1, 1)
        assert row["resolved_at"] > row["violated_at"]
        assert row["resolved_lsn"] > row["lsn"]
        heard = [
            json.loads(n.payload) for n in listening.notifies(timeout=PATIENCE_S, stop_after=2)
        ]
    assert [h["event"] for h in heard] == ["violated", "resolved"]
    assert {h["assertion"] for h in heard} == {"public.no_oversell"}
    assert [h["violation"] for h in heard] == [row["id"], row["id"]]
    assert heard[0]["xids"] == [xid]
    is_now(source, "holds", 0)


def test_the_first_contents_may_violate(commander, source):
    violate(source)
    create(commander, sample=1)
    [row] = recorded(source, 1, 0)
    assert (row["rows"], row["sample"]) == (1, [{"sku": "lamp", "oversold": "1"}])
    assert (row["xids"], row["transactions"]) == ([], 0), "no transaction is known"
    resolve(source)
    recorded(source, 1, 1)


def test_each_commit_counts_as_in_postgres(commander, source):
    """Each transaction is a batch of its own, because the test waits for it."""
    create(commander)
    wanted, before = 0, False
    count = sql.SQL("SELECT count(*) FROM ({}) q").format(sql.SQL(QUERY))
    rng = random.Random(5)
    for _ in range(25):
        if rng.random() < 0.4:
            source.execute("DELETE FROM reservations WHERE units > %s", (rng.randrange(12),))
        else:
            sku = rng.choice(["lamp", "chair"])
            values = (sku, rng.randrange(1, 13))
            source.execute("INSERT INTO reservations (sku, units) VALUES (%s, %s)", values)
        covered(source)
        [rows] = source.execute(count).fetchone()
        wanted += bool(rows) and not before
        before = bool(rows)
        is_now(source, "violated" if rows else "holds", rows)
    assert wanted > 3, "the test is about changes"
    recorded(source, wanted, wanted - before)
    times = [(r["violated_at"], r["resolved_at"]) for r in violations(source)]
    assert [t for pair in times for t in pair if t] == sorted(t for p in times for t in p if t)


def test_more_rows_while_violated_are_no_new_violation(commander, source):
    create(commander, sample=0)
    violate(source)
    [row] = recorded(source, 1, 0)
    assert row["sample"] == []
    source.execute("INSERT INTO reservations (sku, units) VALUES ('chair', 6)")
    is_now(source, "violated", 2)
    resolve(source)
    is_now(source, "violated", 1)
    assert len(violations(source)) == 1
    source.execute("DELETE FROM reservations")
    recorded(source, 1, 1)


def test_a_violation_within_its_grace_is_not_reported(commander, source):
    create(commander, grace="1 hour")
    create(commander, "at_once")
    violate(source)
    recorded(source, 1, 0, "public.at_once")
    [reason] = source.execute(
        "SELECT reason FROM headrace.assertions() WHERE name = 'public.no_oversell'"
    ).fetchone()
    assert reason == "reported if it lasts for 01:00:00"
    is_now(source, "violated", 1)
    resolve(source)
    recorded(source, 1, 1, "public.at_once")
    is_now(source, "holds", 0)
    assert violations(source) == []


def test_a_violation_that_lasts_is_reported_without_another_commit(commander, source):
    create(commander, grace="1 second")
    violate(source)
    [row] = recorded(source, 1, 0)
    assert row["recorded_at"] - row["violated_at"] >= timedelta(seconds=1)
    assert (row["sample"], len(row["xids"])) == ([{"sku": "lamp", "oversold": "1"}], 1)
    resolve(source)
    recorded(source, 1, 1)


def test_a_violation_that_lasted_is_reported_when_it_is_over(engine, commander, source):
    """Nothing judges it in between: the commander is dead."""
    create(commander, grace="1 second")
    violate(source)
    is_now(source, "violated", 1)
    engine.kill9()
    time_passes(1.5)
    resolve(source)
    engine.start()
    [row] = recorded(source, 1, 1)
    assert row["resolved_at"] - row["violated_at"] >= timedelta(seconds=1)


def test_a_population_reports_nothing_twice(commander, source):
    create(commander)
    violate(source)
    recorded(source, 1, 0)
    commander.execute("CALL headrace.resync_view('no_oversell')")
    is_now(source, "violated", 1)
    resolve(source)
    recorded(source, 1, 1)
    commander.execute("CALL headrace.resync_view('no_oversell')")
    is_now(source, "holds", 0)
    violate(source)
    [_, row] = recorded(source, 2, 1)
    assert row["sample"] == [{"sku": "lamp", "oversold": "1"}]


def test_a_population_beside_writers_reports_what_was_committed(commander, source):
    """The population's snapshot is older than changes that the view shows already."""
    create(commander)
    with psycopg.connect(source.info.dsn, autocommit=True) as other:
        for n in range(4):
            with ThreadPoolExecutor(1) as beside:
                again = beside.submit(other.execute, "CALL headrace.resync_view('no_oversell')")
                violate(source)
                covered(source)
                resolve(source)
                covered(source)
                again.result()
            recorded(source, n + 1, n + 1)


def test_a_repaired_table_is_judged(engine, commander, source):
    """A row that was deleted by hand is a violation all the same; the repair tells it."""
    create(commander)
    violate(source)
    recorded(source, 1, 0)
    source.execute("DELETE FROM no_oversell")
    commander.execute("CALL headrace.resync_view('no_oversell')")
    is_now(source, "violated", 1)
    assert len(violations(source)) == 1
    resolve(source)
    recorded(source, 1, 1)
    source.execute("INSERT INTO no_oversell VALUES ('ghost', 1)")
    commander.execute("CALL headrace.resync_view('no_oversell')")
    is_now(source, "holds", 0)
    assert len(violations(source)) == 1


def test_another_query_is_judged_by_its_rows(commander, source):
    create(commander)
    violate(source)
    recorded(source, 1, 0)
    commander.execute(
        "CALL headrace.alter_view('no_oversell', 'SELECT sku FROM stock WHERE units < 0')"
    )
    recorded(source, 1, 1)
    is_now(source, "holds", 0)
    commander.execute(
        "CALL headrace.alter_view('no_oversell', 'SELECT sku, units FROM stock WHERE units > 9')"
    )
    [_, row] = recorded(source, 2, 1)
    assert row["sample"] == [{"sku": "lamp", "units": "10"}]


def test_kill_9_before_it_is_recorded(engine, commander, source):
    """The view has changed, and the row cannot be written: another session has the table."""
    create(commander)
    with psycopg.connect(source.info.dsn) as locking:
        locking.execute("LOCK TABLE headrace.violations IN SHARE MODE")
        violate(source)
        covered(source)
        assert source.execute("SELECT count(*) FROM no_oversell").fetchone() == (1,)
        wait_until(lambda: "violations not recorded" in engine.log, "the recorder cannot write")
        engine.kill9()
    engine.start()
    recorded(source, 1, 0)
    resolve(source)
    engine.kill9()
    engine.start()
    recorded(source, 1, 1)
    assert [row["xids"] != [] for row in violations(source)] == [True]


def test_its_name_and_schema_may_change(commander, source):
    source.execute("CREATE SCHEMA other")
    create(commander)
    violate(source)
    recorded(source, 1, 0)
    commander.execute("CALL headrace.rename_view('no_oversell', 'other.stock_lasts')")
    resolve(source)
    recorded(source, 1, 1, "other.stock_lasts")
    is_now(source, "holds", 0, "other.stock_lasts")
    assert violations(source) == []
    commander.execute("CALL headrace.drop_assertion('other.stock_lasts')")
    assert violations(source, "other.stock_lasts") == []
    source.execute("DROP SCHEMA other")


def test_one_that_does_not_run_does_not_hold(commander, source):
    def shown():
        return source.execute(
            "SELECT a.state, a.rows, a.reason, l.status FROM headrace.assertions() a"
            " LEFT JOIN headrace.list_views() l ON l.name = a.name"
        ).fetchone()

    create(commander)
    wait_until(lambda: shown() == ("holds", 0, None, None), lambda: f"{shown()}")
    commander.execute("CALL headrace.pause_view('no_oversell')")
    assert shown() == ("unknown", 0, "its view does not run (paused)", "paused")
    violate(source)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="paused"):
        source.execute("CALL headrace.check_assertion('no_oversell')")
    commander.execute("CALL headrace.resume_view('no_oversell')")
    recorded(source, 1, 0)
    source.execute("ALTER TABLE stock RENAME units TO pieces")
    source.execute("ALTER TABLE stock ALTER pieces TYPE text")
    wait_until(lambda: shown()[3] == "error", lambda: f"{shown()}")
    state, rows, reason, _ = shown()
    assert (state, rows) == ("unknown", 1)
    assert reason.startswith("its view does not run (error): ")
    assert len(violations(source)) == 1


def test_check_assertion(commander, source):
    create(commander)
    for conn in (commander, source):
        conn.execute("CALL headrace.check_assertion('no_oversell')")
        violate(conn)
        with pytest.raises(psycopg.errors.CheckViolation) as caught:
            conn.execute("CALL headrace.check_assertion('public.no_oversell')")
        assert caught.value.diag.message_primary == "assertion public.no_oversell is violated"
        assert caught.value.diag.message_detail == "Number of rows that its query returns: 1."
        resolve(conn)
    with source.transaction():
        source.execute("CALL headrace.check_assertion('no_oversell', timeout => '90 s')")
    commander.execute("CALL headrace.create_view('plain', 'SELECT sku FROM stock')")
    for call in ("check_assertion", "drop_assertion"):
        with pytest.raises(psycopg.errors.WrongObjectType):
            commander.execute(f"CALL headrace.{call}('plain')")
    with pytest.raises(psycopg.errors.UndefinedTable):
        source.execute("CALL headrace.check_assertion('nothing')")


def test_calls_in_a_transaction(source):
    with source.transaction():
        source.execute("CALL headrace.create_assertion('no_oversell', %s)", (QUERY,))
        violate(source)
    with pytest.raises(psycopg.errors.CheckViolation):
        source.execute("CALL headrace.check_assertion('no_oversell')")
    recorded(source, 1, 0)
    with source.transaction():
        source.execute("CALL headrace.drop_assertion('no_oversell')")
    wait_until(lambda: state(source) is None, "it is gone")


def test_a_missing_one(commander):
    commander.execute("CALL headrace.drop_assertion('nothing', if_exists => true)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        commander.execute("CALL headrace.drop_assertion('nothing')")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"on_violation": "mail"}, "22023"),
        ({"on_violation": "webhook"}, "22023"),
        ({"webhook": "https://hooks.example.com/"}, "22023"),
        ({"on_violation": "both", "webhook": "https://hooks.example.com/"}, "55000"),
        ({"on_violation": "both", "webhook": "gopher://x/"}, "22023"),
        ({"sample": -1}, "22023"),
        ({"sample": 101}, "22023"),
        ({"sample": True}, "22023"),
        ({"grace": "soon"}, "22023"),
        ({"grace": "-1 s"}, "22023"),
        ({"grace": 5}, "22023"),
        ({"block": False}, "0A000"),
        ({"nothing": 1}, "22023"),
        ({"history": "never"}, "22023"),
    ],
)
def test_wrong_options(commander, source, options, code):
    with pytest.raises(psycopg.Error) as caught:
        create(commander, **options)
    assert caught.value.diag.sqlstate == code
    assert source.execute("SELECT count(*) FROM headrace.views").fetchone() == (0,)


def test_its_history_stays(commander, source):
    create(commander)
    with pytest.raises(psycopg.errors.ObjectInUse):
        commander.execute("CALL headrace.set_history('no_oversell', NULL)")
    commander.execute("CALL headrace.set_history('no_oversell', '1 microsecond')")
    with psycopg.connect(source.info.dsn) as locking:
        locking.execute("LOCK TABLE headrace.violations IN SHARE MODE")
        violate(source)
        covered(source)
        resolve(source)
        covered(source)
        asyncio.run(janitor.purge(Settings(source=source.info.dsn)))
    recorded(source, 1, 1)


def test_a_query_that_reads_the_clock(commander, source):
    """Only time passes: no transaction violates it."""
    source.execute("CREATE TABLE deliveries (id int PRIMARY KEY, due timestamptz)")
    query = "SELECT id FROM deliveries WHERE due < now()"
    create(commander, "punctual", query)
    source.execute("INSERT INTO deliveries VALUES (1, clock_timestamp() + interval '2 s')")
    [row] = recorded(source, 1, 0, "public.punctual")
    assert (row["xids"], row["transactions"]) == ([], 0)


def test_many_assertions_of_which_one_is_violated(commander, source):
    many(commander, source, 12)


@pytest.mark.slow
def test_two_hundred_assertions_of_which_one_is_violated(commander, source):
    many(commander, source, 200)


def many(commander, source, count: int) -> None:
    """The row of one moves; those of the others are not even written."""
    for n in range(count):
        query = f"SELECT id FROM reservations WHERE units = {1000 + n}"
        create(commander, f"a{n}", query)
    wait_until(
        lambda: (
            source.execute(
                "SELECT count(*) FROM headrace.assertions() WHERE state = 'holds'"
            ).fetchone()
            == (count,)
        ),
        "all hold",
    )
    versions = "SELECT view_id, xmin, ctid FROM headrace.assertion_states ORDER BY id"
    before = source.execute(versions).fetchall()
    violate(source, 1000 + count // 2)
    recorded(source, 1, 0, f"public.a{count // 2}")
    after = source.execute(versions).fetchall()
    assert [i for i in range(count) if before[i] != after[i]] == [count // 2]
    # Then all at once.
    source.execute(
        "INSERT INTO reservations (sku, units) SELECT 'lamp', 1000 + i FROM generate_series(0, %s) i",
        (count - 1,),
    )
    wait_until(
        lambda: source.execute("SELECT count(*) FROM headrace.violations").fetchone() == (count,),
        "all are violated",
    )


def test_a_large_change(commander, source):
    large(commander, source, 100_000)


@pytest.mark.slow
def test_a_change_of_a_million_rows(commander, source):
    large(commander, source, 1_000_000)


def large(commander, source, rows: int) -> None:
    create(commander, "three", "SELECT id, units, sku FROM reservations WHERE units = 3", sample=5)
    source.execute(
        "INSERT INTO reservations (sku, units) SELECT 'lamp', 3 FROM generate_series(1, %s)",
        (rows,),
    )
    [row] = recorded(source, 1, 0, "public.three")
    assert (row["rows"], len(row["sample"]), len(row["xids"])) == (rows, 5, 1)
    is_now(source, "violated", rows, "public.three")
    with pytest.raises(psycopg.errors.CheckViolation, match="is violated"):
        source.execute("CALL headrace.check_assertion('three')")
    source.execute("DELETE FROM reservations")
    recorded(source, 1, 1, "public.three")


def test_large_values_are_cut(commander, source):
    query = "SELECT sku, units FROM reservations WHERE units < 0"
    create(commander, "positive", query, sample=3)
    source.execute("INSERT INTO reservations (sku, units) VALUES (repeat('x', 1000000), -1)")
    [row] = recorded(source, 1, 0, "public.positive")
    [told] = row["sample"]
    assert list(told) == ["sku"]
    assert 1000 < len(told["sku"]) < 10_000
    assert told["sku"].endswith("x…")


def test_old_violations_are_deleted(commander, source, monkeypatch):
    create(commander)
    source.execute(
        "INSERT INTO headrace.violations (assertion_id, assertion, violated_at, rows, sample, xids,"
        " transactions, first_at, lsn, txid, resolved_at)"
        " SELECT a.id, 'public.no_oversell', now(), 1, '[]', '{}', 0, now(), '0/1', 0, now()"
        "   FROM headrace.assertion_states a, generate_series(1, 1500)"
    )
    violate(source)
    wait_until(lambda: len(violations(source)) == 1000, lambda: str(len(violations(source))))
    assert violations(source)[-1]["sample"] == [{"sku": "lamp", "oversold": "1"}]


def test_notifications_wait_for_room(commander, source, engine):
    """The queue of the server is not filled here: those that could not be sent are stored so."""
    create(commander)
    with psycopg.connect(source.info.dsn, autocommit=True) as listening:
        listening.execute('LISTEN "headrace.violations"')
        source.execute("UPDATE headrace.assertion_states SET unsent = '{one,two}'")
        violate(source)
        heard = [n.payload for n in listening.notifies(timeout=PATIENCE_S, stop_after=3)]
    assert sorted(heard)[:2] == ["one", "two"]
    wait_until(
        lambda: source.execute("SELECT unsent FROM headrace.assertion_states").fetchone() == ([],),
        "they are sent once",
    )


def test_one_that_cannot_be_judged_delays_no_other(engine, commander, source):
    """Its stored state is damaged."""
    create(commander, "broken")
    create(commander)
    is_now(source, "holds", 0)
    source.execute(
        "UPDATE headrace.assertion_states SET pending = '{}' WHERE view_id ="
        " (SELECT id FROM headrace.views WHERE view_name = 'broken')"
    )
    violate(source)
    recorded(source, 1, 0)
    resolve(source)
    recorded(source, 1, 1)
    assert violations(source, "public.broken") == []
    assert '"event": "assertion not judged"' in engine.log


def test_a_commit_and_the_clock(commander, source):
    """A commit violates it, and only time ends that."""
    source.execute("CREATE TABLE calls (id int PRIMARY KEY, at timestamptz)")
    query = "SELECT id FROM calls WHERE at > now() - interval '2 s'"
    create(commander, "quiet", query)
    source.execute("INSERT INTO calls VALUES (1, clock_timestamp())")
    [row] = recorded(source, 1, 1, "public.quiet")
    assert (len(row["xids"]), row["resolved_xids"]) == (1, [])
    assert row["resolved_at"] - row["violated_at"] >= timedelta(seconds=1.9)


@pytest.mark.slow
def test_kill_9_at_any_moment(engine, commander, source):
    """Each change is recorded once, after kills of the engine and of the worker."""
    create(commander)
    rng = random.Random(11)
    for n in range(1, 9):
        for change, over in ((violate, n - 1), (resolve, n)):
            change(source)
            at_any_moment(rng, 0.0, 0.2)
            if rng.random() < 0.5:
                engine.kill9()
                engine.start()
            elif (worker := engine.child("headrace.runtime.worker")) is not None:
                os.kill(worker, signal.SIGKILL)
            covered(source)
            recorded(source, n, over)
