"""set_history: a running view's changes are kept from now on, for longer or shorter, or no longer.

The catalog says which views have a history.  The worker, which writes it, looks there when it takes
a view over and when it is told; so one that cannot be told begins it when it is back.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import UserError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.sql import history
from headrace.sql.verbs import SetHistory
from headrace.views.pause import check_not_live


def set_history(context: JobContext, job: Job, request: SetHistory) -> dict[str, Any]:
    """Keep the changes of a view for an interval, or forget them.

    Raises:
        UndefinedError: 42P01, no such view.
        PrivilegeError: the caller is not its owner.
        UserError: 22023, not a positive interval; 55006, the view is being populated.
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
        check_not_live(context, view)
        if view.result_oid is None:
            raise UserError(f'view "{view.name}" is not populated yet', sqlstate="55006")
        with conn.transaction():
            if request.keep is not None:
                history.ask(conn, view.id, history.interval(conn, request.keep))
                said = {}
            elif history.end(conn, view.id):
                said = {"notice": f"the history of view {view.shown} was forgotten"}
            else:
                said = {}
    context.worker.call("options", {"view_id": view.id}, job)
    return said
