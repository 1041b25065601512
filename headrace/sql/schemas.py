"""Rows of ``headrace.made_schemas``: schemas that create_view has created."""

from __future__ import annotations

from typing import Any

import psycopg

Connection = psycopg.Connection[Any]


def remember(conn: Connection, schema: str) -> None:
    """Record that we have created ``schema``."""
    conn.execute(
        "INSERT INTO headrace.made_schemas (schema_oid, owner)"
        " SELECT oid, nspowner FROM pg_namespace WHERE nspname = %s"
        " ON CONFLICT (schema_oid) DO UPDATE SET owner = EXCLUDED.owner",
        (schema,),
    )


def deserted(conn: Connection, schema: str) -> int | None:
    """Return the OID of a schema that we made and that has no view any more; else None."""
    conn.execute(
        "DELETE FROM headrace.made_schemas m WHERE NOT EXISTS"
        " (SELECT FROM pg_namespace n WHERE n.oid = m.schema_oid)"
    )
    row = conn.execute(
        "SELECT m.schema_oid FROM headrace.made_schemas m JOIN pg_namespace n"
        " ON n.oid = m.schema_oid AND n.nspowner = m.owner WHERE n.nspname = %(name)s"
        " AND NOT EXISTS (SELECT FROM headrace.views v WHERE v.schema_name = %(name)s)",
        {"name": schema},
    ).fetchone()
    return None if row is None else int(row[0])


def forget(conn: Connection, oid: int) -> None:
    """Delete the row of a dropped schema."""
    conn.execute("DELETE FROM headrace.made_schemas WHERE schema_oid = %s", (oid,))


def made(conn: Connection) -> list[str]:
    """Return the schemas that still exist with the owner that they were made for."""
    found = conn.execute(
        "SELECT pg_catalog.to_regclass('headrace.made_schemas') IS NOT NULL"
    ).fetchone()
    if not found or not found[0]:
        return []  # installed by an earlier version
    rows = conn.execute(
        "SELECT n.nspname FROM headrace.made_schemas m JOIN pg_catalog.pg_namespace n"
        " ON n.oid = m.schema_oid AND n.nspowner = m.owner"
    ).fetchall()
    return [str(row[0]) for row in rows]
