"""Rows of ``headrace.progress``, and their compare-and-set: a txid's rows appear exactly once.

* Invariant 1: rows and progress change in one Postgres transaction.
* Invariant 2: progress of a view moves only from the txid it was last written at (which its
  owner knows) to a later one, guarded by the owner's epoch.  A txid that does not change the view
  does not move it, so progress may skip txids, but never one with changes.  So it says when the
  view last changed, and not how far the view is complete (``runtime/watermark.py``).
* Invariant 4: all views that a txid changes move together, in one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg

from headrace.errors import BugError, FencedError
from headrace.postgres.pipelined import Sent
from headrace.types import Lsn, Txid, format_lsn, parse_lsn

Connection = psycopg.Connection[Any]
_SEEN: Final = """
SELECT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
   AND pg_catalog.current_setting('archive_mode') = 'off'
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_type = 'physical')
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_stat_replication r
        WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                           WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_stat_activity a
        WHERE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid()
          AND pg_catalog.age(a.backend_xmin) >= pg_catalog.age(p.xmin))
  FROM headrace.progress p WHERE p.view_id = %s"""
"""A snapshot contains the commit of a transaction that is older than all it sees as running."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The last change of a result table: its row in ``headrace.progress``."""

    view_id: int
    epoch: int
    txid: Txid
    lsn: Lsn


def begin(conn: Connection, view_id: int, txid: int, lsn: str) -> None:
    """Insert the first progress of a view, up to where its population read."""
    conn.execute(
        "INSERT INTO headrace.progress (view_id, txid, lsn, applied_at)"
        " VALUES (%s, %s, %s, clock_timestamp())",
        (view_id, txid, lsn),
    )


def carried(conn: Connection, before: int, after: int) -> Callable[[], None]:
    """Read the progress of view ``before``; return a function that inserts it for ``after``."""
    row = conn.execute(
        "SELECT txid, attempt, lsn::text, source_commit_at, applied_at"
        " FROM headrace.progress WHERE view_id = %s",
        (before,),
    ).fetchone()

    def put() -> None:
        conn.execute(
            "INSERT INTO headrace.progress"
            " (view_id, txid, attempt, lsn, source_commit_at, applied_at)"
            " VALUES (%s, %s, %s, %s::pg_lsn, %s, %s)",
            (after, *(row or ())),
        )

    return put


def end(conn: Connection, view_id: int) -> None:
    """End the ownership of a view: a process that still writes it finds no progress to move."""
    conn.execute("DELETE FROM headrace.progress WHERE view_id = %s", (view_id,))


def written(conn: Connection, view_id: int) -> Txid | None:
    """Return the txid of a view's table; None: there is no such view."""
    row = conn.execute(
        "SELECT txid FROM headrace.progress WHERE view_id = %s", (view_id,)
    ).fetchone()
    return None if row is None else Txid(row[0])


def seen_by_all(conn: Connection, view_id: int) -> bool:
    """Return whether every present and future snapshot of this database has a view's last change.

    Each write of the view's table also writes its progress row, whose xmin is compared.  Return
    False where it is not known, for example because standbys have their own snapshots.
    REQUIRES: the last write of the view is committed, and no other begins.
    """
    row = conn.execute(_SEEN, (view_id,)).fetchone()
    return row is not None and bool(row[0])


def take_over(conn: Connection, view_ids: Sequence[int]) -> dict[int, Progress]:
    """Become the owner of ``view_ids``: fence every earlier owner, and return its progress.

    The row locks wait for an earlier owner's transaction that is still being committed, so this
    also finds the outcome of a COMMIT whose answer was lost (H20).  Views without a progress row
    are not in the result.
    """
    rows = conn.execute(
        "UPDATE headrace.progress SET epoch = epoch + 1"
        " WHERE view_id = ANY (%s::bigint[]) RETURNING view_id, epoch, txid, lsn::text",
        (list(view_ids),),
    ).fetchall()
    return {
        int(view_id): Progress(view_id, epoch, Txid(txid), parse_lsn(lsn) if lsn else Lsn(0))
        for view_id, epoch, txid, lsn in rows
    }


def advance(
    conn: Connection,
    views: Sequence[Progress],
    txid: int,
    attempt: int,
    lsn: int,
    committed_at: datetime | None,
) -> list[int]:
    """Move ``views`` from the txids they hold to ``txid``; return the views that are gone.

    REQUIRES: an open transaction, to be rolled back unless the result is empty.

    Raises:
        FencedError: another engine owns one of the views.
        BugError: progress is not where its owner left it.
    """
    statement = advancing(views, txid, attempt, lsn, committed_at)
    with psycopg.RawCursor(conn) as cursor:
        rows = cursor.execute(statement.text, statement.values).fetchall()
    if len(rows) == len(views):
        return []
    moved = {row[0] for row in rows}
    return _explain(conn, [v for v in views if v.view_id not in moved], txid)


def advancing(
    views: Sequence[Progress],
    txid: int,
    attempt: int,
    lsn: int,
    committed_at: datetime | None,
) -> Sent:
    """Return the statement of ``advance``; it must return a row for each of ``views``."""
    return Sent(
        b"UPDATE headrace.progress p SET txid = $1, attempt = $2, lsn = $3::pg_lsn,"
        b" source_commit_at = $4, applied_at = pg_catalog.clock_timestamp()"
        b" FROM unnest($5::bigint[], $6::bigint[], $7::bigint[])"
        b"   AS mine(view_id, epoch, txid)"
        b" WHERE p.view_id = mine.view_id AND p.epoch = mine.epoch AND p.txid = mine.txid"
        b" RETURNING p.view_id",
        (
            txid, attempt, format_lsn(lsn), committed_at,
            [v.view_id for v in views], [v.epoch for v in views], [v.txid for v in views],
        ),
        kept=True,
    )  # fmt: skip


def _explain(conn: Connection, missed: Sequence[Progress], txid: int) -> list[int]:
    """Return the views that are gone; raise the errors of ``advance`` for the others."""
    found = {
        int(row[0]): (int(row[1]), int(row[2]))
        for row in conn.execute(
            "SELECT view_id, epoch, txid FROM headrace.progress WHERE view_id = ANY (%s::bigint[])",
            ([v.view_id for v in missed],),
        ).fetchall()
    }
    gone = []
    for view in missed:
        if view.view_id not in found:
            gone.append(view.view_id)
            continue
        epoch, stored = found[view.view_id]
        if epoch != view.epoch:
            raise FencedError(
                f"another engine has taken over view {view.view_id}",
                detail=f"Its epoch is {epoch}; this engine has {view.epoch}.",
            )
        state = "already done" if stored >= txid else "a gap"
        raise BugError(
            f"progress of view {view.view_id} is txid {stored}, not {view.txid},"
            f" when txid {txid} should be committed: {state}"
        )
    return gone
