"""Adopts a catalog that was restored from a dump: its OIDs become those of the objects here.

Names decide which table is meant, because a dump keeps them.  Owners are stored by name in a dump,
too.  Each view stops with an error that has it refilled in its present table, so the stored plans,
whose OIDs mean nothing here, are never executed.

Rows whose owner was stored as a number are deleted: feeds, calls and schemas that were created for
views.  Events lose their owner, and are only for members of the engine's role.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headrace.errors import ContinuityLost, PrerequisiteError
from headrace.sql import states
from headrace.sql.status import UNFINISHED, Status

Connection = psycopg.Connection[Any]

_SOURCES: Final = "SELECT name FROM headrace.origins ORDER BY 1"
_VIEWS: Final = """
SELECT v.id, pg_catalog.format('%I.%I', v.schema_name, v.view_name), v.result_oid, c.oid, v.status
  FROM headrace.views v LEFT JOIN pg_catalog.pg_class c
    ON c.oid = pg_catalog.to_regclass(pg_catalog.format('%I.%I', v.schema_name, v.view_name))
   AND c.relkind = 'r'
 ORDER BY v.id"""
_MOVE: Final = """
UPDATE headrace.views v SET result_oid = m.now, named = '[]', watched = NULL, placed_parts = '{}'
  FROM unnest(%(ids)s::bigint[], %(now)s::oid[]) m(id, now) WHERE v.id = m.id"""
_TABLES: Final = """
WITH gone AS (DELETE FROM headrace.view_tables RETURNING view_id, schema_name, table_name)
SELECT view_id, pg_catalog.to_regclass(pg_catalog.format('%I.%I', schema_name, table_name))::oid,
       schema_name, table_name FROM gone"""
_PUT_TABLES: Final = """
INSERT INTO headrace.view_tables (view_id, table_oid, schema_name, table_name)
SELECT * FROM unnest(%s::bigint[], %s::oid[], %s::name[], %s::name[]) ON CONFLICT DO NOTHING"""
_USES: Final = "DELETE FROM headrace.view_uses RETURNING view_id, result_oid"
_PUT_USES: Final = """
INSERT INTO headrace.view_uses (view_id, result_oid)
SELECT * FROM unnest(%s::bigint[], %s::oid[]) ON CONFLICT DO NOTHING"""
# In two steps, because the numbers are unique.
_HISTORIES: Final = (
    "UPDATE headrace.histories SET result_oid = (4294967295 - id)::oid",
    "UPDATE headrace.histories h SET result_oid = v.result_oid FROM headrace.views v"
    " WHERE v.id = h.view_id AND v.result_oid IS NOT NULL",
)
_FEEDS: Final = "DELETE FROM headrace.feeds RETURNING name"
_REST: Final = (
    "DELETE FROM headrace.commands",
    "DELETE FROM headrace.made_schemas",
    "DELETE FROM headrace.covered",
    "DELETE FROM headrace.held",
    "DELETE FROM headrace.facts",
    "UPDATE headrace.events SET owner = NULL",
    # Positions in the WAL of the original.
    "UPDATE headrace.progress SET lsn = NULL, epoch = epoch + 1",
    # Workers on other machines belong to the original.
    "UPDATE headrace.nodes SET lost_at = pg_catalog.clock_timestamp() WHERE address IS NOT NULL",
)
_RESTORED: Final = "the database was restored from a dump"


@dataclass(frozen=True, slots=True)
class AdoptedCatalog:
    """The views and feeds of an adopted catalog, by name."""

    views: list[str]
    missing: list[str]
    """Those of ``views`` whose result table the dump did not contain."""
    feeds: list[str]
    """Feeds that were deleted."""


def adopt(conn: Connection) -> AdoptedCatalog:
    """Adopt the catalog.

    REQUIRES: a transaction, and a catalog of ours with the present tables that was restored.

    Raises:
        PrerequisiteError: views read other databases; the original uses the slots there.
    """
    sources = [name for (name,) in conn.execute(_SOURCES).fetchall()]
    if sources:
        raise PrerequisiteError(
            f"the views of this dump also read other databases: {', '.join(sources)}",
            detail="Headrace would read from the slots of the original there.",
            hint="Save the calls that create the views (docs/manual/copies.md, A dump), run headrace"
            " uninstall, drop the tables of the views, start Headrace, call add_source, and create"
            " the views again.",
            sqlstate="0A000",
        )
    found = conn.execute(_VIEWS).fetchall()
    now = {before: there for _, _, before, there, _ in found if before and there}
    conn.execute(_MOVE, {"ids": [row[0] for row in found], "now": [row[3] for row in found]})
    tables = [row for row in conn.execute(_TABLES).fetchall() if row[1] is not None]
    conn.execute(_PUT_TABLES, [list(column) for column in zip(*tables, strict=True)] or [[]] * 4)
    uses = [(view, now[oid]) for view, oid in conn.execute(_USES).fetchall() if oid in now]
    conn.execute(_PUT_USES, [list(column) for column in zip(*uses, strict=True)] or [[]] * 2)
    feeds = [name for (name,) in conn.execute(_FEEDS).fetchall()]
    for statement in (*_HISTORIES, *_REST):
        conn.execute(statement.encode())
    finished = [row for row in found if row[4] not in UNFINISHED]
    for view_id, *_ in finished:
        states.become(conn, view_id, Status.ERROR, ContinuityLost(_RESTORED))
    return AdoptedCatalog(
        [name for _, name, *_ in found],
        [name for _, name, _, there, _ in finished if there is None],
        feeds,
    )
