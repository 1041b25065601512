"""set_placement: another worker keeps a view's states and computes its changes from then on.

What the view is stays as it is, and so does its table, which is read on meanwhile.  Its states are
written into the staging directory while it stands still, and taken in there
(``runtime/moving.py``); then it catches up.  Where some are not its own (kept once, shared with
other views), or it does not run, they are made anew there, as in a resync.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import structlog

from headrace import clock
from headrace.errors import HeadraceError, TransientError, UnsupportedError
from headrace.population import names, staging
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.options import ViewOptions
from headrace.population.populate import planning
from headrace.population.staging import Staging
from headrace.postgres.connect import Connection
from headrace.process import faults
from headrace.sql import points, views
from headrace.sql.verbs import SetPlacement
from headrace.sql.views import StoredView, ViewRow
from headrace.views import workers
from headrace.views.pause import check_not_live
from headrace.views.resync import Replanned, Resync, owner_of, plan_again, read

_log = structlog.get_logger(__name__)
_PATIENCE_S: Final = 30.0
_RETRY_S: Final = 0.2


def set_placement(context: JobContext, job: Job, request: SetPlacement) -> dict[str, Any]:
    """Place a view on another worker.

    Raises:
        UndefinedError: 42P01, no such view; 42704, no such worker.
        PrivilegeError: the caller is not the view's owner.
        UnsupportedError: others are fed from the view, or it is fed itself (option ``from``).
        HeadraceError: as ``resync_view``; the view is as before.
    """
    with planning(context, job) as conn:
        view = names.find_owned(conn, request.name, request.caller, request.settings)
        workers.check(conn, request.worker)
    return move(context, job, view, request.worker, request.caller)


def move(
    context: JobContext, job: Job, view: ViewRow, worker: str, caller: str | None
) -> dict[str, Any]:
    """Move a view, which is not on ``worker`` yet as a rule.

    Raises:
        UserError: 55006, a job is filling it.
        UnsupportedError: others are fed from the view, or it is fed itself (option ``from``).
    """
    with planning(context, job) as conn:
        check_not_live(context, view)
        stored = read(conn, view)
        options = ViewOptions.of({**stored.options, "placement": worker})
        if options.placement == ViewOptions.of(stored.options).placement:
            return {"notice": f'view "{view.name}" is there already'}
        fed = [name for p in points.of_view(conn, view.id) for name in points.fed(conn, p.name)]
        if fed:
            raise UnsupportedError(
                f'view "{view.name}" cannot be on another worker than those it feeds',
                detail=f"Fed from its connection points: {', '.join(fed)}.",
                hint='Make these without option "from" first.',
            )
    before = ViewOptions.of(stored.options).placement
    if _shipped(context, job, view, before, worker):
        return {"notice": f'view "{view.name}" has moved with its states'}
    with planning(context, job) as conn:
        again = plan_again(context, conn, view, stored, owner_of(conn, view, caller))
    return _Moved(context, job, view, stored, again, worker).run()


def _shipped(context: JobContext, job: Job, view: ViewRow, before: str, worker: str) -> bool:
    """Move a view with its states; False: they are not its own, or not to be had now.

    Until the catalog says where it is, whatever happens leaves it where it was; after that it is
    there, as soon as that worker can be asked.
    """
    staged = staging.of_view(context.settings.staging_dir, view.id)
    said = {"view_id": view.id, "job": job.name}
    context.live[view.id] = job
    moved, where = False, "there"
    try:
        context.worker.call("hold", {"job": job.name}, job)
        job.phase("moving")
        staged.make()
        facts = context.worker.call("move", {**said, "path": str(staged.moved)}, job)
        if facts is not None:
            staged.seal(facts)
            faults.point(faults.MOVE_STAGED)
            _say(context, job, view, worker)
            moved, where = True, "later"
            faults.point(faults.MOVE_SAID)
            where = _placed(context, {**said, "worker": worker})
            if where == "lost":
                _say(context, job, view, before)
            moved = where != "lost"
        return moved
    finally:
        if not moved or where == "there":
            staged.remove()
        context.live.pop(view.id, None)
        with contextlib.suppress(HeadraceError):
            context.worker.call("release", {"job": job.name})


def _say(context: JobContext, job: Job, view: ViewRow, worker: str) -> None:
    """Have the catalog say where a view is."""
    with job.connection(context.settings.source, what="builder") as conn, conn.transaction():
        # Who removes it waits until the view is there, or this sees that it is gone.
        workers.check(conn, worker)
        views.set_placement(conn, view.id, worker)


def _placed(context: JobContext, said: dict[str, Any]) -> str:
    """Have the states taken in; see ``Moving.place``."""
    deadline = clock.monotonic() + _PATIENCE_S
    while True:
        try:
            return str(context.worker.call("place", said))
        except TransientError as error:
            if clock.monotonic() > deadline:
                # Whoever begins reads the catalog, and finds them staged.
                _log.info("view placed later", view=said["view_id"], reason=error.message)
                return "later"
            clock.sleep(_RETRY_S)


class _Moved(Resync):
    """A resync onto another worker."""

    def __init__(
        self,
        context: JobContext,
        job: Job,
        view: ViewRow,
        stored: StoredView,
        again: Replanned,
        worker: str,
    ) -> None:
        super().__init__(context, job, view, stored, again)
        self._to = worker

    def appear(self, conn: Connection, staged: Staging, facts: dict[str, Any]) -> None:
        """See ``Resync``."""
        super().appear(conn, staged, facts)
        # Who removes it waits until the view is there, or this sees that it is gone.
        workers.check(conn, self._to)
        views.set_placement(conn, self._view_id, self._to)
