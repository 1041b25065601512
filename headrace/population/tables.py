"""Base tables of a population: their sizes, and checks that they stay as planned.

A snapshot protects rows, not their table: TRUNCATE and rewrites (VACUUM FULL, CLUSTER,
ALTER … TYPE) ignore it, and move or remove rows.  So a table's *shape* is read, outside the
snapshot, before the first row and after the last.  Any difference discards the population (E11,
H9).

Planning a query over a table may run code of its owner: Postgres evaluates constant parts of the
expressions of indexes and statistics, with the rights of the session.  So a table whose owner does
not have our rights anyway is read whole, by a plain COPY, which plans nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from msgspec.structs import replace
from psycopg import sql

from headrace.collections.plan import FeedSpec, Node, PhysicalPlan, SourceSpec
from headrace.collections.source import load_columns
from headrace.errors import HeadraceError, TransientError
from headrace.postgres.connect import Connection


class TableChanged(TransientError):
    """DDL changed a table during the population, which may be retried."""

    sqlstate = "40001"


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of one table to read."""

    rows: int
    """Estimate, computed as by Postgres' planner."""
    blocks: int
    known: bool = True
    """Whether the estimate rests on an ANALYZE; otherwise only on the width of the columns."""
    whole: bool = False
    """Whether the table must be read in one piece (``may_plan``)."""
    width: int = 0
    """Bytes of the columns that are read of a row, as estimated from statistics."""


Shape = tuple[object, ...]


# A tuple's header and line pointer take 28 bytes.
_SIZE: Final = """
SELECT pg_relation_size(c.oid), current_setting('block_size')::int, c.reltuples::bigint,
       c.relpages, 28 + (SELECT sum(CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END)
  FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       pg_has_role(c.relowner, session_user, 'MEMBER'),
       (SELECT sum(coalesce(s.avg_width, CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END))
  FROM pg_attribute a LEFT JOIN pg_stats s ON NOT s.inherited AND s.attname = a.attname
    AND s.tablename = c.relname AND s.schemaname = n.nspname
  WHERE a.attrelid = c.oid AND a.attnum = ANY(%(read)s)),
       (SELECT pg_relation_size(c.reltoastrelid) FROM pg_attribute a WHERE a.attrelid = c.oid
    AND a.attnum = ANY(%(read)s) AND a.attstorage <> 'p' LIMIT 1)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(oid)s"""


def may_plan(conn: Connection, source: SourceSpec) -> bool:
    """Return whether planning over the table runs only code of a role that has our rights anyway.

    REQUIRES: the table is locked by ``hold``, so that its owner and indexes stay.
    """
    row = conn.execute(
        "SELECT pg_has_role(relowner, session_user, 'MEMBER') FROM pg_class WHERE oid = %s",
        (source.table_oid,),
    ).fetchone()
    return bool(row and row[0])


def hold(conn: Connection, name: sql.Identifier, oid: int | None, otherwise: HeadraceError) -> None:
    """Lock the table ``oid``, so that ``name`` means it until the end of the transaction.

    A view in its place would run its owner's functions with our rights.

    Raises:
        HeadraceError: ``otherwise``, if the name does not mean the table any more.
    """
    try:
        conn.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(name))
    except (
        psycopg.errors.UndefinedTable,
        psycopg.errors.InvalidSchemaName,
        psycopg.errors.WrongObjectType,
    ) as error:
        raise otherwise from error
    row = conn.execute("SELECT to_regclass(%s)::oid::bigint", (name.as_string(conn),)).fetchone()
    if row is None or row[0] != oid:
        raise otherwise


def size(conn: Connection, source: SourceSpec) -> TableSize:
    """Return the current size of the table of ``source``.

    Raises:
        TableChanged: the table does not exist any more.
    """
    read = [column.attnum for column in load_columns(source)]
    row = conn.execute(_SIZE, {"oid": source.table_oid, "read": read}).fetchone()
    if row is None or row[0] is None:
        raise changed(source)
    size, block, tuples, pages, width = map(int, row[:5])
    blocks, whole = -(-size // block), not row[5]
    if blocks == 0:
        return TableSize(0, 0, whole=whole)
    # As in the planner: rows per page at the last ANALYZE, times the current number of pages.
    known = tuples >= 0 and pages > 0
    rows = round(tuples / pages * blocks) if known else blocks * max(block // width, 1)
    # For a value in the TOAST table, statistics have only the width of its pointer.
    apart = int(row[7] or 0) // max(rows, 1)
    return TableSize(rows, blocks, known=known, whole=whole, width=int(row[6] or 0) + apart)


def expected(physical: PhysicalPlan, sizes: Mapping[str, TableSize]) -> int:
    """Return the number of rows to read; 0 if there is no reliable estimate."""
    read: list[SourceSpec | FeedSpec] = [*physical.sources, *physical.feeds]
    tables = {node.table_oid: node for node in read}.values()
    if any(s.pushdown or not sizes[s.id].known for s in tables):
        return 0
    return sum(sizes[s.id].rows for s in tables)


def renamed(conn: Connection, physical: PhysicalPlan) -> PhysicalPlan:
    """Return ``physical`` with the current names of its tables and columns.

    Raises:
        TableChanged: a table or column is gone.
    """
    nodes: list[Node] = []
    for node in physical.nodes:
        if not isinstance(node, SourceSpec):
            nodes.append(node)
            continue
        row = conn.execute(
            "SELECT n.nspname, c.relname, (SELECT jsonb_object_agg(a.attnum, a.attname)"
            "  FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0"
            "   AND NOT a.attisdropped)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = %s",
            (node.table_oid,),
        ).fetchone()
        names = (row[2] if row else None) or {}
        if row is None or any(str(c.attnum) not in names for c in load_columns(node)):
            raise changed(node)
        columns, key = (
            tuple(replace(c, name=names[str(c.attnum)]) for c in part)
            for part in (node.columns, node.key)
        )
        nodes.append(replace(node, schema_name=row[0], table_name=row[1], columns=columns, key=key))
    return replace(physical, nodes=tuple(nodes))


def shape(conn: Connection, sources: Sequence[SourceSpec]) -> dict[str, Shape]:
    """Return the properties of each table that must not change while it is read.

    Raises:
        TableChanged: a table does not match the plan any more.
    """
    found: dict[str, Shape] = {}
    for source in sources:
        row = conn.execute(
            "SELECT n.nspname, c.relname, c.relkind, c.relreplident, c.relrowsecurity,"
            " c.relispartition, pg_relation_filenode(c.oid), c.relhassubclass,"
            " (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = c.oid"
            "  AND i.indisreplident),"
            " (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = c.oid"
            "  AND i.indisprimary),"
            " pg_has_role(c.relowner, session_user, 'MEMBER'),"
            " (SELECT array_agg(a.attnum || ':' || a.xmin::text ORDER BY a.attnum)"
            "  FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = %s",
            (source.table_oid,),
        ).fetchone()
        if row is None or row[:2] != (source.schema_name, source.table_name):
            raise changed(source)
        if source.full_identity != (row[3] == "f"):
            raise changed(source)
        _check_columns(conn, source)
        found[source.id] = (*row, _labels(conn, source))
    return found


def check_same(before: dict[str, Shape], after: dict[str, Shape]) -> None:
    """Raise TableChanged if a table was rewritten or altered in between."""
    for name, old in before.items():
        if after[name] != old:
            raise TableChanged(
                f'table "{old[0]}"."{old[1]}" was changed while it was read',
                hint="Make the call again when no ALTER TABLE, TRUNCATE, CLUSTER or"
                " VACUUM FULL is running.",
            )


def _check_columns(conn: Connection, source: SourceSpec) -> None:
    rows = conn.execute(
        # The plan has base types instead of domains, whose values are the same.
        "WITH RECURSIVE types AS ("
        " SELECT attnum, attname, atttypid AS oid FROM pg_attribute"
        "  WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
        " UNION ALL SELECT s.attnum, s.attname, t.typbasetype FROM types s"
        "  JOIN pg_type t ON t.oid = s.oid WHERE t.typtype = 'd')"
        " SELECT s.attnum, s.attname, s.oid::bigint FROM types s"
        "  JOIN pg_type t ON t.oid = s.oid WHERE t.typtype <> 'd'",
        (source.table_oid,),
    ).fetchall()
    have = {(int(number), str(name), int(oid)) for number, name, oid in rows}
    for column in load_columns(source):
        if (column.attnum, column.name, column.oid) not in have:
            raise changed(source)


def _labels(conn: Connection, source: SourceSpec) -> object:
    """Return the labels of the columns' enums: renaming a label silently changes values (E11)."""
    row = conn.execute(
        "SELECT array_agg(e.oid || ':' || e.enumlabel ORDER BY e.oid) FROM pg_enum e"
        " JOIN pg_type t ON t.oid = e.enumtypid"
        " WHERE t.oid = ANY(%(oids)s::oid[]) OR t.typarray = ANY(%(oids)s::oid[])",
        {"oids": [column.oid for column in load_columns(source)]},
    ).fetchone()
    return tuple(row[0]) if row and row[0] else ()


def changed(source: SourceSpec) -> TableChanged:
    """Return the error for a table that does not match the plan any more."""
    return TableChanged(
        f'table "{source.schema_name}"."{source.table_name}" was changed'
        " while the view was being filled",
        hint="Make the call again.",
    )
