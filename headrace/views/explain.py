"""explain_view: the plan of a view, or of a query that is none yet."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.errors import HeadraceError, UserError
from headrace.planner import PlanRequest, plan
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.sql import nodes, points, views
from headrace.sql.points import Point
from headrace.sql.verbs import ExplainView
from headrace.sql.views import StoredView, ViewRow

Buffered = Mapping[str, tuple[int, Sequence[str]]]
"""By node whose rows come from a shared subplan: which, and the other views that need it."""
_NODE: Final = re.compile(r"( *)([a-z]+_[0-9]+) [A-Z]")
"""A line of a physical plan that a node begins."""


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
                edges = _buffered(context, view.id)
                if edges is not None:
                    stages["physical"] = with_edges(stages["physical"], edges)
                told = [*_placed(stored), *_points(conn, view, caller)]
                stages["physical"] = "\n".join([stages["physical"], *told])
        if stages is None:
            stages = plan(conn, PlanRequest(text, caller, request.settings)).explain
    if stage not in stages:
        raise UserError(
            f'there is no plan of stage "{stage}"', hint=f"Stages: {', '.join(stages)}."
        )
    return stages[stage]


def _placed(stored: StoredView | None) -> list[str]:
    """Lines that name workers, besides the one that writes."""
    if stored is None:
        return []
    worker = nodes.whole(stored.options.get("placement"))
    parts = [f'{node} and below on worker "{at}"' for node, at in sorted(stored.parts.items())]
    return parts or ([f'on worker "{worker}"'] if worker else [])


def _points(conn: Connection, view: ViewRow, caller: str | None) -> list[str]:
    """A line for each connection point that the view has, or reads and ``caller`` may know of."""
    lines = [f'is connection point "{p.name}"{_kept(p)}' for p in points.of_view(conn, view.id)]
    for point in points.read_by(conn, view.id):
        read = views.of_id(conn, point.view_id)
        if read is not None and names.acts_for_owner(conn, read, caller):
            told = f'reads connection point "{point.name}" of view {read.shown}'
            lines.append(told + _kept(point))
    return lines


def _kept(point: Point) -> str:
    kept = [
        *([f"history {point.keep}"] if point.keep is not None else []),
        *([f'storage key "{point.storage_key}"'] if point.storage_key is not None else []),
    ]
    return ": " + ", ".join(kept) if kept else ""


def _buffered(context: JobContext, view_id: int) -> Buffered | None:
    """The nodes whose rows the view shares with others just now; None: the worker cannot say."""
    with contextlib.suppress(HeadraceError):
        status = context.worker.call("status", {})
        for view in status["views"]:
            if view["id"] == view_id:
                shares: Buffered = view["shares"]
                return shares
    return None


def with_edges(text: str, buffered: Buffered) -> str:
    """``text`` of a physical plan with, for each node but the sink, how its rows go on.

    *Buffered*: the node is kept once for several views, and what it sends stands in a queue until
    each of them has it.  *Synchronous*: by a call.  What is below a buffered node belongs to the
    subplan that is shared, and nothing is said of it.
    """
    out: list[str] = []
    inside, told = math.inf, ""
    for line in text.split("\n"):
        node = _NODE.match(line)
        if node is not None:
            # A node may have several lines: it is said at the end of the last.
            out[-1:] = [last + told for last in out[-1:]]
            told = ""
            if len(node[1]) <= inside:
                inside = len(node[1]) if node[2] in buffered else math.inf
                told = _edge(buffered.get(node[2])) if node[1] else ""
        out.append(line)
    return "\n".join(out) + told


def _edge(buffered: tuple[int, Sequence[str]] | None) -> str:
    if buffered is None:
        return "; edge: synchronous"
    subplan, others = buffered
    names = ", ".join(others) or "no other view now"
    return (
        f"; edge: buffered in the queue of subplan {abs(subplan)}; kept once, shared with {names}"
    )
