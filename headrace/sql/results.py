"""Rows of ``headrace.views`` by result table, and facts about those tables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from headrace.sql.status import Status
from headrace.types import FIRST_USER_OID

Connection = psycopg.Connection[Any]

_READ: Final = """
SELECT v.schema_name, v.view_name, r.rolname AS owner, v.canonical, v.named, v.settings,
       v.status
  FROM headrace.views v LEFT JOIN pg_roles r ON r.oid = v.owner
 WHERE v.result_oid = %s::bigint::oid"""
_LOWER: Final = """
SELECT v.result_oid::bigint, v.id, v.schema_name, v.view_name, v.status, v.plan, v.settings,
       v.options, v.placed_parts AS parts
  FROM headrace.views v WHERE v.result_oid = ANY (%s::oid[]) ORDER BY v.id"""
_SIGNS: Final = """
SELECT v.id, ROW(c.xmin, pg_catalog.to_regclass(
           pg_catalog.format('%%I.%%I', v.schema_name, v.view_name))::oid,
         ARRAY(SELECT i.indexrelid FROM pg_catalog.pg_index i
                WHERE i.indrelid = v.result_oid ORDER BY 1))::text
  FROM headrace.views v LEFT JOIN pg_catalog.pg_class c ON c.oid = v.result_oid
 WHERE v.id = ANY (%s)"""
FOREIGN: Final = """
SELECT FROM pg_catalog.pg_depend d
 WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = i.indexrelid
   AND d.refobjid >= %(user)s AND d.refclassid <> 'pg_catalog.pg_collation'::pg_catalog.regclass
   AND NOT (d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
            AND d.refobjid = i.indrelid)"""
"""Query for dependencies of index ``i`` on users' objects; pg_depend has no built-in ones."""
_NOTE_KEPT: Final = f"""
WITH free AS MATERIALIZED (
    SELECT id FROM headrace.views WHERE id = ANY (%(views)s) FOR NO KEY UPDATE SKIP LOCKED),
 done AS (
UPDATE headrace.views v SET kept = x.now
  FROM (
    SELECT w.id, pg_catalog.jsonb_build_object(
      'readers', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(g.role,
            CASE WHEN g.role <> 0 THEN pg_catalog.pg_get_userbyid(g.role::oid) END, g.passes)
          ORDER BY g.role)
        FROM (SELECT a.grantee::bigint AS role, bool_or(a.is_grantable) AS passes
                FROM pg_catalog.aclexplode(c.relacl) a
               WHERE a.privilege_type = 'SELECT' AND a.grantee <> c.relowner
               GROUP BY a.grantee) g),
      'indexes', k.indexes) AS now
      FROM headrace.views w JOIN pg_catalog.pg_class c ON c.oid = w.result_oid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     CROSS JOIN LATERAL (
        SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(k.relname,
                  substr(t.whole, length(t.head) + 1)) ORDER BY k.relname) AS indexes,
               bool_and(coalesce(pg_catalog.starts_with(t.whole, t.head), false)) AS readable
          FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class k ON k.oid = i.indexrelid
         CROSS JOIN LATERAL (SELECT pg_catalog.pg_get_indexdef(k.oid) AS whole,
              pg_catalog.format('CREATE INDEX %%I ON %%I.%%I ', k.relname, n.nspname, c.relname)
                AS head) t
         WHERE i.indrelid = c.oid AND i.indisvalid AND NOT i.indisunique AND NOT i.indisexclusion
           AND k.relname <> 'headrace_row_hash_' || c.oid AND NOT EXISTS ({FOREIGN})) k
     WHERE w.id = ANY (%(views)s) AND k.readable IS NOT FALSE) x
 WHERE x.id = v.id AND v.kept IS DISTINCT FROM x.now
   AND v.id = ANY (ARRAY(SELECT free.id FROM free)))
SELECT v.id FROM headrace.views v
 WHERE v.id = ANY (%(views)s) AND v.id <> ALL (ARRAY(SELECT free.id FROM free))"""  # noqa: S608  constants
_REVISIONS: Final = """
SELECT jsonb_object_agg(v.result_oid::bigint, jsonb_build_object(
  'name', format('%%I.%%I', v.schema_name, v.view_name), 'revision', v.revision))
  FROM headrace.views v WHERE v.result_oid = ANY (%s::oid[])"""


@dataclass(frozen=True, slots=True)
class ReadView:
    """View that queries read by its table."""

    schema_name: str
    view_name: str
    owner: str | None
    """None: the role no longer exists."""
    canonical: str | None
    named: list[dict[str, Any]] | None
    settings: dict[str, str]
    status: Status

    @property
    def name(self) -> str:
        """Qualified and quoted name."""
        return sql.Identifier(self.schema_name, self.view_name).as_string()


@dataclass(frozen=True, slots=True)
class LowerView:
    """View whose rows another view may begin with."""

    result_oid: int
    id: int
    schema_name: str
    view_name: str
    status: Status
    plan: Any
    settings: dict[str, str]
    options: dict[str, Any]
    parts: dict[str, str]

    @property
    def shown(self) -> str:
        """Qualified and quoted name."""
        return sql.Identifier(self.schema_name, self.view_name).as_string()


def lower(conn: Connection, oids: Collection[int]) -> list[LowerView]:
    """Return the views with these result tables, in order of id."""
    with conn.cursor(row_factory=class_row(LowerView)) as cursor:
        return cursor.execute(_LOWER, (list(oids),)).fetchall()


def read(conn: Connection, oid: int) -> ReadView | None:
    """Return the view whose result table has that OID, or None."""
    with conn.cursor(row_factory=class_row(ReadView)) as cursor:
        return cursor.execute(_READ, (oid,)).fetchone()


def revisions(conn: Connection, oids: Collection[int]) -> dict[str, Any]:
    """Return name and revision of the views with these tables, by OID; a fact of their readers."""
    row = conn.execute(_REVISIONS, (list(oids),)).fetchone() if oids else None
    return (row[0] if row else None) or {}


def signs(conn: Connection, views: Collection[int]) -> dict[int, str]:
    """Return per view a text that changes when its table, a right on it, or an index does."""
    return dict(conn.execute(_SIGNS, (list(views),)).fetchall())


def record_table_metadata(conn: Connection, views: Collection[int]) -> list[int]:
    """Record grants and indexes of the tables of ``views``, where they differ from the record.

    Return the views whose rows other transactions have locked; it does not wait for them.

    ``pg_get_indexdef`` reads names as they are now, the statement those of its snapshot.  A table
    or index that is renamed meanwhile is left as it was recorded: the next look records it.
    """
    values = {"views": sorted(views), "user": FIRST_USER_OID}
    return [row[0] for row in conn.execute(_NOTE_KEPT, values).fetchall()]


def table_metadata(conn: Connection, view_id: int) -> dict[str, Any] | None:
    """Return what ``record_table_metadata`` stored; None: nothing."""
    row = conn.execute("SELECT kept FROM headrace.views WHERE id = %s", (view_id,)).fetchone()
    return row[0] if row else None
