"""Check that the catalog was not restored from a dump, after which its OIDs mean other objects.

The catalog refers to tables and roles by OID, so that names may change.  A dump (``pg_dump``)
keeps these numbers, which mean nothing or other objects in the new database: a user's table would
be taken for a result table.  So such a catalog is refused.  A copy of the blocks (a base backup,
``pg_upgrade``, a database made from a template) keeps its OIDs.

The check compares the OID of ``headrace.views`` with the one in ``headrace.meta``.  A catalog from
before that row existed counts as restored if every result table exists under its name, and under
another OID.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from headrace.errors import PrerequisiteError
from headrace.postgres import connect
from headrace.sql import meta

KEY: Final = "catalog_oid"

Connection = psycopg.Connection[Any]

_FOUND: Final = """
SELECT (SELECT value FROM headrace.meta WHERE key = %s) IS DISTINCT FROM v.oid::text,
       EXISTS (SELECT FROM headrace.meta WHERE key = %s)
  FROM pg_catalog.pg_class v WHERE v.oid = pg_catalog.to_regclass('headrace.views')"""
_OTHERS: Final = """
SELECT count(*) > 0 AND pg_catalog.bool_and(c.oid IS NOT NULL AND c.oid <> v.result_oid)
  FROM headrace.views v LEFT JOIN pg_catalog.pg_class c
    ON c.oid = pg_catalog.to_regclass(pg_catalog.format('%I.%I', v.schema_name, v.view_name))
 WHERE v.result_oid IS NOT NULL"""


def problem(conn: Connection) -> PrerequisiteError | None:
    """Return the error that the catalog was restored; None: it was not, or there is none.

    REQUIRES: the catalog is ours.
    """
    found = conn.execute(_FOUND, (KEY, KEY)).fetchone() if _there(conn) else None
    if found is None:
        return None
    other, noted = found
    if noted and not other:
        return None
    if not noted and conn.execute(_OTHERS).fetchone() != (True,):
        return None
    return PrerequisiteError(
        "schema headrace was restored from a dump; the OIDs of tables that it records are not"
        " valid here",
        detail="An unrelated table would be mistaken for the table of a view.",
        hint="Run headrace adopt, which finds the tables by their names; then start Headrace, which"
        " fills the views again.  Or run headrace uninstall: the tables stay as ordinary tables.",
        sqlstate="55000",
    )


def look(source: str) -> PrerequisiteError | None:
    """Connect, and return ``problem``.

    Raises:
        psycopg.Error: the connection failed.
    """
    with connect.session(source, name="headrace") as conn:
        return problem(conn)


def note(conn: Connection) -> None:
    """Store the OID of ``headrace.views``, which ``problem`` compares."""
    row = conn.execute("SELECT pg_catalog.to_regclass('headrace.views')::oid::text").fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    meta.put(conn, KEY, row[0])


def _there(conn: Connection) -> bool:
    row = conn.execute(
        "SELECT pg_catalog.to_regclass('headrace.views') IS NOT NULL"
        " AND pg_catalog.to_regclass('headrace.meta') IS NOT NULL"
    ).fetchone()
    return row == (True,)
