"""The transaction that publishes a view: table, rows, index, grants, progress, catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.errors import BugError, TransientError
from headrace.population import names
from headrace.population.catalog import NewView
from headrace.population.job import Job
from headrace.population.names import ViewName
from headrace.population.staging import Staging
from headrace.postgres import statements
from headrace.postgres.connect import Connection
from headrace.process import faults
from headrace.sink import keys, policies, table
from headrace.sink.table_metadata import TableMetadata
from headrace.sql import progress, schemas, states
from headrace.sql.status import Status
from headrace.types import Field, format_lsn

_PIECE_BYTES: Final = 1 << 20
_ROWS_INDEX_LATER: Final = 10_000
_SCHEMA_LOCK: Final = 0x4844_5204


@dataclass(frozen=True, slots=True)
class NewTable:
    """A result table to create."""

    target: ViewName
    columns: Sequence[Field]
    key: Sequence[str]
    reader: str | None
    kept: TableMetadata | None = None
    """Users' changes to the table that this one replaces."""


def publish(
    job: Job,
    conn: Connection,
    view_id: int,
    view: NewView,
    staging: Staging,
    position: dict[str, Any],
) -> int:
    """Create the result table with its rows and set the view running; return the table's OID.

    The caller commits.  ``position``: the answer of ``hold`` plus ``start_lsn``.

    REQUIRES: an open transaction on a connection with pinned settings.
    """
    target = view.target
    # Look the role up by OID: its old name may belong to another role by now.
    owner = names.role_of(conn, view.owner).name if view.caller is not None else None
    if target.new_schema:
        _make_schema(conn, target.schema, owner)
    planned = view.planned
    sink = planned.physical.sink
    oid = make_table(job, conn, NewTable(target, planned.columns, sink.key, owner), staging)
    policies.put(conn, sql.Identifier(target.schema, target.name), oid, sink.conditions)
    start_lsn = put_progress(conn, view_id, position)
    if not states.become(conn, view_id, Status.RUNNING, only={Status.POPULATING}):
        raise TransientError(f'view "{target.name}" was removed while it was being created')
    states.begin(conn, view_id, start_lsn, result_oid=oid)
    return oid


def make_table(job: Job, conn: Connection, wanted: NewTable, staging: Staging) -> int:
    """Create a result table with the staged rows, its index and grants; return its OID.

    Its row security is left to the caller (``policies.put``).

    Raises:
        UserError: 23505 or 23502, the rows violate the key.
    """
    target, kept = wanted.target, wanted.kept
    oid = int(
        table.create(
            conn,
            target.schema,
            target.name,
            table.shape(conn, wanted.columns),
            columns=[field.name for field in wanted.columns],
            keyed=bool(wanted.key),
            fields=wanted.columns,
        )
    )
    if wanted.reader is not None and not (kept is not None and kept.known):
        table.let_read(conn, target.schema, target.name, wanted.reader)
    if kept is not None:
        # Do this while the table is empty, so that building an index runs no user code.
        kept.restore(conn, target.schema, target.name)
    faults.point(faults.RESULT_MADE)
    name = sql.Identifier(target.schema, target.name)
    total = staging.row_count()
    later = total >= _ROWS_INDEX_LATER and table.drop_hash_index(conn, target.schema, oid)
    copy_rows(job, conn, name, staging)
    if later:
        job.phase("indexing")
        table.create_hash_index(conn, target.schema, target.name)
    if wanted.key:
        job.phase("indexing")
        keys.add(conn, name, wanted.key)
    conn.execute(sql.SQL("ANALYZE {}").format(name))
    return oid


def put_progress(conn: Connection, view_id: int, position: dict[str, Any]) -> str:
    """Write the first progress row of a population; return the LSN that it starts from."""
    start_lsn = format_lsn(int(position["start_lsn"]))
    progress.begin(conn, view_id, int(position["txid"]), start_lsn)
    return start_lsn


def copy_rows(
    job: Job, conn: Connection, name: sql.Identifier, staging: Staging, *, frozen: bool = False
) -> int:
    """Copy the staged rows into the table ``name``; return their number.

    ``frozen``: make the rows visible to all snapshots (COPY FREEZE).
    REQUIRES then: the table was truncated in this transaction, outside of any subtransaction.
    """
    how = sql.SQL(" (FREEZE)" if frozen else "")
    total = staging.row_count()
    job.phase("writing", total=total)
    files = staging.row_files()
    bytes_total = sum(path.stat().st_size for path in files) or 1
    sent = 0
    with conn.cursor() as cursor:
        with cursor.copy(sql.SQL("COPY {} FROM STDIN{}").format(name, how)) as copy:
            for path in files:
                with path.open("rb") as file:
                    while piece := file.read(_PIECE_BYTES):
                        copy.write(piece)
                        sent += len(piece)
                        job.rows(total * sent // bytes_total)
        count = cursor.rowcount
    if count != total:
        raise BugError(f"{count} rows were written, {total} were expected")
    job.complete(total)
    return total


def _make_schema(conn: Connection, schema: str, caller: str | None) -> None:
    """Create a schema for the view and record it, so that ``drop`` removes it again."""
    # Two views may create the same schema at once: the second waits for the first's commit.
    statements.alone(conn, _SCHEMA_LOCK)
    statement = sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema))
    if caller is not None:
        statement += sql.SQL(" AUTHORIZATION {}").format(sql.Identifier(caller))
    try:
        with conn.transaction():
            conn.execute(statement)
    except (psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation):
        return  # another session has created it meanwhile
    schemas.remember(conn, schema)
