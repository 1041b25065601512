"""The key of a result table: a primary key, so that Postgres itself enforces it.

It has no NULLs, and is not deferrable: foreign keys, ON CONFLICT, ORMs and a replica identity can
use it.  Keys are equal if its index treats them as equal, under its collation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.errors import (
    RESYNC,
    ResultTableChanged,
    SinkTableError,
    StructureChanged,
    UserError,
)
from headrace.sink import table
from headrace.sink.table import ResultTable
from headrace.types import FIXED, Field

_PROBE: Final = "headrace_key_probe"
_COLUMNS_SHOWN: Final = 50
"""Maximum number of columns listed in a hint."""

Connection = psycopg.Connection[Any]


class KeyTooLong(UserError):
    """A value is too long for the index of the key."""

    sqlstate = "54000"

    @property
    def notice(self) -> str:
        """Notice that the view gets no key."""
        return f"the view has no key: {self.message}"


def chosen(wanted: Sequence[str] | None, planned: Sequence[str]) -> tuple[str, ...]:
    """Return the key of a view's result table: option ``key``, else the planned one."""
    return tuple(wanted or planned)


def shown(key: Sequence[str]) -> str:
    """Return the key for messages."""
    return f"({', '.join(key)})"


def add(conn: Connection, name: sql.Identifier, key: Sequence[str]) -> None:
    """Add the primary key to the table ``name``.

    Raises:
        UserError: the rows violate the key (23505, 23502), or the columns cannot have one; with
            Postgres' SQLSTATE.
        KeyTooLong: a value does not fit into the index.
    """
    statement = sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({}), REPLICA IDENTITY DEFAULT").format(
        name, sql.SQL(", ").join(map(sql.Identifier, key))
    )
    try:
        with conn.transaction():
            conn.execute(statement)
    except psycopg.errors.UniqueViolation as error:
        raise UserError(
            f"rows of the view have no key {shown(key)}",
            detail=error.diag.message_detail,
            hint='Name columns whose values are unique, or omit option "key".',
            sqlstate="23505",
        ) from error
    except psycopg.errors.NotNullViolation as error:
        raise UserError(
            f'column "{error.diag.column_name}" of key {shown(key)} has a NULL',
            hint="A key is a primary key. Leave such rows out (IS NOT NULL), or give"
            " them a value (coalesce).",
            sqlstate="23502",
        ) from error
    except psycopg.errors.ProgramLimitExceeded as error:
        raise KeyTooLong(
            f"a value is too long for an index on key {shown(key)}",
            hint='Name other columns in option "key", or none: "key": [].',
        ) from error
    except psycopg.ProgrammingError as error:
        raise UserError(
            f'option "key": {error.diag.message_primary}',
            detail=error.diag.message_detail,
            hint=error.diag.message_hint,
            sqlstate=error.sqlstate,
        ) from error


_PLAIN: Final = """
SELECT k.conname FROM pg_catalog.pg_constraint k
  JOIN pg_catalog.pg_index i ON i.indexrelid = k.conindid
  JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
  JOIN pg_catalog.pg_class t ON t.oid = k.conrelid
 WHERE k.conrelid = %s AND k.contype = 'p' AND t.relreplident = 'd'
   AND k.conname = (t.relname OPERATOR(pg_catalog.||) '_pkey')
   AND NOT i.indisclustered AND x.reloptions IS NULL AND x.reltablespace = 0
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_description d
        WHERE (d.classoid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND d.objoid = k.oid)
           OR (d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objoid = x.oid))"""
"""Query for a key as ``add`` created it, which can be dropped and added again unnoticed."""


def set_aside(conn: Connection, target: ResultTable) -> bool:
    """Drop the primary key while rows are written, unless objects depend on it.

    Return whether it was dropped.  Adding it again (``add``) takes a tenth of the time of
    inserting index entries one by one.
    """
    row = conn.execute(_PLAIN, (target.oid,)).fetchone()
    if row is None:
        return False
    statement = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(
        target.identifier, sql.Identifier(row[0])
    )
    try:
        with conn.transaction():
            conn.execute(statement)
    except psycopg.errors.DependentObjectsStillExist:
        return False
    return True


def drop(conn: Connection, target: ResultTable) -> None:
    """Drop the primary key of a result table that gets another one, or none.

    Raises:
        SinkTableError: a user's foreign key refers to it.
    """
    row = conn.execute(
        "SELECT conname FROM pg_catalog.pg_constraint WHERE conrelid = %s AND contype = 'p'",
        (target.oid,),
    ).fetchone()
    assert row is not None, "it was seen"
    statement = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(
        target.identifier, sql.Identifier(row[0])
    )
    try:
        with conn.transaction():
            conn.execute(statement)
    except psycopg.errors.DependentObjectsStillExist as error:
        raise ResultTableChanged(
            f"result table {target.shown} is to have another key: "
            + (shown(target.key) if target.key else "none"),
            detail=error.diag.message_detail,
            hint=table.UNDO,
        ) from error
    # The columns of a primary key stay NOT NULL without it.
    for (name,) in conn.execute(
        "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = %s AND attnum > 0"
        " AND attnotnull AND NOT attisdropped AND attname <> ALL (%s::text[])",
        (target.oid, list(target.key)),
    ).fetchall():
        text = sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL")
        conn.execute(text.format(target.identifier, sql.Identifier(name)))
    if not target.key:
        conn.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(target.identifier))


def check(conn: Connection, fields: Sequence[Field], key: Sequence[str]) -> None:
    """Prove that a table of ``fields`` can have the primary key ``key``, if there is one.

    Raises:
        UserError: there is no such column (42703), or its type cannot be a key (42704).
    """
    if not key:
        return
    names = [f.name for f in fields]
    for name in key:
        if name not in names:
            more = ", …" if len(names) > _COLUMNS_SHOWN else ""
            raise UserError(
                f'option "key": column "{name}" is not in the query\'s result',
                hint=f"Its columns: {', '.join(names[:_COLUMNS_SHOWN])}{more}.",
                sqlstate="42703",
            )
    with conn.transaction(force_rollback=True):
        conn.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ({}) AS {} WITH NO DATA").format(
                sql.Identifier(_PROBE),
                sql.SQL(", ").join(sql.Identifier(f.name) for f in fields),
                table.shape(conn, fields),
            )
        )
        add(conn, sql.Identifier("pg_temp", _PROBE), key)


def equality(conn: Connection, oid: int) -> dict[str, sql.Composed]:
    """Return the equality operator of the primary key's index, per key column of table ``oid``."""
    rows = conn.execute(
        "SELECT a.attname, n.nspname, o.oprname"
        " FROM pg_catalog.pg_index i"
        " CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[]) AS k(attnum, class)"
        " JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
        " JOIN pg_catalog.pg_opclass c ON c.oid = k.class"
        " JOIN pg_catalog.pg_amop m ON m.amopfamily = c.opcfamily AND m.amopstrategy = 3"
        "  AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype"
        " JOIN pg_catalog.pg_operator o ON o.oid = m.amopopr"
        " JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace"
        " WHERE i.indrelid = %s AND i.indisprimary",
        (oid,),
    ).fetchall()
    return {
        name: sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(operator))
        for name, schema, operator in rows
    }


def _is_long(target: ResultTable) -> bool:
    """Return whether values of the key may be too long for an index."""
    return any(field.oid not in FIXED for field in target.schema if field.name in target.key)


def violated(target: ResultTable, error: psycopg.Error) -> SinkTableError | StructureChanged | None:
    """Return the view's error for ``error``, a constraint violation in its table.

    A NULL in a key that follows from the query shows that a NOT NULL constraint of a table was
    dropped: the view is filled anew, with another key or none.  So it is if a value is too long for
    the index of such a key.

    None: the error names no constraint, so it may come from a user's code, which can raise any
    SQLSTATE.  Every role may read why a view has stopped, so the message contains no values.
    """
    key, shown_table = target.key, target.shown
    code, diag = error.sqlstate or SinkTableError.sqlstate, error.diag
    if isinstance(error, psycopg.errors.NotNullViolation) and diag.column_name not in (None, *key):
        return ResultTableChanged(
            f'column "{diag.column_name}" of result table {shown_table} is NOT NULL,'
            " and a row has NULL there"
        )
    if not key:
        return None
    detail: str | None = None
    match error:
        case psycopg.errors.UniqueViolation() if diag.constraint_name:
            message = f"rows of result table {shown_table} would have the same key {shown(key)}"
            detail = f'Postgres names constraint "{diag.constraint_name}".'
        case psycopg.errors.NotNullViolation() if diag.column_name:
            message = (
                f'column "{diag.column_name}" of key {shown(key)} of result table'
                f" {shown_table} would be NULL"
            )
            if target.planned_key:
                return StructureChanged(
                    message, detail="A table has lost a NOT NULL constraint.", hint=RESYNC
                )
        # Another index of a user's may be the cause; then filling the view says so.
        case psycopg.errors.ProgramLimitExceeded() if target.planned_key and _is_long(target):
            return StructureChanged(
                f"a value is too long for key {shown(key)} of result table {shown_table}",
                detail="The view is to have no key then.",
                hint=RESYNC,
            )
        case _:
            return None
    return SinkTableError(message, detail=detail, hint=RESYNC, sqlstate=code)


def unique_index_of_user(
    conn: Connection, target: ResultTable, error: BaseException | None
) -> ResultTableChanged | None:
    """Return the view's error if ``error`` is a violation of a unique index that a user has added.

    REQUIRES: a transaction that has not failed, or none.
    """
    if not isinstance(error, psycopg.errors.UniqueViolation) or not error.diag.constraint_name:
        return None
    name = error.diag.constraint_name
    found = conn.execute(
        "SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = %s AND i.indisunique AND NOT i.indisprimary AND c.relname = %s",
        (target.oid, name),
    ).fetchone()
    if found is None:
        return None
    return ResultTableChanged(
        f'result table {target.shown} has a unique index "{name}", which its rows violate'
    )
