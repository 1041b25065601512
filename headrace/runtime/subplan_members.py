"""Shared subplans whose tables gain or lose members change together with the views that read them.

    subplan: new plan beside the old one, synced ─► catalog: plans of all its readers ─► new plan

The catalog decides. The state database has the plan of a subplan and, beside it, its pending plan.
A worker that starts after a crash takes the plan that reads the same tables as the plans of the
subplan's readers. A reader that fits neither plan must be rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import structlog

from headrace.collections import members as arms
from headrace.collections import subplans
from headrace.collections.members import Model
from headrace.collections.plan import FeedSpec, PhysicalPlan
from headrace.errors import RESYNC, StateDamaged
from headrace.runtime import shared as records
from headrace.runtime.engine_state import EngineState
from headrace.runtime.positions import Meta
from headrace.runtime.shared import Shared
from headrace.runtime.unit_feeds import UnitFeeds
from headrace.runtime.views import Unit, View

_log = structlog.get_logger(__name__)

Plans = Mapping[int, PhysicalPlan]
"""New plans, by unit."""


@dataclass(frozen=True, slots=True)
class MemberChange:
    """The members that a view's plan gains and loses."""

    models: Mapping[int, Model]
    """The new members."""
    went: Collection[int]
    """The tables that are read no more."""

    def after(self, before: PhysicalPlan) -> frozenset[int]:
        """Return the tables that a plan reads after the change, if it read those of ``before``."""
        had = {source.table_oid for source in before.sources}
        came = {oid for oid, model in self.models.items() if model.like in had}
        return frozenset((had | came).difference(self.went))


def below(
    state: EngineState, unit: Unit, whole: PhysicalPlan, change: MemberChange, known: Plans
) -> dict[int, PhysicalPlan] | None:
    """Return the plans of the subplans that ``unit`` reads, when its own is ``whole``.

    ``change``: that of its members; ``known``: new plans of subplans. None: a subplan cannot
    compute the node of the plan.
    """
    found: dict[int, PhysicalPlan] = {}
    read = arms.tables(whole)
    meanings = subplans.meanings(whole, unit.settings) if unit.feeds else {}
    for node, feeder in unit.feeds.items():
        if node not in read:
            return None
        shared = state.subplans[feeder]
        # The plan does not have the tables of another view, which may have stopped, and not follow.
        fed = isinstance(whole.node(node), FeedSpec)
        wanted = change.after(shared.plan) if fed else read[node]
        made = known.get(feeder) or arms.follow(shared.plan, wanted, change.models)
        if made is None or not (fed or _computes(shared, made, meanings[node])):
            return None
        more = below(state, shared, made, change, known)
        if more is None:
            return None
        found |= {feeder: made} | more
    return found


def unequal(state: EngineState, plans: Plans) -> set[int]:
    """Return the views whose tables differ from those that a subplan below reads by ``plans``."""
    found: set[int] = set()
    for unit_id in plans.keys() & state.subplans.keys():
        for reader in state.readers(state.subplans[unit_id]):
            other = _others(plans.get(reader.id, reader.plan), reader.feeds)
            if any(f == unit_id and other(n, plans[f]) for n, f in reader.feeds.items()):
                found |= {view.id for view in state.views_of(reader)}
    return found


def prepare(state: EngineState, plans: Plans) -> None:
    """Store new plans of subplans as pending in the state database."""
    meta: Meta = {}
    for unit_id, made in plans.items():
        shared = state.subplans[unit_id]
        shared.coming = made
        records.put(meta, shared)
    if meta:
        state.db.put_meta(meta, sync=True)


def take(state: EngineState, unit_ids: Iterable[int]) -> None:
    """Switch subplans to their pending plans; REQUIRES: nothing is in flight."""
    meta: Meta = {}
    for unit_id in unit_ids:
        shared = state.subplans[unit_id]
        if shared.coming is not None:
            _take(shared, shared.coming)
            records.put(meta, shared)
    if meta:
        # A crash that loses this write leaves the plan pending.
        state.db.put_meta(meta, sync=False)


def restore(state: EngineState, views: Iterable[View], feeds: UnitFeeds) -> None:
    """Switch to pending plans that fit the readers' plans in the catalog.

    ``views``: as the catalog has them; ``feeds``: the subplans that each unit reads.
    """
    coming = any(shared.coming is not None for shared in state.subplans.values())
    left: list[Unit] = list(views) if coming else []
    while left:
        unit = left.pop()
        read = feeds.get(unit.id)
        other = _others(unit.plan, read)
        for node, feeder in read.items():
            shared = state.subplans.get(feeder)
            if shared is None:
                continue
            if shared.coming is not None and not other(node, shared.coming):
                take(state, [feeder])
                _log.info("subplan follows its readers", subplan=feeder, reader=unit.id)
            left.append(shared)


def check(state: EngineState, view: View) -> None:
    """Raise StateDamaged unless a view's subplans read the tables that its plan says."""
    for unit in (view, *state.needed([view])):
        other = _others(unit.plan, unit.feeds)
        if any(other(node, state.subplans[f].plan) for node, f in unit.feeds.items()):
            raise StateDamaged("a subplan that it shares reads other tables", hint=RESYNC)


def _others(whole: PhysicalPlan, feeds: Mapping[str, int]) -> Callable[[str, PhysicalPlan], bool]:
    """Return a predicate: whether a node of the plan reads other tables than a subplan.

    For a node that stands for another view's rows, any subplan fits.
    """
    if not feeds:
        return lambda _, __: False
    read = arms.tables(whole)
    fed = {node.id for node in whole.feeds}

    def others(node: str, shared: PhysicalPlan) -> bool:
        return node not in fed and read.get(node) != arms.tables(shared)[shared.sink.id]

    return others


def _computes(shared: Shared, made: PhysicalPlan, meaning: str) -> bool:
    """Return whether a subplan with the plan ``made`` would compute a node of that meaning."""
    if made is shared.plan:
        return True
    return subplans.meanings(made, shared.settings)[made.sink.input] == meaning


def _take(shared: Shared, coming: PhysicalPlan) -> None:
    before = subplans.signatures(shared.plan, shared.settings).get(shared.plan.sink.input)
    after = subplans.signatures(coming, shared.settings).get(coming.sink.input)
    if shared.signature == before and after is not None:
        shared.signature = after
    elif not shared.placed:
        shared.signature = f"output of subplan {shared.id}"  # no other view has it
    shared.coming = None
    shared.compute(coming)
