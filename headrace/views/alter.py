"""alter_view, and create_view with ``replace``: give a view another query or other options.

The view is planned with its owner's rights and rebuilt as in a resync (``resync.py``). Its
table keeps its OID, and so its grants, comments, indexes and dependent objects. Conflicts are
reported before anything is changed (``population/alter_table_plan.py``). Readers see either the old
view or the new one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.errors import UserError
from headrace.planner import PlanRequest
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.populate import plan_with_facts, planning
from headrace.postgres.connect import Connection
from headrace.sink import keys, table
from headrace.sql.status import Status
from headrace.sql.verbs import AlterView, CreateView
from headrace.sql.view_spec import ViewSpec
from headrace.sql.views import StoredView, ViewRow
from headrace.views import option_checks, texts
from headrace.views.alter_rebuild import Wanted
from headrace.views.alter_reuse import StateReusingAlter
from headrace.views.pause import check_not_live
from headrace.views.resync import Replanned, owner_of, read


def alter_view(context: JobContext, job: Job, request: AlterView) -> dict[str, Any]:
    """Give a view another query, and change the given options; null resets one to its default.

    Raises:
        UserError: 2BP01, an object depends on a column that would be dropped or get another type;
            55006, another job works on the view; 22023, an option has an invalid value.
        UnsupportedError: the query is not supported, or this call cannot change an option.
        HeadraceError: as ``resync_view``; the view is as before.
    """
    with planning(context, job) as conn:
        view = names.find_owned(conn, request.name, request.caller, request.settings)
        stored = read(conn, view)
    options = request.options.applied(stored.options, context.settings)
    wanted = Wanted(request.query, request.settings, options)
    return _alter(context, job, view, wanted, request.caller)


def replaced(context: JobContext, job: Job, request: CreateView) -> dict[str, Any] | None:
    """Alter the view that ``create_view`` with ``replace`` names; return None if there is none.

    Raises:
        HeadraceError: as ``alter_view``.
    """
    with planning(context, job) as conn:
        view = names.find_here(conn, request.name, request.caller, request.settings)
        if view is None:
            return None
        names.check_owner(conn, view, request.caller)
        stored = read(conn, view)
    options = stored.options.replaced_by(request.options, context.settings)
    wanted = Wanted(request.query, request.settings, options, same=True)
    return _alter(context, job, view, wanted, request.caller)


def _alter(
    context: JobContext, job: Job, view: ViewRow, wanted: Wanted, caller: str | None
) -> dict[str, Any]:
    try:
        return _altered(context, job, view, wanted, caller)
    except keys.KeyTooLong as error:
        if wanted.options.key is not None:
            raise
        job.say(error.notice)
    keyless = replace(wanted, options=wanted.options.without_key())
    return _altered(context, job, view, keyless, caller)


def _altered(
    context: JobContext, job: Job, view: ViewRow, wanted: Wanted, caller: str | None
) -> dict[str, Any]:
    options = wanted.options
    asked = PlanRequest(wanted.query, caller, wanted.settings)
    text = texts.in_postgres(context, job, asked, options.dialect)
    wanted = replace(wanted, query=text.query, options=options.without_dialect())
    with planning(context, job) as conn, text.speaking():
        if text.notice is not None:
            job.say(text.notice)
        check_not_live(context, job, view)
        stored = read(conn, view)
        stored.options.check_alterable(wanted.options)
        owner = owner_of(conn, view, caller)
        asked = PlanRequest(text.query, owner.name, wanted.settings)
        planned, under = plan_with_facts(context, conn, asked, options, view.id)
        planned = text.noted(texts.tidied(context, conn, asked, planned))
        option_checks.check(conn, context.settings, options, planned, owner.oid)
        if view.result_oid in planned.results:
            raise UserError(
                f"view {view.shown} would read itself",
                detail="A view that the query reads is made of this one.",
                sqlstate="42P17",
            )
        again = Replanned(planned, under, owner)
        runs = view.status in (Status.RUNNING, Status.PAUSED) and view.owner == owner.oid
        if wanted.same and runs and _is_that(conn, view, stored, again, wanted.options):
            notice = f"view {view.shown} already has this query: nothing was changed"
            return {"view_id": view.id, "notice": notice}
        altered = StateReusingAlter(context, job, view, stored, again, wanted)
        altered.check_table(conn)
    return altered.run()


def _is_that(
    conn: Connection,
    view: ViewRow,
    stored: StoredView,
    again: Replanned,
    options: ViewSpec,
) -> bool:
    """Return whether a view already has this query, as Postgres reads it, and these options."""
    planned = again.planned
    there = view.result_oid is not None and table.fingerprint(conn, view.result_oid) is not None
    return (
        there
        and stored.canonical == planned.canonical_sql
        and stored.named == list(planned.named)
        and stored.settings == planned.settings
        and stored.options.is_same(options)
    )
