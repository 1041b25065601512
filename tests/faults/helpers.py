"""What the hazard tests share: conditions to wait for, and facts about slot, worker and views."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psycopg

from headrace.types import parse_lsn
from tests.waiting import wait_until as wait_until

WORKER = "headrace.runtime.worker"
ENDLESS = """
CREATE OR REPLACE FUNCTION endless(have text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    WHILE have = 'poison' LOOP
        BEGIN
            PERFORM pg_sleep(0.01);
        EXCEPTION WHEN query_canceled THEN NULL;
        END;
    END LOOP;
    RETURN have;
END $$
"""
"""What never ends, nor lets itself be cancelled, where it is given the text ``poison``."""


def slot(conn: psycopg.Connection, name: str) -> tuple[int, int]:
    """(confirmed, restart) positions of a slot."""
    row = conn.execute(
        "SELECT confirmed_flush_lsn::text, restart_lsn::text FROM pg_replication_slots"
        " WHERE slot_name = %s",
        (name,),
    ).fetchone()
    assert row is not None, "the slot is there"
    return parse_lsn(row[0]), parse_lsn(row[1])


def wal_end(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    return parse_lsn(row[0])


def status_of(
    conn: psycopg.Connection, name: str
) -> tuple[str, str | None, str | None]:
    """(status, SQLSTATE, message) of a view."""
    row = conn.execute(
        "SELECT status, sqlstate, headrace.view_message(id) FROM headrace.views WHERE view_name = %s",
        (name,),
    ).fetchone()
    assert row is not None, "the view is in the catalog"
    return row


def signal_worker(engine, number: signal.Signals) -> None:
    pid = wait_until(lambda: engine.child(WORKER), "a worker")
    os.kill(pid, number)


def memory_peak_bytes(pid: int) -> int:
    """The most memory a process has had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def same_text(conn: psycopg.Connection, view: str, query: str) -> list[Any]:
    """Values in which view and query differ, compared by their exact text."""
    rows = 'SELECT q::text COLLATE "C" FROM ({}) q'
    mine, wanted = rows.format(f"TABLE {view}"), rows.format(query)
    found = conn.execute(
        f"SELECT 'missing', * FROM (({wanted}) EXCEPT ALL ({mine})) m UNION ALL"
        f" SELECT 'extra', * FROM (({mine}) EXCEPT ALL ({wanted})) e"
    ).fetchall()
    # One line each: a row of many columns is not read otherwise.
    return [f"{side} {row}" for side, row in found]
