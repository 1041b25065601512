"""create_connection_point and drop_connection_point: named outputs of views (A-25, A-26).

A point relies on things that any view can have: a history (``sql/history.py``) for access by txid,
and an index of the result table for access by key, which a rebuilt table gets again. The point
keeps both from being ended before it is dropped; dropping it leaves both with the view.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.errors import DuplicateError, UndefinedError, UnsupportedError, UserError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres import tokens
from headrace.postgres.connect import Connection
from headrace.sql import history, points, results, views
from headrace.sql.points import Point
from headrace.sql.verbs import CreatePoint, DropPoint
from headrace.sql.views import ViewRow
from headrace.views import indexes
from headrace.views.pause import check_not_live

_NAME_MAX: Final = 63


def create_connection_point(context: JobContext, job: Job, request: CreatePoint) -> dict[str, Any]:
    """Name the output of a view, and create the history and index that the point needs.

    Raises:
        UndefinedError: 42P01, no such view; 42703, it has no column ``storage_key``.
        DuplicateError: 42710, there is a point of that name.
        PrivilegeError: the caller does not own the view.
        UnsupportedError: ``at`` is given, or the key cannot be indexed.
        UserError: 42602, an invalid name; 22023, not a positive interval; 55006, the view is being
            populated.
    """
    if not 1 <= len(request.name) <= _NAME_MAX or "\x00" in request.name:
        raise UserError(
            f"the name of a connection point has 1 to {_NAME_MAX} characters", sqlstate="42602"
        )
    if request.at is not None:
        raise UnsupportedError(
            "a connection point inside of a view's plan is not supported",
            hint="Create a view of that part of the query, and put the point on it: the part that"
            " both share is maintained once.",
        )
    with (
        _connection(context, job) as conn,
        contextlib.ExitStack() as ending,
        job.translating(),
    ):
        view = names.find_owned(conn, request.view, request.caller, request.settings)
        check_not_live(context, job, view)
        if view.result_oid is None:
            raise UserError(f'view "{view.name}" is not populated yet', sqlstate="55006")
        # Keep other jobs from filling the view: they lock row and table in the other order.
        context.live[view.id] = job
        ending.callback(context.live.pop, view.id, None)
        keep = None if request.history is None else history.interval(conn, request.history)
        point = Point(request.name, view.id, keep, request.storage_key)
        with conn.transaction():
            said = _index(conn, view, point.storage_key)
            _enter(conn, view, point)
    if keep is not None:
        context.worker.call("options", {"view_id": view.id}, job)
    return said


def drop_connection_point(context: JobContext, job: Job, request: DropPoint) -> dict[str, Any]:
    """Drop a point; its history and index stay with the view.

    Raises:
        UndefinedError: 42704, there is none of that name.
        PrivilegeError: the caller does not own its view.
        UserError: 2BP01, views are fed from it.
    """
    with _connection(context, job) as conn, job.translating(), conn.transaction():
        point = points.find(conn, request.name)
        view = None if point is None else views.of_id(conn, point.view_id)
        if point is None or view is None:
            raise points.unknown(request.name)
        names.check_owner(conn, view, request.caller)
        names.lock(conn, view)
        if fed := points.fed(conn, request.name):
            raise UserError(
                f'cannot drop connection point "{request.name}" because views are fed from it',
                detail="\n".join(f"view {one} is fed from it" for one in fed),
                hint="Drop these first: "
                + " ".join(f"CALL headrace.drop_view({tokens.argument(one)});" for one in fed),
                sqlstate="2BP01",
            )
        if not points.delete(conn, request.name):
            raise points.unknown(request.name)
    kept = [
        *(["its history (set_history)"] if point.keep is not None else []),
        *(["its index (drop_index)"] if point.storage_key is not None else []),
    ]
    return {"notice": f"view {view.shown} keeps {' and '.join(kept)}"} if kept else {}


def _index(conn: Connection, view: ViewRow, column: str | None) -> dict[str, Any]:
    """Ensure that an index of the view's table begins with ``column``; return the answer."""
    oid = int(view.result_oid or 0)
    if column is None:
        return {}
    if not points.has_column(conn, oid, column):
        raise UndefinedError(
            f'column "{column}" of view {view.shown} does not exist', sqlstate="42703"
        )
    if points.has_index(conn, oid, column):
        return {}
    definition = sql.SQL("({})").format(sql.Identifier(column)).as_string(conn)
    try:
        name = indexes.add(conn, view, definition)
        results.record_table_metadata(conn, [view.id])
    except (psycopg.errors.UndefinedObject, UnsupportedError) as error:
        why = error.message if isinstance(error, UnsupportedError) else error.diag.message_primary
        raise UnsupportedError(
            f'column "{column}" cannot be a storage key',
            detail=why,
            hint="A storage key is a column of a built-in type that has an order.",
        ) from error
    return {"notice": f'index "{name}" was made'}


def _enter(conn: Connection, view: ViewRow, point: Point) -> None:
    """Insert the point and begin its history.

    The worker updates the view's row. So the row is locked last, and not while an index is built.
    """
    names.lock(conn, view)
    if not points.insert(conn, point):
        raise DuplicateError(
            f'connection point "{point.name}" already exists',
            hint="See headrace.connection_points().",
        )
    if points.unserved(conn, view.id) is not None:
        raise UserError(
            f'an index of view "{view.name}" is being dropped',
            hint="Create the connection point again.",
            sqlstate="55006",
        )
    if point.keep is not None:
        history.ask(conn, view.id, points.enough(conn, view.id, point.keep))


def _connection(context: JobContext, job: Job) -> Any:
    return job.connection(
        context.settings.source,
        what="builder",
        settings={"lock_timeout": f"{context.settings.lock_timeout_ms}ms"},
    )
