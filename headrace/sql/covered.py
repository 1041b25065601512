"""Rows of ``headrace.covered``: up to where views with a history lack nothing."""

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
# A view that is being exchanged by a resync is locked, and needs no row any more.
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
    """A view has everything committed before a position, and before a time."""

    view_id: int
    epoch: int
    """Of its owner, who says so."""
    lsn: str
    at: float | None
    """Seconds since 1970 on the server's clock; None: no time is known."""


@dataclass(frozen=True, slots=True)
class WalEnd:
    """Where the server's WAL ends."""

    lsn: int
    """As ``pg_current_wal_insert_lsn()`` gives it (``types.record_end``)."""
    flushed: bool
    block: int
    segment: int


def asked_as(view_id: int) -> int:
    """Return the second key of the advisory lock of whoever asks for a view."""
    return view_id % _MODULUS


def wal_end(conn: Connection) -> WalEnd:
    """Return where the WAL ends; what is not flushed is flushed by the way, or is in a moment."""
    row = conn.execute(_END).fetchone()
    assert row is not None, "it has no FROM"
    if row[1]:
        # The stream sends only what is flushed, and of an idle server nobody flushes the rest.
        conn.execute(_FLUSH)
    return WalEnd(int(row[0]), not row[1], int(row[2]), int(row[3]))


def put(conn: Connection, told: Sequence[Covered]) -> None:
    """Store what is covered, of views that are still owned by who says so, if it is news."""
    if told:
        conn.execute(_PUT, (msgspec.json.encode(told).decode(),))
