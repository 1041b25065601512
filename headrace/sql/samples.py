"""Rows of ``headrace.samples``: the lag of views, at falling resolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import psycopg

AsyncConnection = psycopg.AsyncConnection[Any]

STEP_S: Final = 10
_COARSER: Final = ((60, STEP_S), (600, 60))
_KEPT: Final = {STEP_S: "16 min", 60: "361 min", 600: "7 days"}
# A stopped view gets a sample once a minute, and when it falls further behind: an idle engine
# should write next to nothing.
# Samples of a view that is being dropped or resynced are left out: the others would be lost with
# them, because of the foreign key.
_INSERT: Final = """
, present AS (
    SELECT v.id FROM headrace.views v WHERE v.id IN (SELECT m.view_id FROM made m)
       FOR KEY SHARE SKIP LOCKED)
INSERT INTO headrace.samples (view_id, step_s, at, batches, rows_per_s, p50_ms, p99_ms, max_ms, lag_ms, lag_bytes,
                              state_bytes)
SELECT m.* FROM made m JOIN present p ON p.id = m.view_id
    ON CONFLICT DO NOTHING"""
_PUT: Final = f"""
WITH made AS (
SELECT v.id AS view_id, %(step)s, b.at, coalesce(t.batches, 0), coalesce(t.rows_per_s, 0), t.p50_ms, t.p99_ms, t.max_ms,
       v.lag_ms, v.lag_bytes, t.state_bytes
  FROM headrace.view_states() v
  LEFT JOIN jsonb_to_recordset(%(told)s) t(id bigint, batches bigint, rows_per_s float8, p50_ms float8,
                                           p99_ms float8, max_ms float8, state_bytes bigint) ON t.id = v.id
 CROSS JOIN (SELECT date_bin(%(step)s * interval '1 s', clock_timestamp(), 'epoch') AS at) b
 WHERE t.batches > 0 OR v.lag_ms > 1000 AND (extract(second FROM b.at) < %(step)s OR abs(v.lag_bytes - coalesce((
       SELECT l.lag_bytes FROM headrace.samples l WHERE l.view_id = v.id AND l.step_s = %(step)s
        ORDER BY l.at DESC LIMIT 1), 0)) > 1000000)){_INSERT}"""  # noqa: S608  constants
_DUE: Final = """
SELECT extract(second FROM date_bin(%(step)s * interval '1 s', clock_timestamp(), 'epoch')) < %(step)s
    OR EXISTS (SELECT FROM headrace.held h WHERE h.kind = 'behind')
    OR EXISTS (SELECT FROM headrace.views v WHERE v.status NOT IN ('running', 'paused', 'sink_error'))
    OR coalesce((SELECT bool_or(p.heard IS NOT TRUE OR greatest(p.lag_ms, p.busy_ms) > 1000)
                   FROM headrace.worker_position() p), true)"""
_COARSEN: Final = f"""
WITH made AS (
SELECT s.view_id, %(step)s, date_bin(%(step)s * interval '1 s', s.at, 'epoch') AS begin, sum(s.batches),
       sum(s.rows_per_s) * %(fine)s / %(step)s, max(s.p50_ms), max(s.p99_ms), max(s.max_ms), max(s.lag_ms),
       max(s.lag_bytes), max(s.state_bytes)
  FROM headrace.samples s
 WHERE s.step_s = %(fine)s
   AND s.at < date_bin(%(step)s * interval '1 s', clock_timestamp(), 'epoch')
   AND s.at >= date_bin(%(step)s * interval '1 s', clock_timestamp(), 'epoch') - %(step)s * interval '3 s'
 GROUP BY s.view_id, begin){_INSERT}"""  # noqa: S608  constants
_FORGET: Final = """
DELETE FROM headrace.samples WHERE step_s = %s AND at < clock_timestamp() - %s::interval"""


async def due(conn: AsyncConnection) -> bool:
    """Return whether a view that was not written may lag; True once a minute in any case."""
    row = await (await conn.execute(_DUE, {"step": STEP_S})).fetchone()
    return bool(row and row[0])


async def put(conn: AsyncConnection, told: Sequence[dict[str, Any]]) -> None:
    """Add a sample of each view that was written or lags; ``told``: the worker's report by id."""
    await conn.execute(_PUT, {"step": STEP_S, "told": msgspec.json.encode(told).decode()})


async def coarsen(conn: AsyncConnection) -> None:
    """Sum up past samples and delete old ones; call it at least once a minute."""
    for step, fine in _COARSER:
        await conn.execute(_COARSEN, {"step": step, "fine": fine})
    for step, age in _KEPT.items():
        await conn.execute(_FORGET, (step, age))
