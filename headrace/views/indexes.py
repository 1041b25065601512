"""create_index and drop_index: indexes of users on result tables.

The engine owns the table, so every expression of an index runs with the engine's rights (E16). A
definition may therefore use only built-in functions, operators and types:

* Invariant 1: with ``search_path = pg_catalog`` and no qualified name in the definition, nothing
  else can be named (checked on the text, before Postgres sees it).
* Invariant 2: a cast of a user's type can hide a function of the user. So the index is first
  made on an empty copy of the table, where nothing is evaluated, and its dependencies are read.
* Invariant 3: the definition is one statement (extended protocol) that makes exactly one index on
  that table (checked before the commit).
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.errors import (
    PrivilegeError,
    SyntaxUserError,
    UndefinedError,
    UnsupportedError,
    UserError,
)
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres import statements
from headrace.postgres.connect import Connection
from headrace.postgres.failures import as_headrace
from headrace.postgres.tokens import Unreadable, scan
from headrace.sink import table
from headrace.sql import points, results, views
from headrace.sql.verbs import CreateIndex, DropIndex
from headrace.sql.views import ViewRow
from headrace.types import FIRST_USER_OID

_DEFINITION_BYTES_MAX: Final = 8_192
_PROBE: Final = "headrace_index_probe"


def create_index(context: JobContext, job: Job, request: CreateIndex) -> dict[str, Any]:
    """Index a result table.

    Raises:
        SyntaxUserError: the definition is malformed.
        UnsupportedError: it uses an object that is not built in.
        PrivilegeError: the caller does not own the view.
    """
    check_definition(request.definition)
    with _connection(context, job) as conn:
        try:
            view = names.find_owned(conn, request.view, request.caller, request.settings)
            with conn.transaction():
                name = add(conn, view, request.definition)
            # Otherwise a table that is dropped before the worker's next look is restored without
            # the index.  Other calls lock the view's row first, then the table.
            with conn.transaction():
                if views.hold(conn, view.id) is not None:
                    results.record_table_metadata(conn, [view.id])
        except psycopg.Error as error:
            job.check()
            raise as_headrace(error) from error
    return {"name": name}


def drop_index(context: JobContext, job: Job, request: DropIndex) -> dict[str, Any]:
    """Drop an index of a result table.

    Raises:
        UndefinedError: 42704, there is no such index on a result table.
        PrivilegeError: the caller does not own the view; or the index is the engine's.
    """
    with _connection(context, job) as conn:
        try:
            schema, name = names.parse(conn, request.name)
            with conn.transaction():
                path = [schema] if schema is not None else None
                if path is None:
                    path = names.search_path(conn, request.caller, request.settings)
                found = views.find_index(conn, name, path)
                if found is None:
                    raise UndefinedError(f'index "{request.name}" does not exist')
                names.check_owner(conn, found, request.caller)
                # Before the table, as other calls do.
                names.lock(conn, found)
                hashes = found.result_oid and name == table.index_name(found.result_oid)
                if hashes or found.primary_key:
                    raise PrivilegeError(
                        f'index "{name}" is needed by headrace',
                        hint="It finds the rows to delete.",
                    )
                identifier = sql.Identifier(found.index_schema, name)
                conn.execute(sql.SQL("DROP INDEX {}").format(identifier))
                _check_unneeded(conn, found, name)
                results.record_table_metadata(conn, [found.id])
                return {"oid": found.index_oid}
        except psycopg.Error as error:
            job.check()
            raise as_headrace(error) from error


def _check_unneeded(conn: Connection, view: ViewRow, name: str) -> None:
    """Raise UserError if a connection point needs the index ``name``, which was just dropped.

    REQUIRES: the view's row is locked.
    """
    point = points.unserved(conn, view.id)
    if point is not None:
        raise UserError(
            f'index "{name}" is needed by connection point "{point}"',
            hint="CALL headrace.drop_connection_point(name) first.",
            sqlstate="2BP01",
        )


def check_definition(definition: str) -> None:
    """Refuse a definition that could name an object that is not built in, or end the statement.

    Raises:
        SyntaxUserError: it is not an index definition.
        UnsupportedError: it has a qualified name.
    """
    hint = 'Write for example "(customer_id)" or "USING btree (a, b DESC)".'
    if len(definition.encode()) > _DEFINITION_BYTES_MAX or "\x00" in definition:
        raise SyntaxUserError("index definition is too long or malformed", hint=hint)
    try:
        words = [definition[start:end].lower() for _, start, end in scan(definition)]
    except Unreadable as error:
        raise SyntaxUserError("index definition is malformed", hint=hint) from error
    if not words or words[0] not in ("(", "using"):
        raise SyntaxUserError(
            "index definition must begin with ( or USING",
            detail="The table is given by the view; the name is chosen by Postgres.",
            hint=hint,
        )
    if ";" in words:
        raise SyntaxUserError("index definition must be one statement", hint=hint)
    # NB: not on tokens, which might differ from Postgres' own.
    # A dot outside of quotes is always visible here, under either reading of the quotes.
    if _has_qualified_name(definition):
        raise UnsupportedError(
            "qualified names are not supported in index definitions",
            detail="Only built-in functions, operators and types may be used.",
        )


def _has_qualified_name(definition: str) -> bool:
    """Return whether there is a dot that is not the decimal point of a number."""
    for at, char in enumerate(definition):
        if char != ".":
            continue
        after = definition[at + 1 : at + 2]
        before = definition[at - 1 : at] if at else ""
        if not (after.isdigit() and (before.isdigit() or before in " (,+-*/<>=")):
            return True
    return False


def _connection(context: JobContext, job: Job) -> Any:
    return job.connection(
        context.settings.source,
        what="builder",
        settings={"lock_timeout": f"{context.settings.lock_timeout_ms}ms"},
    )


def add(conn: Connection, view: ViewRow, definition: str) -> str:
    """Index the table of ``view``; return the name of the index.

    REQUIRES: ``check_definition`` has accepted the definition, or the engine has written it.
    """
    row: Any = conn.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE c.oid = %s",
        (view.result_oid,),
    ).fetchone()
    if row is None:
        raise UndefinedError(f"result table {view.shown} does not exist", sqlstate="42P01")
    target = sql.Identifier(row[0], row[1])
    # One index after the other.  LIKE takes a weaker lock, and to wait for a stronger one then
    # could be a deadlock with a call that alters the table.
    conn.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(target))
    probe = sql.Identifier("pg_temp", _PROBE)
    conn.execute(
        sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {}) ON COMMIT DROP").format(
            sql.Identifier(_PROBE), target
        )
    )
    found: Any = conn.execute("SELECT %s::regclass::oid::bigint", (f"pg_temp.{_PROBE}",)).fetchone()
    oid, _ = _make(conn, probe, int(found[0]), definition)
    _check_built_in(conn, oid)
    conn.execute(sql.SQL("DROP TABLE {}").format(probe))
    oid, name = _make(conn, target, int(view.result_oid or 0), definition)
    _check_built_in(conn, oid)
    return name


def _make(
    conn: Connection, target: sql.Identifier, table_oid: int, definition: str
) -> tuple[int, str]:
    """Create the index on ``target``; return the OID and name of the one new index."""
    before = _indexes(conn, table_oid)
    head = sql.SQL("CREATE INDEX ON {} ").format(target).as_string(conn)
    try:
        statements.one_statement(conn, head + definition)
    except psycopg.errors.SyntaxError as error:
        at = int(error.diag.statement_position or 0) - len(head)
        raise SyntaxUserError(
            error.diag.message_primary or "index definition is malformed",
            position=at if at > 0 else None,
        ) from error
    made = _indexes(conn, table_oid).items() - before.items()
    if len(made) != 1:
        raise UserError(
            "the definition did not make one index on the view's table", sqlstate="42601"
        )
    return made.pop()


def _check_built_in(conn: Connection, oid: int) -> None:
    rows = conn.execute(
        # Built-in objects are pinned: pg_depend has no entries for them.
        "SELECT pg_describe_object(refclassid, refobjid, refobjsubid) FROM pg_depend"
        " WHERE classid = 'pg_class'::regclass AND objid = %s AND refobjid >= %s"
        " AND NOT (refclassid = 'pg_class'::regclass AND refobjid IN"
        "          (SELECT indrelid FROM pg_index WHERE indexrelid = %s))"
        # Collations and enums are data: they run no code.
        " AND refclassid <> 'pg_collation'::regclass"
        " AND NOT (refclassid = 'pg_type'::regclass AND EXISTS"
        "   (SELECT FROM pg_type t WHERE t.oid = refobjid AND t.typtype = 'e'))"
        " ORDER BY 1",
        (oid, FIRST_USER_OID, oid),
    ).fetchall()
    if rows:
        raise UnsupportedError(
            f"an index that uses {rows[0][0]} is not supported",
            detail="Only built-in functions, operators and types may be used.",
        )
    row: Any = conn.execute(
        "SELECT indisunique OR indisexclusion FROM pg_index WHERE indexrelid = %s", (oid,)
    ).fetchone()
    if row[0]:
        raise UnsupportedError("unique indexes on result tables are not supported")


def _indexes(conn: Connection, table_oid: int | None) -> dict[int, str]:
    rows = conn.execute(
        "SELECT c.oid::bigint, c.relname FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %s",
        (table_oid,),
    ).fetchall()
    return {int(oid): str(name) for oid, name in rows}
