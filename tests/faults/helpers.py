"""Helpers of the hazard tests: conditions to wait for, and facts about slot, worker and views."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg

from headrace.embedded.engine import EmbeddedEngine
from headrace.process import faults
from headrace.types import parse_lsn
from tests.waiting import wait_until

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
"""A function that never ends and ignores cancel requests if it is given the text ``poison``."""


def slot(conn: psycopg.Connection, name: str) -> tuple[int, int]:
    """Return the (confirmed, restart) positions of a slot."""
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


def signal_worker(engine: EmbeddedEngine, number: signal.Signals) -> None:
    pid = wait_until(lambda: engine.child(WORKER), "a worker")
    os.kill(pid, number)


def memory_peak_bytes(pid: int) -> int:
    """Return the peak resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def arm(traps: Path, point: str, how: str) -> None:
    """Let a fault point in ``traps`` (the directory in ``faults.ENV_DIR``) act once."""
    (traps / f"{point}{faults.SPRUNG}").unlink(missing_ok=True)
    draft = traps / f"{point}.draft"
    draft.write_text(how)
    draft.rename(traps / point)
