"""Calls of users about a view that the server itself is filling anew.

Users cannot know when the server fills a view anew, and only the server can cancel that. So such a
call waits until the view is filled, instead of failing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.errors import UserError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.sql.status import Status
from headrace.sql.verbs import DropView, ResyncView, ViewRequest
from headrace.sql.views import ViewRow

_LOOK_S: Final = 0.1


class UnderRepairError(UserError):
    """The server is filling a view anew without a call."""

    sqlstate = "55006"
    view: ViewRow | None = None


def after_repair(
    context: JobContext, job: Job, request: ViewRequest, act: Callable[[], Any]
) -> Any:
    """Call ``act``; repeat it after waiting while the server fills the view anew.

    ``act`` checks the caller's rights before it raises UnderRepairError. A resync that had to wait
    is then complete, if the view runs. A drop does not wait: it cancels the other job.

    Raises:
        QueryCancelled: the caller has given up.
    """
    told = False
    while True:
        try:
            return act()
        except UnderRepairError as error:
            view = error.view
            if view is None or request.unasked or isinstance(request, DropView):
                raise
        if not told:
            job.phase("pending")
            job.say(f'view "{view.name}" is being rebuilt by the server')
            told = True
        other = context.live.get(view.id)
        while other is not None and context.live.get(view.id) is other:
            job.wait(_LOOK_S)
        if isinstance(request, ResyncView):
            with job.connection(context.settings.source, what="builder") as conn, job.translating():
                view = names.find_owned(conn, request.name, request.caller, request.settings)
            if view.status == Status.RUNNING and view.id not in context.live:
                notice = f'view "{view.name}" was rebuilt meanwhile'
                return {"view_id": view.id, "notice": notice}
