"""set_placement: other workers hold a view's states and compute its changes from then on.

The view and its table stay as they are, and the table remains readable. The suspended view's states
are written into the staging directory, and the new worker loads them (``runtime/moving.py``).
Then the view catches up. If some states are shared with other views, or the view does not run, the
states are made anew on the new worker, as in a resync.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, Final

import structlog

from headrace import clock
from headrace.collections.plan import to_json
from headrace.errors import HeadraceError, TransientError, UnsupportedError
from headrace.population import names, placing, staging
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.placing import CostFacts, Placement
from headrace.population.populate import planning
from headrace.postgres.connect import Connection
from headrace.process import faults
from headrace.sql import nodes, points, views
from headrace.sql.nodes import MAIN, STRATEGIES
from headrace.sql.verbs import SetPlacement
from headrace.sql.views import StoredView, ViewRow
from headrace.views import links
from headrace.views.pause import check_not_live
from headrace.views.resync import Replanned, Resync, owner_of, plan_again, read

_log = structlog.get_logger(__name__)
_PATIENCE_S: Final = 30.0
_RETRY_S: Final = 0.2


def set_placement(context: JobContext, job: Job, request: SetPlacement) -> dict[str, Any]:
    """Place a view, or parts of it, on other workers.

    Raises:
        UndefinedError: 42P01, no such view; 42704, no such worker, or collection.
        PrivilegeError: the caller is not the view's owner.
        UnsupportedError: other views are fed from the view, or it is fed itself (option ``from``);
            or it cannot be cut that way.
        HeadraceError: as ``resync_view``; the view is as before.
    """
    wanted = placing.parsed(request.worker)
    with planning(context, job) as conn:
        view = names.find_owned(conn, request.name, request.caller, request.settings)
        if nodes.whole(wanted):
            placing.check(conn, nodes.whole(wanted))
    return move(context, job, view, wanted, request.caller)


def move(
    context: JobContext,
    job: Job,
    view: ViewRow,
    wanted: Placement,
    caller: str | None,
    *,
    refill: bool = True,
) -> dict[str, Any]:
    """Move a view to its new placement; a view that is there already gets a notice.

    Without ``refill``, a view that cannot take its states along stays where it is.

    Raises:
        UserError: 55006, a job is filling it; 55000, a strategy finds no place.
        UnsupportedError: other views are fed from the view, or it is fed itself (option ``from``);
            or it cannot be cut that way.
    """
    again: Replanned | None = None
    with planning(context, job) as conn:
        check_not_live(context, job, view)
        before = read(conn, view)
        after = replace(before, options=before.options.with_placement(wanted))
        same = after.options.placement == before.options.placement
        if same and wanted not in STRATEGIES:
            return {"notice": f'view "{view.name}" is there already'}
        fed = [name for p in points.of_view(conn, view.id) for name in points.fed(conn, p.name)]
        if fed:
            raise UnsupportedError(
                f'view "{view.name}" cannot be on another worker than those it feeds',
                detail=f"Fed from its connection points: {', '.join(fed)}.",
                hint='Make these without option "from" first.',
            )
        if isinstance(wanted, dict) or wanted in STRATEGIES:
            again = _cut(context, job, conn, view, after, caller)
            if again.planned.parts == before.parts and not nodes.whole(before.options.placement):
                views.set_placement(conn, view.id, wanted, before.parts)
                return {"notice": f'view "{view.name}" is there already'}
    there = dict(again.planned.parts) if again is not None else {}
    same_plan = again is None or to_json(again.planned.physical) == before.plan
    if same_plan and _shipped(context, job, view, before, wanted, there):
        return {"notice": f'view "{view.name}" has moved with its states'}
    if not refill:
        raise UnsupportedError(f'the states of view "{view.name}" cannot be moved now')
    if again is None:
        with planning(context, job) as conn:
            again = plan_again(context, conn, view, after, owner_of(conn, view, caller))
    return Resync(context, job, view, after, replace(again, to=wanted)).run()


def _cut(
    context: JobContext,
    job: Job,
    conn: Connection,
    view: ViewRow,
    stored: StoredView,
    caller: str | None,
) -> Replanned:
    """Plan the view again with its new parts, chosen by its measured costs if there are any."""
    again = plan_again(context, conn, view, stored, owner_of(conn, view, caller))
    planned, wanted = again.planned, stored.options.placement
    known = None
    if wanted in STRATEGIES and to_json(planned.physical) == stored.plan:
        with contextlib.suppress(TransientError):  # it does not run
            known = placing.measured(context.worker.call("stats", {"view_id": view.id}, job))
    if known is None:
        return again
    facts = CostFacts(planned.shown_sizes, known, links.known(context, job, conn), view.id)
    parts = placing.parts(conn, context.settings, planned.physical, wanted, facts)
    return replace(again, planned=replace(planned, parts=parts))


def _shipped(
    context: JobContext,
    job: Job,
    view: ViewRow,
    stored: StoredView,
    wanted: Placement,
    parts: dict[str, str],
) -> bool:
    """Move a view with its states; return False if they are shared or not available now.

    Before the catalog has the new placement, any failure leaves the view where it was. After that
    the view is at its new place, as soon as that worker can be reached.
    """
    staged = staging.of_view(context.settings.staging_dir, view.id)
    draft = staging.draft(context.settings.staging_dir, view.id)
    said = {"view_id": view.id, "job": job.name}
    context.live[view.id] = job
    taken, moved, where = False, False, "there"
    try:
        context.worker.call("hold", {"job": job.name}, job)
        job.phase("moving")
        draft.make()
        facts = context.worker.call("move", {**said, "path": str(draft.moved)}, job)
        if facts is not None:
            draft.seal(facts)
            staged.take(draft)
            taken = True
            faults.point(faults.MOVE_STAGED)
            _say(context, job, view, wanted, parts)
            moved, where = True, "later"
            faults.point(faults.MOVE_SAID)
            to = {"worker": nodes.whole(wanted) or MAIN, "parts": parts}
            where = _placed(context, {**said, **to})
            if where == "lost":
                _say(context, job, view, stored.options.placement, stored.parts)
            moved = where != "lost"
        return moved
    finally:
        draft.remove()
        # Otherwise it may have the states of an earlier move that was interrupted.
        if taken and (not moved or where == "there"):
            staged.remove()
        context.live.pop(view.id, None)
        with contextlib.suppress(HeadraceError):
            context.worker.call("release", {"job": job.name})


def _say(
    context: JobContext, job: Job, view: ViewRow, wanted: Placement, parts: dict[str, str]
) -> None:
    with job.connection(context.settings.source, what="builder") as conn, conn.transaction():
        # Either a removal of the worker waits for this, or the check sees that the worker is gone.
        placing.check_all(conn, wanted, parts)
        views.set_placement(conn, view.id, wanted, parts)


def _placed(context: JobContext, said: dict[str, Any]) -> str:
    """Have the workers load the staged states; see ``Moving.place``."""
    deadline = clock.monotonic() + _PATIENCE_S
    while True:
        try:
            return str(context.worker.call("place", said))
        except TransientError as error:
            if clock.monotonic() > deadline:
                # A starting worker reads the catalog, and finds the states staged.
                _log.info("view placed later", view=said["view_id"], reason=error.message)
                return "later"
            clock.sleep(_RETRY_S)
