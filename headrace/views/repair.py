"""Calls of users about a view that the server itself is filling anew.

Users cannot know when the server fills a view anew, and only the server can cancel that. So such a
call waits until the view is filled, instead of failing.  The view has another ID then: a call that
found it before under its earlier ID is made once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.errors import DefiniteFailure, HeadraceError, QueryCancelled, UserError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.sql import views
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
    is then complete, if the view runs. A drop does not wait: it cancels the other job.  An error of
    ``act`` after the view was filled anew only says that the earlier ID is gone.

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
        except QueryCancelled:
            raise
        except (UserError, DefiniteFailure) as error:
            view = None if request.unasked else _filled_anew(context, job, error)
            if view is None:
                raise
            if isinstance(request, DropView):
                continue
        other = context.live.get(view.id)
        if other is not None and not told:
            job.phase("pending")
            job.say(f'view "{view.name}" is being rebuilt by the server')
            told = True
        while other is not None and context.live.get(view.id) is other:
            job.wait(_LOOK_S)
        if isinstance(request, ResyncView):
            with job.connection(context.settings.source, what="builder") as conn, job.translating():
                view = names.find_owned(conn, request.name, request.caller, request.settings)
            if view.status == Status.RUNNING and view.id not in context.live:
                notice = f'view "{view.name}" was rebuilt meanwhile'
                return {"view_id": view.id, "notice": notice}


def _filled_anew(context: JobContext, job: Job, error: HeadraceError) -> ViewRow | None:
    """Return the view that a call concerns, if it was filled anew since the call found it.

    Also if ``error`` says that it has stopped, and the server is filling it.  A call that fills a
    view gives it another ID itself.
    """
    found = job.about
    if found is None or job.view_id:
        return None
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        now = views.find(conn, found.name, [found.schema])
    if now is None:
        return None
    other = context.live.get(now.id)
    repaired = other is not None and other.unasked and isinstance(error, DefiniteFailure)
    return now if repaired or now.id != found.id else None
