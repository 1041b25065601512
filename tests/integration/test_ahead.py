"""With ``wal_retention: local`` a view that is merely slow keeps no WAL on the source either."""

from __future__ import annotations

import itertools

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import wait_until

SLOW = 4242
"""While a session holds this advisory lock, a row takes a second."""
ROWS = 100
TABLES = f"""
CREATE FUNCTION slowly(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = {SLOW}) THEN
    PERFORM pg_sleep(1);
  END IF;
  RETURN v + 1;
END $$;
CREATE TABLE items (id int PRIMARY KEY);
"""
QUERY = "SELECT id, slowly(id) AS next FROM items"
VIEWS = {"v": QUERY}


def stream_row(conn: psycopg.Connection) -> dict[str, object]:
    """Return the row of the stream's queue in queues()."""
    with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        (row,) = cursor.execute("SELECT * FROM headrace.queues()").fetchall()
    assert row["queue"] == "stream"
    return row


def positions(source: psycopg.Connection, commander: psycopg.Connection) -> str:
    """Return where the slots, the queues and the view stand."""
    slots = source.execute(
        "SELECT slot_name, active, restart_lsn, confirmed_flush_lsn FROM pg_replication_slots"
    )
    queues = commander.execute("SELECT * FROM headrace.queues()")
    views = commander.execute("SELECT * FROM headrace.view_states()")
    return f"{slots.fetchall()}\n{queues.fetchall()}\n{views.fetchall()}"


@pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=pytest.mark.slow), True], ids=["goes on", "kill -9"]
)
@pytest.mark.engine_with(
    HEADRACE_WAL_RETENTION="local",
    HEADRACE_BUFFER_BYTES_MAX="2000",
    HEADRACE_BATCH_ROWS_MAX="1",
    HEADRACE_RECOMPUTE_BACKLOGS="false",
)
def test_a_slow_view_keeps_no_wal(engine, source, commander, killed):
    with psycopg.connect(engine.source, autocommit=True) as slow:
        slow.execute("SELECT pg_advisory_lock(%s)", (SLOW,))
        for i in range(ROWS):
            source.execute("INSERT INTO items VALUES (%s)", (i,))
            if i == ROWS // 2:
                half = source.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
        wait_until(
            lambda: source.execute(
                "SELECT bool_and(confirmed_flush_lsn >= %s::pg_lsn) FROM pg_replication_slots"
                " WHERE database = current_database()",
                (half,),
            ).fetchone()[0],
            lambda: f"the source may forget half of it, {half}: {positions(source, commander)}",
        )
        assert source.execute("SELECT count(*) < %s FROM v", (ROWS // 2,)).fetchone()[0]
        # The waiting rows are urgent: the view should be as fresh as possible.
        more = itertools.count(ROWS)

        def waits_long() -> bool:
            # The delay is measured by the source's clock, which comes with later commits.
            source.execute("INSERT INTO items VALUES (%s)", (next(more),))
            return stream_row(commander)["priority"] > 200

        wait_until(waits_long, "it waits long")
        row = stream_row(commander)
        assert (row["kind"], row["reader"], row["node"]) == ("stream", "all views", "")
        assert row["base_txid"] <= row["tail_txid"] <= row["head_txid"] < row["front_txid"]
        assert row["queued_rows"] >= row["front_txid"] - row["base_txid"] > 0
        assert 0 <= row["resident_pct"] <= 100
        if killed:
            engine.kill9()
    if killed:
        engine.start()
    wait_until(lambda: differs(source, "v", QUERY) == [], "the view has them all")
