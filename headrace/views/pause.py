"""pause_view and resume_view: check the owner's rights here; the worker does the rest."""

from __future__ import annotations

from typing import Any, Final

from headrace import clock
from headrace.errors import RowLocked, UserError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.sql.status import Status
from headrace.sql.verbs import ViewRequest
from headrace.sql.views import ViewRow
from headrace.views.repair import UnderRepairError

_RETRY_S: Final = 0.05


def pause_view(context: JobContext, job: Job, request: ViewRequest) -> None:
    """Stop a view at its last consistent contents, until it is resumed.

    Raises:
        UserError: 55000, it has stopped with an error; 55006, it is being populated.
    """
    view = _find(context, job, request)
    if view.status != Status.PAUSED:
        _call(context, job, "pause", {"view_id": view.id, "caller": request.caller})


def resume_view(context: JobContext, job: Job, request: ViewRequest) -> None:
    """Let a paused view go on from its state; a running one is left alone.

    Raises:
        UserError: 55000, it has stopped, or was paused for too long: it needs a resync.
    """
    view = _find(context, job, request)
    if view.status != Status.RUNNING:
        _call(context, job, "resume", {"view_id": view.id})


def _call(context: JobContext, job: Job, verb: str, params: dict[str, Any]) -> None:
    """Call the worker; wait up to ``lock_timeout_ms`` while another call changes the view."""
    until = clock.monotonic() + context.settings.lock_timeout_ms / 1000
    while True:
        try:
            context.worker.call(verb, params, job)
        except RowLocked:
            if clock.monotonic() >= until:
                raise
            job.wait(_RETRY_S)
        else:
            return


def _find(context: JobContext, job: Job, request: ViewRequest) -> ViewRow:
    with job.connection(context.settings.source, what="builder") as conn:
        view = names.find_owned(conn, request.name, request.caller, request.settings)
    check_not_live(context, job, view)
    return view


def check_not_live(context: JobContext, job: Job, view: ViewRow) -> None:
    """Note that ``job`` is about ``view``, and that no other job populates it.

    Raises:
        UnderRepairError: the server fills it anew.
        UserError: 55006, a job of a user populates it.
    """
    job.about = view
    other = context.live.get(view.id)
    if other is None:
        return
    what = "created" if view.result_oid is None else "resynced"
    message, hint = f'view "{view.name}" is being {what}', "Wait for that, or cancel it."
    if other.unasked:
        error = UnderRepairError(message, hint=hint)
        error.view = view
        raise error
    raise UserError(message, hint=hint, sqlstate="55006")
