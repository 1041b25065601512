"""Option ``placement``: which parts of a planned view go to which workers.

A worker's name: the view is there whole.  An object: collections by id or kind, and where each is
to be.  A strategy: it decides, by what collections are known or expected to send, and by how much
room there is (``planner/placement/star.py``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headrace.collections import plan as p
from headrace.collections import subplans
from headrace.config import Settings
from headrace.errors import UndefinedError, UserError
from headrace.planner.logical.estimates import ExpectedSize
from headrace.planner.placement import cuts
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Costs
from headrace.planner.placement.place import Strategy
from headrace.planner.placement.star import StarPlacement, Station, cheapest, place_star
from headrace.planner.placement.topology import ORDINARY_BYTES_S, TopologyLink
from headrace.postgres.connect import Connection
from headrace.sql import links, nodes
from headrace.sql.links import LinkFacts
from headrace.sql.nodes import MAIN, STRATEGIES, WorkerLoad

Placement = str | dict[str, str]
"""The option's value."""

_WIDTH: Final = 8
"""Bytes of a value of which nothing is known."""
_ROWS: Final = 1000
"""Rows of what was never analysed."""
_ENOUGH_ROWS: Final = 20
_ENOUGH_S: Final = 60.0
"""Numbers of collections count after so many rows or so long: the first rows take much longer than
later ones, and rates over fractions of a second depend on when the first row came."""


@dataclass(frozen=True, slots=True)
class MeasuredView:
    """What the collections of a running view have done."""

    rates: Mapping[str, float]
    """Bytes per second that each has sent."""
    ns_per_row: Mapping[str, int]
    """Nanoseconds that each row that came in has taken; without collections that have seen few."""
    seconds: float
    """For how long, at least."""


@dataclass(frozen=True, slots=True)
class CostFacts:
    """What strategies go by."""

    sizes: Mapping[str, ExpectedSize] = field(default_factory=dict)
    """Of a plan's nodes, as it was planned."""
    measured: MeasuredView | None = None
    """None: the view does not run, or its collections were not counted for long enough."""
    links: Mapping[str, LinkFacts] | None = None
    """Of the links to workers; None: what was said of them (``add_link``)."""
    view_id: int = 0
    """The view that is placed, if there is one: what it takes now is free for it."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What all strategies say of a plan."""

    found: Mapping[str, StarPlacement | PlacementFailed | UserError]
    best: StarPlacement | None

    def of(self, strategy: str) -> StarPlacement:
        """The placement of a strategy; ``auto``: the cheapest of all.

        Raises:
            UserError: 55000, it has none; or the plan is too large for it.
        """
        if strategy == "auto" and self.best is not None:
            return self.best
        found = self.found[Strategy.TOP_DOWN if strategy == "auto" else strategy]
        if isinstance(found, UserError):
            raise found
        if isinstance(found, PlacementFailed):
            raise UserError(
                f'collection "{found.operator}" cannot be placed',
                detail=f"Strategy {strategy}: {found.reason}.",
                hint="Add a worker, or give one more capacity, or choose another strategy.",
                sqlstate="55000",
            )
        return found


def parsed(text: str) -> Placement:
    """The option's value of a text, in which an object is written as JSON.

    Raises:
        UserError: 22023, it is no such object.
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UserError(
            f"a placement must be a worker, a strategy, or an object of texts: {error}",
            hint='Write for example \'{"join_1": "w1"}\'; explain_view names the collections.',
            sqlstate="22023",
        ) from error


def parts(
    conn: Connection,
    settings: Settings,
    plan: p.PhysicalPlan,
    placement: Placement,
    facts: CostFacts,
) -> dict[str, str]:
    """The last node of each part of ``plan`` that is to be elsewhere, and its worker.

    Raises:
        UndefinedError: 42704, there is no such worker, or collection.
        UnsupportedError: the plan cannot be cut so.
        UserError: 55000, the strategy finds no place.
    """
    if isinstance(placement, dict):
        for worker in set(placement.values()):
            _check_no_strategy(worker)
            check(conn, worker)
        return cuts.cuts(plan, placement, MAIN)
    if placement not in STRATEGIES or not cuts.is_cuttable(plan):
        return {}
    return dict(compared(conn, settings, plan, facts).of(placement).parts)


def compared(
    conn: Connection, settings: Settings, plan: p.PhysicalPlan, facts: CostFacts
) -> Compared:
    """What each strategy says of a plan that can be cut."""
    main, *others = stations(conn, settings, facts)
    known = facts.measured
    costs = Costs(expected(plan, facts.sizes) if known is None else known.rates)
    found: dict[str, StarPlacement | PlacementFailed | UserError] = {}
    for strategy in Strategy:
        try:
            found[strategy] = place_star(plan, main, others, strategy, costs)
        except UserError as error:
            if error.code != "54001":
                raise
            found[strategy] = error
    return Compared(found, cheapest(list(found.values())))


def stations(conn: Connection, settings: Settings, facts: CostFacts) -> list[Station]:
    """The workers with what is on them, ``main`` first, but for the view of ``facts``."""
    known = links.said(conn) if facts.links is None else facts.links
    taken: dict[str, int] = {}
    for load in nodes.loads(conn):
        if load.view_id != facts.view_id:
            for worker, count in _taken(load).items():
                taken[worker] = taken.get(worker, 0) + count
    main = Station(MAIN, settings.main_capacity, taken.get(MAIN, 0))
    others = [
        Station(n.name, n.capacity, taken.get(n.name, 0), weight(known.get(n.name, LinkFacts())))
        for n in nodes.listed(conn)
        if not n.lost
    ]
    return [main, *others]


def still_there(
    conn: Connection, settings: Settings, placement: Placement, view_id: int
) -> Placement:
    """Where a view is to be filled anew: as its option says, but for workers that are lost.

    What was to be on one of these is where there is most room, parts of a view where the rest is.
    """
    lost = nodes.lost(conn)
    if isinstance(placement, dict):
        return {node: to for node, to in placement.items() if to not in lost} or MAIN
    if placement not in lost:
        return placement
    there = stations(conn, settings, CostFacts(view_id=view_id))
    return max(there, key=lambda station: station.capacity - station.taken).name


def weight(facts: LinkFacts) -> float:
    """What it costs to move a byte over a link, beside an ordinary one; as that, where unknown."""
    rate = ORDINARY_BYTES_S if facts.bytes_per_s is None else float(facts.bytes_per_s)
    return TopologyLink.measured(MAIN, MAIN, rate, (facts.latency_us or 0) / 1000).weight


def _taken(load: WorkerLoad) -> dict[str, int]:
    """How many collections of a view each worker has; sources and sinks are not counted."""
    if not load.parts:
        return {load.whole or MAIN: load.collections}
    try:
        plan = p.from_json(load.plan)
        found = {MAIN: _count(subplans.over_feeds(plan, load.parts))}
        for top, worker in load.parts.items():
            found[worker] = found.get(worker, 0) + _count(subplans.subplan(plan, top))
    except (ValueError, KeyError, TypeError):
        return {MAIN: load.collections}
    return found


def _count(plan: p.PhysicalPlan) -> int:
    return sum(not isinstance(n, p.SourceSpec | p.SinkSpec | p.FeedSpec) for n in plan.nodes)


def expected(plan: p.PhysicalPlan, sizes: Mapping[str, ExpectedSize]) -> dict[str, float]:
    """Bytes that each node is expected to send while all rows of all tables change once."""
    return {
        node.id: size.rows * size.width
        for node in plan.nodes
        if node.id in sizes or isinstance(node, p.SourceSpec)
        for size in [sizes.get(node.id, ExpectedSize(_ROWS, _WIDTH * len(node.schema)))]
    }


def is_enough(rows: list[dict[str, Any]]) -> bool:
    """Whether the collections of a view (rows of ``operators.stats``) have been counted for long.

    Each worker that has some counts for itself: it begins anew when it is started again.
    """
    if not rows or not all(row["since_s"] for row in rows):
        return False
    most = {row["worker"]: 0 for row in rows}
    for row in rows:
        most[row["worker"]] = max(most[row["worker"]], row["rows_in"])
    return all(most[row["worker"]] >= _ENOUGH_ROWS or row["since_s"] >= _ENOUGH_S for row in rows)


def measured(rows: list[dict[str, Any]]) -> MeasuredView | None:
    """Return the rates of a view's collections; None: they were not counted for long enough."""
    if not is_enough(rows):
        return None
    rates = {row["node"]: row["bytes_out"] / row["since_s"] for row in rows}
    if not any(rates.values()):
        return None
    taken = {
        row["node"]: 1000 * row["busy_us"] // row["rows_in"]
        for row in rows
        if row["rows_in"] >= _ENOUGH_ROWS
    }
    return MeasuredView(rates, taken, min(row["since_s"] for row in rows))


def check(conn: Connection, name: str) -> None:
    """Raise unless something can be placed on a worker: UndefinedError (42704), there is none.

    UserError (55000): it counts as lost.  Inside of a transaction it stays until that ends.
    """
    check_known(conn, name)
    if name in nodes.lost(conn):
        raise UserError(
            f'worker "{name}" counts as lost',
            detail="It was out of reach for longer than worker_lost_s.",
            hint="It does no more as soon as it is back; until then name another one.",
            sqlstate="55000",
        )


def check_known(conn: Connection, name: str) -> None:
    """Raise UndefinedError (42704) unless there is such a worker.

    UserError (22023): it is a misspelt strategy.  Inside of a transaction the worker stays until
    that ends.
    """
    if name == MAIN or nodes.known(conn, name):
        return
    meant = _strategy(name)
    if meant is not None:
        raise UserError(
            f'there is no placement strategy "{name}"',
            hint=f'Write "{meant}".',
            sqlstate="22023",
        )
    there = ", ".join([MAIN, *(node.name for node in nodes.listed(conn))])
    raise UndefinedError(
        f'worker "{name}" does not exist',
        hint=f"There are: {there}. CALL headrace.add_worker('{name}') makes it."
        f" Strategies: {', '.join(STRATEGIES)}.",
    )


def _strategy(name: str) -> str | None:
    """The strategy that ``name`` is, or is misspelt; no worker can be called so."""
    meant = re.sub(r"\W+", "_", name.strip().lower())
    return meant if meant in STRATEGIES else None


def _check_no_strategy(name: str) -> None:
    """Raise UserError (22023) where a worker is to be named, and a strategy is."""
    meant = _strategy(name)
    if meant is not None:
        raise UserError(
            f'placement strategy "{name}" stands where a worker is to be named',
            hint=f'In an object each collection has a worker; write "{meant}" alone to have a'
            " strategy choose them.",
            sqlstate="22023",
        )


def check_all(conn: Connection, placement: Placement, found: Mapping[str, str]) -> None:
    """The same of all that a view is to be on: by its option, or in parts."""
    for worker in {nodes.whole(placement) or MAIN, *found.values()}:
        check(conn, worker)
