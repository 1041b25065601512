"""Writing the history of a txid, and the notification about it."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from headrace.sql import history, install
from headrace.sql.history import HistoryPosition, Part
from tests.waiting import PATIENCE_S


@pytest.fixture
def conn(database):
    with psycopg.connect(database, autocommit=True) as made:
        install.install(made)
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
