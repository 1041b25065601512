"""check_view: whether create_view would accept a query, by the same code, making nothing."""

from __future__ import annotations

from headrace.planner import Planned, PlanRequest
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.options import ViewOptions
from headrace.population.populate import check_slot, plan_with_facts, planning
from headrace.postgres import publication
from headrace.postgres.connect import Connection
from headrace.sql import watched
from headrace.sql.verbs import CheckView


def check_view(context: JobContext, job: Job, request: CheckView) -> dict[str, str]:
    """Plan the query and try what its creation needs; the plan's text by stage.

    Raises:
        HeadraceError: what create_view would raise.
    """
    with planning(context, job) as conn:
        wanted = PlanRequest(request.query, request.caller, request.settings)
        return checked(context, conn, wanted).explain


def checked(context: JobContext, conn: Connection, wanted: PlanRequest) -> Planned:
    """The plan of a query, once all is tried that its creation needs.

    Raises:
        HeadraceError: what create_view would raise.
    """
    planned, _ = plan_with_facts(conn, context.settings, wanted, ViewOptions())
    tables = [table.oid for table in planned.tables]
    with context.publication_lock:
        publication.try_tables(conn, context.settings, tables, watched.fed)
    check_slot(conn, context.settings)
    return planned
