"""Reads the rows of a base table in a snapshot: COPY text, parsed by the stream's decoder.

The builder and every Spark task use it, each on its own connection.

* Invariant 1: all rows are read in the snapshot: the reader checks ``pg_current_snapshot()`` after
  it has joined (E5, H4).
* Invariant 2: a value has the same text here and in the stream: same output functions, same
  pinned settings, never a cast to text (H5).
* Invariant 3: the reader reads the planned table, not another one that has its name now.
* Invariant 4: no query is planned over a table unless its owner has our rights anyway (tables.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import ExecStatus, TransactionStatus

from headrace.collections.plan import SourceColumn, SourceSpec
from headrace.collections.source import load_columns, only_wanted
from headrace.errors import BugError, DefiniteFailure, SnapshotLost, TransientError
from headrace.kernels import copytext, text
from headrace.population import copydata, tables
from headrace.population.copydata import FAILED
from headrace.population.snapshot import SnapshotRef
from headrace.postgres import reuse
from headrace.postgres.connect import Connection
from headrace.postgres.failures import as_headrace

ROWS_PER_BATCH: Final = 50_000
BYTES_PER_BATCH: Final = 4 * 1024 * 1024
_CANCEL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Blocks:
    """A range of a table's disk blocks: ``first`` to ``last`` - 1, or to the end (None)."""

    first: int
    last: int | None


WHOLE: Final = Blocks(0, None)


@dataclass(frozen=True, slots=True)
class TableOrigin:
    """Table of another database, in a snapshot of it."""

    source: str
    """Name of the source (``add_source``)."""
    dsn: str
    ref: SnapshotRef
    table: SourceSpec
    """The plan's table, with the names and numbers that it has there."""


@contextlib.contextmanager
def joined(dsn: str, ref: SnapshotRef, keep: reuse.Keep = reuse.always) -> Iterator[Connection]:
    """Yield a connection inside the snapshot; ``keep`` decides whether it is reused afterwards.

    Raises:
        SnapshotLost: the snapshot does not exist any more, or is not the expected one.
    """
    with reuse.lent(dsn, keep, what="population reader") as conn:
        try:
            # NB: BEGIN must be explicit: in an implicit transaction SET silently does nothing (E5).
            conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(ref.name)))
            except (
                psycopg.errors.InvalidParameterValue,
                psycopg.errors.UndefinedObject,
            ) as error:
                raise SnapshotLost(
                    "the snapshot of the population was lost", detail=str(error).strip()
                ) from error
            prove(conn, ref)
            yield conn
            # An abandoned read was cancelled, and its connection must not be reused.
            if conn.info.transaction_status == TransactionStatus.INTRANS:
                conn.rollback()
        except psycopg.Error as error:
            raise as_headrace(error) from error


def prove(conn: Connection, ref: SnapshotRef) -> None:
    """Raise SnapshotLost unless ``conn`` reads exactly the snapshot ``ref``."""
    row = conn.execute("SELECT pg_current_snapshot()::text").fetchone()
    seen = row[0] if row else None
    if seen != ref.proof:
        raise SnapshotLost(
            "a reader of the population is outside its snapshot",
            detail=f"Expected {ref.proof}, seen {seen}.",
        )


def read(
    conn: Connection,
    source: SourceSpec,
    blocks: Blocks = WHOLE,
    *,
    plain: bool = False,
    only: sql.Composable | None = None,
) -> Generator[list[pa.Array], None, None]:
    """Yield the typed columns of ``load_columns(source)``, batch by batch.

    ``plain``: filter the rows here, because another server may order texts differently.
    ``only``: a condition that spares rows; all rows come if no query may be planned over the table.

    REQUIRES: ``conn`` comes from ``joined``; the generator is closed before ``conn``.

    Raises:
        TableChanged: the name belongs to another table, or the table has another owner.
    """
    columns = load_columns(source)
    if not columns:
        raise BugError(f'source "{source.id}" reads no column')
    name = sql.Identifier(source.schema_name, source.table_name)
    tables.hold(conn, name, source.table_oid, tables.changed(source))
    filtered = False
    if plain and blocks == WHOLE:
        statement = plain_statement(source, columns)
    elif tables.may_plan(conn, source):
        filtered = not plain
        statement = copy_statement(source, columns, blocks, filtered=filtered, only=only)
    elif blocks == WHOLE:
        statement = plain_statement(source, columns)
    else:
        raise tables.changed(source)
    with contextlib.closing(_copy(conn, statement.as_string(conn).encode())) as pieces:
        for data in pieces:
            arrays = copytext.split(data, len(columns))
            batch = [_parse(source, c, array) for c, array in zip(columns, arrays, strict=True)]
            yield batch if filtered else only_wanted(source, batch)


def estimated(conn: Connection, source: SourceSpec) -> int | None:
    """Return how many rows the planner expects to match the source's pushed-down filter.

    None: no query may be planned over the table.

    Raises:
        TableChanged: as ``read``.
    """
    name = sql.Identifier(source.schema_name, source.table_name)
    with conn.transaction(force_rollback=True):
        tables.hold(conn, name, source.table_oid, tables.changed(source))
        if not tables.may_plan(conn, source):
            return None
        statement = sql.SQL("EXPLAIN (FORMAT JSON) SELECT FROM ONLY {} WHERE {}")
        row: Any = conn.execute(statement.format(name, _condition(source))).fetchone()
    return int(row[0][0]["Plan"]["Plan Rows"])


def copy_statement(
    source: SourceSpec,
    columns: tuple[SourceColumn, ...],
    blocks: Blocks,
    *,
    filtered: bool = True,
    only: sql.Composable | None = None,
) -> sql.Composed:
    """Return the COPY statement that reads ``columns`` of ``source`` in a range of blocks.

    ``filtered``: only the rows that its pushed-down filter admits; ``only``: one more condition.
    """
    conditions = [] if only is None else [only]
    if blocks.first:
        conditions.append(sql.SQL("ctid >= {}").format(sql.Literal(f"({blocks.first},0)")))
    if blocks.last is not None:
        conditions.append(sql.SQL("ctid < {}").format(sql.Literal(f"({blocks.last},0)")))
    if filtered and source.pushdown:
        conditions.append(_condition(source))
    where = sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions))
    return sql.SQL("COPY (SELECT {} FROM ONLY {}{}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
        sql.Identifier(source.schema_name, source.table_name),
        where if conditions else sql.SQL(""),
    )


def plain_statement(source: SourceSpec, columns: tuple[SourceColumn, ...]) -> sql.Composed:
    """Return the COPY statement for ``columns`` of all rows, which needs no planning."""
    return sql.SQL("COPY {} ({}) TO STDOUT").format(
        sql.Identifier(source.schema_name, source.table_name),
        sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
    )


def _condition(source: SourceSpec) -> sql.Composed:
    """Return the pushed-down filter, with the current names of the columns."""
    parts: list[sql.Composable] = []
    for number, part in enumerate(source.pushdown):
        if number % 2:
            parts.append(sql.Identifier(source.columns[int(part)].name))
        else:
            parts.append(sql.SQL(part))
    return sql.SQL("({})").format(sql.Composed(parts))


def _parse(source: SourceSpec, column: SourceColumn, values: pa.Array) -> pa.Array:
    try:
        return text.parse(values, column.oid)
    except ValueError as error:
        raise DefiniteFailure(
            f'column "{column.name}" of table "{source.schema_name}".'
            f'"{source.table_name}" has another type now',
            detail=str(error),
        ) from error


def _copy(conn: Connection, statement: bytes) -> Generator[bytes, None, None]:
    """Yield whole lines of COPY data in pieces of about ``BYTES_PER_BATCH``.

    A thread reads the next piece while the caller works on this one.
    """
    pgconn = conn.pgconn
    result = pgconn.exec_(statement)
    if result.status != ExecStatus.COPY_OUT:
        raise _failed(conn, result)
    with ThreadPoolExecutor(1, "headrace-reading") as pool:
        following = partial(copydata.read, pgconn, BYTES_PER_BATCH, ROWS_PER_BATCH)
        ahead = pool.submit(following)
        try:
            length = 1
            while length > 0:
                data, length = ahead.result()
                if length > 0:
                    ahead = pool.submit(following)
                if data and length != FAILED:
                    yield data
        finally:
            if not ahead.done():  # the caller has abandoned the read
                with contextlib.suppress(psycopg.Error):  # without a cancel the read ends anyway
                    conn.cancel_safe(timeout=_CANCEL_S)
    done = pgconn.get_result()
    if length == FAILED or done is None or done.status != ExecStatus.COMMAND_OK:
        raise _failed(conn, done)
    while pgconn.get_result() is not None:
        continue


def _failed(conn: Connection, result: Any) -> Exception:
    if result is None or conn.pgconn.status != psycopg.pq.ConnStatus.OK:
        reason = conn.pgconn.error_message.decode(errors="replace").strip()
        return TransientError("the connection of a reader was lost", detail=reason)
    return as_headrace(psycopg.errors.error_from_result(result))
