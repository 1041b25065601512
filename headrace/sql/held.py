"""Rows of ``headrace.held`` and ``headrace.facts``: state that only the engine knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import psycopg

AsyncConnection = psycopg.AsyncConnection[Any]

# An unchanged row is not written again; work that has started again is.  A view that is being
# dropped or resynced is left out: its new row would break the foreign key once that is committed.
_PUT: Final = """
WITH wanted AS (
    SELECT DISTINCT ON (t.view_id, t.kind) t.view_id, t.kind, t.what,
           clock_timestamp() - t.seconds * interval '1 s' AS since, NULL::pg_lsn AS lsn
      FROM jsonb_to_recordset(%(works)s) t(view_id bigint, kind text, what text, seconds float8)
      JOIN headrace.views v ON v.id = t.view_id
     ORDER BY t.view_id, t.kind, t.seconds DESC),
 lagging AS (
    SELECT t.view_id, 'behind' AS kind, '' AS what, to_timestamp(t.since) AS since, t.lsn
      FROM jsonb_to_recordset(%(behind)s) t(view_id bigint, since float8, lsn pg_lsn)
      JOIN headrace.views v ON v.id = t.view_id),
 cursors AS (
    SELECT t.view_id, 'cursor' AS kind, t.state AS what
      FROM jsonb_to_recordset(%(cursors)s) t(view_id bigint, state text)
      JOIN headrace.views v ON v.id = t.view_id),
 away AS (
    SELECT t.view_id, 'source' AS kind, string_agg(DISTINCT format('source "%%s" is %%s', o.name, o.state), '; ') AS what
      FROM headrace.origins o
      JOIN headrace.stand_ins s ON s.source = o.name
      JOIN headrace.view_tables t ON t.table_oid = s.table_oid
     WHERE o.state IN ('down', 'lost')
     GROUP BY t.view_id),
 gone AS (
    DELETE FROM headrace.held h
     WHERE NOT EXISTS (SELECT FROM wanted w WHERE w.view_id = h.view_id AND w.kind = h.kind)
       AND NOT EXISTS (SELECT FROM lagging l WHERE l.view_id = h.view_id AND l.kind = h.kind)
       AND NOT EXISTS (SELECT FROM cursors c WHERE c.view_id = h.view_id AND c.kind = h.kind)
       AND NOT EXISTS (SELECT FROM away a WHERE a.view_id = h.view_id AND a.kind = h.kind)),
 told AS (
    SELECT w.view_id, w.kind, w.what, w.since, w.lsn FROM wanted w
     UNION ALL SELECT l.view_id, l.kind, l.what, l.since, l.lsn FROM lagging l
     UNION ALL SELECT c.view_id, c.kind, c.what, clock_timestamp(), NULL FROM cursors c
     UNION ALL SELECT a.view_id, a.kind, a.what, clock_timestamp(), NULL FROM away a),
 present AS (
    SELECT v.id FROM headrace.views v WHERE v.id IN (SELECT t.view_id FROM told t)
       FOR KEY SHARE SKIP LOCKED),
 put AS (
    INSERT INTO headrace.held AS h (view_id, kind, what, since, lsn)
    SELECT t.view_id, t.kind, t.what, t.since, t.lsn FROM told t JOIN present p ON p.id = t.view_id
        ON CONFLICT (view_id, kind) DO UPDATE SET what = EXCLUDED.what, since = EXCLUDED.since, lsn = EXCLUDED.lsn
     WHERE h.what <> EXCLUDED.what OR h.lsn IS DISTINCT FROM EXCLUDED.lsn
        OR h.kind IN ('work', 'population') AND abs(extract(epoch FROM EXCLUDED.since - h.since))
           > CASE WHEN h.kind = 'work' THEN 3 ELSE 0.1 END)
SELECT EXISTS (SELECT FROM headrace.origins),
       NOT EXISTS (SELECT FROM told t WHERE t.view_id NOT IN (SELECT p.id FROM present p))"""
_SOURCES: Final = """
SELECT string_agg(format('%s %s', name, state), ', ' ORDER BY name), bool_and(state IN ('running', 'starting'))
  FROM headrace.origins"""
_PUT_FACTS: Final = """
WITH told AS (
    SELECT * FROM jsonb_to_recordset(%s) t(fact text, value text, ok boolean, hint text)),
 gone AS (
    DELETE FROM headrace.facts f WHERE f.fact NOT IN (SELECT t.fact FROM told t))
INSERT INTO headrace.facts AS f (fact, value, ok, hint)
SELECT t.fact, t.value, t.ok, t.hint FROM told t
    ON CONFLICT (fact) DO UPDATE SET value = EXCLUDED.value, ok = EXCLUDED.ok, hint = EXCLUDED.hint,
       at = clock_timestamp()
 WHERE (f.value, f.ok, f.hint) IS DISTINCT FROM (EXCLUDED.value, EXCLUDED.ok, EXCLUDED.hint)"""


@dataclass(frozen=True, slots=True)
class Holding:
    """View whose part of a batch, or whose population, takes long."""

    view_id: int
    what: str
    seconds: float
    kind: str = "work"
    """``work``: of a batch; or ``population``."""


@dataclass(frozen=True, slots=True)
class Behind:
    """View that lacks commits."""

    view_id: int
    lsn: str
    """The view covers everything before this position."""
    since: float
    """Time of the first commit that it lacks, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class PublishedCursor:
    """View whose cursor does not lead."""

    view_id: int
    state: str
    """See ``CursorState``."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Line of ``status()``; ``ok`` is None for a fact that is neither good nor bad."""

    fact: str
    value: str
    ok: bool | None = None
    hint: str | None = None


async def put(
    conn: AsyncConnection,
    works: Sequence[Holding],
    behind: Sequence[Behind],
    cursors: Sequence[PublishedCursor],
) -> tuple[bool, bool]:
    """Store what blocks or delays views.

    Return whether there are sources, and whether everything is stored: views that another session
    drops or resyncs now are left out.
    """
    values = {"works": works, "behind": behind, "cursors": cursors}
    told = {k: msgspec.json.encode(v).decode() for k, v in values.items()}
    row = await (await conn.execute(_PUT, told)).fetchone()
    assert row is not None, "it has no FROM"
    return bool(row[0]), bool(row[1])


async def put_facts(conn: AsyncConnection, told: Sequence[Fact]) -> None:
    """Replace the stored facts by ``told``."""
    await conn.execute(_PUT_FACTS, (msgspec.json.encode(told).decode(),))


async def sources(conn: AsyncConnection) -> Fact | None:
    """Return the state of the other databases as a fact; None: there are none."""
    row = await (await conn.execute(_SOURCES)).fetchone()
    assert row is not None, "an aggregate has a row"
    if row[0] is None:
        return None
    return Fact("sources", row[0], row[1], None if row[1] else "sources() says why")
