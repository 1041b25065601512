"""Queries of the console, run as the role of its user, under row security.

Each is a query that this role may run itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import psycopg

AsyncConnection = psycopg.AsyncConnection[Any]

SAMPLES_MAX: Final = 20_000
"""Limit over all views together."""
_ME: Final = """
SELECT current_user::text AS role, r.oid::bigint AS oid, current_database()::text AS database,
       r.rolcanlogin AND coalesce(r.rolvaliduntil > clock_timestamp(), true) AS welcome,
       coalesce(r.rolsuper OR (SELECT pg_has_role(n.nspowner, 'MEMBER') FROM pg_namespace n
                                WHERE n.nspname = 'headrace'), false) AS sees_all
  FROM pg_roles r WHERE r.rolname = current_user"""
_PROGRESS: Final = re.compile(
    r"it is being filled.*? \((?P<percent>\d+) %\)(?:, about (?P<left>[^;,]+) left)?"
)
_STATUS: Final = "SELECT fact, value, ok, hint FROM headrace.status()"
_VIEWS: Final = """
SELECT name, status, message, rows, lag_ms, lag_bytes, txid, owner::text AS owner, held_by,
       cursor, extract(epoch FROM since)::float8 AS since, p50_ms, p99_ms, rows_per_s, state_bytes
  FROM headrace.list_views()
 ORDER BY status IN ('error', 'sink_error', 'stopped') DESC LIMIT %s"""
# Those that need attention first, so that the limit leaves out others.
_ASSERTIONS: Final = """
SELECT name, state, rows, extract(epoch FROM since)::float8 AS since, reason, webhook
  FROM headrace.assertions() ORDER BY array_position('{violated,unknown}'::text[], state), name LIMIT %s"""
_SAMPLES: Final = """
SELECT format('%%I.%%I', v.schema_name, v.view_name) AS name, extract(epoch FROM s.at)::bigint AS at,
       s.p50_ms, s.p99_ms, s.lag_ms, s.rows_per_s
  FROM headrace.samples s JOIN headrace.views v ON v.id = s.view_id
 WHERE s.step_s = 10 AND s.at > to_timestamp(%s) AND s.at > clock_timestamp() - interval '15 min'
 ORDER BY s.at DESC LIMIT %s"""
_LAG: Final = """
SELECT extract(epoch FROM at)::bigint AS at, step_s, rows_per_s, p50_ms, p99_ms, lag_ms, state_bytes
  FROM headrace.lag_history(%s)"""
_VIEW: Final = """
SELECT format('%%I.%%I', v.schema_name, v.view_name) AS name, v.query, v.message, v.detail, v.hint, v.culprit,
       v.sqlstate, v.tried, v.note, v.last_error, extract(epoch FROM v.last_error_at)::float8 AS last_error_at,
       extract(epoch FROM v.created_at)::float8 AS created_at, v.options::text AS options, v.columns::text AS columns,
       ARRAY(SELECT format('%%I.%%I', t.schema_name, t.table_name)
               FROM headrace.view_tables t WHERE t.view_id = v.id ORDER BY 1) AS tables,
       ARRAY(SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i
              WHERE i.indrelid = v.result_oid ORDER BY 1) AS indexes,
       ARRAY(SELECT format('%%I.%%I', o.schema_name, o.view_name)
               FROM headrace.view_uses u JOIN headrace.views o ON o.result_oid = u.result_oid
              WHERE u.view_id = v.id ORDER BY 1) AS reads,
       ARRAY(SELECT format('%%I.%%I', o.schema_name, o.view_name)
               FROM headrace.view_uses u JOIN headrace.views o ON o.id = u.view_id
              WHERE u.result_oid = v.result_oid ORDER BY 1) AS read_by,
       ARRAY(SELECT p.name FROM headrace.points p WHERE p.view_id = v.id ORDER BY 1) AS points,
       (SELECT h.keep::text FROM headrace.histories h WHERE h.view_id = v.id) AS history
  FROM headrace.views v
 WHERE format('%%I.%%I', v.schema_name, v.view_name) = %s"""
_CREATED: Final = """
SELECT format('%%I.%%I', v.schema_name, v.view_name) AS name
  FROM headrace.views v, parse_ident(%(name)s) AS p (parts)
 WHERE v.view_name = p.parts[array_upper(p.parts, 1)]
   AND (array_length(p.parts, 1) = 1 OR v.schema_name = p.parts[1])
 ORDER BY v.id DESC LIMIT 1"""
# A filter that is NULL or empty lets everything pass.
_EVENTS: Final = """
SELECT e.id, extract(epoch FROM e.at)::float8 AS at, e.level, e.event, e.view, e.process, e.pid, e.fields::text AS fields
  FROM headrace.events e
 WHERE e.level = ANY (%(levels)s) AND e.id < coalesce(%(before)s, 9223372036854775807) AND e.id > coalesce(%(after)s, 0)
   AND (%(view)s = '' OR strpos(lower(e.view), lower(%(view)s)) > 0)
   AND (%(process)s = '' OR strpos(lower(e.process), lower(%(process)s)) > 0)
   AND (%(text)s = '' OR strpos(lower(concat_ws(' ', e.event, e.view, e.fields::text)), lower(%(text)s)) > 0)
 ORDER BY e.id DESC LIMIT %(most)s"""
_NEWEST_EVENT: Final = "SELECT id FROM headrace.events ORDER BY id DESC LIMIT 1"
_PLAN: Final = "SELECT plan FROM headrace.explain_view(%s, 'physical', 'json')"


async def me(conn: AsyncConnection) -> dict[str, Any] | None:
    """Return role, OID, database, and whether the role may log in and sees all; None: gone."""
    found: dict[str, Any] | None = await (await conn.execute(_ME)).fetchone()
    return found


async def status(conn: AsyncConnection) -> list[dict[str, Any]]:
    """Return the facts of the engine."""
    return await (await conn.execute(_STATUS)).fetchall()


async def views(conn: AsyncConnection, limit: int) -> list[dict[str, Any]]:
    """Return the views, without their queries: those that stand still first.

    A view that is being filled has ``percent`` and ``left``, or None where they are not known.
    """
    rows = await (await conn.execute(_VIEWS, (limit,))).fetchall()
    return [row | progress(row["held_by"]) for row in rows]


def progress(held_by: str | None) -> dict[str, Any]:
    """Return the progress of a population in the text of ``held_by`` (``server/progress.py``)."""
    found = _PROGRESS.search(held_by or "")
    if found is None:
        return {"percent": None, "left": None}
    return {"percent": int(found["percent"]), "left": found["left"]}


async def assertions(conn: AsyncConnection, limit: int) -> list[dict[str, Any]]:
    """Return the assertions that the role owns or may read."""
    return await (await conn.execute(_ASSERTIONS, (limit,))).fetchall()


async def samples(conn: AsyncConnection, after: int) -> list[dict[str, Any]]:
    """Return samples after ``after``, of the last 15 minutes, of views that the role may see."""
    return await (await conn.execute(_SAMPLES, (after, SAMPLES_MAX))).fetchall()


async def lag(conn: AsyncConnection, view: str) -> list[dict[str, Any]]:
    """Return the lag history of a view, newest first.

    Raises:
        psycopg.errors.UndefinedTable: there is no such view, or the role may not see it.
    """
    return await (await conn.execute(_LAG, (view,))).fetchall()


async def view(conn: AsyncConnection, name: str) -> dict[str, Any] | None:
    """Return the details of a view, by its qualified name; None: none that the role may see."""
    found: dict[str, Any] | None = await (await conn.execute(_VIEW, (name,))).fetchone()
    return found


async def events(
    conn: AsyncConnection, filters: Mapping[str, Any], most: int
) -> list[dict[str, Any]]:
    """Return events that the role may see, the newest first.

    ``filters``: levels, and parts of view, process and text (""), before and after which id (None).
    """
    return await (await conn.execute(_EVENTS, {**filters, "most": most})).fetchall()


async def newest_event(conn: AsyncConnection) -> int:
    """Return the id of the newest event that the role may see; 0: there is none."""
    found = await (await conn.execute(_NEWEST_EVENT)).fetchone()
    return 0 if found is None else int(found["id"])


async def created(conn: AsyncConnection, name: str) -> str | None:
    """Return the qualified name of the newest view that ``name`` may mean; None: there is none."""
    found = await (await conn.execute(_CREATED, {"name": name})).fetchone()
    return None if found is None else str(found["name"])


async def plan(conn: AsyncConnection, name: str) -> str:
    """Return the stored physical plan of view ``name``, as JSON."""
    rows = await (await conn.execute(_PLAN, (name,))).fetchall()
    return "\n".join(row["plan"] for row in rows)
