"""Replaces the contents of an existing result table; only rows that differ are touched.

The staged rows are copied into a temporary table first.  Two rows are equal if their *images* are:
the text of the whole row by the types' output functions, under pinned settings.  So 1.0 and 1.00
differ, a type needs no equality operator, and trailing blanks of char(n) count.  Equal rows are
numbered, and matched by number between the tables, which gives the multiset difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from headrace.errors import BugError, ResultTableChanged, UserError
from headrace.planner import Planned
from headrace.population.job import Job
from headrace.population.publish import copy_rows
from headrace.population.staging import Staging
from headrace.postgres import failures
from headrace.postgres.connect import Connection
from headrace.process import faults
from headrace.sink import keys, table, trouble
from headrace.sink.table import ResultTable
from headrace.sql import history
from headrace.sql.history import StoredHistory
from headrace.types import FIRST_USER_OID, Field

_NEW: Final = "headrace_new_contents"
_DIFFERING: Final = "headrace_differing_rows"


@dataclass(frozen=True, slots=True)
class Replaced:
    """Numbers of rows removed from a table and added to it."""

    removed: int
    added: int
    noted: bool = False
    """Whether the difference was written to the view's history."""


def image(qualifier: str, columns: Sequence[str]) -> sql.Composed:
    """Return the expression of a row's image, which is exact under pinned settings."""
    return sql.SQL('ROW({})::pg_catalog.text COLLATE pg_catalog."C"').format(
        sql.SQL(", ").join(sql.Identifier(qualifier, c) for c in columns)
    )


def repair(conn: Connection, before: ResultTable, publication: str, key: Sequence[str]) -> bool:
    """Lock the result table and repair it, in the caller's transaction; return whether it stays.

    ``before``: the table as Headrace made it.  ``key``: its future key; a different one is dropped.
    A table with other columns is dropped, to be created again; then return False.

    Raises:
        SinkTableError: users have added something, or objects depend on a table to be dropped.
    """
    name = before.identifier
    target = replace(before, key=tuple(key))
    table.check(conn, before, publication, filling=True)
    # Lock out writers: the engine, and any role that has been granted the right to write.
    conn.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(name))
    table.check(conn, before, publication, filling=True)
    found = table.fingerprint(conn, target.oid)
    assert found is not None, "it is locked"
    if found.key and found.key != target.key:
        keys.drop(conn, target)
    if [a.name for a in found.columns] != [field.name for field in target.schema]:
        try:
            with conn.transaction():
                conn.execute(sql.SQL("DROP TABLE {}").format(name))
        except psycopg.errors.DependentObjectsStillExist as error:
            raise ResultTableChanged(
                f"result table {target.shown} has other columns now",
                detail=f"It cannot be created again: {error.diag.message_detail}",
                hint=table.UNDO,
            ) from error
        return False
    if not found.logged:
        conn.execute(sql.SQL("ALTER TABLE {} SET LOGGED").format(name))
    if publication in found.published:
        conn.execute(
            sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}").format(
                sql.Identifier(publication), name
            )
        )
    return True


def replace_rows(
    job: Job,
    conn: Connection,
    target: ResultTable,
    planned: Planned,
    staging: Staging,
    *,
    kept: StoredHistory | None = None,
) -> Replaced:
    """Replace the rows of ``target`` by the staged ones, in the caller's transaction.

    Its columns get the types of the query.  ``kept``: the history to write the difference to; none
    is written if types have changed.  Readers do not wait; they see the old rows until the commit.

    REQUIRES: ``repair``, in this transaction.

    Raises:
        UserError: 55000, the query has other types now, and dependent objects prevent the change;
            23505 or 23502, the new rows violate the key.
    """
    name = target.identifier
    columns = [field.name for field in target.schema]
    staged = sql.Identifier("pg_temp", _NEW)
    conn.execute(
        sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP AS {} WITH NO DATA").format(
            sql.Identifier(_NEW),
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            table.shape(conn, planned.columns),
        )
    )
    fitted = _fit_columns(conn, target, staged, planned.columns)
    total = copy_rows(job, conn, staged, staging)
    conn.execute(sql.SQL("ANALYZE {}").format(staged))
    job.phase("comparing")
    noted = None if fitted else kept
    if noted is not None:
        history.put_difference(
            conn,
            noted,
            (name + sql.SQL(" t"), image("t", columns)),
            (staged + sql.SQL(" s"), image("s", columns)),
        )
    if target.key and keys.equality(conn, target.oid):
        keys.add(conn, staged, target.key)
        replaced = _replace_where_possible(
            conn, target, staged, columns, (_replace_keyed, _replace_differing)
        )
    else:
        replaced = _replace_where_possible(conn, target, staged, columns, (_replace_differing,))
        if target.key:  # the key was dropped
            keys.add(conn, name, target.key)
    count: Any = conn.execute(sql.SQL("SELECT count(*) FROM {}").format(name)).fetchone()
    if count[0] != total:
        raise BugError(f"{count[0]} rows are in the table, {total} were expected")
    faults.point(faults.RESULT_MADE)
    conn.execute(sql.SQL("DROP TABLE {}").format(staged))
    if target.key:
        table.drop_hash_index(conn, target.schema_name, target.oid)
    elif not table.has_hash_index(conn, target.oid):
        table.create_hash_index(conn, target.schema_name, target.table_name)
    conn.execute(sql.SQL("ANALYZE {}").format(name))
    return replace(replaced, noted=noted is not None)


_Way = Callable[[Connection, ResultTable, sql.Identifier, Sequence[str]], Replaced]


def _replace_where_possible(
    conn: Connection,
    target: ResultTable,
    staged: sql.Identifier,
    columns: Sequence[str],
    ways: Sequence[_Way],
) -> Replaced:
    """Replace the rows in the first of ``ways`` that a user's unique index allows.

    Rows that swap their values violate such an index between two updates.

    Raises:
        SinkTableError: the rows violate a constraint or an index of the table.
    """
    for way in ways:
        try:
            with conn.transaction():
                return way(conn, target, staged, columns)
        except psycopg.Error as error:
            if conn.closed or failures.is_lost(error):
                raise
            by_user = keys.unique_index_of_user(conn, target, error)
            if by_user is not None and way is not ways[-1]:
                continue
            known = (
                by_user
                or keys.violated(target, error)
                or trouble.at_index(conn, target, error, "Drop the index, and call again.")
            )
            if known is None:
                raise
            raise known from error
    raise AssertionError("there is no way to replace the rows")


def _replace_keyed(
    conn: Connection, target: ResultTable, staged: sql.Identifier, columns: Sequence[str]
) -> Replaced:
    """Update rows whose key stays, then delete and insert; the key holds after each statement.

    REQUIRES: the table ``staged`` has the key.
    """
    operators = keys.equality(conn, target.oid)
    parts = {
        "table": target.identifier,
        "staged": staged,
        "names": sql.SQL(", ").join(map(sql.Identifier, columns)),
        "values": sql.SQL(", ").join(sql.Identifier("s", c) for c in columns),
        "same": sql.SQL(" AND ").join(
            sql.SQL("{} {} {}").format(
                sql.Identifier("t", name), operators[name], sql.Identifier("s", name)
            )
            for name in target.key
        ),
        "set": sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(c), sql.Identifier("s", c)) for c in columns
        ),
        "have": image("t", columns),
        "want": image("s", columns),
    }
    statements: tuple[LiteralString, ...] = (
        "UPDATE {table} t SET {set} FROM {staged} s WHERE {same} AND {have} <> {want}",
        "DELETE FROM {table} t WHERE NOT EXISTS (SELECT FROM {staged} s WHERE {same})",
        "INSERT INTO {table} ({names}) SELECT {values} FROM {staged} s"
        " WHERE NOT EXISTS (SELECT FROM {table} t WHERE {same})",
    )
    changed, gone, come = (conn.execute(sql.SQL(s).format(**parts)).rowcount for s in statements)
    return Replaced(changed + gone, changed + come)


def _replace_differing(
    conn: Connection, target: ResultTable, staged: sql.Identifier, columns: Sequence[str]
) -> Replaced:
    """Delete and insert the rows that differ, each found by its place in its table."""
    parts = {
        "have": image("t", columns),
        "want": image("s", columns),
        "table": target.identifier,
        "staged": staged,
        "differing": sql.Identifier("pg_temp", _DIFFERING),
        "names": sql.SQL(", ").join(map(sql.Identifier, columns)),
        "values": sql.SQL(", ").join(sql.Identifier("s", c) for c in columns),
    }
    statements: tuple[LiteralString, ...] = (
        "CREATE TEMPORARY TABLE {differing} ON COMMIT DROP AS"
        " SELECT h.place AS gone, w.place AS come FROM (SELECT t.ctid AS place, {have} AS image,"
        "   row_number() OVER (PARTITION BY {have}) AS n FROM {table} t) h"
        " FULL JOIN (SELECT s.ctid AS place, {want} AS image,"
        "   row_number() OVER (PARTITION BY {want}) AS n FROM {staged} s) w"
        " ON w.image = h.image AND w.n = h.n WHERE h.place IS NULL OR w.place IS NULL",
        "ANALYZE {differing}",
        "DELETE FROM {table} t USING {differing} d WHERE t.ctid = d.gone",
        "INSERT INTO {table} ({names}) SELECT {values} FROM {staged} s"
        " JOIN {differing} d ON d.come = s.ctid",
        "DROP TABLE {differing}",
    )
    counts = [conn.execute(sql.SQL(s).format(**parts)).rowcount for s in statements]
    return Replaced(counts[2], counts[3])


def _fit_columns(
    conn: Connection,
    target: ResultTable,
    staged: sql.Identifier,
    fields: Sequence[Field],
) -> bool:
    """Give columns the types of ``staged``; return whether any type has changed.

    Values that do not fit the new type become NULL, and their rows are replaced later.

    Raises:
        UserError: 55000, objects of users depend on a column's type.
    """
    row: Any = conn.execute("SELECT %s::regclass::oid", (staged.as_string(conn),)).fetchone()
    table.prove_types(conn, int(row[0]), fields)
    fitted = False
    have = table.attributes(conn, target.oid)
    want = table.attributes(conn, int(row[0]))
    for old, new in zip(have, want, strict=True):
        if (old.name, old.type_name) == (new.name, new.type_name):
            continue
        fitted = True
        error = retype(
            conn,
            target.identifier,
            old,
            sql.SQL(new.type_name),
            built_in=new.base_oid < FIRST_USER_OID,
        )
        if error is not None:
            raise UserError(
                f'column "{old.name}" of the view is of type {new.type_name} now,'
                f" not {old.type_name}",
                detail=error,
                hint="Drop what depends on the column, or drop the view and create it again.",
                sqlstate="55000",
            )
    return fitted


def retype(
    conn: Connection,
    name: sql.Identifier,
    old: table.ResultColumn,
    kind: sql.Composable,
    *,
    built_in: bool = True,
) -> str | None:
    """Alter the type of a column to ``kind``; return the reason if that is impossible.

    ``built_in``: whether ``kind`` is built in; otherwise no value of the column is cast to it.
    """
    column = sql.Identifier(old.name)
    values: list[sql.Composable] = [column, sql.SQL("NULL")]
    if old.base_oid >= FIRST_USER_OID or not built_in:
        del values[0]  # a cast of a user's type may be a function of the user
    for value in values:
        try:
            with conn.transaction():
                conn.execute(
                    sql.SQL("ALTER TABLE {} ALTER {} TYPE {} USING {}::{}").format(
                        name, column, kind, value, kind
                    )
                )
        except (
            psycopg.errors.DataError,
            psycopg.errors.CannotCoerce,
            psycopg.errors.IntegrityError,  # the key is violated
        ):
            continue
        except (
            psycopg.errors.FeatureNotSupported,
            psycopg.errors.DependentObjectsStillExist,
        ) as error:
            return f"{error.diag.message_primary}: {error.diag.message_detail}"
        return None
    return "its values cannot be converted"
