"""explain_placement: show where a view's collections are, or a query's would be, and why."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.collections import plan as p
from headrace.collections import subplans
from headrace.errors import HeadraceError, UnsupportedError, UserError
from headrace.planner import PlanRequest, plan
from headrace.planner.limits import PlanLimits
from headrace.planner.logical.estimates import ExpectedSize
from headrace.planner.placement import cuts
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.place import Strategy
from headrace.planner.placement.star import StarPlacement
from headrace.population import names, placing
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.placing import Compared, CostFacts, MeasuredView, Placement
from headrace.postgres.connect import Connection
from headrace.sql import nodes, views
from headrace.sql.links import LinkFacts
from headrace.sql.nodes import MAIN, STRATEGIES
from headrace.sql.verbs import ExplainPlacement
from headrace.views import links
from headrace.views.resync import owner_of, plan_again

Row = list[Any]


@dataclass(frozen=True, slots=True)
class _Known:
    """The plan to explain, with its present placement."""

    plan: p.PhysicalPlan
    sizes: Mapping[str, ExpectedSize]
    option: Placement
    """The view's placement option."""
    parts: Mapping[str, str]
    """The view's parts: worker by node."""
    whole: str
    """The worker with all other nodes."""
    measured: MeasuredView | None
    view_id: int = 0

    @property
    def rates(self) -> Mapping[str, float]:
        """Bytes sent by each node: measured, or else expected."""
        if self.measured is not None:
            return self.measured.rates
        return placing.expected(self.plan, self.sizes)


def explain_placement(context: JobContext, job: Job, request: ExplainPlacement) -> list[Row]:
    """Return the rows of ``sql/explain_placement.sql``.

    A text that is a name is looked up among the views; anything else is a query.

    Raises:
        PrivilegeError: the view belongs to another role.
        UndefinedError: 42P01, the text is a name, but not of a view.
        UserError: 22023, there is no such strategy; 55000, it finds no place; or the query is
            refused.
        UnsupportedError: a strategy is given for a plan that cannot be cut.
    """
    strategy = request.strategy
    if strategy not in (None, *STRATEGIES):
        raise UserError(
            f'there is no placement strategy "{strategy}"',
            hint=f"Strategies: {', '.join(STRATEGIES)}.",
            sqlstate="22023",
        )
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        known = _known(context, job, conn, request)
        compared = None
        facts = links.known(context, job, conn)
        if cuts.is_cuttable(known.plan):
            said = CostFacts(known.sizes, known.measured, facts, known.view_id)
            compared = placing.compared(conn, context.settings, known.plan, said)
    shown: StarPlacement | None = None
    if strategy is not None:
        if compared is None:
            raise UnsupportedError(
                "a plan that reads the clock, is fed, or reads no table cannot be cut",
                hint="A view of it is placed whole, by the name of a worker.",
            )
        shown = compared.of(strategy)
    return [
        *_costs(known),
        *_collections(known, shown),
        *_strategies(compared),
        *_links(known, shown, facts),
    ]


def _known(context: JobContext, job: Job, conn: Connection, request: ExplainPlacement) -> _Known:
    text, caller = request.name_or_query, request.caller
    view = names.find_named(conn, text, caller, request.settings)
    if view is None:
        limits = PlanLimits(context.settings.planning_time_ms_max)
        asked = PlanRequest(text, caller, request.settings, limits=limits)
        planned = context.planners.call(conn, caller, text, plan, asked)
        return _Known(planned.physical, planned.shown_sizes, MAIN, {}, MAIN, None)
    names.check_owner(conn, view, caller)
    stored = views.stored(conn, view.id)
    if stored is None:
        raise UserError(f'view "{view.name}" was dropped', sqlstate="42P01")
    option, physical = stored.options.placement, p.from_json(stored.plan)
    if physical.filled_from:
        # Placed elsewhere, the view would be computed by another plan.
        stored = replace(stored, options=replace(stored.options, first_rows="tables"))
        planned = plan_again(context, conn, view, stored, owner_of(conn, view, caller)).planned
        sizes = planned.shown_sizes
        return _Known(planned.physical, sizes, option, {}, MAIN, None, view.id)
    measured = None
    with contextlib.suppress(HeadraceError):
        measured = placing.measured(context.worker.call("stats", {"view_id": view.id}, job))
    whole = nodes.whole(option) or MAIN
    return _Known(physical, {}, option, stored.parts, whole, measured, view.id)


def _costs(known: _Known) -> Iterator[Row]:
    if known.measured is not None:
        seconds = round(known.measured.seconds)
        yield ["costs", "measured", None, f"in the last {seconds} s", None, None, None]
        return
    why = "of the tables' statistics, while all of their rows change once"
    yield ["costs", "expected", None, why, None, None, None]


def _collections(known: _Known, shown: StarPlacement | None) -> Iterator[Row]:
    parts = known.parts if shown is None else shown.parts
    at = _where(known.plan, parts, known.whole if shown is None else MAIN)
    taken = known.measured.ns_per_row if known.measured is not None else {}
    for node in known.plan.nodes:
        sent = known.rates.get(node.id)
        why = _why(node, at[node.id], parts, known, shown)
        yield [
            *("collection", node.id, at[node.id], why),
            *(None if sent is None else round(sent), None, taken.get(node.id)),
        ]


def _where(plan: p.PhysicalPlan, parts: Mapping[str, str], rest: str) -> dict[str, str]:
    """Return the worker of each node; several workers, where parts on them need the same node."""
    found: dict[str, list[str]] = {node.id: [] for node in plan.nodes}
    for node in subplans.over_feeds(plan, parts).nodes:
        if node.id not in parts:
            found[node.id].append(rest if not isinstance(node, p.SinkSpec) else MAIN)
    for top, worker in parts.items():
        for node in subplans.part(plan, parts, top).nodes[:-1]:
            if not isinstance(node, p.FeedSpec) and worker not in found[node.id]:
                found[node.id].append(worker)
    return {name: ", ".join(at) for name, at in found.items()}


def _why(
    node: p.Node,
    at: str,
    parts: Mapping[str, str],
    known: _Known,
    shown: StarPlacement | None,
) -> str:
    if isinstance(node, p.SinkSpec):
        return "rows are written there"
    if isinstance(node, p.SourceSpec):
        return "with what reads it; its rows come from main"
    if shown is None and isinstance(known.option, str) and known.option not in STRATEGIES:
        return "the whole view is there"
    if node.id in parts:
        return "the last one of a part: what it sends goes to main"
    if at != MAIN:
        return "in a part: with what reads it"
    return (
        "as the view was placed" if shown is None else f"strategy {shown.strategy} leaves it there"
    )


def _strategies(compared: Compared | None) -> Iterator[Row]:
    if compared is None:
        why = "a plan that reads the clock, is fed, or reads no table cannot be cut"
        for strategy in Strategy:
            yield ["strategy", str(strategy), None, why, None, None, None]
        return
    for name, found in compared.found.items():
        if isinstance(found, StarPlacement):
            workers = ", ".join([MAIN, *cuts.workers(found.parts)])
            best = "the cheapest (auto)" if found is compared.best else None
            sent = round(sum(found.crossing.values()))
            yield ["strategy", str(name), workers, best, sent, round(found.cost), None]
            continue
        if isinstance(found, PlacementFailed):
            why = f'no room for "{found.operator}": {found.reason}'
        else:
            why = found.message
        yield ["strategy", str(name), None, why, None, None, None]


def _links(
    known: _Known, shown: StarPlacement | None, facts: Mapping[str, LinkFacts]
) -> Iterator[Row]:
    if shown is not None:
        crossing: Mapping[tuple[str, str], float] = shown.crossing
    else:
        parts = known.parts
        if known.whole != MAIN:
            parts = {known.plan.sink.input: known.whole}
        crossing = cuts.received(known.plan, parts, known.rates, MAIN)
    for (low, high), sent in crossing.items():
        cost = sent * placing.weight(facts.get(low if high == MAIN else high, LinkFacts()))
        yield ["link", f"{low} to {high}", None, None, round(sent), round(cost), None]
