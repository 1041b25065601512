"""Writing the history of a txid, and the notification about it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql

from headrace.sql import history
from headrace.sql.history import HistoryPosition, Part
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def conn(catalog, database):
    with psycopg.connect(database, autocommit=True) as made:
        made.execute("CREATE TABLE v (id int, t text)")
        made.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query, result_oid)"
            " VALUES (1, 'public', 'v', '', 'v'::regclass)"
        )
        made.execute("INSERT INTO headrace.progress (view_id, txid, lsn) VALUES (1, 0, '0/1')")
        history.ask(made, 1, "1 day")
        yield made


def written(conn, txid: int) -> list[tuple]:
    """Store a row of ``txid`` and return the statement's rows."""
    text = history.writing(sql.Identifier("public", "v")).as_bytes(conn)
    values = history.values(1, HistoryPosition(txid, 1, None), 0, Part([1], '{"(1,a)"}'))
    with psycopg.RawCursor(conn) as cursor:
        return cursor.execute(text, values).fetchall()


def test_a_full_queue_of_notifications_keeps_nothing_from_being_written(conn, monkeypatch):
    """Any role can fill it: it listens, sleeps in a transaction, and notifies without end."""
    conn.execute("LISTEN headrace_v")
    assert len(written(conn, 1)) == 1
    assert "pg_notification_queue_usage" in history.ROOM
    monkeypatch.setattr(history, "ROOM", "pg_catalog.pg_notification_queue_usage() < 0")
    assert len(written(conn, 2)) == 1, "it is kept, as its answer tells"
    monkeypatch.undo()
    assert len(written(conn, 3)) == 1
    heard = [n.payload for n in conn.notifies(timeout=PATIENCE_S, stop_after=2)]
    assert heard == ["1", "3"]
    rows = conn.execute("SELECT txid, weights, data FROM headrace.history ORDER BY txid")
    assert rows.fetchall() == [(n, [1], ["(1,a)"]) for n in (1, 2, 3)]


READS = {
    "SELECT id, t FROM headrace.view_as_of(NULL::v, txid => 10)": (1, "a"),
    "SELECT change, after FROM headrace.view_diff('v', since => 0, until => 10)": (
        "added",
        "(1,a)",
    ),
}


@pytest.mark.parametrize(("query", "row"), READS.items(), ids=["as_of", "diff"])
def test_what_is_written_while_a_call_waits_for_a_txid_is_read(conn, database, query, row):
    """The view changes at txid 5, while the call waits for it to cover another view's txid 10."""
    conn.execute(
        "CREATE TABLE w (id int);"
        "INSERT INTO headrace.views (id, schema_name, view_name, query, result_oid)"
        " VALUES (2, 'public', 'w', '', 'w'::regclass);"
        "INSERT INTO headrace.progress (view_id, txid, lsn) VALUES (2, 10, '0/20')"
    )
    history.ask(conn, 2, "1 day")
    # This connection stands for the worker's.
    conn.execute(
        "UPDATE headrace.histories SET first_txid = 0, first_lsn = '0/1', first_at = now();"
        "UPDATE headrace.views SET status = 'running', owner = current_user::regrole;"
        "UPDATE headrace.progress SET epoch = 1;"
        "INSERT INTO headrace.meta (key, value) SELECT 'worker',"
        " pid || ' ' || extract(epoch FROM backend_start) FROM pg_stat_activity"
        " WHERE pid = pg_backend_pid()"
    )
    asked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1212437061"
    with psycopg.connect(database, autocommit=True) as other, ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: other.execute(query).fetchall())
        wait_until(lambda: conn.execute(asked).fetchone() == (1,) or found.done(), "it waits")
        assert not found.done(), found.result()
        with conn.transaction():
            conn.execute("INSERT INTO v VALUES (1, 'a')")
            assert len(written(conn, 5)) == 1
            conn.execute(
                "UPDATE headrace.progress SET txid = 5, lsn = '0/10' WHERE view_id = 1;"
                "INSERT INTO headrace.covered (view_id, lsn) VALUES (1, '0/20')"
            )
        assert found.result(PATIENCE_S) == [row]
