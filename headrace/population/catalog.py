"""Rows of schema ``headrace`` that say which views there are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from headrace.collections.plan import to_json
from headrace.errors import DuplicateError, UndefinedError
from headrace.planner import Planned, TableRef
from headrace.population.names import ViewName
from headrace.postgres.connect import Connection
from headrace.postgres.fingerprint import Facts
from headrace.sink.kept import KeptOfTable

POPULATING: Final = "populating"


@dataclass(frozen=True, slots=True)
class NewView:
    """What is known of a view before it is populated."""

    target: ViewName
    query: str
    caller: str | None
    owner: int
    """OID of the role that it was planned for."""
    options: dict[str, Any]
    block: bool
    planned: Planned


def insert(conn: Connection, view: NewView) -> int:
    """Register a view that is being populated; returns its id.

    Raises:
        DuplicateError: 42P07, the name was taken meanwhile.
    """
    planned = view.planned
    try:
        with conn.transaction():
            row: Any = conn.execute(
                "INSERT INTO headrace.views (schema_name, view_name, query, columns, plan,"
                " explain, options, settings, owner, status, block, canonical, named)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s,"
                " (SELECT r.oid FROM pg_roles r WHERE r.oid = %s::bigint::oid),"
                " %s, %s, %s, %s) RETURNING id, owner IS NOT NULL",
                (
                    view.target.schema,
                    view.target.name,
                    view.query,
                    Jsonb(to_json(planned.columns)),
                    Jsonb(to_json(planned.physical)),
                    Jsonb(planned.explain),
                    Jsonb(view.options),
                    Jsonb(planned.settings),
                    view.owner,
                    POPULATING,
                    view.block,
                    planned.canonical_sql,
                    Jsonb(list(planned.named)),
                ),
            ).fetchone()
            if not row[1]:
                raise UndefinedError(f'role "{view.caller}" does not exist')
            insert_tables(conn, int(row[0]), planned.tables)
            insert_uses(conn, int(row[0]), planned.results)
    except psycopg.errors.UniqueViolation as error:
        raise DuplicateError(
            f'view "{view.target.name}" already exists', sqlstate="42P07"
        ) from error
    return int(row[0])


def insert_tables(conn: Connection, view_id: int, tables: Sequence[TableRef]) -> None:
    """Register the base tables of a view."""
    with conn.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO headrace.view_tables (view_id, table_oid, schema_name, table_name)"
            " VALUES (%s, %s, %s, %s)",
            [(view_id, t.oid, t.schema, t.name) for t in tables],
        )


def insert_uses(conn: Connection, view_id: int, results: Collection[int]) -> None:
    """Register the views that a view reads, by their tables; idempotent.

    Raises:
        UndefinedError: one was dropped meanwhile.
    """
    if not results:
        return
    with conn.transaction():
        # Against drop_view, which locks the row of the view that it drops.
        found = conn.execute(
            "SELECT FROM headrace.views WHERE result_oid = ANY (%s::oid[]) FOR KEY SHARE",
            (sorted(results),),
        ).rowcount
        if found < len(results):
            raise UndefinedError(
                "a view that the query reads was dropped", sqlstate="42P01"
            )
        conn.execute(
            "INSERT INTO headrace.view_uses SELECT %s, unnest(%s::oid[])"
            " ON CONFLICT DO NOTHING",
            (view_id, sorted(results)),
        )


def users(conn: Connection, result_oid: int | None) -> list[str]:
    """Qualified names of the views that read the view with that table."""
    rows = conn.execute(
        "SELECT pg_catalog.format('%%I.%%I', v.schema_name, v.view_name)"
        " FROM headrace.view_uses u JOIN headrace.views v ON v.id = u.view_id"
        " WHERE u.result_oid = %s ORDER BY 1",
        (result_oid,),
    ).fetchall()
    return [str(row[0]) for row in rows]


def set_watched(conn: Connection, view_id: int, facts: Facts) -> None:
    """Keep the facts that a view was populated under, for the worker to compare."""
    conn.execute(
        "UPDATE headrace.views SET watched = %s WHERE id = %s", (Jsonb(facts), view_id)
    )


def next_id(conn: Connection) -> int:
    """An id that no view has had."""
    row: Any = conn.execute(
        "SELECT nextval(pg_get_serial_sequence('headrace.views', 'id'))"
    ).fetchone()
    return int(row[0])


def delete_tables(conn: Connection, view_id: int, oids: Sequence[int]) -> None:
    """Forget that a view reads the tables ``oids``."""
    conn.execute(
        "DELETE FROM headrace.view_tables WHERE view_id = %s"
        " AND table_oid = ANY (%s::oid[])",
        (view_id, list(oids)),
    )


def delete_progress(conn: Connection, view_id: int) -> None:
    """End the ownership of a view: whoever still writes it finds no progress to move."""
    conn.execute("DELETE FROM headrace.progress WHERE view_id = %s", (view_id,))


def renew(
    conn: Connection,
    view_id: int,
    new_id: int,
    planned: Planned,
    result_oid: int,
    query: str | None = None,
    *,
    owner: int | None = None,
) -> None:
    """Make the view another one for the worker: of another id, with the plan ``planned``.

    ``query`` is its new text, if it has one; ``owner`` the OID of its new owner.  Views that read
    it are made for its query, and read as its owner.
    """
    for table in ("view_tables", "view_uses"):
        conn.execute(
            sql.SQL("DELETE FROM headrace.{} WHERE view_id = %s").format(
                sql.Identifier(table)
            ),
            (view_id,),
        )
    conn.execute(
        "UPDATE headrace.views SET id = %s, revision = revision + %s,"
        " query = coalesce(%s, query), canonical = %s, named = %s,"
        " settings = %s, columns = %s, plan = %s, explain = %s, result_oid = %s,"
        " owner = coalesce(%s::bigint::oid, owner)"
        " WHERE id = %s",
        (
            new_id,
            int(query is not None or owner is not None),
            query,
            planned.canonical_sql,
            Jsonb(list(planned.named)),
            Jsonb(planned.settings),
            Jsonb(to_json(planned.columns)),
            Jsonb(to_json(planned.physical)),
            Jsonb(planned.explain),
            result_oid,
            owner,
            view_id,
        ),
    )
    insert_tables(conn, new_id, planned.tables)
    insert_uses(conn, new_id, planned.results)


def set_running(
    conn: Connection, view_id: int, start_lsn: str, because: str | None = None
) -> None:
    """The view runs from the position of its population on.

    ``because``: why it was filled anew without a call, which stays noted.
    """
    conn.execute(
        "UPDATE headrace.views SET status = 'running', message = NULL, sqlstate = NULL,"
        " start_lsn = %s, note = 'filled anew at ' || pg_catalog.to_char("
        "   pg_catalog.timezone('UTC', pg_catalog.clock_timestamp()),"
        "   'YYYY-MM-DD HH24:MI:SS') || ' UTC because ' || %s::text WHERE id = %s",
        (start_lsn, because, view_id),
    )


def kept(conn: Connection, view_id: int) -> KeptOfTable:
    """What users have made of the result table, as far as it is known."""
    row: Any = conn.execute(
        "SELECT kept FROM headrace.views WHERE id = %s", (view_id,)
    ).fetchone()
    return KeptOfTable.of(row[0] if row else None)


def delete(conn: Connection, view_id: int) -> None:
    """Forget a view; its progress and tables go with it."""
    conn.execute("DELETE FROM headrace.views WHERE id = %s", (view_id,))


def delete_stale(conn: Connection, name: ViewName, live: Collection[int]) -> list[int]:
    """Forget a view of that name whose population died; returns its id."""
    rows = conn.execute(
        "DELETE FROM headrace.views WHERE status IN ('pending', 'populating')"
        " AND schema_name = %s AND view_name = %s AND NOT id = ANY(%s::bigint[])"
        " RETURNING id",
        (name.schema, name.name, list(live)),
    ).fetchall()
    return [int(row[0]) for row in rows]


def unused_tables(conn: Connection, table_oids: Collection[int]) -> list[int]:
    """Those of ``table_oids`` that no view reads."""
    rows = conn.execute(
        "SELECT t.oid::bigint FROM unnest(%s::oid[]) AS t(oid)"
        " WHERE NOT EXISTS (SELECT FROM headrace.view_tables v WHERE v.table_oid = t.oid)"
        " ORDER BY 1",
        (sorted(table_oids),),
    ).fetchall()
    return [int(row[0]) for row in rows]


def tables_of(conn: Connection, view_id: int) -> list[int]:
    """OIDs of the base tables of a view."""
    rows = conn.execute(
        "SELECT table_oid::bigint FROM headrace.view_tables WHERE view_id = %s"
        " ORDER BY 1",
        (view_id,),
    ).fetchall()
    return [int(row[0]) for row in rows]
