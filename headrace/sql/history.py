"""Rows of ``headrace.histories`` and ``headrace.history``: the changes of views that keep them.

* Invariant 1: the changes of a txid are written in the transaction that writes them into the
  view's table, before its progress moves; so once, and those of a view in the order of its txids.
* Invariant 2: a history begins where the engine that owns the view by its epoch begins it, when
  no batch of the view is in flight.  A later owner asks again (``begun``), so no change is missed.
* Invariant 3: a published txid never stands for other changes.  Where a view is set back to an
  earlier txid, its ``shift`` grows, so the changes that follow have later numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.errors import ContinuityLost, SinkTableError, UserError
from headrace.sql.progress import Progress
from headrace.types import format_lsn

Connection = psycopg.Connection[Any]

PART_BYTES: Final = 1 << 20
"""Approximate size of the rows' text in one row of the history."""
XIDS_MAX: Final = 100
"""Limit of the transactions that are stored with the changes of one txid."""
ASSERTED: Final = "headrace.asserted"
"""Channel that announces changes of assertions; no view's channel has a dot there."""
_OTHERWISE: Final = (ContinuityLost.sqlstate, SinkTableError.sqlstate)
"""Errors of views whose table differed from the history: after a restore, or an edit by hand."""

_BEGUN: Final = """
WITH owned AS MATERIALIZED (
    SELECT p.view_id, p.txid, p.lsn FROM headrace.progress p
      JOIN unnest(%s::bigint[], %s::bigint[]) AS mine (view_id, epoch)
        ON p.view_id = mine.view_id AND p.epoch = mine.epoch
     WHERE EXISTS (SELECT FROM headrace.histories h WHERE h.view_id = p.view_id)
       FOR SHARE OF p),
begun AS (
    UPDATE headrace.histories h SET first_txid = o.txid + h.shift, first_lsn = o.lsn,
           first_at = clock_timestamp()
      FROM owned o WHERE h.view_id = o.view_id AND h.first_txid IS NULL)
SELECT h.view_id FROM headrace.histories h JOIN owned o ON o.view_id = h.view_id"""
# The row lock waits for a transaction that deletes the history; then there is no row.
_WRITE: Final = """
WITH kept AS MATERIALIZED (
    SELECT h.id, $2::bigint + h.shift AS txid, v.view_name,
           EXISTS (SELECT FROM headrace.assertion_states a WHERE a.view_id = h.view_id) AS asserted
      FROM headrace.histories h JOIN headrace.views v ON v.id = h.view_id
     WHERE h.view_id = $1::bigint FOR KEY SHARE OF h),
put AS (
    INSERT INTO headrace.history
           (history_id, txid, part, lsn, commit_at, row_count, weights, data,
            net, first_at, transactions, xids, requests)
    SELECT k.id, k.txid, $3::int, $4::pg_lsn,
           coalesce($5::timestamptz, pg_catalog.clock_timestamp()),
           pg_catalog.cardinality($6::bigint[]), $6::bigint[],
           ARRAY(SELECT (u.row::{row_type})::text
                   FROM unnest($7::text[]) WITH ORDINALITY AS u (row, place) ORDER BY u.place),
           CASE WHEN k.asserted THEN
                (SELECT pg_catalog.sum(w.weight)::bigint FROM unnest($6::bigint[]) AS w (weight)) END,
           $8::timestamptz, $9::int, $10::bigint[], $11::text[]
      FROM kept k)
SELECT (SELECT pg_catalog.pg_notify(
            ('headrace_' || k.view_name)::pg_catalog.name::text, k.txid::text) WHERE {room}),
       (SELECT pg_catalog.pg_notify({asserted}, k.id::text) WHERE k.asserted AND {room})
  FROM kept k"""
# A listener that sleeps in a transaction makes the server keep all notifications.  When that queue
# is full, a COMMIT with a notification fails, and this one would be ours.
ROOM: Final = "pg_catalog.pg_notification_queue_usage() OPERATOR(pg_catalog.<) 0.5"
_FOUND: Final = """
SELECT h.id, h.shift, h.first_txid IS NOT NULL, p.txid, v.view_name,
       v.status = 'error' AND v.sqlstate = ANY (%s)
  FROM headrace.histories h JOIN headrace.views v ON v.id = h.view_id
  LEFT JOIN headrace.progress p ON p.view_id = h.view_id
 WHERE h.view_id = %s FOR UPDATE OF h"""
# The oldest rows that have expired, up to whole txids; no more than one DELETE should remove.
_PURGE: Final = """
WITH bound AS MATERIALIZED (
    SELECT h.id, max(o.txid) AS txid
      FROM headrace.histories h
     CROSS JOIN LATERAL (
           SELECT c.txid FROM headrace.history c WHERE c.history_id = h.id
            ORDER BY c.txid, c.part LIMIT %(most)s) o
     WHERE o.txid < coalesce((
           SELECT min(c.txid) FROM headrace.history c
            WHERE c.history_id = h.id AND c.commit_at >= clock_timestamp() - h.keep),
           9223372036854775807)
       -- What an assertion's recorder has not read stays.
       AND NOT EXISTS (SELECT FROM headrace.assertion_states a
                        WHERE a.view_id = h.view_id AND a.txid < o.txid)
     GROUP BY h.id),
gone AS (
    DELETE FROM headrace.history c USING bound b
     WHERE c.history_id = b.id AND c.txid <= b.txid
    RETURNING c.history_id, c.lsn, c.commit_at),
last AS (
    SELECT g.history_id, max(g.lsn) AS lsn, max(g.commit_at) AS commit_at
      FROM gone g GROUP BY g.history_id)
UPDATE headrace.histories h
   SET first_txid = greatest(h.first_txid, b.txid),
       first_lsn = greatest(h.first_lsn, l.lsn), first_at = greatest(h.first_at, l.commit_at)
  FROM bound b JOIN last l ON l.history_id = b.id
 WHERE h.id = b.id"""

# Rows that an open transaction has locked are left for the next purge.
_PURGE_FEEDS: Final = """
DELETE FROM headrace.feeds f WHERE f.id IN (
    SELECT g.id FROM headrace.feeds g
     WHERE g.name IS NULL
        OR NOT EXISTS (SELECT FROM headrace.histories h WHERE h.id = g.history_id)
       FOR UPDATE SKIP LOCKED)"""


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """History of a view that is being populated again, locked by this transaction."""

    history_id: int
    txid: int
    """Txid of the exchange of its rows."""
    shift: int
    """Shift from that txid on."""
    whole: bool
    """Whether the changes up to now add up to the contents of the table."""
    lsn: str
    channel_of: str
    """Name of the view."""


@dataclass(frozen=True, slots=True)
class Part:
    """Changes of one txid, as many as go into one row."""

    weights: list[int]
    data: str
    """Rows as a literal of text[], each a literal of the row type."""


@dataclass(frozen=True, slots=True)
class HistoryPosition:
    """Txid, position and commit time of changes."""

    txid: int
    lsn: int
    committed_at: datetime | None
    first_at: datetime | None = None
    """Commit time of the first transaction, if there were several."""
    transactions: int = 0
    xids: Sequence[int] = ()
    """XIDs of the first transactions."""
    requests: Sequence[str | None] = ()
    """Request id of each of ``xids``; empty: none has one."""


def interval(conn: Connection, text: str) -> str:
    """Return ``text`` as an interval that reads the same under any setting.

    Raises:
        UserError: 22023, it is not an interval, or not positive.
    """
    try:
        with conn.transaction():
            row = conn.execute(
                "SELECT %s::interval::text, %s::interval > '0'"
                " AND now() - %s::interval IS NOT NULL",
                (text, text, text),
            ).fetchone()
    except psycopg.DataError as error:
        raise _no_interval(text, error.diag.message_primary) from error
    if row is None or not row[1]:
        raise _no_interval(text, "It is not positive.")
    return str(row[0])


def _no_interval(text: str, detail: str | None) -> UserError:
    return UserError(
        f'a history cannot be kept for "{text}"',
        detail=detail,
        hint="Write an interval, for example '2 hours'.",
    )


def ask(conn: Connection, view_id: int, keep: str) -> None:
    """Keep the changes of a view for ``keep``; a new history begins when the view's owner does."""
    conn.execute(
        "INSERT INTO headrace.histories (view_id, result_oid, keep)"
        " SELECT v.id, v.result_oid, %s::interval FROM headrace.views v WHERE v.id = %s"
        " ON CONFLICT (view_id) DO UPDATE SET keep = EXCLUDED.keep",
        (keep, view_id),
    )
    conn.execute(
        "UPDATE headrace.views SET options = options"
        " || pg_catalog.jsonb_build_object('history', %s::text) WHERE id = %s",
        (keep, view_id),
    )


def end(conn: Connection, view_id: int) -> bool:
    """Delete the history of a view with its feeds; return False if it kept none."""
    conn.execute(
        "UPDATE headrace.views SET options = options - 'history' WHERE id = %s", (view_id,)
    )
    gone = conn.execute("DELETE FROM headrace.histories WHERE view_id = %s", (view_id,))
    return gone.rowcount > 0


def begun(conn: Connection, owned: Mapping[int, Progress]) -> set[int]:
    """Return those of ``owned`` that keep a history; begin each that has not begun.

    REQUIRES: no batch of these views is in flight.
    """
    rows = conn.execute(_BEGUN, (list(owned), [p.epoch for p in owned.values()])).fetchall()
    return {int(row[0]) for row in rows}


def writing(row_type: sql.Composable) -> sql.Composed:
    """Return the statement that stores a part; it returns no row if the view keeps no history.

    REQUIRES: when it is executed, the table whose rows are of ``row_type`` is locked.
    """
    return sql.SQL(_WRITE).format(
        row_type=row_type, room=sql.SQL(ROOM), asserted=sql.Literal(ASSERTED)
    )


def values(view_id: int, at: HistoryPosition, number: int, part: Part) -> tuple[Any, ...]:
    """Return the parameters of ``writing`` for part ``number`` of its txid."""
    lsn = format_lsn(at.lsn)
    changes = (view_id, at.txid, number, lsn, at.committed_at, part.weights, part.data)
    requests = list(at.requests) or None
    return (*changes, at.first_at, at.transactions, list(at.xids), requests)


def find(conn: Connection, view_id: int, txid: int, lsn: str) -> StoredHistory | None:
    """Lock the history of a view that the caller's transaction sets to ``txid`` and ``lsn``.

    Return None if it keeps none.
    REQUIRES: the view is not written any more, and its progress row still exists.
    """
    row = conn.execute(_FOUND, (list(_OTHERWISE), view_id)).fetchone()
    if row is None:
        return None
    written = txid if row[3] is None else int(row[3]) + 1
    told = max(written, txid) + int(row[1])
    return StoredHistory(
        int(row[0]), told, told - txid, bool(row[2] and not row[5]), lsn, str(row[4])
    )


def put_difference(
    conn: Connection,
    kept: StoredHistory,
    old: tuple[sql.Composable, sql.Composable],
    new: tuple[sql.Composable, sql.Composable],
) -> None:
    """Store the difference between two tables as the changes of one txid.

    ``old``, ``new``: the table with its alias, and the expression for the text of its row.
    """
    conn.execute(
        sql.SQL(
            "INSERT INTO headrace.history"
            " (history_id, txid, part, lsn, commit_at, row_count, weights, data, net)"
            " SELECT {id}, {txid}, p.part, {lsn}::pg_lsn, clock_timestamp(), count(*),"
            "        array_agg(p.weight), array_agg(p.image), sum(p.weight)::bigint"
            "   FROM (SELECT d.image, d.weight,"
            "                (sum(length(d.image) + 16) OVER (ROWS UNBOUNDED PRECEDING)"
            "                 / {bytes}) AS part"
            "           FROM (SELECT i.image, sum(i.weight)::bigint AS weight"
            "                   FROM (SELECT {have} AS image, -1 AS weight FROM {old}"
            "                          UNION ALL SELECT {want}, 1 FROM {new}) i"
            "                  GROUP BY i.image HAVING sum(i.weight) <> 0) d) p"
            "  GROUP BY p.part"
        ).format(
            id=sql.Literal(kept.history_id),
            txid=sql.Literal(kept.txid),
            lsn=sql.Literal(kept.lsn),
            bytes=sql.Literal(PART_BYTES),
            have=old[1],
            old=old[0],
            want=new[1],
            new=new[0],
        )
    )


def go_on(conn: Connection, kept: StoredHistory, result_oid: int, *, anew: bool) -> None:
    """Continue the history after a population; ``anew``: without the earlier changes."""
    if anew:
        conn.execute("DELETE FROM headrace.history WHERE history_id = %s", (kept.history_id,))
    conn.execute(
        "UPDATE headrace.histories SET result_oid = %(oid)s, shift = %(shift)s,"
        " first_txid = CASE WHEN %(anew)s THEN %(txid)s ELSE first_txid END,"
        " first_lsn = CASE WHEN %(anew)s THEN %(lsn)s::pg_lsn ELSE first_lsn END,"
        " first_at = CASE WHEN %(anew)s THEN clock_timestamp() ELSE first_at END"
        " WHERE id = %(id)s",
        {
            **{"oid": result_oid, "shift": kept.shift, "anew": anew, "txid": kept.txid},
            **{"lsn": kept.lsn, "id": kept.history_id},
        },
    )
    conn.execute(
        f"SELECT pg_catalog.pg_notify(('headrace_' || %s)::name::text, %s) WHERE {ROOM}",
        (kept.channel_of, str(kept.txid)),
    )


async def purge(conn: psycopg.AsyncConnection[Any], most: int) -> int:
    """Delete expired changes, about ``most`` rows of each view.

    Dropped feeds, and feeds without a history, are deleted as well.  Return the number of views
    whose changes were deleted.
    """
    await conn.execute(_PURGE_FEEDS)
    cursor = await conn.execute(_PURGE, {"most": most})
    return cursor.rowcount
