"""Calls on direct connections: the command table, end to end."""

from __future__ import annotations

import re

import psycopg
import pytest

from headrace.server import direct as direct_of_server
from headrace.sql import install
from tests.waiting import PATIENCE_S, wait_until


def direct(commander, **options) -> psycopg.Connection:
    return psycopg.connect(commander.source, autocommit=True, **options)


def test_call_with_progress(commander):
    notices = []
    with direct(commander) as conn:
        conn.add_notice_handler(lambda d: notices.append(d.message_primary))
        conn.execute("SET search_path = pg_temp; SET TimeZone = 'Asia/Tokyo'")
        conn.execute("CALL headrace.create_view('v', %s, '{\"sharing\": false}')", ("SELECT 'ä'",))
    (method, params) = commander.builder.calls[0]
    assert method == "create_view"
    assert (params["name"], params["query"], params["options"]) == (
        "v",
        "SELECT 'ä'",
        {"sharing": False},
    )
    assert params["caller"] == "postgres"
    assert params["settings"]["search_path"] == "pg_temp"
    assert params["settings"]["TimeZone"] == "Asia/Tokyo"
    assert any("25 %" in n for n in notices)
    assert re.search(r"^ready: 4 rows in \d+\.\d s$", notices[-1], re.MULTILINE)


def test_settings_are_the_same_on_both_ways(commander):
    with direct(commander) as conn, psycopg.connect(commander.dsn, autocommit=True) as other:
        for c in (conn, other):
            c.execute("CALL headrace.drop_view(name => 'v', if_exists => true)")
    first, second = (c[1] for c in commander.builder.calls)
    assert first == second


def test_error_has_all_its_fields(commander):
    with direct(commander) as conn, pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        conn.execute("CALL headrace.create_view('refused', 'SELECT 1')")
    diag = caught.value.diag
    assert diag.message_primary == "LEFT JOIN is not supported"
    detail = "The query has it here:\nLINE 1: SELECT 1\n               ^\nA detail."
    assert (diag.message_detail, diag.message_hint) == (detail, "A hint.")


def test_cancel(commander):
    with direct(commander) as conn:
        canceller = commander.cancel_when_started(conn)
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("CALL headrace.create_view('slow', 'SELECT 1')")
        canceller.join()
    assert commander.builder.cleaned.wait(PATIENCE_S)


def test_lost_caller(commander):
    conn = direct(commander)
    conn.pgconn.send_query(b"CALL headrace.create_view('slow', 'SELECT 1')")
    assert commander.builder.started.wait(PATIENCE_S)
    with direct(commander) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (conn.info.backend_pid,))
    assert commander.builder.cancelled.wait(PATIENCE_S)
    conn.close()


def test_in_a_transaction_the_call_waits_for_its_commit(commander):
    with direct(commander) as conn:
        with conn.transaction():
            conn.execute("SET LOCAL TimeZone = 'Asia/Tokyo'")
            conn.execute("CALL headrace.create_view('v', 'SELECT 1')")
            assert not commander.builder.calls
        state = "SELECT procedure, name, status FROM headrace.calls()"
        done = [("create_view", "v", "done")]
        wait_until(lambda: conn.execute(state).fetchall() == done, "it is done")
        [(method, params)] = commander.builder.calls
        assert (method, params["name"], params["caller"]) == ("create_view", "v", "postgres")
        assert params["settings"]["TimeZone"] == "Asia/Tokyo"


def test_in_a_transaction_a_call_that_makes_a_secret_is_refused(commander):
    with direct(commander) as conn:
        with pytest.raises(psycopg.errors.ActiveSqlTransaction) as caught, conn.transaction():
            conn.execute("CALL headrace.create_worker_token('w')")
        assert "autocommit" in caught.value.diag.message_hint
        assert conn.execute("SELECT count(*) FROM headrace.commands").fetchone() == (0,)


def test_caller_cannot_be_forged(commander):
    with direct(commander) as conn:
        conn.execute("DROP ROLE IF EXISTS f_plain; CREATE ROLE f_plain LOGIN")
        conn.execute("DROP ROLE IF EXISTS f_group; CREATE ROLE f_group; GRANT f_group TO f_plain")
        try:
            with direct(commander, user="f_plain") as plain:
                assert plain.execute("SELECT * FROM headrace.commands").fetchall() == []
                for sql in (
                    "INSERT INTO headrace.commands (caller) VALUES (10)",
                    "UPDATE headrace.views SET owner = 'f_plain'",
                    "INSERT INTO headrace.meta VALUES ('commander', 'me')",
                ):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        plain.execute(sql)
                plain.execute("SET ROLE f_group")
                plain.execute("CALL headrace.drop_view('v')")
                plain.execute("RESET ROLE")
                plain.execute("CALL headrace.drop_view('v')")
                assert plain.execute("SELECT * FROM headrace.list_views()").fetchall() == []
                # The command of another role is invisible.
                conn.execute("CALL headrace.drop_view('mine')")
                number = conn.execute("SELECT max(id) FROM headrace.commands").fetchone()[0]
                ask = "SELECT done, failed ->> 'C' FROM headrace.check_command(%s, NULL)"
                assert plain.execute(ask, (number,)).fetchone() == (True, "42704")
        finally:
            conn.execute("DROP ROLE f_plain, f_group")
    callers = [c[1]["caller"] for c in commander.builder.calls]
    assert callers == ["f_group", "f_plain", "postgres"]


def test_hostile_search_path(commander):
    with direct(commander) as conn:
        conn.execute("CREATE SCHEMA evil; CREATE TABLE evil.hit (x text)")
        for signature in ('jsonb_build_object(VARIADIC "any")', "current_setting(text)"):
            if "VARIADIC" in signature:
                continue
            conn.execute(
                f"CREATE FUNCTION evil.{signature} RETURNS text LANGUAGE sql"
                " AS $$INSERT INTO evil.hit VALUES ('x') RETURNING x$$"
            )
        conn.execute("SET search_path = evil, pg_catalog")
        conn.execute("CALL headrace.drop_view('v')")
        conn.execute("SELECT * FROM headrace.list_views()")
        assert conn.execute("SELECT count(*) FROM evil.hit").fetchone() == (0,)


def test_engine_that_is_down_is_told(database):
    with psycopg.connect(database, autocommit=True) as conn:
        install.install(conn)
        with pytest.raises(psycopg.errors.CannotConnectNow, match="headrace is not running"):
            conn.execute("CALL headrace.drop_view('v')")
        assert conn.execute("SELECT * FROM headrace.list_views()").fetchall() == []


def test_command_table_survives_a_lost_connection(commander):
    with direct(commander) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'headrace commands' AND datname = current_database()"
        )
        conn.execute("CALL headrace.drop_view('v')")


HOSTILE = {
    "a number of more digits than are read": "to_jsonb(repeat('9', 5000)::numeric)",
    "deeper than is read": "(repeat('[', 3000) || repeat(']', 3000))::jsonb",
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("column", ["arguments", "settings"])
def test_a_row_that_cannot_be_read(commander, column, value):
    """Any role may insert a malformed row: it fails, and all other commands are executed."""
    other = {"arguments": "settings", "settings": "arguments"}[column]
    with direct(commander) as conn:
        number = conn.execute(
            f"INSERT INTO headrace.commands (procedure, {column}, {other})"
            f" SELECT 'drop_view', jsonb_build_object('name', {value}), '{{}}'"
            " RETURNING id"
        ).fetchone()[0]
        conn.execute("CALL headrace.drop_view('v')")
        status, error = conn.execute(
            "SELECT status, error FROM headrace.commands WHERE id = %s", (number,)
        ).fetchone()
        assert (status, error["C"]) == ("failed", "22023")
    assert [params["name"] for _, params in commander.builder.calls] == ["v"]


def test_a_command_that_was_taken_when_the_connection_broke(commander):
    """The row of the command says running, but no engine runs it: it becomes pending again."""
    with direct(commander) as conn:
        number = conn.execute(
            "WITH made AS (INSERT INTO headrace.commands (procedure, arguments, settings)"
            """ VALUES ('drop_view', '{"name": "v"}', '{}') RETURNING id)"""
            " SELECT id FROM made"
        ).fetchone()[0]
        wait_until(lambda: commander.builder.calls, "it is carried out")
        wait_until(lambda: state(conn, number) == "done", "its outcome is written")
        # After this call the engine knows that the outcome is written, and does not repeat it.
        conn.execute("CALL headrace.drop_view('v')")
        commander.builder.calls.clear()
        conn.execute(
            "UPDATE headrace.commands SET status = 'running', finished_at = NULL,"
            """ arguments = '{"name": "v"}' WHERE id = %s""",
            (number,),
        )
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'headrace commands'"
            " AND datname = current_database()"
        )
        wait_until(lambda: state(conn, number) == "done", "it is carried out after all")
    assert [method for method, _ in commander.builder.calls] == ["drop_view"]


def test_an_outcome_that_was_not_told_is_told_by_the_next_connection(commander, monkeypatch):
    """The outcome is written at once, not at the writer's next poll."""
    monkeypatch.setattr(direct_of_server, "IDLE_S", 3600.0)
    with direct(commander) as conn, direct(commander) as other:
        number = conn.execute(
            "INSERT INTO headrace.commands (procedure, arguments, settings) VALUES"
            """ ('create_view', '{"name": "held", "query": "SELECT 1"}', '{}')"""
            " RETURNING id"
        ).fetchone()[0]
        assert commander.builder.started.wait(PATIENCE_S)
        with other.transaction():
            other.execute("SELECT FROM headrace.commands WHERE id = %s FOR UPDATE", (number,))
            commander.builder.go_on()
            sessions = (
                "SELECT pid, wait_event_type FROM pg_stat_activity WHERE datname ="
                " current_database() AND application_name = 'headrace commands'"
            )
            for _ in range(2):  # the first attempt may be writing the progress
                (waits,) = wait_until(
                    lambda: [pid for pid, what in conn.execute(sessions) if what == "Lock"],
                    "it is being told",
                )
                conn.execute("SELECT pg_terminate_backend(%s, 5000)", (waits,))
        wait_until(lambda: state(conn, number) == "done", "it is told")


def test_a_command_that_runs_when_the_connection_breaks_runs_once(commander):
    with direct(commander) as conn:
        number = conn.execute(
            "INSERT INTO headrace.commands (procedure, arguments, settings) VALUES"
            """ ('create_view', '{"name": "held", "query": "SELECT 1"}', '{}')"""
            " RETURNING id"
        ).fetchone()[0]
        assert commander.builder.started.wait(PATIENCE_S)
        conn.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'headrace commands'"
            " AND datname = current_database()"
        )
        # When another command is executed, both connections exist again.
        wait_until(
            lambda: conn.execute("SELECT headrace.engine_running()").fetchone()[0],
            "it has connected again",
        )
        conn.execute("CALL headrace.drop_view('v')")
        commander.builder.go_on()
        wait_until(lambda: state(conn, number) == "done", "its outcome is written")
    methods = [method for method, _ in commander.builder.calls]
    assert methods == ["create_view", "drop_view"]


def state(conn: psycopg.Connection, number: int) -> str:
    (status,) = conn.execute(
        "SELECT status FROM headrace.commands WHERE id = %s", (number,)
    ).fetchone()
    return status
