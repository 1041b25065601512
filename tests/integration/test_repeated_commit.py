"""The source sends the last transaction again, or it was restored; views that are right go on."""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs
from tests.faults.helpers import slot, wal_end
from tests.waiting import wait_until

QUERY = "SELECT k, count(*) AS n FROM t GROUP BY k"
LAST = {
    "unpublished": "INSERT INTO unread SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i",
    "undone": """
        BEGIN;
        SAVEPOINT s;
        INSERT INTO t SELECT i, 5 FROM generate_series(1000, 21000) i;
        ROLLBACK TO s;
        COMMIT""",
    "large": "INSERT INTO t SELECT i, 6 FROM generate_series(1000, 21000) i",
    "empty": "BEGIN; INSERT INTO t VALUES (-1, 1); DELETE FROM t WHERE id = -1; COMMIT",
}
"""Transactions that the server sends before their commit, as they are larger than its memory for
them; if the stream begins at their commit, it sends of them only published rows that were kept."""


@pytest.fixture
def engine(database, start_engine):
    with psycopg.connect(database, autocommit=True) as source:
        name = source.info.dbname
        source.execute(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
        source.execute(
            "CREATE TABLE t (id int PRIMARY KEY, k int); CREATE TABLE unread (i int, x text)"
        )
        source.execute("INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 30) i")
    # Nothing is confirmed, so the server can send everything again.
    rare = {"HEADRACE_CHECKPOINT_INTERVAL_MS": "600000", "HEADRACE_CHECKPOINT_TXIDS": "100000"}
    made = start_engine(database, **rare)
    with psycopg.connect(made.dsn, autocommit=True) as commander:
        commander.execute("CALL headrace.create_view('v', %s)", (QUERY,))
    return made


@pytest.mark.parametrize("last", LAST)
def test_a_stream_that_begins_again_is_continued(engine, source, last):
    made = source.execute("SELECT id FROM headrace.views").fetchall()
    own = engine.env["HEADRACE_SLOT_NAME"]
    for number in range(3):
        source.execute("DELETE FROM t WHERE id >= 1000")
        source.execute(LAST[last])
        # Before the position is confirmed, so that the server does send it again if it can.
        end = wal_end(source)
        wait_until(
            lambda end=end: (
                source.execute(
                    "SELECT write_lsn >= %s::pg_lsn FROM pg_stat_replication WHERE pid ="
                    " (SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s)",
                    (f"{end >> 32:X}/{end & 0xFFFFFFFF:X}", own),
                ).fetchone()
                == (True,)
            ),
            "it has been sent",
        )
        source.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
            " WHERE slot_name = %s",
            (own,),
        )
        source.execute("INSERT INTO t VALUES (%s, 9)", (2_000_000 + number,))
        source.execute("CALL headrace.wait_for('v')")
        assert differs(source, "v", QUERY) == []
    assert source.execute("SELECT id FROM headrace.views").fetchall() == made
    assert "continuity lost" not in engine.log
    assert slot(source, own)[0] > 0
