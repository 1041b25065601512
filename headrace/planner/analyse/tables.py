"""Base tables of a query: their columns and row identity, and which tables are refused.

A table qualifies when logical replication shows every change of its own rows: an ordinary logged
table (also a partition, or one of an inheritance tree: ``sources.py``) with a key or REPLICA
IDENTITY FULL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from psycopg import sql

from headrace.errors import PrerequisiteError, SystemRelationError, UnsupportedError
from headrace.planner.analyse.catalog import Catalog
from headrace.postgres.connect import Connection
from headrace.postgres.identity import NOT_NULL, NULL_KEYS, VALIDATE
from headrace.types import FIRST_USER_OID


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column; its type is never a domain."""

    attnum: int
    name: str
    oid: int
    typmod: int
    collation: int
    not_null: bool
    generated: bool
    apart: bool = True
    """Whether its values may be stored in TOAST: an UPDATE that keeps such a value omits it.

    The storage mode is that of new values: with PLAIN, older values may still be in TOAST.
    Values of at most 24 bytes never are (toast_tuple_find_biggest_attribute): numeric(24)."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics that ANALYZE collected for a table."""

    rows: float
    distinct: dict[int, float]
    """Number of different values by attnum, where it is known."""
    width: dict[int, int]
    """Mean size of a value by attnum, in bytes."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be followed; ``key`` is empty exactly when ``full``."""

    oid: int
    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    key: tuple[int, ...]
    full: bool
    statistics: Statistics | None = field(default=None, compare=False)
    """None if it was never analysed."""
    view: str = ""
    """Name of the Headrace view that owns the table, if its rows are read from that view."""

    def column(self, attnum: int) -> TableColumn:
        """Return the column with that number."""
        return next(c for c in self.columns if c.attnum == attnum)


_CLASS: Final = """
SELECT n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text,
       (SELECT ARRAY(SELECT k.n FROM unnest(indkey::int2[]) WITH ORDINALITY k (n, place)
                      WHERE k.place <= indnkeyatts ORDER BY k.place)
          FROM pg_index WHERE indrelid = c.oid AND indisvalid
           AND indimmediate AND indpred IS NULL
           AND CASE c.relreplident WHEN 'i' THEN indisreplident ELSE indisprimary END)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s"""
_COLUMNS: Final = f"""
SELECT attnum, attname, atttypid, atttypmod, attcollation, {NOT_NULL},
       attgenerated <> '',
       attlen = -1 AND (SELECT reltoastrelid <> 0 FROM pg_class c WHERE c.oid = attrelid)
       AND NOT (atttypid = 'numeric'::regtype AND atttypmod BETWEEN 4 AND (25 << 16))
  FROM pg_attribute a WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
 ORDER BY attnum"""  # noqa: S608  our own constant
_KINDS: Final = {
    "m": "materialized view",
    "f": "foreign table",
    "S": "sequence",
    "t": "TOAST table",
    "c": "composite type",
    "i": "index",
}

_HINTS: Final = {
    "m": "Use its query instead: the replication stream does not show when it is refreshed.",
    "f": "Its data is on another server, so its changes are not in the replication stream.",
}


def load_table(conn: Connection, catalog: Catalog, oid: int, position: int | None) -> Table:
    """Return the table with that OID; raise if its changes cannot be followed."""
    row = conn.execute(_CLASS, (oid,)).fetchone()
    assert row is not None, "the table is locked by our transaction"
    schema, name = row[0], row[1]
    _refuse(oid, row, position)
    columns = load_columns(conn, catalog, oid)
    if not columns:
        raise UnsupportedError(
            f'table "{name}" without columns is not supported',
            detail="Its rows cannot be distinguished.",
            hint="Add a column, such as a primary key.",
            position=position,
        )
    identity, indkey = row[4], row[5]
    full = identity == "f"
    if not full and (identity == "n" or indkey is None):
        raise _no_identity(schema, name, identity, position)
    if full and conn.info.server_version >= 180000 and any(c.generated for c in columns):
        raise PrerequisiteError(
            f'table "{name}" has REPLICA IDENTITY FULL and generated columns',
            detail="Postgres would refuse its updates and deletes once it is published.",
            hint="Add a primary key, and run: ALTER TABLE "
            f"{sql.Identifier(schema, name).as_string()} REPLICA IDENTITY DEFAULT;",
            position=position,
        )
    key = () if full else tuple(int(k) for k in indkey)
    for column in columns:
        if column.generated and column.attnum in key:
            raise UnsupportedError(
                f'generated column "{column.name}" in the key of table "{name}" is not supported',
                hint="Its values are not in the replication stream.",
                position=position,
            )
        if column.attnum in key and not column.not_null:
            raise PrerequisiteError(
                f'column "{column.name}" of the replica identity of table "{name}" may be NULL',
                detail=NULL_KEYS,
                hint=VALIDATE,
                position=position,
            )
    statistics = load_statistics(conn, oid)
    return Table(oid, schema, name, columns, key, full, statistics)


def load_result(conn: Connection, catalog: Catalog, oid: int, view: str) -> Table:
    """Return the table of the Headrace view called ``view``; its rows come from that view."""
    row = conn.execute(_CLASS, (oid,)).fetchone()
    assert row is not None, "the table is locked by our transaction"
    columns = load_columns(conn, catalog, oid)
    return Table(oid, row[0], row[1], columns, (), True, load_statistics(conn, oid), view)


_STATISTICS: Final = """
SELECT c.reltuples, a.attnum, s.n_distinct, s.avg_width
  FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
  JOIN pg_stats s ON s.attname = a.attname AND NOT s.inherited
   AND s.tablename = (SELECT t.relname FROM pg_class t WHERE t.oid = %(oid)s)
   AND s.schemaname = (SELECT n.nspname FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace
                        WHERE t.oid = %(oid)s)
 WHERE c.oid = %(oid)s AND c.reltuples > 0 ORDER BY a.attnum"""
"""Subqueries give pg_stats constant names: a join would compare the names of all tables."""


def load_statistics(conn: Connection, oid: int) -> Statistics | None:
    """Return the statistics of a table that the current role may read; None if there are none."""
    found = conn.execute(_STATISTICS, {"oid": oid}).fetchall()
    if not found:
        return None
    total = float(found[0][0])
    return Statistics(
        total,
        # A negative n_distinct is a fraction of the rows.
        {a: float(n) if n > 0 else -n * total for _, a, n, _ in found if n},
        {a: width for _, a, _, width in found},
    )


def load_columns(conn: Connection, catalog: Catalog, oid: int) -> tuple[TableColumn, ...]:
    """Return the columns of the relation with that OID, in order."""
    rows = conn.execute(_COLUMNS, (oid,)).fetchall()
    catalog.types.load({row[2] for row in rows})
    return tuple(_column(catalog, row) for row in rows)


def _column(catalog: Catalog, row: tuple[Any, ...]) -> TableColumn:
    attnum, name, oid, typmod, collation, *flags = row
    found = catalog.types[oid]
    while found.kind == "d":
        # A domain over varchar(5) keeps the length; collations are the column's own.
        typmod = found.base_typmod
        found = catalog.types[found.base]
    return TableColumn(attnum, name, found.oid, typmod, collation, *flags)


def refuse_system(oid: int, schema: str, name: str, position: int | None) -> None:
    """Refuse a system relation, or one of Headrace's own schema."""
    if oid < FIRST_USER_OID or schema in ("pg_catalog", "information_schema", "headrace"):
        raise SystemRelationError(
            f'system relation "{name}" is not supported',
            hint="Logical replication does not publish its changes.",
            position=position,
        )


def _refuse(oid: int, row: tuple[Any, ...], position: int | None) -> None:
    schema, name, kind, persistence = row[:4]

    def no(what: str, hint: str | None = None) -> UnsupportedError:
        return UnsupportedError(what, hint=hint, position=position)

    refuse_system(oid, schema, name, position)
    if kind in _KINDS:
        raise no(f'{_KINDS[kind]} "{name}" is not supported', _HINTS.get(kind))
    if kind != "r":
        raise no(f'relation "{name}" is not a table')
    if persistence != "p":
        word = "temporary" if persistence == "t" else "unlogged"
        raise no(
            f'{word} table "{name}" is not supported', "Its changes are not in the write-ahead log."
        )


def _no_identity(schema: str, name: str, identity: str, position: int | None) -> PrerequisiteError:
    table = sql.Identifier(schema, name)
    full = sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL;").format(table).as_string()
    if identity == "n":
        detail = "Its replica identity is NOTHING, so updates and deletes cannot be followed."
        hint = f"Run: {full}"
    else:
        detail = "Without either, updates and deletes of its rows cannot be followed."
        hint = f"Add a primary key, or run: {full}"
    return PrerequisiteError(
        f'table "{name}" has neither a primary key nor REPLICA IDENTITY FULL',
        detail=detail,
        hint=hint,
        position=position,
    )
