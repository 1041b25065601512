"""add_source, drop_source, sources and create_logical_table: tables of other databases.

A source is prepared and entered into the catalog here. The commander reads the answer, and starts
or ends the source's replicator (``server/supervisor.py``).
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.errors import (
    DuplicateError,
    HeadraceError,
    PrerequisiteError,
    TransientError,
    UndefinedError,
    UserError,
)
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.acting import act_as
from headrace.postgres.connect import Connection
from headrace.process import password_files, rpc
from headrace.sources import remote
from headrace.sources.remote import RemoteTable
from headrace.sql import origins, views
from headrace.sql.nodes import MAIN
from headrace.sql.origins import SourceRow, StandIn
from headrace.sql.verbs import AddSource, CreateLogicalTable, DropSource, Request
from headrace.types import format_lsn
from headrace.views import workers

_log = structlog.get_logger(__name__)

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,19}")
_POLL_S: Final = 0.05
_PASSWORD_SENT: Final = (
    "the connection string has a password: Postgres may have logged the statement, unless it came"
    " over the port of headrace; passfile=… or service=… names a file on the machine of headrace"
)
_PATIENCE_S: Final = "2"
_COMMENT: Final = "Headrace: rows of {} are in source {}; views of Headrace read them there."


def add_source(context: JobContext, job: Job, request: AddSource) -> dict[str, Any]:
    """Let views read tables of another database, by making shadow tables for them.

    Raises:
        UserError: 42602, an invalid name; 22023, it is this database, or the path of the data
            directory is too long.
        DuplicateError: 42710, there is a source, or 42P06, a schema, of that name.
        UndefinedError: 42P01, a table does not exist.
        PrerequisiteError: the source lacks a setting or a privilege.
        PrivilegeError: the caller is not a member of the engine's role.
    """
    name = request.name
    if not _NAME.fullmatch(name):
        raise UserError(
            f'invalid name of a source: "{name}"',
            hint="It has 1 to 20 characters of a-z, 0-9 and _, and begins with a letter.",
            sqlstate="42602",
        )
    settings = context.settings
    with job.connection(settings.source, what="builder") as conn, job.translating():
        workers.check_caller(conn, request)
        if name == MAIN or origins.find(conn, name) is not None:
            raise DuplicateError(f'source "{name}" already exists')
        _check_dsn(request.dsn)
        password_files.check(request.dsn)
        with job.connection(request.dsn, what="source") as there:
            who = remote.identity(request.dsn)
            _check_other(conn, settings.source, there, request.dsn)
            tables, left_out = _tables(conn, there, request.tables)
            slot = _slot(conn, settings.source, name)
            # No source has this name: an earlier add_source that failed may have left a slot.
            remote.remove(there, settings, slot)
            try:
                start = remote.prepare(there, settings, slot, tables)
                row = SourceRow(
                    name,
                    request.dsn,
                    slot,
                    who.system_id,
                    who.timeline,
                    remote.published(there, slot),
                    format_lsn(start),
                    "starting",
                    None,
                    remote.no_commit(start),
                )
                _enter(conn, row, tables, settings.of_carrier(name).worker_socket)
            except BaseException:
                with contextlib.suppress(HeadraceError, psycopg.Error):
                    remote.remove(there, settings, slot)
                raise
        while not context.worker.call("carries", {}, job):
            job.wait(_POLL_S)
        answer: dict[str, Any] = {"others": workers.extra_processes(conn)}
        notices = [f"tables of schema {name}: {', '.join(t.name for t in tables)}", *left_out]
        if conninfo_to_dict(request.dsn).get("password"):
            notices.append(_PASSWORD_SENT)
        return answer | {"notice": "; ".join(notices)}


def drop_source(context: JobContext, job: Job, request: DropSource) -> dict[str, Any]:
    """Drop a source and its shadow tables.

    Raises:
        UndefinedError: 42704, there is none of that name.
        UserError: 55006, views read it; 2BP01, other objects depend on its shadow tables.
        PrivilegeError: the caller is not a member of the engine's role.
    """
    settings = context.settings
    with job.connection(settings.source, what="builder") as conn, job.translating():
        workers.check_caller(conn, request)
        row = origins.find(conn, request.name)
        if row is None:
            raise UndefinedError(f'source "{request.name}" does not exist')
        with conn.transaction():
            _drop_tables(conn, request.name)
            reading = origins.readers(conn, request.name)
            if reading:
                raise UserError(
                    f'source "{request.name}" is in use',
                    detail=f"Views that read it: {', '.join(reading)}.",
                    hint="Drop these first, or alter them so that they read something else.",
                    sqlstate="55006",
                )
            origins.delete(conn, request.name)
        answer: dict[str, Any] = {"others": workers.extra_processes(conn)}
    try:
        with job.connection(row.dsn, what="source") as there:
            _end_sender(there, row.slot)
            remote.remove(there, settings, row.slot)
    except (HeadraceError, psycopg.Error) as error:
        _log.warning("slot of a source not removed", slot=row.slot, reason=str(error))
        answer["notice"] = (
            f'its slot and publication "{row.slot}" could not be removed: run there'
            f" SELECT pg_drop_replication_slot('{row.slot}'); DROP PUBLICATION {row.slot};"
        )
    return answer


def shown(context: JobContext, job: Job, request: Request) -> list[list[Any]]:
    """Return a row for each source, with the columns of ``sql/sources.sql``."""
    with job.connection(context.settings.source, what="builder") as conn:
        if not views.seen(conn, request.caller).everything:
            return []
        rows = origins.listed(conn)
        lags = {row.name: _lag(job, row) for row in rows if row.state == "running"}
        return [[*row[:3], lags.get(row[0]), *row[3:]] for row in origins.shown(conn)]


def create_logical_table(
    context: JobContext, job: Job, request: CreateLogicalTable
) -> dict[str, Any]:
    """Create a Postgres view, owned by the caller, over a table here and its copies in sources.

    Raises:
        UndefinedError: 42P01, there is no such table; 42704, no source has one.
        HeadraceError: Postgres refuses the view to the caller.
    """
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        with conn.transaction():
            act_as(conn, request.caller, request.settings)
            found: Any = conn.execute(
                "SELECT %s::pg_catalog.regclass::pg_catalog.oid::pg_catalog.int8,"
                " pg_catalog.parse_ident(%s)",
                (request.of_table, request.name),
            ).fetchone()
        parts = _united(conn, int(found[0]), request.of_table)
        column = request.source_column
        selects = []
        for source, table, columns in parts:
            first = []
            if column is not None:
                label = sql.SQL("{}::pg_catalog.text AS {}").format(
                    sql.Literal(source), sql.Identifier(column)
                )
                first.append(label)
            shown_columns = sql.SQL(", ").join([*first, *map(sql.Identifier, columns)])
            selects.append(sql.SQL("SELECT {} FROM {}").format(shown_columns, table))
        statement = sql.SQL("CREATE VIEW {} AS {}").format(
            sql.Identifier(*found[1]), sql.SQL(" UNION ALL ").join(selects)
        )
        with conn.transaction():
            act_as(conn, request.caller, request.settings)
            conn.execute(statement)
    return {"notice": f"it unites the table in: {', '.join(part[0] for part in parts)}"}


# --- steps


def _check_dsn(dsn: str) -> None:
    try:
        make_conninfo(dsn)
    except psycopg.ProgrammingError as error:
        raise UserError(
            "invalid connection string",  # the error text may contain a password
            hint="For example: host=db.example dbname=shop user=headrace password=…",
        ) from error


def _check_other(conn: Connection, here: str, there: Connection, dsn: str) -> None:
    """Raise UserError if the source is this database."""
    mine, its = remote.identity(here), remote.identity(dsn)
    if mine.system_id == its.system_id and _database(conn) == _database(there):
        raise UserError("the source is this database itself", hint="Its tables are here already.")


def _database(conn: Connection) -> int:
    row: Any = conn.execute(
        "SELECT oid::bigint FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    return int(row[0])


def _slot(conn: Connection, here: str, name: str) -> str:
    """Return the name of the source's slot and publication, unique to this installation."""
    whole = f"{remote.identity(here).system_id} {_database(conn)}"
    return f"headrace_{name}_{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _tables(
    conn: Connection, there: Connection, wanted: str | None
) -> tuple[list[RemoteTable], list[str]]:
    """Return the tables to read, and notices about those that are left out."""
    if wanted is not None:
        named = [name.strip() for name in wanted.split(",") if name.strip()]
        found = [remote.find(there, name) for name in named]
        return _distinct(found), []
    found, notices = [], []
    for name in origins.candidates(conn):
        try:
            found.append(remote.find(there, name))
        except UndefinedError:
            continue
        except UserError as error:
            notices.append(f"left out: {error.message}")
    return _distinct(found), notices


def _distinct(tables: Sequence[RemoteTable]) -> list[RemoteTable]:
    by_name: dict[str, RemoteTable] = {}
    for table in tables:
        other = by_name.setdefault(table.name, table)
        if other.oid != table.oid:
            raise DuplicateError(
                f'two tables are called "{table.name}"',
                detail=f"They are in schemas {other.schema} and {table.schema}, but all tables of"
                f" a source are in one schema here.",
                hint="Add a source for each.",
            )
    if not by_name:
        raise UndefinedError(
            "the source has none of the tables of this database",
            hint="Name tables of the source: add_source(name, dsn, 'orders, customers').",
            sqlstate="42P01",
        )
    return list(by_name.values())


def _enter(conn: Connection, row: SourceRow, tables: Sequence[RemoteTable], socket: Path) -> None:
    """Create the shadow tables and insert the source's row, in one transaction.

    ``socket``: that of the process that will follow the source.
    """
    schema = sql.Identifier(row.name)
    try:
        with conn.transaction():
            origins.ensure_token(conn)
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
            if not origins.insert(conn, row):
                raise DuplicateError(f'source "{row.name}" already exists')
            rpc.check(socket)
            for table in tables:
                _stand_in(conn, row, table)
    except psycopg.errors.DuplicateSchema as error:
        raise DuplicateError(
            f'schema "{row.name}" already exists',
            detail="Tables of a source stand in a schema of its name.",
            hint="Choose another name for the source.",
            sqlstate="42P06",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise PrerequisiteError(
            f"could not make the source's schema: {error.diag.message_primary}",
            hint="Grant CREATE on the database to the role of headrace.",
            sqlstate="42501",
        ) from error


def _stand_in(conn: Connection, row: SourceRow, table: RemoteTable) -> None:
    name = sql.Identifier(row.name, table.name)
    for statement in remote.definition(table, name):
        conn.execute(statement)
    shown_as = f"{table.schema}.{table.name}"
    comment = _COMMENT.format(shown_as, row.name)
    conn.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(name, sql.Literal(comment)))
    found: Any = conn.execute(
        "SELECT to_regclass(%s)::oid::bigint", (name.as_string(conn),)
    ).fetchone()
    origins.add_stand_in(
        conn, StandIn(int(found[0]), row.name, table.oid, table.schema, table.name)
    )


def _drop_tables(conn: Connection, source: str) -> None:
    """Drop shadow tables and their schema; raise UserError (2BP01) if an object depends on them."""
    try:
        for stand_in in origins.stand_ins(conn, source):
            row = conn.execute(
                "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n"
                " ON n.oid = c.relnamespace WHERE c.oid = %s",
                (stand_in.table_oid,),
            ).fetchone()
            if row is not None:
                conn.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(*row)))
        conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {}").format(sql.Identifier(source)))
    except psycopg.errors.DependentObjectsStillExist as error:
        raise UserError(
            f'source "{source}" is in use',
            detail=error.diag.message_detail,
            hint="Drop what needs its tables first.",
            sqlstate="2BP01",
        ) from error


def _end_sender(there: Connection, slot: str) -> None:
    """Terminate the source's walsender: the replicator may still be connected."""
    there.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        " WHERE slot_name = %s AND active_pid IS NOT NULL",
        (slot,),
    )


def _lag(job: Job, row: SourceRow) -> int | None:
    """Return the bytes of WAL not yet replicated from the source; None: it does not answer."""
    try:
        dsn = make_conninfo(row.dsn, connect_timeout=_PATIENCE_S)
        with job.connection(dsn, what="source") as there:
            found = there.execute(
                "SELECT greatest(pg_current_wal_lsn() - %s::pg_lsn, 0)::bigint", (row.position,)
            ).fetchone()
    except (TransientError, UserError, psycopg.Error):
        return None
    return int(found[0]) if found else None


def _united(
    conn: Connection, oid: int, shown_as: str
) -> list[tuple[str, sql.Identifier, list[str]]]:
    """Return the parts of a logical table: source, table, and columns of each."""
    columns = _columns(conn, oid)
    row: Any = conn.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE c.oid = %s",
        (oid,),
    ).fetchone()
    out = [(MAIN, sql.Identifier(*row), columns)]
    for source in origins.listed(conn):
        for stand_in in origins.stand_ins(conn, source.name):
            if (stand_in.schema_name, stand_in.table_name) != tuple(row):
                continue
            lacking = set(columns) - set(_columns(conn, stand_in.table_oid))
            if lacking:
                raise UndefinedError(
                    f'table "{shown_as}" of source "{source.name}" has no column'
                    f" {', '.join(sorted(lacking))}",
                    hint="Write the view yourself, with the columns that all of them have.",
                    sqlstate="42703",
                )
            name = sql.Identifier(source.name, stand_in.table_name)
            out.append((source.name, name, columns))
    if len(out) == 1:
        raise UndefinedError(
            f'no source has a table "{row[0]}"."{row[1]}"',
            hint="See SELECT * FROM headrace.sources(), and add_source.",
        )
    return out


def _columns(conn: Connection, oid: int) -> list[str]:
    rows = conn.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0"
        " AND NOT attisdropped ORDER BY attnum",
        (oid,),
    )
    return [str(row[0]) for row in rows.fetchall()]
