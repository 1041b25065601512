"""Option ``first_rows``: decides whether a view over other views begins with their rows.

    plan with the queries of the views below (merged, over tables)          ─┐ chosen by the rows
    plan over the rows of the views below, stacked on their stored plans    ─┘ to read and keep

A stacked plan is complete, so the view is an ordinary one, whose subplans are shared by the rules
of ``runtime/sharing.py``.  Only its population differs: the first rows come from the tables of the
views below, and their subplans are shared from the beginning (``feeding.py``).  Later,
nothing depends on the views below: they may be paused, moved, refilled, or stop.

* Invariant: a plan is stacked only on plans that the worker computes here, unchanged, under session
  settings that mean the same for both views.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from msgspec import structs

from headrace.collections import plan as p
from headrace.collections import stacking
from headrace.config import Settings
from headrace.errors import HeadraceError, UnsupportedError
from headrace.planner import Planned, PlanRequest
from headrace.planner.physical.explain import LINEAGE
from headrace.planner.plan import plan_upper
from headrace.population import choice
from headrace.population.context import JobContext
from headrace.population.loader import sizes_of
from headrace.postgres.connect import Connection
from headrace.postgres.settings import FUNCTION_PATH
from headrace.sql import nodes, results
from headrace.sql.nodes import MAIN
from headrace.sql.results import LowerView
from headrace.sql.status import Status
from headrace.sql.view_spec import ViewSpec

ROWS_WORTH: Final = 50_000
"""Rows that a stacked plan must save, each counted once for every state that keeps it: below that,
the second plan and the checkpoint of the views below take longer than the rows."""
_SHARE_WORTH: Final = 0.25
"""The part of all rows that it must save."""
_ROWS_PER_S: Final = 200_000.0
"""Rows, counted in the same way, that a population processes in a second.  It waits for a view
below that has to catch up first no longer than it would gain."""
_PATIENCE_S_MIN: Final = 3.0
_PATIENCE_S: Final = 30.0
_NO_WAIT: Final = "SET LOCAL lock_timeout = '100ms'"
_HIDDEN: Final = "a view below cannot be used"
"""The reason where another one could name views that the caller does not know."""
_NODES_MAX: Final = 1_000
"""Nodes of a stacked plan: views over views over views could multiply them."""


class _NotStacked(Exception):
    """The plan is not stacked; the message is the reason, as it follows "because"."""


def choose(
    context: JobContext,
    conn: Connection,
    request: PlanRequest,
    options: ViewSpec,
    planned: Planned,
) -> Planned:
    """Return ``planned``, or the same query stacked on the plans of views that it reads.

    REQUIRES: the transaction in which ``request`` was planned is open on ``conn``.
    """
    if not planned.results or options.point is not None:
        return planned
    try:
        return _stacked(context, conn, request, options, planned)
    except _NotStacked as reason:
        return replace(planned, first_rows=f"first rows: from the tables, because {reason}")


def _stacked(
    context: JobContext,
    conn: Connection,
    request: PlanRequest,
    options: ViewSpec,
    planned: Planned,
) -> Planned:
    """Return the stacked plan.

    Raises:
        _NotStacked: it is not exact, or would not be worth it.
    """
    _check_options(context.settings, options)
    asked = options.first_rows == "views"
    work = 0 if asked else _work(conn, planned, planned.physical)
    if not asked and work < ROWS_WORTH:
        raise _NotStacked("they have few rows")
    views = results.lower(conn, planned.results)
    found, why = _usable(views, planned)
    if not found:
        raise _NotStacked(_HIDDEN if planned.private else "; ".join(why.values()))
    try:
        over = replace(request, over=frozenset(found))
        upper = context.planners.call(conn, over.caller, over.query, plan_upper, over)
    except UnsupportedError as error:
        raise _NotStacked(f"over the rows of the views {error.message}") from error
    if upper.private:  # it may read views that the caller does not know
        raise _NotStacked(_HIDDEN)
    made, patience_s = _on(planned, upper, found), _PATIENCE_S
    if not asked:
        saved = work - _work(conn, made, upper.physical)
        if saved < max(ROWS_WORTH, _SHARE_WORTH * work):
            raise _NotStacked("that reads hardly more rows, or fewer")
        patience_s = min(max(saved / _ROWS_PER_S, _PATIENCE_S_MIN), _PATIENCE_S)
    read = list(made.below)
    names = ", ".join(found[oid].view.shown for oid in read)
    rest = "; ".join(text for oid, text in why.items() if oid in upper.results)
    said = f"first rows: from view{'s' * (len(read) > 1)} {names}"
    said += f", but not from all, because {rest}" if rest else ""
    return replace(made, first_rows=said, patience_s=patience_s)


def _check_options(settings: Settings, options: ViewSpec) -> None:
    if options.first_rows == "tables":
        raise _NotStacked("option first_rows says so")
    if options.placement != MAIN:
        raise _NotStacked("the view is placed on other workers")
    if not (options.sharing and settings.sharing):
        raise _NotStacked("it does not share subplans with other views")


@dataclass(frozen=True, slots=True)
class _Usable:
    """A view below, and its plan."""

    view: LowerView
    plan: p.PhysicalPlan


def _usable(views: list[LowerView], planned: Planned) -> tuple[dict[int, _Usable], dict[int, str]]:
    """Return the views that plans can be stacked on, and the reasons for the others, by table."""
    found: dict[int, _Usable] = {}
    why: dict[int, str] = {}
    for view in views:
        try:
            found[view.result_oid] = _Usable(view, _plan_of(view, planned.settings))
        except _NotStacked as reason:
            why[view.result_oid] = f"view {view.shown} {reason}"
    return found, why


def _plan_of(view: LowerView, settings: Mapping[str, str]) -> p.PhysicalPlan:
    """Return the plan of a view that plans can be stacked on.

    Raises:
        _NotStacked: they cannot; the reason continues "view v …".
    """
    if view.status != Status.RUNNING:
        raise _NotStacked(f"does not run: it is {view.status}")
    options = ViewSpec.of(view.options)
    if view.parts or nodes.whole(options.placement):
        raise _NotStacked("is on another worker")
    if not options.sharing:
        raise _NotStacked("does not share subplans with other views")
    if options.limits:
        raise _NotStacked("has limits of its own")  # which a shared subplan would not have
    if options.point is not None:
        raise _NotStacked("is fed from a connection point")
    try:
        physical = p.from_json(view.plan)
    except (ValueError, TypeError, KeyError):
        raise _NotStacked("was planned by an earlier version of headrace") from None
    if physical.outdated:
        raise _NotStacked("was planned by an earlier version of headrace")
    if physical.temporal:
        raise _NotStacked("reads the clock")
    # A view without code of users has no search path among its settings.
    same = {k: v for k, v in settings.items() if k in view.settings or k != FUNCTION_PATH}
    if view.settings != same:
        raise _NotStacked("was created under other settings of the session")
    return physical


def _on(planned: Planned, upper: Planned, found: Mapping[int, _Usable]) -> Planned:
    """Return the plan of ``upper`` stacked on those of views, with ``planned``'s dependencies.

    Raises:
        _NotStacked: a table differs from its view's plan, or the plan is too large.
    """
    feeds = upper.physical.feeds
    if not feeds:
        raise _NotStacked("no row of a view is read")
    lower = {feed.table_oid: found[feed.table_oid].plan for feed in feeds}
    if not all(stacking.fits(feed, lower[feed.table_oid]) for feed in feeds):
        raise _NotStacked("the table of a view was altered")
    physical = stacking.stacked(upper.physical, lower)
    if len(physical.nodes) > _NODES_MAX:
        raise _NotStacked("the plan would be too large")
    # Both plans give the same rows, so a key that is proved for one holds for the other.
    sink = planned.physical.sink
    physical = physical.keyed(sink.key).secured(sink.conditions, discreet=sink.discreet)
    # The stages that name the tables below, and say what holds for both plans.
    kept = {stage: planned.explain[stage] for stage in ("sources", "key", LINEAGE)}
    graphs = [graph for graph in upper.graphs if graph.stage != LINEAGE]
    graphs += [graph for graph in planned.graphs if graph.stage == LINEAGE]
    return replace(
        planned,
        logical=upper.logical,
        optimised=upper.optimised,
        physical=physical,
        upper=structs.replace(upper.physical, nodes=(*upper.physical.nodes[:-1], physical.sink)),
        below={oid: found[oid].view.id for oid in sorted(lower)},
        instead=planned,
        explain=upper.explain | kept,
        graphs=tuple(graphs),
        whole=planned.physical,
        sizes=upper.sizes,
    )


def _work(conn: Connection, planned: Planned, physical: p.PhysicalPlan) -> float:
    """Return the expected rows to read, each counted once for every state that keeps it."""
    known = {name: size.rows for name, size in planned.sizes.items()}
    unknown = tuple(source for source in physical.sources if source.id not in known)
    if unknown:  # never analysed
        known |= _measured(conn, unknown)
    read: list[p.SourceSpec | p.FeedSpec] = [*physical.sources, *physical.feeds]
    return sum(known.get(n.id, 0) * choice.states_of(physical, n.id) for n in read)


def _measured(conn: Connection, sources: tuple[p.SourceSpec, ...]) -> dict[str, int]:
    """Return the rows of tables by their sizes.

    Raises:
        _NotStacked: a table is locked, gone, or in a database that cannot be reached.
    """
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(_NO_WAIT)
            return {name: size.rows for name, size in sizes_of(conn, sources).items()}
    except (HeadraceError, psycopg.Error):
        raise _NotStacked("the size of a table is not known now") from None
