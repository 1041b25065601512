"""set_history: begin, prolong, shorten or end the history of a running view's changes.

The catalog records which views have a history. The worker writes it, and reads the catalog when it
takes a view over and when it is told; so a worker that is down begins the history when it is back.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import UserError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.sql import assertions, history, points
from headrace.sql.verbs import SetHistory
from headrace.sql.views import ViewRow
from headrace.views.pause import check_not_live


def set_history(context: JobContext, job: Job, request: SetHistory) -> dict[str, Any]:
    """Keep the changes of a view for an interval, or forget them.

    Raises:
        UndefinedError: 42P01, no such view.
        PrivilegeError: the caller is not its owner.
        UserError: 22023, not a positive interval; 55006, the view is being populated, or a
            connection point needs more.
    """
    with (
        job.connection(
            context.settings.source,
            what="builder",
            settings={"lock_timeout": f"{context.settings.lock_timeout_ms}ms"},
        ) as conn,
        job.translating(),
    ):
        view = names.find_owned(conn, request.name, request.caller, request.settings)
        check_not_live(context, job, view)
        if view.result_oid is None:
            raise UserError(f'view "{view.name}" is not populated yet', sqlstate="55006")
        keep = None if request.keep is None else history.interval(conn, request.keep)
        with conn.transaction():
            names.lock(conn, view)
            _check_enough(conn, view, keep)
            _check_assertion(conn, view, keep)
            if keep is not None:
                history.ask(conn, view.id, keep)
                said = {}
            elif history.end(conn, view.id):
                said = {"notice": f"the history of view {view.shown} was forgotten"}
            else:
                said = {}
    context.worker.call("options", {"view_id": view.id}, job)
    return said


def _check_enough(conn: Connection, view: ViewRow, keep: str | None) -> None:
    """Raise UserError if a connection point of the view needs more than ``keep``."""
    point = points.needing_more(conn, view.id, keep)
    if point is not None:
        raise UserError(
            f'connection point "{point.name}" needs the last {point.keep} of view {view.shown}',
            hint="Keep at least that, or CALL headrace.drop_connection_point first.",
            sqlstate="55006",
        )


def _check_assertion(conn: Connection, view: ViewRow, keep: str | None) -> None:
    """Raise UserError if an assertion would lose its history, by which its rows are judged."""
    if keep is None and assertions.sample_of(conn, view.id) is not None:
        raise UserError(
            f"the history of assertion {view.shown} cannot be forgotten",
            detail="Its violations are found by the changes of its rows.",
            sqlstate="55006",
        )
