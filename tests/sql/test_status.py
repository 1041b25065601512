"""The table of a view's status changes, against a real catalog: only allowed ones are written."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.errors import BugError, DefiniteFailure
from headrace.sql import install, states
from headrace.sql.status import (
    BORN,
    OWNED,
    TRANSITIONS,
    UNFINISHED,
    CommandStatus,
    CursorState,
    Status,
    ways_to,
)

PAGE = Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md"


@pytest.fixture(scope="module")
def conn(databases):
    name = databases.take()
    dsn = make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as made:
        install.install(made)
        made.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query)"
            " VALUES (1, 'public', 'v', '')"
        )
        yield made
    databases.give_back(name)


def put(conn: psycopg.Connection, status: Status) -> None:
    conn.execute(
        "UPDATE headrace.views SET status = %s, message = 'before', sqlstate = '22012'", (status,)
    )


def row(conn: psycopg.Connection) -> tuple:
    return conn.execute("SELECT v.* FROM headrace.views v").fetchone()


@pytest.mark.parametrize("only", [False, True], ids=["any", "said"])
@pytest.mark.parametrize(("before", "to"), list(itertools.product(Status, Status)))
def test_a_status_changes_only_as_the_table_says(conn, before, to, only):
    put(conn, before)
    was = row(conn)
    error = DefiniteFailure("after")
    allowed = to in TRANSITIONS[before]
    if only and not allowed:
        with pytest.raises(BugError):
            states.become(conn, 1, to, error, only={before})
    else:
        said = {before} if only else None
        assert states.become(conn, 1, to, error, only=said) is allowed
    if not allowed:
        assert row(conn) == was
        return
    found = conn.execute("SELECT status, headrace.view_message(id), sqlstate FROM headrace.views")
    assert found.fetchone() == (to, "after", DefiniteFailure.sqlstate)
    again = row(conn)
    assert states.become(conn, 1, to, error) is False, "nothing is written twice"
    assert row(conn) == again


def test_from_other_statuses_than_those_that_are_said_nothing_changes(conn):
    for before, said in itertools.permutations(ways_to(Status.RUNNING), 2):
        put(conn, before)
        was = row(conn)
        assert not states.become(conn, 1, Status.RUNNING, only={said})
        assert row(conn) == was


def test_each_part_of_an_error_has_a_column_and_all_are_shown_as_one(conn):
    put(conn, Status.RUNNING)
    error = DefiniteFailure("m", culprit="row 1", detail="d", hint="h", sqlstate="22012")
    states.become(conn, 1, Status.ERROR, error)
    parts = "SELECT message, culprit, detail, hint, sqlstate, tried FROM headrace.views"
    assert conn.execute(parts).fetchone() == ("m", "row 1", "d", "h", "22012", None)
    assert states.message(conn, 1) == "m at row 1; d; h"
    conn.execute("UPDATE headrace.views SET tried = 'In vain.'")
    assert states.message(conn, 1) == "m at row 1; d; h In vain."
    states.reconsider(conn, 1, DefiniteFailure("altered", sqlstate="55000"))
    assert states.message(conn, 1) == "altered; before: m at row 1; d; h In vain."
    states.become(conn, 1, Status.ERROR, DefiniteFailure("\0 and \ud800"))
    assert states.message(conn, 1) == "\\0 and \\ud800"
    states.become(conn, 1, Status.RUNNING)
    assert conn.execute(parts).fetchone() == (None,) * 6
    assert states.message(conn, 1) is None
    # As an earlier version stored it.
    conn.execute("UPDATE headrace.views SET status = 'error', message = 'm; d; h In vain.'")
    (shown,) = conn.execute("SELECT message FROM headrace.list_views()").fetchone()
    assert shown == "m; d; h In vain."


@pytest.mark.parametrize("message", [None, "m"])
def test_what_was_tried_is_told_unless_the_view_was_stopped_anew(conn, message):
    put(conn, Status.ERROR)
    conn.execute("UPDATE headrace.views SET owner = current_user::regrole")
    again = "UPDATE headrace.views SET message = %s, tried = %s, note = 'waits'"
    seen = "SELECT tried, note FROM headrace.views"

    async def tell() -> None:
        dsn = make_conninfo(conn.info.dsn, password=conn.info.password)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as one:
            conn.execute(again, (message, None))
            (view,) = await states.stopped(one, ["22012"], "none")
            assert view.reason == (message or "")
            await states.record_attempt(one, view, "once")
            assert conn.execute(seen).fetchone() == ("once", None)
            for other in (("another", "once"), (message, "by another")):
                conn.execute(again, other)
                (found,) = await states.stopped(one, ["22012"], "none")
                await states.record_attempt(one, view, "late")
                assert conn.execute(seen).fetchone() == (other[1], "waits")
                await states.record_attempt(one, found, "twice")
                assert conn.execute(seen).fetchone() == ("twice", None)

    asyncio.run(tell())


@pytest.mark.parametrize(("table", "members"), [("views", Status), ("commands", CommandStatus)])
def test_the_catalog_knows_the_same_ones(conn, table, members):
    checks = conn.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE contype = 'c' AND conrelid = %s::regclass",
        (f"headrace.{table}",),
    ).fetchall()
    (told,) = [text for (text,) in checks if "status" in text]
    assert sorted(re.findall(r"'(\w+)'", told)) == sorted(members)


def test_list_views_shows_each_state_of_a_cursor(conn):
    [(text,)] = conn.execute("SELECT prosrc FROM pg_proc WHERE proname = 'view_states'").fetchall()
    assert set(CursorState) <= set(re.findall(r"'(\w+)'", text))
    assert {state.status for state in CursorState} == set(OWNED)


@pytest.mark.parametrize("cursor", [None, "catching_up"])
def test_a_view_that_is_written_while_it_catches_up_stays_late(conn, cursor):
    """Its report is older than its progress then; it counts until the cursor leads."""
    put(conn, Status.RUNNING)
    conn.execute(
        "CREATE TABLE shown (); UPDATE headrace.views SET result_oid = 'shown'::regclass,"
        " owner = current_user::regrole;"
        "INSERT INTO headrace.progress (view_id, epoch, txid, lsn) VALUES (1, 1, 7, '0/2000');"
        "INSERT INTO headrace.held (view_id, kind, what, since, lsn)"
        " VALUES (1, 'behind', '', clock_timestamp() - interval '5 s', '0/1000');"
        "INSERT INTO headrace.meta (key, value) SELECT 'worker',"
        " pid || ' ' || extract(epoch FROM backend_start) FROM pg_stat_activity"
        " WHERE pid = pg_backend_pid()"
    )
    wal = conn.execute("SELECT pg_current_wal_lsn()").fetchone()[0]
    conn.execute(f"SET application_name = 'headrace worker {wal}'")
    if cursor:
        conn.execute(
            "INSERT INTO headrace.held (view_id, kind, what, since)"
            " VALUES (1, 'cursor', %s, clock_timestamp())",
            (cursor,),
        )
    try:
        late, covered, shown = conn.execute(
            "SELECT lag_ms >= 5000, abs(pg_current_wal_lsn() - lag_bytes - '0/2000') < 8192, cursor"
            " FROM headrace.view_states()"
        ).fetchone()
        assert (late, covered) == (bool(cursor), bool(cursor))
        assert shown == (cursor or "leading")
    finally:
        conn.execute(
            "DELETE FROM headrace.held; DELETE FROM headrace.progress;"
            "DELETE FROM headrace.meta WHERE key = 'worker';"
            "UPDATE headrace.views SET result_oid = NULL; DROP TABLE shown"
        )


def test_a_view_is_as_old_as_the_last_batch_that_it_covers_while_the_engine_is_away(conn):
    """A view that did not change for long covers what the engine has confirmed for all views."""
    conn.execute("SELECT pg_create_logical_replication_slot('headrace_age', 'pgoutput')")
    put(conn, Status.RUNNING)
    conn.execute(
        "INSERT INTO headrace.views (id, schema_name, view_name, query, status) VALUES"
        " (2, 'public', 'w', '', 'running'), (3, 'public', 'x', '', 'paused');"
        "CREATE TABLE shown (); UPDATE headrace.views SET result_oid = 'shown'::regclass,"
        " owner = current_user::regrole;"
        "INSERT INTO headrace.meta (key, value) VALUES ('slot_name', 'headrace_age');"
        "INSERT INTO headrace.progress (view_id, epoch, txid, lsn, source_commit_at) VALUES"
        " (1, 1, 7, '0/1000', clock_timestamp() - interval '1 hour'),"
        " (2, 1, 9, '0/2000', clock_timestamp() - interval '1 minute'),"
        " (3, 1, 7, '0/1000', clock_timestamp() - interval '1 hour')"
    )
    try:
        minutes = "SELECT id, lag_ms / 60000, status FROM headrace.view_states() ORDER BY id"
        assert conn.execute(minutes).fetchall() == [
            (1, 1, "stopped"),
            (2, 1, "stopped"),
            (3, 60, "paused"),
        ]
        # A position that is not confirmed yet shows nothing of the other views.
        conn.execute("UPDATE headrace.progress SET lsn = 'FFFF/0' WHERE view_id = 2")
        assert conn.execute(minutes).fetchall()[0] == (1, 60, "stopped")
    finally:
        conn.execute(
            "SELECT pg_drop_replication_slot('headrace_age');"
            "DELETE FROM headrace.meta WHERE key = 'slot_name'; DELETE FROM headrace.progress;"
            "DELETE FROM headrace.views WHERE id > 1;"
            "UPDATE headrace.views SET result_oid = NULL; DROP TABLE shown"
        )


def test_each_is_reached_and_none_is_the_end():
    reached, new = set(), {BORN}
    while new:
        reached |= new
        new = {after for one in new for after in TRANSITIONS[one]} - reached
    # No view begins with it any more.
    assert reached == set(Status) - {Status.PENDING}
    assert set(TRANSITIONS) == set(Status)
    assert all(TRANSITIONS[one] - {one} for one in Status)
    assert {*UNFINISHED, *OWNED, Status.ERROR} == set(Status)


def test_the_page_has_the_table():
    told = re.findall(r"^\| `(\w+)` → \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert {
        Status(before): frozenset(map(Status, re.findall(r"`(\w+)`", after)))
        for before, after in told
    } == TRANSITIONS
