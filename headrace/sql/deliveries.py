"""Rows of ``headrace.webhook_deliveries``: requests to webhooks, until they are delivered."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.rows import class_row, tuple_row

Connection = psycopg.AsyncConnection[Any]

_PER_ASSERTION_MAX: Final = 4
"""Limit of the deliveries of one assertion that are returned at once."""
# The end of a violation is sent after its beginning, unless that is given up.
_DUE: Final = """
SELECT d.id::text, t.url
  FROM headrace.webhook_targets t CROSS JOIN LATERAL (
       SELECT d.id, d.due_at FROM headrace.webhook_deliveries d
        WHERE d.assertion_id = t.assertion_id AND d.status <> 'delivered' AND d.status = 'pending'
          AND d.due_at <= clock_timestamp() AND NOT d.id::text = ANY (%(under_way)s)
          AND NOT (d.event = 'resolved' AND EXISTS (
              SELECT FROM headrace.webhook_deliveries e
               WHERE e.violation_id = d.violation_id AND e.event = 'violated' AND e.status = 'pending'))
        ORDER BY d.violation_id, d.event DESC LIMIT %(most)s) d
 ORDER BY d.due_at"""
_NEXT: Final = """
SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8
  FROM headrace.webhook_deliveries WHERE status = 'pending' AND NOT id::text = ANY (%s)"""
_UNDELIVERED: Final = """
SELECT s.status, (SELECT count(*) FROM headrace.webhook_deliveries d
                   WHERE d.status = s.status AND d.status <> 'delivered')
  FROM unnest('{pending,failed}'::text[]) AS s (status)"""
_LOAD: Final = """
SELECT d.id::text, d.event, d.tries, t.url, t.secret, x.assertion, x.id AS violation,
       CASE d.event WHEN 'violated' THEN x.violated_at ELSE x.resolved_at END AS at,
       CASE d.event WHEN 'violated' THEN x.first_at ELSE x.resolved_first_at END AS first_at,
       CASE d.event WHEN 'violated' THEN x.lsn ELSE x.resolved_lsn END::text AS lsn,
       CASE d.event WHEN 'violated' THEN x.txid ELSE x.resolved_txid END AS txid,
       CASE d.event WHEN 'violated' THEN x.xids ELSE x.resolved_xids END AS xids,
       CASE d.event WHEN 'violated' THEN x.requests ELSE x.resolved_requests END AS requests,
       CASE d.event WHEN 'violated' THEN x.transactions ELSE x.resolved_transactions END AS transactions,
       CASE d.event WHEN 'violated' THEN x.rows ELSE 0 END AS rows, x.sample, r.oid IS NOT NULL AS owned,
       r.oid IS NOT NULL AND c.oid IS NOT NULL AND NOT c.relrowsecurity
           AND pg_catalog.has_table_privilege(r.oid, c.oid, 'SELECT') AS may_read
  FROM headrace.webhook_deliveries d
  JOIN headrace.webhook_targets t ON t.assertion_id = d.assertion_id
  JOIN headrace.violations x ON x.id = d.violation_id
  JOIN headrace.assertion_states a ON a.id = d.assertion_id
  JOIN headrace.views v ON v.id = a.view_id
  LEFT JOIN pg_catalog.pg_roles r ON r.oid = v.owner
  LEFT JOIN pg_catalog.pg_class c ON c.oid = v.result_oid
 WHERE d.id = %s::uuid AND d.status = 'pending'"""
_ENDED: Final = """
WITH ended AS (
    UPDATE headrace.webhook_deliveries d
       SET status = %(status)s, tries = d.tries + 1, error = %(error)s,
           due_at = clock_timestamp() + %(in_s)s * interval '1 second'
     WHERE d.id = %(id)s::uuid RETURNING d.violation_id, d.event)
UPDATE headrace.violations x SET webhook = %(status)s
  FROM ended e WHERE x.id = e.violation_id AND (e.event = 'resolved' OR x.resolved_at IS NULL)"""


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """Delivery to be attempted now."""

    id: str
    url: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivery with its contents."""

    id: str
    event: str
    tries: int
    """Number of failed attempts."""
    url: str
    secret: str
    assertion: str
    violation: int
    at: datetime
    first_at: datetime
    lsn: str
    txid: int
    xids: list[int]
    requests: list[str | None] | None
    transactions: int
    rows: int
    sample: Any
    owned: bool
    """Whether the assertion's owner exists."""
    may_read: bool
    """Whether the owner may read the rows."""


async def due(conn: Connection, under_way: Collection[str]) -> list[DueDelivery]:
    """Return deliveries that are due, a few of each assertion, but for those ``under_way``."""
    async with conn.cursor(row_factory=class_row(DueDelivery)) as cursor:
        values = {"under_way": list(under_way), "most": _PER_ASSERTION_MAX}
        return await (await cursor.execute(_DUE, values)).fetchall()


async def next_in_s(conn: Connection, under_way: Collection[str]) -> float | None:
    """Return the seconds until another delivery is due; None: none is pending."""
    row = await (await conn.execute(_NEXT, (list(under_way),))).fetchone()
    return None if row is None or row[0] is None else float(row[0])


async def load(conn: Connection, number: str) -> Delivery | None:
    """Return a pending delivery; None: it is gone."""
    async with conn.cursor(row_factory=class_row(Delivery)) as cursor:
        return await (await cursor.execute(_LOAD, (number,))).fetchone()


async def ended(
    conn: Connection, number: str, status: str, error: str | None, in_s: float = 0.0
) -> None:
    """Store the outcome of an attempt; ``in_s``: seconds until the next one, if it is pending."""
    values = {"id": number, "status": status, "error": error, "in_s": in_s}
    await conn.execute(_ENDED, values)


async def undelivered(conn: Connection) -> dict[str, int]:
    """Return the number of deliveries that are pending, and of those that have failed."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        return dict(await (await cursor.execute(_UNDELIVERED)).fetchall())
