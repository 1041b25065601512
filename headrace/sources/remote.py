"""Catalog access to a source: its tables, slot, publication and server identity.

A shadow table has the columns of its table in the source, in the same order, and its row identity.
Types must be built in, because the OIDs of user-defined types differ between databases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.config import Settings
from headrace.errors import PrerequisiteError, UndefinedError, UnsupportedError
from headrace.kernels.pgoutput import Commit
from headrace.postgres import encoding, publication, timeline
from headrace.postgres import slot as setup
from headrace.postgres.connect import Connection, for_job
from headrace.postgres.identity import IDENTIFIED, NOT_NULL, NULL_KEYS, VALIDATE
from headrace.postgres.timeline import Identity
from headrace.types import FIRST_USER_OID, Lsn

_TABLES: Final = f"""
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       c.relispartition, c.relhassubclass, c.relrowsecurity,
       has_table_privilege(c.oid, 'SELECT'), c.relreplident::text,
       (SELECT ARRAY(SELECT a.attname FROM unnest(indkey::int2[]) WITH ORDINALITY k (n, place)
                       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.n
                      WHERE k.place <= indnkeyatts ORDER BY k.place)::text[]
          FROM pg_index WHERE indrelid = c.oid AND indisvalid AND indimmediate AND indpred IS NULL
           AND CASE c.relreplident WHEN 'i' THEN indisreplident ELSE indisprimary END),
       {IDENTIFIED}
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = %s"""  # noqa: S608  our own constant
_COLUMNS: Final = f"""
SELECT a.attname, a.attnum, a.atttypid::bigint, format_type(a.atttypid, a.atttypmod), {NOT_NULL},
       (SELECT l.collname FROM pg_collation l JOIN pg_type t ON t.oid = a.atttypid
         WHERE l.oid = a.attcollation AND l.oid <> t.typcollation)
  FROM pg_attribute a
 WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
 ORDER BY a.attnum"""  # noqa: S608  our own constant
_PORTABLE: Final = ("C", "POSIX", "ucs_basic")
"""Collations that sort the same on every server."""


@dataclass(frozen=True, slots=True)
class RemoteColumn:
    """A column of a table in a source."""

    name: str
    attnum: int
    oid: int
    type: str
    not_null: bool
    collation: str | None
    """None means the default of the type."""


@dataclass(frozen=True, slots=True)
class RemoteTable:
    """A table in a source that can be replicated."""

    oid: int
    schema: str
    name: str
    columns: tuple[RemoteColumn, ...]
    key: tuple[str, ...]
    """Columns of the replica identity; empty means the whole row."""


def settings_of(settings: Settings, dsn: str, slot: str) -> Settings:
    """Return settings that name a source's DSN, slot and publication instead of the main ones."""
    return settings.replace(source=dsn, decode_from="", slot_name=slot, publication_name=slot)


def identity(dsn: str) -> Identity:
    """Return the identity of the server at ``dsn``.

    Raises:
        HeadraceError: the server cannot be reached, or does not allow replication.
    """
    with for_job(dsn, what="source", replication=True) as conn:
        return timeline.identify(conn)


def find(conn: Connection, name: str) -> RemoteTable:
    """Return the table ``name`` of a source, parsed like regclass; the default schema is public.

    Raises:
        UndefinedError: 42P01, there is no such table; 42602, the name is invalid.
        UnsupportedError: the table cannot be replicated to another database.
        PrerequisiteError: the table may not be read, or has no usable replica identity.
    """
    try:
        row = conn.execute(
            "SELECT to_regclass(CASE cardinality(parse_ident(%(name)s)) WHEN 1 THEN 'public.'"
            " ELSE '' END || %(name)s)::oid",
            {"name": name},
        ).fetchone()
        found = conn.execute(_TABLES, (row[0] if row else None,)).fetchone()
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.InvalidName) as error:
        raise UndefinedError(f'"{name}" is no name of a table', sqlstate="42602") from error
    if found is None:
        raise UndefinedError(f'table "{name}" does not exist in the source', sqlstate="42P01")
    oid, schema, table, kind, persistence, part, parents, secured, readable = found[:9]
    ident, key, sound = found[9:]
    shown = f'table "{schema}"."{table}" of the source'
    if kind != "r" or persistence != "p" or part or parents or oid < FIRST_USER_OID:
        raise UnsupportedError(
            f"{shown} is not supported",
            detail="It is a partition, or has partitions or inheritance children, or is no table.",
            hint="Name permanent tables that are neither partitioned nor inherited.",
        )
    if secured:
        raise UnsupportedError(f"{shown} with row security is not supported")
    if not readable:
        raise PrerequisiteError(
            f"permission denied for {shown}",
            hint="GRANT SELECT on it to the role that the source is reached as.",
            sqlstate="42501",
        )
    columns = tuple(RemoteColumn(*row) for row in conn.execute(_COLUMNS, (oid,)).fetchall())
    for column in columns:
        if column.oid >= FIRST_USER_OID:
            raise UnsupportedError(
                f'type {column.type} of column "{column.name}" of {shown} is not supported',
                detail="User-defined types differ from database to database.",
                hint="Leave the table out, or give the column a built-in type such as text.",
            )
        if column.collation is not None and column.collation not in _PORTABLE:
            raise UnsupportedError(
                f'collation "{column.collation}" of column "{column.name}" of {shown}'
                " is not supported",
                hint='Only the default collation and "C" mean the same in both databases.',
            )
    return RemoteTable(oid, schema, table, columns, _key(shown, columns, ident, key, sound=sound))


def _key(
    shown: str, columns: Sequence[RemoteColumn], ident: str, key: list[str] | None, *, sound: bool
) -> tuple[str, ...]:
    """Return the columns that identify a row of a table; empty means the whole row.

    ``sound``: Postgres accepts updates and deletes of the table while it is published.

    Raises:
        PrerequisiteError: the stream cannot identify its rows.
    """
    if ident != "f" and (ident == "n" or not key):
        raise PrerequisiteError(
            f"{shown} has no primary key and no REPLICA IDENTITY FULL",
            hint="Add a primary key there, or set REPLICA IDENTITY FULL.",
        )
    names = () if ident == "f" or key is None else tuple(key)
    streamed = {column.name: column for column in columns}
    if not sound or not streamed.keys() >= set(names):
        raise PrerequisiteError(
            f"the replica identity of {shown} has a generated column",
            detail="The replication stream has no values of it; Postgres 18 would refuse updates and"
            " deletes of the table once it is published.",
            hint="Add a primary key of other columns there, and set REPLICA IDENTITY DEFAULT.",
        )
    for name in names:
        if not streamed[name].not_null:
            raise PrerequisiteError(
                f'column "{name}" of the replica identity of {shown} may be NULL',
                detail=NULL_KEYS,
                hint=VALIDATE,
            )
    return names


def prepare(conn: Connection, settings: Settings, slot: str, tables: Sequence[RemoteTable]) -> Lsn:
    """Create slot and publication; return the position from which the slot has all changes.

    Raises:
        PrerequisiteError: the source lacks a setting or a right.
    """
    encoding.check_source(conn)
    own = settings_of(settings, settings.source, slot)
    state = setup.ensure(conn, own, _no_views)
    publication.add_tables(conn, own, [table.oid for table in tables], _no_views)
    return state.confirmed


def no_commit(start: Lsn) -> bytes:
    """Return what stands for the last transaction if none after ``start`` was replicated."""
    return Commit(0, start, 0).encode()


def published(conn: Connection, slot: str) -> str:
    """Return a fingerprint of the publication and its tables, which any change of them changes."""
    row: Any = conn.execute(
        "SELECT jsonb_build_object('by', (SELECT p.oid || ' ' || p.xmin FROM pg_publication p"
        "  WHERE p.pubname = %(slot)s), 'tables', (SELECT jsonb_agg(r.oid || ' ' || r.xmin"
        "   ORDER BY r.oid) FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid"
        "  WHERE p.pubname = %(slot)s))::text",
        {"slot": slot},
    ).fetchone()
    return str(row[0])


def remove(conn: Connection, settings: Settings, slot: str) -> None:
    """Drop slot and publication, if they exist."""
    setup.drop(conn, settings_of(settings, settings.source, slot))


def definition(table: RemoteTable, name: sql.Identifier) -> list[sql.Composed]:
    """Return the statements that create the shadow table of ``table``, called ``name``."""
    columns = [
        sql.SQL("{} {}{}{}").format(
            sql.Identifier(column.name),
            sql.SQL(column.type),
            sql.SQL("")
            if column.collation is None
            else sql.SQL(" COLLATE {}").format(sql.Identifier("pg_catalog", column.collation)),
            sql.SQL(" NOT NULL" if column.not_null else ""),
        )
        for column in table.columns
    ]
    if table.key:
        keys = sql.SQL(", ").join(map(sql.Identifier, table.key))
        columns.append(sql.SQL("PRIMARY KEY ({})").format(keys))
    out = [sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(columns))]
    if not table.key:
        out.append(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name))
    out.append(
        sql.SQL(
            "CREATE TRIGGER refuse_rows BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {}"
            " FOR EACH STATEMENT EXECUTE FUNCTION headrace.refuse_rows()"
        ).format(name)
    )
    return out


def _no_views(conn: Connection, oid: int | None) -> bool:
    return False
