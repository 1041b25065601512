"""rename_view: table and catalog row get the new name in one transaction.

The worker writes tables by name, so for that moment it writes nothing (``suspend``), and reads the
name again when it goes on; a worker that was restarted reads it anyway.
"""

from __future__ import annotations

import contextlib

from psycopg import sql

from headrace.errors import HeadraceError, UndefinedError, UnsupportedError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.sql import views
from headrace.sql.verbs import RenameView
from headrace.sql.views import ViewRow
from headrace.views.pause import check_not_live


def rename_view(context: JobContext, job: Job, request: RenameView) -> None:
    """Rename a view and its table, in the schema they are in.

    Raises:
        UndefinedError: 42P01, no such view.
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
        check_not_live(context, view)
        context.live[view.id] = job
        ending.callback(context.live.pop, view.id, None)
        schema, name = names.parse(conn, request.new_name)
        if schema not in (None, view.schema):
            raise UnsupportedError("moving a view to another schema is not supported")
        wanted = sql.Identifier(view.schema, name).as_string(conn)
        names.resolve_new(conn, wanted, request.caller, {})
        # A hold, so that the suspension ends with this process too.
        ending.callback(_release, context, job)
        context.worker.call("hold", {"job": job.name}, job)
        suspended = {"view_id": view.id, "job": job.name}
        context.worker.call("suspend", suspended, job)
        with conn.transaction():
            _rename(conn, view, name)


def _rename(conn: Connection, view: ViewRow, name: str) -> None:
    if not views.rename(conn, view.id, name):
        raise UndefinedError(f'view "{view.name}" was dropped', sqlstate="42P01")
    row = conn.execute(
        "SELECT n.nspname, c.relname FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (view.result_oid,),
    ).fetchone()
    if row is not None:
        conn.execute(
            sql.SQL("ALTER TABLE {} RENAME TO {}").format(
                sql.Identifier(*row), sql.Identifier(name)
            )
        )


def _release(context: JobContext, job: Job) -> None:
    with contextlib.suppress(HeadraceError):
        context.worker.call("release", {"job": job.name})
