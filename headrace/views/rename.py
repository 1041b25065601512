"""rename_view: give table and catalog row a new name or schema, in one transaction.

The worker writes tables by name. So it is suspended during the rename, and reads the new name when
it goes on. A restarted worker reads it anyway.
"""

from __future__ import annotations

import contextlib

import psycopg
from psycopg import sql

from headrace.errors import DuplicateError, HeadraceError, PrivilegeError, UndefinedError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.sql import assertions, views
from headrace.sql.verbs import RenameView
from headrace.sql.views import ViewRow
from headrace.views.pause import check_not_live


def rename_view(context: JobContext, job: Job, request: RenameView) -> None:
    """Rename a view and its table, or put them into another schema.

    The table keeps its OID and grants; its indexes go with it.

    Raises:
        UndefinedError: 42P01, no such view; 3F000, no such schema.
        PrivilegeError: the caller is not its owner, or may not create in the schema.
        DuplicateError: 42P07, the name is taken.
        UserError: 55P03, the table is locked; 55006, another job is at the view.
    """
    timeout = f"{context.settings.lock_timeout_ms}ms"
    with (
        job.connection(
            context.settings.source, what="builder", settings={"lock_timeout": timeout}
        ) as conn,
        contextlib.ExitStack() as ending,
        job.translating(),
    ):
        view = names.find_owned(conn, request.name, request.caller, request.settings)
        check_not_live(context, job, view)
        context.live[view.id] = job
        ending.callback(context.live.pop, view.id, None)
        schema, name = names.parse(conn, request.new_name)
        to = view.schema if schema is None else schema
        wanted = sql.Identifier(to, name).as_string(conn)
        target = names.resolve_new(conn, wanted, request.caller, {})
        if target.new_schema:
            raise UndefinedError(f'schema "{to}" does not exist', sqlstate="3F000")
        if to != view.schema:
            _check_may(conn, view, to)
        # A hold, so that the suspension also ends if this process dies.
        ending.callback(_release, context, job)
        context.worker.call("hold", {"job": job.name}, job)
        suspended = {"view_id": view.id, "job": job.name}
        context.worker.call("suspend", suspended, job)
        with conn.transaction():
            _rename(conn, names.lock(conn, view), to, name)


def _check_may(conn: Connection, view: ViewRow, schema: str) -> None:
    """Check what Postgres requires for SET SCHEMA: the owner may create in the new schema."""
    row = conn.execute(
        "SELECT has_schema_privilege(%s::bigint::oid, n.oid, 'CREATE') FROM pg_namespace n"
        " WHERE n.nspname = %s",
        (view.owner, schema),
    ).fetchone()
    if row is not None and row[0] is False:
        raise PrivilegeError(
            f"permission denied for schema {schema}",
            detail=f'The owner of the view, role "{view.owner_name}", may not create in it.',
        )


def _rename(conn: Connection, view: ViewRow, schema: str, name: str) -> None:
    try:
        views.rename(conn, view.id, schema, name)
    except psycopg.errors.UniqueViolation as error:
        # A view that is being created has no table yet.
        raise DuplicateError(f'view "{name}" already exists', sqlstate="42P07") from error
    assertions.renamed(conn, view.id)
    row = conn.execute(
        "SELECT n.nspname, c.relname FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (view.result_oid,),
    ).fetchone()
    if row is None:
        return
    # Without the intermediate name, either step might collide with another table.
    if schema != row[0] and name != row[1]:
        passing = sql.Identifier(f"headrace_moves_{view.id}")
        conn.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(sql.Identifier(*row), passing))
        row = (row[0], f"headrace_moves_{view.id}")
    if schema != row[0]:
        conn.execute(
            sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(
                sql.Identifier(*row), sql.Identifier(schema)
            )
        )
    if name != row[1]:
        conn.execute(
            sql.SQL("ALTER TABLE {} RENAME TO {}").format(
                sql.Identifier(schema, row[1]), sql.Identifier(name)
            )
        )


def _release(context: JobContext, job: Job) -> None:
    with contextlib.suppress(HeadraceError):
        context.worker.call("release", {"job": job.name})
