"""Postgres' limits of a session also hold for its calls, on the port and directly."""

from __future__ import annotations

import psycopg
import pytest

from headrace.sql.verbs import VERBS

pytestmark = pytest.mark.shared_engine
TABLES = "CREATE TABLE t (id int PRIMARY KEY, g int); INSERT INTO t VALUES (1, 1)"
VIEWS = {"v": "SELECT g, count(*) AS n FROM t GROUP BY g"}
NEVER = "FFFF/0"
"""A position that no commit reaches."""


def wait(more="", *, prepared):
    """Return a call that waits for ever, in the extended or the simple protocol."""
    if prepared:
        return f"CALL headrace.wait_for('v', %s{more})", (NEVER,)
    return (f"CALL headrace.wait_for('v', '{NEVER}'{more})",)


@pytest.fixture(params=["through the port", "directly"])
def session(request, commander, source):
    return commander if request.param == "through the port" else source


@pytest.fixture
def reset(session):
    yield
    session.execute("RESET ALL")


@pytest.mark.parametrize("prepared", [True, False])
def test_a_waiting_session_is_not_idle(session, reset, prepared):
    """Twice in one session, which answers the next statement."""
    for _ in range(2):
        session.execute("SET idle_session_timeout = '300 ms'")
        with pytest.raises(psycopg.errors.QueryCanceled, match="canceling wait for view"):
            session.execute(*wait(", '0.8 s'", prepared=prepared))
        session.execute("SET idle_session_timeout = 0")
        assert session.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("prepared", [True, False])
def test_a_statement_timeout_ends_a_call(session, reset, prepared):
    session.execute("SET statement_timeout = '300 ms'")
    with pytest.raises(psycopg.errors.QueryCanceled, match="due to statement timeout"):
        session.execute(*wait(prepared=prepared))
    session.execute("SET statement_timeout = 0")
    session.execute("CALL headrace.wait_for('v')")


def test_a_read_only_session_changes_nothing(session, source, reset):
    session.execute("SET default_transaction_read_only = on")
    for call in (
        "create_view('w', 'SELECT id FROM t')",
        "drop_view('v')",
        "pause_view('v')",
        "resync_view('v')",
        "rename_view('v', 'w')",
    ):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="read-only transaction"):
            session.execute(f"CALL headrace.{call}")
    session.execute("SET default_transaction_read_only = off")
    rows = source.execute("SELECT name, status FROM headrace.list_views()").fetchall()
    assert rows == [("public.v", "running")]


def test_a_read_only_session_reads_its_writes_through_the_port(commander):
    commander.execute("SET default_transaction_read_only = on")
    try:
        commander.execute("CALL headrace.wait_for('v')")
        assert commander.execute("SELECT * FROM headrace.explain_view('v')").fetchall()
    finally:
        commander.execute("RESET default_transaction_read_only")


def test_every_verb_says_whether_it_reads():
    """Every verb that only reads returns rows, except ``wait_for``."""
    reading = {verb.name for verb in VERBS.values() if verb.reads}
    answering = {verb.name for verb in VERBS.values() if verb.answer is not None}
    assert reading - answering == {"wait_for"}
    assert answering - reading == {"create_worker_token", "rebalance"}
