"""Calls of users about a view that the server itself is filling anew.

Users cannot know when the server does so, and only the server can cancel it: such a call waits
until the view is filled, instead of failing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.errors import UserError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.sql.status import Status
from headrace.sql.verbs import CreateView, DropView, ResyncView, ViewRequest
from headrace.sql.views import ViewRow

_LOOK_S: Final = 0.1


class UnderRepairError(UserError):
    """55006: the server is filling the view anew by itself."""


def after_repair(
    context: JobContext, job: Job, request: ViewRequest, act: Callable[[], Any]
) -> Any:
    """Call ``act`` once the server is not filling the view of ``request`` by itself.

    A resync that had to wait is done by that, if the view runs.  Drops do not wait: they end the
    other job.

    Raises:
        QueryCancelled: the caller has given up.
    """
    if request.unasked or isinstance(request, CreateView | DropView):
        return act()
    while True:
        view = _await(context, job, request)
        if view is not None and view.status == Status.RUNNING and isinstance(request, ResyncView):
            return {"view_id": view.id, "notice": f'view "{view.name}" was filled anew meanwhile'}
        try:
            return act()
        except UnderRepairError:
            job.wait(_LOOK_S)


def _await(context: JobContext, job: Job, request: ViewRequest) -> ViewRow | None:
    """The view as a job of the server has left it; None: there was no such job."""
    waited = False
    while waited or any(other.unasked for other in list(context.live.values())):
        with job.connection(context.settings.source, what="builder") as conn, job.translating():
            view = names.find(conn, request.name, request.caller, request.settings)
        other = context.live.get(view.id) if view is not None else None
        if view is None or other is None or not other.unasked:
            return view if waited else None
        if not waited:
            job.phase("pending")
            job.say(f'view "{view.name}" is being filled anew by the server')
            waited = True
        job.wait(_LOOK_S)
    return None
