"""Option ``placement``: assigns the parts of a planned view to workers.

The value is a worker's name for the whole view, or an object from collections (by ID or kind) to
workers, or a strategy.  A strategy decides by the measured or expected output of collections and
by the free capacity of workers (``planner/placement/star.py``).
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
from headrace.postgres import tokens
from headrace.postgres.connect import Connection
from headrace.sql import links, nodes
from headrace.sql.links import LinkFacts
from headrace.sql.nodes import MAIN, STRATEGIES, WorkerLoad

Placement = str | dict[str, str]
"""The option's value."""

_WIDTH: Final = 8
"""Assumed bytes of a value without statistics."""
_ROWS: Final = 1000
"""Assumed rows of a table that was never analysed."""
_ENOUGH_ROWS: Final = 20
_ENOUGH_S: Final = 60.0
"""Measurements count only after so many rows or seconds.  The first rows take much longer than
later ones, and rates over fractions of a second depend on the arrival of the first row."""


@dataclass(frozen=True, slots=True)
class MeasuredView:
    """Measurements of the collections of a running view."""

    rates: Mapping[str, float]
    """Bytes per second that each collection has sent."""
    ns_per_row: Mapping[str, int]
    """Nanoseconds per input row; without collections that have seen few rows."""
    seconds: float
    """Shortest time of measurement."""


@dataclass(frozen=True, slots=True)
class CostFacts:
    """Inputs of the strategies."""

    sizes: Mapping[str, ExpectedSize] = field(default_factory=dict)
    """Expected sizes of the plan's nodes, from planning."""
    measured: MeasuredView | None = None
    """None means that the view does not run, or was not measured for long enough."""
    links: Mapping[str, LinkFacts] | None = None
    """Measured links to workers; None means the declared ones (``add_link``)."""
    view_id: int = 0
    """ID of the view to place, if it exists; its current capacity counts as free."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Results of all strategies for one plan."""

    found: Mapping[str, StarPlacement | PlacementFailed | UserError]
    best: StarPlacement | None

    def of(self, strategy: str) -> StarPlacement:
        """Return the placement of a strategy; ``auto`` is the cheapest of all.

        Raises:
            UserError: 55000, the strategy has none; or the plan is too large for it.
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
    """Parse the option's value from a text, in which an object is written as JSON.

    Raises:
        UserError: 22023, the JSON is not an object of strings.
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UserError(
            "a placement must be a worker, a strategy, or a JSON object of texts",
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
    """Return the last node and the worker of each part of ``plan`` that is not on ``main``.

    Raises:
        UndefinedError: 42704, there is no such worker or collection.
        UnsupportedError: the plan cannot be cut there.
        UserError: 55000, the strategy finds no placement.
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
    """Return the result of each strategy for a plan that can be cut."""
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
    """Return the workers with their load, ``main`` first; the view of ``facts`` is not counted."""
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
    """Return the placement for repopulating a view, without lost workers.

    A view moves to the worker with the most free capacity; a part joins the rest of its view.
    """
    lost = nodes.lost_workers(conn)
    if isinstance(placement, dict):
        return {node: to for node, to in placement.items() if to not in lost} or MAIN
    if placement not in lost:
        return placement
    there = stations(conn, settings, CostFacts(view_id=view_id))
    return max(there, key=lambda station: station.capacity - station.taken).name


def weight(facts: LinkFacts) -> float:
    """Return the cost of a byte on a link, relative to an ordinary link; unknown means ordinary."""
    rate = ORDINARY_BYTES_S if facts.bytes_per_s is None else float(facts.bytes_per_s)
    return TopologyLink.measured(MAIN, MAIN, rate, (facts.latency_us or 0) / 1000).weight


def _taken(load: WorkerLoad) -> dict[str, int]:
    """Return the number of a view's collections on each worker, without sources and sinks."""
    if not load.parts:
        return {load.whole or MAIN: load.collections}
    try:
        plan = p.from_json(load.plan)
        found = {MAIN: _count(subplans.over_feeds(plan, load.parts))}
        for top, worker in load.parts.items():
            found[worker] = found.get(worker, 0) + _count(subplans.part(plan, load.parts, top))
    except (ValueError, KeyError, TypeError):
        return {MAIN: load.collections}
    return found


def _count(plan: p.PhysicalPlan) -> int:
    return sum(not isinstance(n, p.SourceSpec | p.SinkSpec | p.FeedSpec) for n in plan.nodes)


def expected(plan: p.PhysicalPlan, sizes: Mapping[str, ExpectedSize]) -> dict[str, float]:
    """Return the bytes that each node is expected to send if every table row changes once."""
    return {
        node.id: size.rows * size.width
        for node in plan.nodes
        if node.id in sizes or isinstance(node, p.SourceSpec)
        for size in [sizes.get(node.id, ExpectedSize(_ROWS, _WIDTH * len(node.schema)))]
    }


def is_enough(rows: list[dict[str, Any]]) -> bool:
    """Return whether a view (rows of ``operators.stats``) was measured for long enough.

    Each worker is judged by itself, because its counters start anew when it restarts.
    """
    if not rows or not all(row["since_s"] for row in rows):
        return False
    most = {row["worker"]: 0 for row in rows}
    for row in rows:
        most[row["worker"]] = max(most[row["worker"]], row["rows_in"])
    return all(most[row["worker"]] >= _ENOUGH_ROWS or row["since_s"] >= _ENOUGH_S for row in rows)


def measured(rows: list[dict[str, Any]]) -> MeasuredView | None:
    """Return a view's measurements, or None if they do not cover enough time."""
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
    """Call ``check_known``, and raise UserError (55000) if the worker is considered lost."""
    check_known(conn, name)
    if name in nodes.lost_workers(conn):
        raise UserError(
            f'worker "{name}" is considered lost',
            detail="It has been unreachable for longer than worker_lost_s.",
            hint="Name another worker, or wait until this one is back.",
            sqlstate="55000",
        )


def check_known(conn: Connection, name: str) -> None:
    """Raise UndefinedError (42704) if there is no such worker; it stays until the transaction ends.

    Raise UserError (22023) if ``name`` is a misspelt strategy.
    """
    if name == MAIN or nodes.lock_existing(conn, name):
        return
    meant = _strategy(name)
    if meant is not None:
        raise UserError(
            f'there is no placement strategy "{name}"',
            hint=f'Write "{meant}".',
            sqlstate="22023",
        )
    there = ", ".join([MAIN, *(node.name for node in nodes.listed(conn))])
    possible = nodes.is_name(name) and not nodes.is_executor(name)
    call = f" CALL headrace.add_worker({tokens.argument(name)}) makes it." if possible else ""
    raise UndefinedError(
        f'worker "{name}" does not exist',
        hint=f"There are: {there}.{call} Strategies: {', '.join(STRATEGIES)}.",
    )


def _strategy(name: str) -> str | None:
    """Return the strategy of that name, or its correct spelling; workers cannot have such names."""
    meant = re.sub(r"\W+", "_", name.strip().lower())
    return meant if meant in STRATEGIES else None


def _check_no_strategy(name: str) -> None:
    """Raise UserError (22023) if ``name`` is a strategy instead of a worker."""
    meant = _strategy(name)
    if meant is not None:
        raise UserError(
            f'placement strategy "{name}" cannot be used in place of a worker',
            hint=f'An object names a worker for each collection. Write "{meant}" alone to let'
            " the strategy choose them.",
            sqlstate="22023",
        )


def check_all(conn: Connection, placement: Placement, found: Mapping[str, str]) -> None:
    """Call ``check`` for all workers of a view, by its option and by its parts."""
    for worker in {nodes.whole(placement) or MAIN, *found.values()}:
        check(conn, worker)
