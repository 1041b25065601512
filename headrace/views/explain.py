"""explain_view: show the plan of a view or a query at a stage and in a format."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msgspec import structs

from headrace.errors import HeadraceError, UserError
from headrace.planner import Planned, PlanRequest, graph, plan, readings
from headrace.planner.analyse import objects
from headrace.planner.analyse.present import present
from headrace.planner.graph import Graph, NodeNumbers, SharedEdge
from headrace.planner.limits import PlanLimits
from headrace.planner.physical.explain import LINEAGE
from headrace.population import names, stacking
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.sql import nodes, points, views
from headrace.sql.points import Point
from headrace.sql.verbs import ExplainView
from headrace.sql.view_spec import ViewSpec
from headrace.sql.views import FIRST_ROWS, GRAPHS, TIDY, StoredView, ViewRow
from headrace.views import texts

Buffered = Mapping[str, tuple[int, Sequence[str]]]
"""By node whose rows come from a shared subplan: its number, and the other views that read it."""
ANALYZE: Final = "analyze"
_PHYSICAL: Final = "physical"


@dataclass(slots=True)
class Stages:
    """The stages of a plan: each as text, and as a graph where there is one."""

    texts: dict[str, str]
    graphs: dict[str, Graph] = field(default_factory=dict)

    @classmethod
    def of(cls, planned: Planned) -> Stages:
        """Return the stages of a planned query."""
        texts, graphs = dict(planned.explain), {g.stage: g for g in planned.graphs}
        said = planned.first_rows
        if said and _PHYSICAL in graphs:
            graphs[_PHYSICAL] = structs.replace(graphs[_PHYSICAL], notes=(said,))
        elif said:
            texts[_PHYSICAL] = f"{texts[_PHYSICAL]}\n{said}"
        return cls(texts, graphs)

    @classmethod
    def stored(cls, explain: Mapping[str, Any]) -> Stages:
        """Return the stages that the catalog has for a view."""
        none = (TIDY, FIRST_ROWS)
        told = {s: text for s, text in explain.items() if isinstance(text, str) and s not in none}
        graphs = (graph.of_plain(data) for data in explain.get(GRAPHS, ()))
        return cls(told, {g.stage: g for g in graphs})

    def lines(self, stage: str, how: str) -> list[str]:
        """Return the lines of a stage; formats other than text give a single string.

        Raises:
            UserError: 22023, there is no such stage or format, or the stage is no graph.
        """
        if how not in graph.FORMATS:
            raise graph.unknown_format(how)
        if stage not in self.texts and stage not in self.graphs:
            names = dict.fromkeys((readings.AST, *self.texts, *self.graphs))
            raise UserError(
                f'there is no plan of stage "{stage}"', hint=f"Stages: {', '.join(names)}."
            )
        found = self.graphs.get(stage)
        if found is None or (stage == LINEAGE and how == "text"):
            return _plain(stage, self.texts[stage], how)
        written = graph.written(found, how)
        return written.split("\n") if how == "text" else [written]


def _plain(stage: str, told: str, how: str) -> list[str]:
    lines = told.rstrip("\n").split("\n")
    if how == "text":
        return lines
    if how == "json":
        return [graph.pretty({"stage": stage, "lines": lines})]
    raise UserError(
        f'stage "{stage}" cannot be drawn: it is no graph', hint="Its formats are text and json."
    )


def explain_view(context: JobContext, job: Job, request: ExplainView) -> dict[str, Any]:
    """Return the lines of a stage.

    A text that is a name is looked up among the views; anything else is a query.

    Raises:
        PrivilegeError: the view belongs to another role.
        UndefinedError: 42P01, the text is a name, but not of a view.
        UserError: 22023, there is no such stage or format; or the query is refused.
    """
    text, caller = request.name_or_query, request.caller
    with job.connection(context.settings.source, what="builder") as conn:
        view = None
        if request.dialect is None:
            view = names.find_named(conn, text, caller, request.settings)
        if view is not None:
            names.check_owner(conn, view, caller)
            stages = _of_view(context, job, conn, request, view)
            return {"lines": stages.lines(request.stage, request.format)}
        asked = PlanRequest(text, caller, request.settings)
        query = texts.in_postgres(context, job, asked, request.dialect)
        with query.speaking():
            stages = _of_query(context, conn, request, query)
        return {"lines": stages.lines(request.stage, request.format), "notice": query.notice}


def _of_query(
    context: JobContext, conn: Connection, request: ExplainView, query: texts.QueryText
) -> Stages:
    if request.stage == ANALYZE:
        raise UserError(
            "only a view can be measured, not a query",
            hint="Create a view of the query, and explain the view by its name.",
        )
    limits = PlanLimits(context.settings.planning_time_ms_max)
    asked = PlanRequest(query.query, request.caller, request.settings, limits=limits)
    if request.stage == readings.AST:
        return Stages({}, {readings.AST: _ast(context, conn, asked)})
    parsed = context.reader.parsed(asked.query)
    asked = replace(asked, syntax=parsed.nodes, unread=parsed.why)
    planned = context.planners.call(conn, asked.caller, asked.query, plan, asked)
    planned = stacking.choose(context, conn, asked, ViewSpec(), planned)
    return Stages.of(query.noted(planned))


def _ast(context: JobContext, conn: Connection, asked: PlanRequest) -> Graph:
    """Return the syntax tree by sqlglot, annotated with the objects that Postgres binds.

    Raises:
        UserError: Postgres refuses the query, or sqlglot cannot parse it, with the position.
    """
    caller, query = asked.caller, asked.query
    try:
        read = context.reader.read(query)
    except UserError as error:
        # The error of Postgres comes first.
        context.planners.call(conn, caller, query, readings.check, asked)
        error.detail = (
            f"{error.detail or ''} Postgres reads the query; the parser of syntax trees does not. The"
            " query is planned as Postgres reads it."
        ).strip()
        raise
    asked = replace(asked, syntax=read.nodes)
    return context.planners.call(conn, caller, query, readings.drawn, asked)


def _written(conn: Connection, stored: StoredView, owner: str | None) -> PlanRequest:
    """Return a view's query as it was written, if it still names the same relations.

    Its names are looked up in the schemas of the view's relations. If a relation was renamed, or
    hidden by a new one, return the query with the current names instead.
    """
    if stored.canonical is None:
        return PlanRequest(stored.query, owner, stored.settings)
    current = PlanRequest(present(conn, stored.canonical, stored.named), owner, stored.settings)
    mine = readings.bound(conn, current)
    functions = objects.path(conn, stored.settings, stored.named)
    path = {"search_path": ", ".join([*readings.schemas(conn, mine), functions])}
    asked = PlanRequest(stored.query, owner, stored.settings | path)
    try:
        written = readings.bound(conn, asked)
    except UserError:
        return current
    found, known = (sorted(r.oid for r in text.relations) for text in (written, mine))
    return asked if found == known else current


def _of_view(
    context: JobContext, job: Job, conn: Connection, request: ExplainView, view: ViewRow
) -> Stages:
    stored = views.stored(conn, view.id)
    if stored is None or stored.explain is None:
        raise UserError(f"view {view.shown} has no plan", hint="Run CALL headrace.resync_view.")
    stages = Stages.stored(stored.explain)
    if request.stage == readings.AST and readings.AST in stages.graphs:
        stages.graphs[readings.AST] = readings.renamed(conn, stages.graphs[readings.AST])
        return stages
    if request.stage == readings.AST:
        # The view was planned by an earlier version, or its tree is too large to be stored.
        owner = view.owner_name or request.caller
        asked = context.planners.call(conn, owner, stored.canonical or "", _written, stored, owner)
        stages.graphs[readings.AST] = _ast(context, conn, asked)
        return stages
    said = stored.explain.get(FIRST_ROWS)
    notes = [*([said] if said else []), *_placed(stored), *_points(conn, view, request.caller)]
    physical = stages.graphs.get(_PHYSICAL)
    if physical is None:
        # The view was stored by an earlier version, or its plan contains another role's query.
        told = stages.texts.get(_PHYSICAL, "")
        stages.texts[_PHYSICAL] = "\n".join([told, *notes])
        if request.stage == ANALYZE:
            raise UserError(
                f"view {view.shown} keeps no plan that can be measured", detail=_first(told)
            )
        return stages
    physical = structs.replace(physical, notes=tuple(notes))
    physical = with_edges(physical, _buffered(context, view.id) or {})
    stages.graphs[_PHYSICAL] = physical
    if request.stage == ANALYZE:
        found = context.worker.call("stats", {"view_id": view.id}, job)
        stages.graphs[ANALYZE] = measured(physical, found)
    return stages


def _first(told: str) -> str | None:
    line = told.split("\n")[0]
    return f"It is {line}." if line.startswith("not shown") else None


def _placed(stored: StoredView) -> list[str]:
    """Return lines that name the workers other than ``main``."""
    worker = nodes.whole(stored.options.placement)
    parts = [f'{node} and below on worker "{at}"' for node, at in sorted(stored.parts.items())]
    return parts or ([f'on worker "{worker}"'] if worker else [])


def _points(conn: Connection, view: ViewRow, caller: str | None) -> list[str]:
    """Return lines for the view's connection points, and for those it reads, if visible."""
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
    """Return the nodes that the view shares with others now; None: the worker does not answer."""
    with contextlib.suppress(HeadraceError):
        status = context.worker.call("status", {})
        for view in status["views"]:
            if view["id"] == view_id:
                shares: Buffered = view["shares"]
                return shares
    return None


def with_edges(physical: Graph, buffered: Buffered) -> Graph:
    """Return the plan with the shared nodes marked.

    The output of a shared node is queued until every reader has it. Rows between other nodes are
    passed by a call, so their edges have no mark.
    """
    nodes = [
        structs.replace(
            node, edge=SharedEdge(abs(buffered[node.id][0]), tuple(buffered[node.id][1]))
        )
        if node.id in buffered
        else node
        for node in physical.nodes
    ]
    return structs.replace(physical, nodes=tuple(nodes))


def measured(physical: Graph, found: Sequence[Mapping[str, Any]]) -> Graph:
    """Return the plan with the worker's counters, a row (``operators.StatsRow``) for each node.

    Nodes without a row have no numbers: the view does not run.
    """
    rows = {row["node"]: row for row in found}
    whole_us = sum(row["busy_us"] for row in found)
    told = set(NodeNumbers.__struct_fields__)

    def numbers(row: Mapping[str, Any]) -> NodeNumbers:
        share = round(100 * row["busy_us"] / whole_us, 1) if whole_us else 0.0
        return NodeNumbers(**{n: v for n, v in row.items() if n in told}, share_pct=share)

    nodes = [
        structs.replace(node, measured=numbers(rows[node.id])) if node.id in rows else node
        for node in physical.nodes
    ]
    notes = physical.notes if rows else (*physical.notes, "it does not run: nothing is counted")
    return structs.replace(physical, stage=ANALYZE, nodes=tuple(nodes), notes=notes)
