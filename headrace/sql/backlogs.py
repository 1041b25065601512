"""Running views that lag, with the cost of computing them anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

AsyncConnection = psycopg.AsyncConnection[Any]

_LAG_MS: Final = 3_000
"""A view that lags less than this is not listed."""
_BYTES: Final = 16 << 20
"""The same where the time is not known yet: WAL."""
_DUE: Final = """
SELECT EXISTS (SELECT FROM headrace.held h JOIN headrace.views v ON v.id = h.view_id
                WHERE h.kind = 'behind' AND v.status = 'running')
    OR EXISTS (SELECT FROM headrace.worker_position() p
                WHERE greatest(p.lag_ms, p.busy_ms) >= %(lag_ms)s OR p.lag_ms IS NULL)"""
# A history loses its changes in a resync, and that of a feeding view would populate others as well.
_LIST: Final = """
SELECT s.id, s.name, v.created_at::text AS made, r.rolname AS owner, s.cursor IS NOT DISTINCT FROM 'leading' AS leads,
       (pg_catalog.pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint AS wal,
       (greatest(s.lsn, h.lsn, CASE WHEN s.cursor = 'leading' THEN e.lsn END) - '0/0'::pg_lsn)::bigint AS covered,
       (v.watched #>> '{cost,seconds}')::float8 AS cost_s
  FROM headrace.view_states() s
  JOIN headrace.views v ON v.id = s.id
  JOIN pg_catalog.pg_roles r ON r.oid = v.owner
  LEFT JOIN headrace.held h ON h.view_id = v.id AND h.kind = 'behind'
  LEFT JOIN headrace.worker_position() e ON true
 WHERE s.status = 'running' AND v.watched ? 'cost' AND s.lsn IS NOT NULL
   AND (s.lag_ms >= %(lag_ms)s OR s.lag_ms IS NULL AND s.lag_bytes >= %(bytes)s)
   AND v.options ->> 'history' IS NULL AND v.options ->> 'from' IS NULL
   AND NOT EXISTS (SELECT FROM headrace.points p WHERE p.view_id = v.id)
 ORDER BY s.id"""


@dataclass(frozen=True, slots=True)
class LaggingView:
    """Running view that lags."""

    id: int
    name: str
    made: str
    owner: str
    leads: bool
    """Whether it still processes each batch with its commit group."""
    wal: int
    """LSN up to which the server has written."""
    covered: int
    """LSN before which the view has everything."""
    cost_s: float
    """Seconds that its last population took."""


async def lagging(conn: AsyncConnection) -> list[LaggingView]:
    """Return the running views that lag and may be computed anew."""
    values = {"lag_ms": _LAG_MS, "bytes": _BYTES}
    row = await (await conn.execute(_DUE, values)).fetchone()
    if not (row and row[0]):
        return []
    async with conn.cursor(row_factory=class_row(LaggingView)) as cursor:
        return await (await cursor.execute(_LIST, values)).fetchall()
