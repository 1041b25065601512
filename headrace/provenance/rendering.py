"""Values of rows as JSON, and values in JSON as values of columns; Postgres converts them.

Only built-in types are converted: the owner of another type may have given it code, which would run
with the engine's rights.  Values of other types are texts in JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import psycopg
import pyarrow as pa
from psycopg import sql

from headrace import types as t
from headrace.errors import UserError
from headrace.kernels import copytext, text
from headrace.postgres.connect import Connection
from headrace.postgres.failures import as_headrace
from headrace.provenance.values import AllowedValues


class Typed(Protocol):
    """A column: its name and type."""

    @property
    def name(self) -> str:
        """Name."""

    @property
    def oid(self) -> int:
        """OID of the type."""

    @property
    def typmod(self) -> int:
        """Modifier of the type."""


_PADDED: Final = frozenset((t.BPCHAR, t.BIT))
"""Types whose output depends on the declared length."""


def of_json(conn: Connection, fields: Sequence[Typed], given: str) -> list[AllowedValues]:
    """Return the values of columns that a JSON object, a text, gives by their names.

    Raises:
        UserError: a value is not one of its column's type.
    """
    shape = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(field.name), kind)
        for field, kind in zip(fields, _types(conn, fields), strict=True)
    )
    statement = sql.SQL(
        "COPY (SELECT k.* FROM pg_catalog.jsonb_to_record({}::pg_catalog.jsonb) AS k ({})) TO STDOUT"
    ).format(sql.Literal(given), shape)
    try:
        with conn.cursor() as cursor, cursor.copy(statement) as copy:
            line = b"".join(bytes(piece) for piece in copy)
    except psycopg.DataError as error:
        raise as_headrace(error) from error
    columns = copytext.split(line, len(fields))
    out = []
    for field, column in zip(fields, columns, strict=True):
        value = column[0].as_py()
        try:
            text.parse(column, field.oid)
        except ValueError as error:
            raise UserError(f'value of column "{field.name}" is out of range') from error
        out.append(AllowedValues(field.oid, frozenset((value,))))
    return out


def as_json(conn: Connection, fields: Sequence[Typed], columns: Sequence[pa.Array]) -> list[str]:
    """Return each row as the text of a JSON object."""
    if not columns or not len(columns[0]):
        return []
    texts = [
        text.render(column, field.oid).to_pylist()
        for field, column in zip(fields, columns, strict=True)
    ]
    names = [sql.Identifier(f"c{number}") for number in range(len(fields))]
    shown = sql.SQL(", ").join(
        sql.SQL("u.{}::{} AS {}").format(name, kind, sql.Identifier(field.name))
        for name, field, kind in zip(names, fields, _types(conn, fields), strict=True)
    )
    statement = sql.SQL(
        "SELECT pg_catalog.to_jsonb(r.*)::text FROM (SELECT {} FROM ROWS FROM ({}) WITH ORDINALITY"
        " AS u ({}, place) ORDER BY u.place) r"
    ).format(
        shown,
        sql.SQL(", ").join([sql.SQL("pg_catalog.unnest(%s::pg_catalog.text[])")] * len(fields)),
        sql.SQL(", ").join(names),
    )
    return [str(row[0]) for row in conn.execute(statement, texts).fetchall()]


def joined(columns: Sequence[pa.Array]) -> pa.Array:
    """Return arrays of one value each as one."""
    return pa.concat_arrays(list(columns)) if columns else pa.nulls(0, pa.string())


def _types(conn: Connection, fields: Sequence[Typed]) -> list[sql.SQL]:
    """Return the names of the types in SQL; text for those that are not built in."""
    found = [
        (t.TEXT, -1)
        if field.oid >= t.FIRST_USER_OID
        else (field.oid, field.typmod if field.oid in _PADDED else -1)
        for field in fields
    ]
    rows = conn.execute(
        "SELECT pg_catalog.format_type(u.oid, u.typmod) FROM ROWS FROM ("
        " pg_catalog.unnest(%s::pg_catalog.oid[]), pg_catalog.unnest(%s::pg_catalog.int4[]))"
        " WITH ORDINALITY AS u (oid, typmod, place) ORDER BY u.place",
        ([oid for oid, _ in found], [typmod for _, typmod in found]),
    )
    return [sql.SQL(name) for (name,) in rows]
