"""set_latency: change the latency target of a running view.

The worker reads the catalog when it takes a view over and when it is told.
"""

from __future__ import annotations

from typing import Any

from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.sql import view_spec, views
from headrace.sql.verbs import SetLatency
from headrace.views.pause import check_not_live


def set_latency(context: JobContext, job: Job, request: SetLatency) -> dict[str, Any]:
    """Store the target in the catalog, and tell the worker.

    Raises:
        UndefinedError: 42P01, no such view.
        PrivilegeError: the caller is not its owner.
        UserError: 22023, not a number of milliseconds; 55006, the view is being populated.
    """
    latency_ms = view_spec.value_of("latency_ms", request.latency_ms)
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        view = names.find_owned(conn, request.name, request.caller, request.settings)
        check_not_live(context, job, view)
        views.set_latency(conn, view.id, latency_ms)
    context.worker.call("options", {"view_id": view.id}, job)
    return {}
