"""Rows of ``headrace.events``, copied from the files of the processes.

An event is inserted once, however often it is read, because it has a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import psycopg

from headrace.event_files import LoggedEvent

AsyncConnection = psycopg.AsyncConnection[Any]

_OF_VIEW: Final = 200
_OF_NONE: Final = 5_000
_ALL: Final = 50_000
_KEPT: Final = "30 days"
_NAME_CHARS: Final = 300
"""Limit of a view's name, which is indexed: two identifiers with quotes."""

_NEWEST: Final = "SELECT process, max(at) AS at FROM headrace.events GROUP BY process"
# The connection string may lead to a database that was restored from a dump (``restored.py``).
_IS_OURS: Final = """
SELECT EXISTS (SELECT FROM headrace.meta m WHERE m.key = 'catalog_oid'
                  AND m.value = 'headrace.views'::regclass::oid::text)"""
# A dropped view has no row any more; its earlier events tell its owner.
_PUT: Final = """
INSERT INTO headrace.events (at, level, event, view, view_id, process, pid, fields, owner, seq)
SELECT e.at, e.level, e.event, left(coalesce(n.name, e.fields ->> 'view', e.fields ->> 'assertion'), %(chars)s), coalesce(e.view_id, n.id),
       e.process, e.pid, e.fields - 'view',
       coalesce(n.owner, (SELECT o.owner FROM headrace.events o
                           WHERE CASE WHEN e.view_id IS NULL THEN o.view = e.fields ->> 'view' ELSE o.view_id = e.view_id END
                             AND o.owner IS NOT NULL ORDER BY o.id DESC LIMIT 1)), e.seq
  FROM jsonb_to_recordset(%(rows)s) e(at timestamptz, seq bigint, level text, event text, process text, pid bigint,
                                      view_id bigint, fields jsonb)
  LEFT JOIN LATERAL (
       SELECT v.id, v.owner, format('%%I.%%I', v.schema_name, v.view_name) AS name FROM headrace.views v
        WHERE CASE WHEN e.view_id IS NULL
                   THEN format('%%I.%%I', v.schema_name, v.view_name) = coalesce(e.fields ->> 'view', e.fields ->> 'assertion')
                   ELSE v.id = e.view_id END LIMIT 1) n ON true
 ORDER BY e.at, e.process, e.seq
    ON CONFLICT DO NOTHING"""
_FORGET: Final = """
DELETE FROM headrace.events WHERE at < clock_timestamp() - %(kept)s::interval OR id = ANY (ARRAY(
    SELECT k.id FROM (SELECT e.id, e.view, row_number() OVER (PARTITION BY e.view ORDER BY e.id DESC) AS place
                        FROM headrace.events e) k
     WHERE k.place > CASE WHEN k.view IS NULL THEN %(of_none)s ELSE %(of_view)s END))"""
_FORGET_REST: Final = """
DELETE FROM headrace.events
 WHERE id <= (SELECT e.id FROM headrace.events e ORDER BY e.id DESC OFFSET %s LIMIT 1)"""


async def is_ours(conn: AsyncConnection) -> bool:
    """Return whether the catalog is that of an engine here, and not restored from a dump."""
    row = await (await conn.execute(_IS_OURS)).fetchone()
    return bool(row and row[0])


async def newest(conn: AsyncConnection) -> dict[str, datetime]:
    """Return the time of the last event of each process."""
    return dict(await (await conn.execute(_NEWEST)).fetchall())


async def put(conn: AsyncConnection, events: Sequence[LoggedEvent]) -> None:
    """Insert those of ``events`` that the table lacks."""
    rows = msgspec.json.encode(events).decode()
    await conn.execute(_PUT, {"rows": rows, "chars": _NAME_CHARS})


async def forget(conn: AsyncConnection) -> None:
    """Delete the rows that are beyond a limit."""
    limits = {"kept": _KEPT, "of_view": _OF_VIEW, "of_none": _OF_NONE}
    await conn.execute(_FORGET, limits)
    await conn.execute(_FORGET_REST, (_ALL,))
