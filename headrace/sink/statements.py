"""The statements that write a result table, built whenever the table is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from headrace.sink import keyed, keys, table
from headrace.sink import rows as rows_of
from headrace.sink.rows import Arrays
from headrace.sink.table import ResultTable
from headrace.sql import history
from headrace.types import WEIGHT

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one table."""

    name: str
    """Qualified name of the table, quoted for SQL."""
    hold: sql.Composed
    """Locks the table; then returns whether its name is still ours, and its mark."""
    mark: str
    """Mark of the table when it was checked to be as we made it."""
    copy: sql.Composed
    insert: bytes
    delete: bytes
    update: keyed.Update | None
    """Only for a table with a key."""
    note: bytes
    """Keeps changes in the history."""
    arrays: Arrays
    """Form in which update, delete and insert take rows."""


def compose(conn: Connection, target: ResultTable) -> Statements:
    """Check the table, lock it, and make its statements.

    Raises:
        SinkTableError: it is not as we made it.
    """
    ask = table.asking_mark(conn, target)
    row = conn.execute(ask).fetchone()
    # In this order: an alteration after the mark was taken changes the next mark.
    table.check(conn, target)
    assert row is not None, "a SELECT without FROM has one row"
    lock = sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE").format(target.identifier)
    conn.execute(lock)
    # From here on the name stays the table's.
    again = conn.execute(ask).fetchone()
    if again is None or not again[0]:
        table.check(conn, target)
    found = table.attributes(conn, target.oid)
    names = [a.name for a in found]
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    copy = sql.SQL("COPY {} ({}) FROM STDIN").format(target.identifier, columns)
    arrays = Arrays.of(target, found)
    insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM unnest({}) AS u({})").format(
        target.identifier, columns, columns, arrays.parameters(), columns
    )
    equal = [rows_of.same(attribute) for attribute in found]
    equal = [*_found_by(conn, target, found), *equal]
    weight = _free_name(names)
    delete = sql.SQL(
        "DELETE FROM ONLY {table} WHERE ctid = ANY (ARRAY("
        "SELECT x.ctid FROM (SELECT * FROM unnest({arrays}, ${last}::bigint[])"
        " AS u({names}, {weight}) OFFSET 0) g CROSS JOIN LATERAL ("
        "SELECT t.ctid FROM ONLY {table} t WHERE {equal} LIMIT g.{weight}) x))"
    ).format(
        table=target.identifier,
        arrays=arrays.parameters(),
        last=len(arrays.kinds) + 1,
        names=columns,
        weight=sql.Identifier(weight),
        equal=sql.SQL(" AND ").join(equal),
    )
    hold = lock + sql.SQL("; ")
    mark = _mark(target, found)
    update = keyed.Update(mark, target, found, arrays, equal) if target.key else None
    return Statements(
        name=target.identifier.as_string(conn),
        hold=hold + ask,
        mark=str(row[1]),
        copy=copy,
        insert=(mark + insert).as_bytes(conn),
        delete=(mark + delete).as_bytes(conn),
        update=update,
        note=(mark + history.writing(target.identifier)).as_bytes(conn),
        arrays=arrays,
    )


def _mark(target: ResultTable, found: Sequence[table.ResultColumn]) -> sql.Composed:
    """Return a comment that ties a statement's text to this table and its types.

    Prepared statements are looked up by their text and keep the types of their parameters.  Without
    the comment, another table of the name, or another type, would go unnoticed.
    """
    oids = [target.oid, *(a.base_oid for a in found)]
    return sql.SQL("/* {} */ ").format(sql.SQL(" ").join(map(sql.Literal, oids)))


def _found_by(
    conn: Connection, target: ResultTable, found: Sequence[table.ResultColumn]
) -> list[sql.Composed]:
    """Return the conditions on rows ``t`` and ``g`` that an index of the table answers."""
    if target.key:
        operators = keys.equality(conn, target.oid)
        return [
            sql.SQL("{} {} {}").format(
                sql.Identifier("t", name), operators[name], sql.Identifier("g", name)
            )
            for name in target.key
        ]
    flags = table.hashable(conn, target.identifier, found)
    hashed = [a for a, ok in zip(found, flags, strict=True) if ok]
    if not hashed:
        return []
    return [sql.SQL("{} = {}").format(table.row_hash("t", hashed), table.row_hash("g", hashed))]


def _free_name(names: Sequence[str]) -> str:
    name = WEIGHT
    while name in names:
        name += "_"
    return name
