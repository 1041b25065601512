"""check_view: return whether create_view would accept a query, by the same code; create nothing."""

from __future__ import annotations

from dataclasses import replace

from headrace.planner import Planned, PlanRequest
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.populate import plan_with_facts, planning
from headrace.population.slot_check import check_slot
from headrace.postgres import publication
from headrace.postgres.connect import Connection
from headrace.sql import watched
from headrace.sql.verbs import CheckView
from headrace.sql.view_spec import ViewSpec
from headrace.views import option_checks, texts


def check_view(context: JobContext, job: Job, request: CheckView) -> dict[str, str]:
    """Plan the query and try what its creation needs; return the plan's text by stage.

    Raises:
        HeadraceError: the error that create_view would raise.
    """
    wanted = PlanRequest(request.query, request.caller, request.settings)
    text = texts.in_postgres(context, job, wanted, request.options.dialect)
    with planning(context, job) as conn, text.speaking():
        wanted = replace(wanted, query=text.query)
        planned = checked(context, conn, wanted, request.options)
    said = {} if text.notice is None else {"notice": text.notice}
    return {**text.noted(planned).explain, **said}


def checked(
    context: JobContext,
    conn: Connection,
    wanted: PlanRequest,
    options: ViewSpec = ViewSpec(),  # noqa: B008  frozen
) -> Planned:
    """Return the plan of a query after trying everything that its creation needs.

    Raises:
        HeadraceError: the error that create_view would raise.
    """
    planned, under = plan_with_facts(context, conn, wanted, options)
    option_checks.check(conn, context.settings, options, planned, under["owner"])
    tables = [table.oid for table in planned.tables]
    with context.publication_lock:
        publication.try_tables(conn, context.settings, tables, watched.fed)
    check_slot(conn, context.settings)
    return planned
