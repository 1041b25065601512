"""drop_view: drop the table, the worker's state, unused publication entries and the catalog row.

Table and catalog row go in one transaction: if an object of the user depends on the table,
Postgres refuses and nothing is lost. Only tables that inherit from it are detached, and keep their
rows. The worker is told after the commit, because it cannot restore what it forgets. Until then
(this process may be killed before) it finds no table to write and no progress row to move, and
treats the view as dropped.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
import structlog
from psycopg import sql

from headrace import clock
from headrace.errors import HeadraceError, TransientError, UndefinedError, UserError
from headrace.population import names, staging
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.populate import unpublish_unused
from headrace.postgres import tokens
from headrace.postgres.connect import Connection
from headrace.process import faults
from headrace.sql import reads, schemas, views
from headrace.sql.verbs import DropView
from headrace.sql.views import ViewRow
from headrace.views.pause import check_not_live

_log = structlog.get_logger(__name__)
_WORKER_WAIT_S: Final = 5.0
_RETRY_S: Final = 0.2
_POPULATION_WAIT_S: Final = 30.0
_LOCK_ATTEMPTS: Final = 10


def drop_view(context: JobContext, job: Job, request: DropView) -> dict[str, Any]:
    """Drop a view; the answer has a ``message`` if there was none.

    ``notice`` in the answer lists what else was done.

    Raises:
        UndefinedError: 42P01, no such view, and not ``if_exists``.
        PrivilegeError: the caller is not its owner.
        UserError: 2BP01, an object depends on its table; 55006, its creation does not end.
    """
    with job.connection(
        context.settings.source,
        what="builder",
        settings={"lock_timeout": f"{context.settings.lock_timeout_ms}ms"},
    ) as conn:
        try:
            view = names.find_owned(conn, request.name, request.caller, request.settings)
        except UndefinedError as error:
            if not request.if_exists:
                raise
            return {"message": f"{error.message}, skipping"}
        found = _undisturbed(context, job, conn, request, view)
        if found is None:
            return {"notice": f"the creation of view {view.shown} was canceled"}
        view = found
        read = reads.tables_of(conn, view.id)
        with job.translating():
            try:
                notices = _drop(context, job, conn, view)
            except UndefinedError as error:
                # Another call has dropped it meanwhile.
                if not request.if_exists:
                    raise
                return {"message": f"{error.message}, skipping"}
    faults.point(faults.DROPPED)
    _tell_worker(context, view)
    faults.point(faults.WORKER_FORGOT)
    staging.of_view(context.settings.staging_dir, view.id).remove()
    try:
        unpublish_unused(context, read)
    except (HeadraceError, psycopg.Error) as error:
        # The tables stay published, which costs WAL decoding but harms nothing.
        _log.warning("tables not unpublished", view=view.shown, reason=str(error))
    _log.info("view dropped", view=view.shown)
    return {"notice": "; ".join(notices)} if notices else {}


def _undisturbed(
    context: JobContext, job: Job, conn: Connection, request: DropView, view: ViewRow
) -> ViewRow | None:
    """Cancel the job that populates the view; return the view, or None if it is gone then."""
    until = clock.monotonic() + _POPULATION_WAIT_S
    while (other := context.live.get(view.id)) is not None:
        if clock.monotonic() >= until:
            check_not_live(context, job, view)
        other.cancel()
        job.wait(_RETRY_S)
        if context.live.get(view.id) is other:
            continue
        try:
            view = names.find_owned(conn, request.name, request.caller, request.settings)
        except UndefinedError:
            return None
    return view


def _drop(context: JobContext, job: Job, conn: Connection, view: ViewRow) -> list[str]:
    """Drop table, catalog row, and a schema made for it; return what else was done."""
    for attempt in range(1, _LOCK_ATTEMPTS + 1):
        try:
            with conn.transaction():
                view = _lock_row(conn, view)
                children = _drop_table(conn, view)
                job.check()
                views.delete(conn, view.id)
                schemas = _drop_made_schema(conn, view)
                faults.point(faults.BEFORE_DROP)
        except psycopg.errors.LockNotAvailable:
            if attempt == _LOCK_ATTEMPTS:
                raise
            _log.info("drop waits for a lock", view=view.shown, attempt=attempt)
        except psycopg.errors.DeadlockDetected:
            if attempt == _LOCK_ATTEMPTS:
                raise
        else:
            return [
                *(f"{child} no longer inherits from {view.shown}" for child in children),
                *(f'schema "{schema}" was dropped' for schema in schemas),
            ]
    raise AssertionError("the last attempt returns or raises")


def _lock_row(conn: Connection, view: ViewRow) -> ViewRow:
    """Lock the view's row, so that no other view begins to read it; return it as it is now.

    Raises:
        UndefinedError: the view was dropped meanwhile.
        UserError: 55006, a resync has given the view another id.
        UserError: 2BP01, other views of Headrace read it.
    """
    view = names.lock(conn, view)
    users = reads.users(conn, view.result_oid)
    if users:
        raise UserError(
            f"cannot drop view {view.shown} because other views read it",
            detail="\n".join(f"view {user} reads view {view.shown}" for user in users),
            hint="Drop these first: "
            + " ".join(f"CALL headrace.drop_view({tokens.argument(user)});" for user in users),
            sqlstate="2BP01",
        )
    return view


def _drop_table(conn: Connection, view: ViewRow) -> list[str]:
    """Drop the result table; return the tables that inherited from it.

    Raises:
        UserError: 2BP01, another object of a user depends on it.
    """
    row = conn.execute(
        "SELECT n.nspname, c.relname FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (view.result_oid,),
    ).fetchone()
    if row is None:
        return []
    name = sql.Identifier(row[0], row[1])
    children = _let_children_go(conn, view, name)
    try:
        with conn.transaction():
            conn.execute(sql.SQL("DROP TABLE {}").format(name))
    except psycopg.errors.DependentObjectsStillExist as error:
        raise _depended_on(view, error.diag.message_detail) from error
    return children


def _let_children_go(conn: Connection, view: ViewRow, name: sql.Identifier) -> list[str]:
    """Detach tables that inherit from the result table; they keep their columns and rows."""
    rows = conn.execute(
        "SELECT n.nspname, c.relname FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE h.inhparent = %s ORDER BY 1, 2",
        (view.result_oid,),
    ).fetchall()
    children = [sql.Identifier(*row) for row in rows]
    statements = [sql.SQL("ALTER TABLE {} NO INHERIT {}").format(child, name) for child in children]
    shown = [child.as_string(conn) for child in children]
    try:
        with conn.transaction():
            for statement in statements:
                conn.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise _depended_on(
            view,
            "\n".join(f"table {child} inherits from it" for child in shown),
            " ".join(statement.as_string(conn) + ";" for statement in statements),
        ) from error
    return [f"table {child}" for child in shown]


def _depended_on(
    view: ViewRow, detail: str | None, hint: str = "Drop those objects first."
) -> UserError:
    return UserError(
        f"cannot drop view {view.shown} because other objects depend on it",
        detail=detail,
        hint=hint,
        sqlstate="2BP01",
    )


def _drop_made_schema(conn: Connection, view: ViewRow) -> list[str]:
    """Drop the schema of ``view`` if it was made for a view and is empty."""
    made = schemas.deserted(conn, view.schema)
    if made is None:
        return []
    try:
        with conn.transaction():
            conn.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(view.schema)))
            schemas.forget(conn, made)
    except (
        psycopg.errors.DependentObjectsStillExist,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.LockNotAvailable,
    ):
        return []
    return [view.schema]


def _tell_worker(context: JobContext, view: ViewRow) -> None:
    """Have the worker forget the view; retry while it is restarting."""
    deadline = clock.monotonic() + _WORKER_WAIT_S
    while True:
        try:
            context.worker.call("drop", {"view_id": view.id})
        except HeadraceError as error:
            if not isinstance(error, TransientError) or clock.monotonic() >= deadline:
                # A restarted worker reads the catalog, where this view is missing.
                _log.warning("worker not told", view=view.shown, reason=error.message)
                return
            clock.sleep(_RETRY_S)
        else:
            return
