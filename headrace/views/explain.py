"""explain_view: the plan of a view, or of a query that is none yet."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from headrace.errors import HeadraceError, UserError
from headrace.planner import PlanRequest, plan
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.sql import views
from headrace.sql.verbs import ExplainView


def explain_view(context: JobContext, job: Job, request: ExplainView) -> str:
    """Plan text of a stage.

    A text that is a name is looked up among the views; anything else is a query.

    Raises:
        PrivilegeError: it is the plan of somebody else's view.
        UserError: 22023, there is no such stage; or the query is refused.
    """
    text, caller, stage = request.name_or_query, request.caller, request.stage
    with job.connection(context.settings.source, what="builder") as conn:
        stages: dict[str, str] | None = None
        try:
            view = names.find(conn, text, caller, request.settings)
        except UserError:
            view = None  # no identifier: a query
        if view is not None:
            names.check_owner(conn, view, caller)
            stored = views.stored(conn, view.id)
            stages = stored.explain if stored else None
            if stages is not None and "physical" in stages:
                found = _shared(context, view.id)
                stages["physical"] = _with_shared(stages["physical"], found)
        if stages is None:
            stages = plan(conn, PlanRequest(text, caller, request.settings)).explain
    if stage not in stages:
        raise UserError(
            f'there is no plan of stage "{stage}"', hint=f"Stages: {', '.join(stages)}."
        )
    return stages[stage]


def _shared(context: JobContext, view_id: int) -> Mapping[str, Sequence[str]]:
    """Nodes whose rows the view shares with others just now; none if the worker cannot say."""
    with contextlib.suppress(HeadraceError):
        status = context.worker.call("status", {})
        for view in status["views"]:
            if view["id"] == view_id:
                shares: dict[str, list[str]] = view["shares"]
                return shares
    return {}


def _with_shared(text: str, shared: Mapping[str, Sequence[str]]) -> str:
    """``text`` of a physical plan, in which lines begin with a node's id, with what is shared."""

    def told(line: str) -> str:
        others = shared.get(line.split(maxsplit=1)[0]) if line.strip() else None
        if others is None:
            return line
        names = ", ".join(others) or "no other view now"
        return f"{line}; kept once, shared with {names}"

    return "\n".join(map(told, text.split("\n")))
