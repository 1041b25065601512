"""Rows of ``headrace.assertion_states`` and ``headrace.violations``, as the commander writes them.

It reads the changes of an assertion's rows from the view's history, never from the result table: a
table of another role could take its place.

* Invariant: a violation is written in the transaction that moves ``txid`` of its assertion past
  the changes that it results from; so once, also if a process is killed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
import psycopg
from psycopg.rows import class_row

from headrace.sql.assertions import chars_of
from headrace.types import format_lsn

Connection = psycopg.AsyncConnection[Any]

CHANNEL: Final = "headrace.violations"
"""Channel of the notifications."""
XIDS_TOLD_MAX: Final = 16
"""Limit of the XIDs in a notification, which may have 8 000 bytes."""
TXIDS_MAX: Final = 500
"""Limit of the txids of one assertion that one transaction handles."""
_VIOLATIONS_MAX: Final = 1_000
"""Limit of the violations that are kept of one assertion."""
_DELIVERIES_MAX: Final = 1_000
"""Limit of the deliveries of one assertion that are pending."""
_UNSENT_MAX: Final = 100
"""Limit of the notifications of one assertion that wait for room."""

# A row that a population has locked is left for the next round.
_TAKE: Final = """
SELECT a.id, a.view_id, h.id AS history_id,
       pg_catalog.format('%%I.%%I', v.schema_name, v.view_name) AS name,
       ARRAY(SELECT c ->> 'name' FROM pg_catalog.jsonb_array_elements(v.columns)
             WITH ORDINALITY AS c (c, n) ORDER BY c.n) AS columns,
       a.on_violation, a.sample, coalesce(r.relrowsecurity, false) AS hidden, a.txid, a.count,
       (a.lsn - '0/0')::bigint AS lsn, a.since, a.pending::text AS pending, a.violation_id,
       a.fill_txid, a.fill_rows, a.fill_sample, (a.fill_lsn - '0/0')::bigint AS fill_lsn,
       a.fill_at, a.fill_at + a.grace AS fill_due_at
  FROM headrace.assertion_states a
  JOIN headrace.histories h ON h.view_id = a.view_id
  JOIN headrace.views v ON v.id = a.view_id
  LEFT JOIN pg_catalog.pg_class r ON r.oid = v.result_oid
 WHERE NOT a.id = ANY (%(skipped)s) AND (%(one)s::bigint IS NULL OR a.id = %(one)s)
   AND (a.id = ANY (%(covered)s) OR a.fill_txid > a.txid
        OR EXISTS (SELECT FROM headrace.history c WHERE c.history_id = h.id AND c.txid > a.txid))
 ORDER BY a.id FOR NO KEY UPDATE OF a SKIP LOCKED"""
_CHANGES: Final = """
SELECT a.id, c.txid, (c.lsn - '0/0')::bigint AS lsn, c.at, c.at + a.grace AS due_at, c.net,
       coalesce(c.first_at, c.at) AS first_at, coalesce(c.transactions, 0) AS transactions,
       coalesce(c.xids, '{}') AS xids, coalesce(c.requests, '{}') AS requests
  FROM headrace.assertion_states a JOIN headrace.histories h ON h.view_id = a.view_id
 CROSS JOIN LATERAL (
       SELECT c.txid, min(c.lsn) AS lsn, min(c.commit_at) AS at, sum(c.net)::bigint AS net,
              min(c.first_at) AS first_at, min(c.transactions) AS transactions, min(c.xids) AS xids,
              min(c.requests) AS requests
         FROM headrace.history c WHERE c.history_id = h.id AND c.txid > a.txid
        GROUP BY c.txid ORDER BY c.txid LIMIT %(most)s) c
 WHERE a.id = ANY (%(ids)s) ORDER BY a.id, c.txid"""
# The first part has a megabyte of rows at most.
_SAMPLE: Final = """
SELECT pg_catalog.left(r.data, %(chars)s)
  FROM (SELECT c.weights, c.data FROM headrace.history c
         WHERE c.history_id = %(history)s AND c.txid = %(txid)s ORDER BY c.part LIMIT 1) c
 CROSS JOIN LATERAL unnest(c.weights, c.data) WITH ORDINALITY AS r (weight, data, place)
 WHERE r.weight > 0 ORDER BY r.place LIMIT %(sample)s"""
_MOVE: Final = """
UPDATE headrace.assertion_states SET txid = %(txid)s, count = %(count)s, lsn = %(lsn)s::pg_lsn,
       since = %(since)s, pending = %(pending)s::jsonb, violation_id = %(violation)s
 WHERE id = %(id)s"""
_VIOLATED: Final = """
INSERT INTO headrace.violations
       (assertion_id, assertion, violated_at, rows, sample, xids, transactions, first_at, lsn, txid, webhook, requests)
VALUES (%(id)s, %(name)s, %(at)s, %(rows)s, %(sample)s::jsonb, %(xids)s, %(transactions)s, %(first_at)s,
        %(lsn)s::pg_lsn, %(txid)s, %(webhook)s, %(requests)s::text[])
RETURNING id"""
_RESOLVED: Final = """
UPDATE headrace.violations SET resolved_at = %(at)s, resolved_xids = %(xids)s,
       resolved_transactions = %(transactions)s, resolved_first_at = %(first_at)s,
       resolved_lsn = %(lsn)s::pg_lsn, resolved_txid = %(txid)s, webhook = coalesce(%(webhook)s, webhook),
       resolved_requests = %(requests)s::text[]
 WHERE id = %(violation)s"""
# When the queue of notifications is full, a COMMIT with one fails: so it is not filled.
_NOTIFY: Final = """
SELECT pg_catalog.pg_notify(%(channel)s, %(payload)s)
 WHERE pg_catalog.pg_notification_queue_usage() < 0.5"""
_KEEP_UNSENT: Final = """
UPDATE headrace.assertion_states SET unsent = unsent || %(payload)s::text
 WHERE id = %(id)s AND pg_catalog.cardinality(unsent) < %(most)s"""
_SEND: Final = """
WITH waiting AS MATERIALIZED (
    SELECT a.id, a.unsent FROM headrace.assertion_states a
     WHERE a.unsent <> '{}' AND pg_catalog.pg_notification_queue_usage() < 0.5
     ORDER BY a.id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED),
sent AS (
    UPDATE headrace.assertion_states a SET unsent = '{}' FROM waiting w WHERE a.id = w.id)
SELECT count(pg_catalog.pg_notify(%(channel)s, u.payload)::text)
  FROM waiting w CROSS JOIN LATERAL unnest(w.unsent) WITH ORDINALITY AS u (payload, place)"""
_DELIVER: Final = """
INSERT INTO headrace.webhook_deliveries (assertion_id, violation_id, event, status, error)
SELECT %(id)s, %(violation)s, %(event)s, CASE WHEN w.full THEN 'failed' ELSE 'pending' END,
       CASE WHEN w.full THEN 'too many deliveries are pending' END
  FROM (SELECT count(*) >= %(most)s AS full FROM headrace.webhook_deliveries
         WHERE assertion_id = %(id)s AND status = 'pending') w"""
_TRIM: Final = """
DELETE FROM headrace.violations x WHERE x.assertion_id = ANY (%(ids)s) AND x.resolved_at IS NOT NULL
   AND x.webhook IS DISTINCT FROM 'pending' AND x.id <= (
       SELECT o.id FROM headrace.violations o WHERE o.assertion_id = x.assertion_id
        ORDER BY o.id DESC OFFSET %(most)s LIMIT 1)"""
# Assertions that a time, and not only a change, may lead to a report: of a violation that lasts, or
# of contents that a population has changed at an earlier position than the last judged change.
_WAITING: Final = """
SELECT a.id, pg_catalog.format('%I.%I', v.schema_name, v.view_name) AS name, n.now,
       coalesce(greatest(extract(epoch FROM (a.pending ->> 'due_at')::timestamptz - n.now), 0), 0)::float8 AS in_s
  FROM headrace.assertion_states a JOIN headrace.views v ON v.id = a.view_id
 CROSS JOIN (SELECT clock_timestamp() AS now) n
 WHERE a.count >= 0 AND (a.pending IS NOT NULL OR (a.count > 0) <> (a.violation_id IS NOT NULL))"""


class BatchMark(msgspec.Struct, frozen=True):
    """The batch after which an assertion's rows changed between none and some."""

    txid: int
    lsn: int
    at: datetime
    """Commit time of its last transaction."""
    first_at: datetime
    """Commit time of its first transaction."""
    transactions: int = 0
    xids: list[int] = []
    requests: list[str | None] = []
    """Request id of each of ``xids``; empty: none has one."""


class PendingViolation(msgspec.Struct, frozen=True):
    """A violation that is not reported yet."""

    mark: BatchMark
    due_at: datetime
    """When it is to be reported, if it lasts."""
    rows: int
    sample: list[Any] | None = None
    """None: it is not read yet."""


@dataclass(frozen=True, slots=True)
class RowsChange:
    """Changes of one txid."""

    mark: BatchMark
    due_at: datetime
    """When a violation that begins with it is to be reported."""
    net: int
    """Number of rows by which there are more after it."""


@dataclass(slots=True)
class AssertionState:
    """How far an assertion is judged, and the result."""

    txid: int
    """Number of the last change that is counted."""
    count: int
    """Rows of its table after that."""
    lsn: int | None
    """Position of the last change that was judged; None: there was none."""
    since: datetime
    """Commit time of the last change between none and some rows."""
    pending: PendingViolation | None
    open: bool
    """Whether a violation was reported that is not over."""


@dataclass(frozen=True, slots=True)
class TakenAssertion:
    """Assertion that is being judged; its row is locked."""

    id: int
    view_id: int
    history_id: int
    name: str
    columns: list[str]
    on_violation: str
    sample: int
    hidden: bool
    """Whether row security applies to its rows."""
    txid: int
    count: int
    lsn: int | None
    since: datetime
    pending: str | None
    violation_id: int | None
    fill_txid: int
    fill_rows: int
    fill_sample: list[str]
    fill_lsn: int
    fill_at: datetime
    fill_due_at: datetime


@dataclass(frozen=True, slots=True)
class WaitingAssertion:
    """Assertion that is to be judged at a time, without a change."""

    id: int
    name: str
    now: datetime
    """Time of the server."""
    in_s: float


_PENDING: Final = msgspec.json.Decoder(PendingViolation)


def pending_of(taken: TakenAssertion) -> PendingViolation | None:
    """Return the stored violation that is not reported yet."""
    return None if taken.pending is None else _PENDING.decode(taken.pending)


async def take(
    conn: Connection, covered: Collection[int], skipped: Collection[int], one: int | None
) -> list[TakenAssertion]:
    """Lock the assertions that are to be judged: those with changes, and those in ``covered``.

    ``skipped``: not these.  ``one``: only this one.
    """
    values = {"covered": list(covered), "skipped": list(skipped), "one": one}
    async with conn.cursor(row_factory=class_row(TakenAssertion)) as cursor:
        return await (await cursor.execute(_TAKE, values)).fetchall()


async def ids(conn: Connection) -> list[int]:
    """Return the ids of all assertions."""
    rows = await conn.execute("SELECT id FROM headrace.assertion_states ORDER BY id")
    return [int(row[0]) for row in await rows.fetchall()]


async def changes(conn: Connection, taken: Collection[int]) -> dict[int, list[RowsChange]]:
    """Return the next changes of each assertion, ``TXIDS_MAX`` at most."""
    found: dict[int, list[RowsChange]] = {}
    cursor = await conn.execute(_CHANGES, {"ids": list(taken), "most": TXIDS_MAX})
    async for number, txid, lsn, at, due_at, net, first_at, count, xids, requests in cursor:
        mark = BatchMark(txid, lsn, at, first_at, count, xids, requests)
        found.setdefault(number, []).append(RowsChange(mark, due_at, net))
    return found


async def sample(conn: Connection, taken: TakenAssertion, txid: int) -> list[str]:
    """Return the texts of some rows that a txid has added, cut to a limit."""
    values = {
        **{"history": taken.history_id, "txid": txid, "sample": taken.sample},
        "chars": chars_of(taken.sample),
    }
    return [row[0] for row in await (await conn.execute(_SAMPLE, values)).fetchall()]


async def violated(conn: Connection, taken: TakenAssertion, what: PendingViolation) -> int:
    """Store a violation; return its id."""
    told = msgspec.json.encode(what.sample or []).decode()
    values = {"id": taken.id, "name": taken.name, "rows": what.rows, "sample": told}
    values["webhook"] = None if taken.on_violation == "notify" else "pending"
    row = await (await conn.execute(_VIOLATED, values | _columns(what.mark))).fetchone()
    assert row is not None, "it was inserted"
    return int(row[0])


async def resolved(
    conn: Connection, taken: TakenAssertion, violation: int, mark: BatchMark
) -> None:
    """Store the end of a violation."""
    webhook = None if taken.on_violation == "notify" else "pending"
    values = {"violation": violation, "webhook": webhook}
    await conn.execute(_RESOLVED, values | _columns(mark))


def _columns(mark: BatchMark) -> dict[str, Any]:
    return {
        **{
            "txid": mark.txid,
            "lsn": format_lsn(mark.lsn),
            "at": mark.at,
            "first_at": mark.first_at,
        },
        **{"transactions": mark.transactions, "xids": list(mark.xids)},
        "requests": list(mark.requests) or None,
    }


async def move(
    conn: Connection,
    number: int,
    state: AssertionState,
    violation: int | None,
) -> None:
    """Store how far assertion ``number`` is judged, and the result."""
    pending = None if state.pending is None else msgspec.json.encode(state.pending).decode()
    values = {
        **{"id": number, "txid": state.txid, "count": state.count, "since": state.since},
        **{"lsn": None if state.lsn is None else format_lsn(state.lsn)},
        **{"pending": pending, "violation": violation},
    }
    await conn.execute(_MOVE, values)


async def tell(conn: Connection, number: int, payload: Mapping[str, Any]) -> None:
    """Send a notification with the end of the transaction, or keep it until there is room."""
    text = msgspec.json.encode(payload).decode()
    cursor = await conn.execute(_NOTIFY, {"channel": CHANNEL, "payload": text})
    if await cursor.fetchone() is None:
        await conn.execute(_KEEP_UNSENT, {"id": number, "payload": text, "most": _UNSENT_MAX})


async def send_unsent(conn: Connection) -> None:
    """Send notifications that had to wait, if there is room."""
    await conn.execute(_SEND, {"channel": CHANNEL})


async def deliver(conn: Connection, number: int, violation: int, event: str) -> None:
    """Queue an event of a violation for the webhook of assertion ``number``."""
    values = {"id": number, "violation": violation, "event": event, "most": _DELIVERIES_MAX}
    await conn.execute(_DELIVER, values)


async def trim(conn: Connection, assertions: Collection[int]) -> None:
    """Delete the oldest violations of each assertion beyond the limit."""
    await conn.execute(_TRIM, {"ids": list(assertions), "most": _VIOLATIONS_MAX})


async def waiting(conn: Connection) -> list[WaitingAssertion]:
    """Return the assertions that are to be judged at a time."""
    async with conn.cursor(row_factory=class_row(WaitingAssertion)) as cursor:
        return await (await cursor.execute(_WAITING)).fetchall()
