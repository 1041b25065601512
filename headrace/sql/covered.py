"""Rows of ``headrace.covered``: positions up to which views with a history are complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import psycopg

Connection = psycopg.Connection[Any]

ASK: Final = 0x4844_5245
"""First key of the advisory lock that ``await_history()`` takes; the second is ``asked_as``."""
_MODULUS: Final = 2_147_483_647
# Everything committed before the insert position is in the WAL before it, flushed or not.
_END: Final = """
SELECT pg_catalog.pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
       pg_catalog.pg_current_wal_insert_lsn() > pg_catalog.pg_current_wal_flush_lsn(),
       pg_catalog.current_setting('wal_block_size')::bigint,
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))"""
_FLUSH: Final = "SELECT pg_catalog.pg_logical_emit_message(true, 'headrace', '')"
# A resync that is exchanging a view holds the lock; that view needs no row any more.
_PUT: Final = """
WITH told AS (
    SELECT * FROM jsonb_to_recordset(%s) t(view_id bigint, epoch bigint, lsn text, at float8)),
 mine AS MATERIALIZED (
    SELECT t.view_id, t.lsn::pg_lsn AS lsn, to_timestamp(t.at) AS at
      FROM headrace.progress p JOIN told t ON t.view_id = p.view_id AND t.epoch = p.epoch
     WHERE EXISTS (SELECT FROM headrace.histories h WHERE h.view_id = p.view_id)
       FOR KEY SHARE OF p SKIP LOCKED)
INSERT INTO headrace.covered AS c (view_id, lsn, at) SELECT m.view_id, m.lsn, m.at FROM mine m
    ON CONFLICT (view_id) DO UPDATE SET lsn = greatest(c.lsn, EXCLUDED.lsn), at = greatest(c.at, EXCLUDED.at)
 WHERE c.lsn < EXCLUDED.lsn OR EXCLUDED.at > c.at OR c.at IS NULL"""


@dataclass(frozen=True, slots=True)
class Covered:
    """Position and time before which a view has every commit."""

    view_id: int
    epoch: int
    """Epoch of the owner that reports it."""
    lsn: str
    at: float | None
    """Seconds since 1970 on the server's clock; None: unknown."""


@dataclass(frozen=True, slots=True)
class WalEnd:
    """End of the server's WAL."""

    lsn: int
    """As ``pg_current_wal_insert_lsn()`` gives it (``types.record_end``)."""
    flushed: bool
    block: int
    segment: int


def asked_as(view_id: int) -> int:
    """Return the second key of the advisory lock that a caller takes to ask for a view."""
    return view_id % _MODULUS


def wal_end(conn: Connection) -> WalEnd:
    """Return the end of the WAL; request a flush where its last part is not flushed."""
    row = conn.execute(_END).fetchone()
    assert row is not None, "it has no FROM"
    if row[1]:
        # The stream sends flushed WAL only, and on an idle server the rest may stay unflushed.
        conn.execute(_FLUSH)
    return WalEnd(int(row[0]), not row[1], int(row[2]), int(row[3]))


def put(conn: Connection, told: Sequence[Covered]) -> None:
    """Store the reports of views that the reporter still owns, where they advance the row."""
    if told:
        conn.execute(_PUT, (msgspec.json.encode(told).decode(),))
