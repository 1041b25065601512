"""create_view: from a name and a query to a table that the worker maintains.

    names → plan → hold → catalog row → publication → snapshot → load → one transaction → adopt

This order makes the result exact (E1-E4), and lets a failure leave nothing behind (populate.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.errors import DuplicateError
from headrace.planner import PlanRequest
from headrace.population import catalog, names, placing
from headrace.population.catalog import NewView
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.populate import Population, plan_with_facts, planning
from headrace.population.publish import publish
from headrace.population.staging import Staging
from headrace.postgres.connect import Connection
from headrace.postgres.reliances import Facts
from headrace.sink import keys
from headrace.sql import history, points, views
from headrace.sql.status import UNFINISHED
from headrace.sql.verbs import CreateView
from headrace.sql.view_spec import ViewSpec
from headrace.views import alter, option_checks, quotas, texts

_LOOK_S: Final = 0.1


def create_view(context: JobContext, job: Job, request: CreateView) -> dict[str, Any]:
    """Create and populate a view; return its id, name and number of rows.

    With ``replace``, an existing view is altered instead (``alter.py``).

    Raises:
        HeadraceError: the creation failed or was cancelled; nothing is left behind.
    """
    tried = False
    while request.replace:
        answer = alter.replaced(context, job, request)
        if answer is not None:
            _say_what_stays(context, job, request, int(answer["view_id"]))
            return answer
        try:
            return _created(context, job, request)
        except DuplicateError:
            # Another call may have created the view meanwhile, or be about to, or have failed.
            if not _await_other(context, job, request) and tried:
                raise
            tried = True
    return _created(context, job, request)


def _await_other(context: JobContext, job: Job, request: CreateView) -> bool:
    """Wait while another call creates the view; return whether there was one, or is a view now."""
    with planning(context, job) as conn:
        schema, name = names.parse_new(conn, request.name, request.caller, request.settings)
        view = views.find(conn, name, [schema])
    if view is None:
        return False
    if view.status not in UNFINISHED:
        return True
    other = context.live.get(view.id)
    if other is None:
        return False
    job.phase("pending")
    job.say(f"view {view.shown} is being created by another call")
    while context.live.get(view.id) is other:
        job.wait(_LOOK_S)
    return True


def _created(context: JobContext, job: Job, request: CreateView) -> dict[str, Any]:
    try:
        return Creation(context, job, plan(context, job, request)).run()
    except keys.KeyTooLong as error:
        if request.options.key is not None:
            raise
        job.say(error.notice)
        request = dataclasses.replace(request, options=request.options.without_key())
        return Creation(context, job, plan(context, job, request)).run()


@dataclass(frozen=True, slots=True)
class PlannedView:
    """A view to be created, and the facts that its plan relies on."""

    view: NewView
    options: ViewSpec
    under: Facts


def plan(context: JobContext, job: Job, request: CreateView) -> PlannedView:
    """Plan a new view, and check its name and options."""
    options = request.options
    wanted = PlanRequest(request.query, request.caller, request.settings)
    text = texts.in_postgres(context, job, wanted, options.dialect)
    with planning(context, job) as conn, text.speaking():
        if text.notice is not None:
            job.say(text.notice)
        target = names.resolve_new(conn, request.name, request.caller, request.settings)
        wanted = dataclasses.replace(wanted, query=text.query)
        planned, planned_under = plan_with_facts(context, conn, wanted, options)
        option_checks.check(conn, context.settings, options, planned, planned_under["owner"])
        planned = text.noted(texts.tidied(context, conn, wanted, planned))
    # Names were looked up earlier; the catalog row inserted below decides who has the name.
    view = NewView(
        target,
        text.query,
        request.caller,
        planned_under["owner"],
        options.without_dialect(),
        planned,
    )
    return PlannedView(view, options, planned_under)


def _say_what_stays(context: JobContext, job: Job, request: CreateView, view_id: int) -> None:
    """Report options of a ``replace`` that differ from the view's but have a call of their own."""
    with planning(context, job) as conn:
        stored = views.stored(conn, view_id)
        if stored is None:
            return  # dropped since
        asked, kept = request.options, stored.options
        wanted = asked.history and history.interval(conn, asked.history)
        stays = kept.history and history.interval(conn, kept.history)
    for name, call, one, other in (
        ("history", "set_history", wanted, stays),
        ("placement", "set_placement", asked.placement, kept.placement),
    ):
        if name in asked.given and one != other:
            shown = msgspec.json.encode(other).decode() if isinstance(other, dict) else other
            job.say(
                f'option "{name}" stays as it is ({shown or "none"}):'
                f" CALL headrace.{call} changes it"
            )


class Creation(Population):
    """One create_view after planning."""

    def __init__(self, context: JobContext, job: Job, planned: PlannedView) -> None:
        view = planned.view
        name = f"{view.target.schema}.{view.target.name}"
        super().__init__(context, job, view.planned, planned.options, planned.under, name)
        self._view = view

    def run(self) -> dict[str, Any]:
        """Create the view; return the answer for the caller."""
        rows = self.populate()
        target = self._view.target
        result: dict[str, Any] = {
            "view_id": self._view_id,
            "schema": target.schema,
            "name": target.name,
            "rows": rows,
        }
        if target.new_schema:
            result["notice"] = f'schema "{target.schema}" was created'
        return result

    def register(self, conn: Connection, undo: contextlib.ExitStack) -> None:
        """Enter the view into the catalog.

        REQUIRES: the publication lock is held; to another job, the new row would look stale.
        """
        target = self._view.target
        views.delete_stale(conn, target.schema, target.name, self._context.live)
        quotas.check_views(conn, self._settings, self._view.caller)
        self._view_id = catalog.insert(conn, self._view)
        self._live(self._view_id, undo)
        self._undo(undo, "catalog row", self._unregister)
        # Either the removal of a worker sees this view, or this check sees that the worker is gone.
        placing.check_all(conn, self._options.placement, self._planned.parts)
        point = self._options.point
        if point is not None and points.find(conn, point) is None:
            # The point cannot be dropped from now on before the view is.
            raise points.unknown(point)

    def appear(self, conn: Connection, staged: Staging, facts: dict[str, Any]) -> None:
        """Make the table with its rows, and set the view running."""
        publish(self._job, conn, self._view_id, self._view, staged, facts)
        if self._options.history is not None:
            # The worker begins the history once it owns the view, before it writes.
            history.ask(conn, self._view_id, self._options.history)

    def replan(self, conn: Connection) -> None:
        """Store the changed plan."""
        self._view = dataclasses.replace(self._view, planned=self._planned)
        catalog.put_plan(conn, self._view_id, self._planned)

    def _unregister(self) -> None:
        with self._connect() as conn:
            views.delete(conn, self._view_id)
