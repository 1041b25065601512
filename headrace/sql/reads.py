"""Rows of ``headrace.view_tables`` and ``headrace.view_uses``: the relations each view reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import psycopg

from headrace.errors import UndefinedError

Connection = psycopg.Connection[Any]


def insert_tables(conn: Connection, view_id: int, tables: Iterable[tuple[int, str, str]]) -> None:
    """Add base tables of a view: OID, schema, name."""
    with conn.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO headrace.view_tables (view_id, table_oid, schema_name, table_name)"
            " VALUES (%s, %s, %s, %s)",
            [(view_id, *table) for table in tables],
        )


def insert_uses(conn: Connection, view_id: int, results: Collection[int]) -> None:
    """Add the views that a view reads, by their result tables; idempotent.

    Raises:
        UndefinedError: one was dropped meanwhile.
    """
    if not results:
        return
    with conn.transaction():
        # The lock excludes drop_view, which locks the row of the view that it drops.
        found = conn.execute(
            "SELECT FROM headrace.views WHERE result_oid = ANY (%s::oid[]) FOR KEY SHARE",
            (sorted(results),),
        ).rowcount
        if found < len(results):
            raise UndefinedError("a view that the query reads was dropped", sqlstate="42P01")
        conn.execute(
            "INSERT INTO headrace.view_uses SELECT %s, unnest(%s::oid[]) ON CONFLICT DO NOTHING",
            (view_id, sorted(results)),
        )


def users(conn: Connection, result_oid: int | None) -> list[str]:
    """Return the qualified names of the views that read the view with that table."""
    rows = conn.execute(
        "SELECT pg_catalog.format('%%I.%%I', v.schema_name, v.view_name)"
        " FROM headrace.view_uses u JOIN headrace.views v ON v.id = u.view_id"
        " WHERE u.result_oid = %s ORDER BY 1",
        (result_oid,),
    ).fetchall()
    return [str(row[0]) for row in rows]


def over_gaps(conn: Connection) -> set[int]:
    """Return the views that read a view whose table has lost or moved columns."""
    rows = conn.execute(
        "SELECT DISTINCT u.view_id FROM headrace.view_uses u JOIN pg_catalog.pg_attribute a"
        " ON a.attrelid = u.result_oid AND a.attisdropped"
    ).fetchall()
    return {int(row[0]) for row in rows}


def users_of_columns(
    conn: Connection, result_oid: int, columns: Collection[str]
) -> list[tuple[str, str]]:
    """Return name and column of views that read any of ``columns`` of the view with that table.

    They are found by the rights that their owners need; a view that reads whole rows needs the
    right to every column.
    """
    return conn.execute(
        "SELECT pg_catalog.format('%%I.%%I', v.schema_name, v.view_name), a.attname::text"
        " FROM headrace.view_uses u JOIN headrace.views v ON v.id = u.view_id"
        " CROSS JOIN LATERAL pg_catalog.jsonb_array_elements(v.watched -> 'rights') r (r)"
        " JOIN pg_catalog.pg_attribute a ON a.attrelid = u.result_oid AND NOT a.attisdropped"
        "  AND r.r -> 3 @> ANY (ARRAY[pg_catalog.to_jsonb(a.attnum), '0'])"
        " WHERE u.result_oid = %s::bigint::oid AND a.attname = ANY (%s)"
        "  AND r.r ->> 0 = 'select' AND (r.r ->> 2)::bigint = u.result_oid::bigint"
        " GROUP BY 1, 2 ORDER BY 1, 2",
        (result_oid, list(columns)),
    ).fetchall()


def rename_table(conn: Connection, view_id: int, oid: int, name: Iterable[str]) -> None:
    """Store the new schema and name of a table that a view reads."""
    conn.execute(
        "UPDATE headrace.view_tables SET schema_name = %s, table_name = %s"
        " WHERE view_id = %s AND table_oid = %s",
        (*name, view_id, oid),
    )


def forget_tables(conn: Connection, view_id: int, oids: Collection[int]) -> None:
    """Delete the tables ``oids`` from those that a view reads."""
    conn.execute(
        "DELETE FROM headrace.view_tables WHERE view_id = %s AND table_oid = ANY (%s::oid[])",
        (view_id, list(oids)),
    )


def forget(conn: Connection, view_id: int) -> None:
    """Delete all tables and views that a view reads."""
    conn.execute("DELETE FROM headrace.view_tables WHERE view_id = %s", (view_id,))
    conn.execute("DELETE FROM headrace.view_uses WHERE view_id = %s", (view_id,))


def unused(conn: Connection, tables: Collection[int]) -> list[int]:
    """Return those of ``tables`` that no view reads."""
    rows = conn.execute(
        "SELECT t.oid::bigint FROM unnest(%s::oid[]) AS t(oid)"
        " WHERE NOT EXISTS (SELECT FROM headrace.view_tables v WHERE v.table_oid = t.oid)"
        " ORDER BY 1",
        (sorted(tables),),
    ).fetchall()
    return [int(row[0]) for row in rows]


def tables(conn: Connection) -> list[int]:
    """Return the OIDs of the base tables of all views."""
    rows = conn.execute("SELECT DISTINCT table_oid::bigint FROM headrace.view_tables ORDER BY 1")
    return [int(row[0]) for row in rows.fetchall()]


def tables_of(conn: Connection, view_id: int) -> list[int]:
    """Return the OIDs of the base tables of a view."""
    rows = conn.execute(
        "SELECT table_oid::bigint FROM headrace.view_tables WHERE view_id = %s ORDER BY 1",
        (view_id,),
    ).fetchall()
    return [int(row[0]) for row in rows]
