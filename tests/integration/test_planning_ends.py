"""Planning ends with the call that asks for it, and delays no other call."""

from __future__ import annotations

import socket
import threading

import psycopg
import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = "CREATE TABLE t (id int PRIMARY KEY, k int, v int)"


def union(first: int, end: int) -> str:
    """Return a balanced tree of distinct arms: wide, so that no depth limit ends its planning."""
    if end - first > 1:
        middle = (first + end) // 2
        return f"({union(first, middle)}) UNION ALL ({union(middle, end)})"
    return (
        f"SELECT id, (SELECT max(v) FROM t u WHERE u.k < t.k + {first}) AS m"
        f" FROM t WHERE k <> {first}"
    )


LONG = union(0, 1_500)
"""A query whose planning takes far longer than a cancel."""
CALLS = {
    "create_view": "CALL headrace.create_view('long', $q${}$q$)",
    "check_view": "CALL headrace.check_view($q${}$q$)",
    "explain_view": "CALL headrace.explain($q${}$q$)",
    "lineage": "CALL headrace.explain($q${}$q$, 'lineage')",
    "advise": "CALL headrace.show_advice($q${}$q$)",
}
QUICK = (("create_view", "close"),)
PLANNING = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database()
   AND application_name = 'headrace builder' AND state = 'idle in transaction'
   AND now() > xact_start AND backend_xid IS NULL"""
"""Connections of the builder that are idle in a transaction, while it plans."""


@pytest.mark.parametrize(
    ("call", "end"),
    [
        pytest.param(call, end, marks=[] if (call, end) in QUICK else [pytest.mark.slow])
        for call in CALLS
        for end in ("cancel", "close")
    ],
)
def test_a_call_that_ends_ends_its_planning(call, end, engine, source):
    conn = psycopg.connect(engine.dsn, autocommit=True)
    failed = []

    def work():
        try:
            conn.execute(CALLS[call].format(LONG))
        except psycopg.Error as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: source.execute(PLANNING).fetchall() or failed, "it is planned")
    assert not failed
    xids = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_xid IS NOT NULL AND application_name = 'headrace builder'"
    )
    wait_until(lambda: source.execute(xids).fetchone() == (0,), "it has no xid")
    if end == "cancel":
        conn.cancel()
    else:
        _shut(conn)
    wait_until(lambda: not source.execute(PLANNING).fetchall(), "the planning has ended")
    thread.join()
    assert failed
    if end == "cancel":
        assert isinstance(failed[0], psycopg.errors.QueryCanceled)
    conn.close()
    source.execute("CALL headrace.create_view('short', 'SELECT id, k FROM t')")
    source.execute("CALL headrace.drop_view('short')")


def _shut(conn: psycopg.Connection) -> None:
    """Close the connection as a client that disappears does."""
    end = socket.socket(fileno=conn.pgconn.socket)
    end.shutdown(socket.SHUT_RDWR)
    end.detach()
