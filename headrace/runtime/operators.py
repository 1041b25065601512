"""Statistics of each collection of a view: work, state, and the queue behind it.

Read while the engine runs, like ``insight.py``.  The nodes of a shared subplan are named after the
view that it was cut from.  Here every node has the name that it has in the given view, as in
``explain_view``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.collections import plan as p
from headrace.collections.plan import PhysicalPlan
from headrace.runtime.counted import numbers
from headrace.runtime.engine_state import EngineState
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.sql.nodes import MAIN


class StatsRow(msgspec.Struct, frozen=True):
    """Counters of a collection since its dataflow was created, and the size of its state."""

    node: str
    collection: str
    shared: bool
    worker: str
    rows_in: int = 0
    rows_out: int = 0
    batches: int = 0
    busy_us: int = 0
    cpu_us: int = 0
    """``busy_us`` without the time of waiting for Postgres."""
    state_rows: int | None = None
    """None: it has no state, or its size is unknown."""
    state_bytes: int | None = None
    state_exact: bool | None = None
    queued_rows: int | None = None
    """Rows in the queue behind it; None: there is no queue."""
    queued_bytes: int | None = None
    """Bytes of them that the view (or the subplan that it reads) has not read."""
    bytes_out: int = 0
    since_s: float = 0.0
    """Age of its dataflow in seconds; 0: there is none."""


def stats(state: EngineState, view_id: int) -> list[dict[str, Any]]:
    """Return a ``StatsRow`` for each collection of a view and of the subplans that it shares."""
    view = state.views.get(view_id)
    if view is None:
        return []
    names = called(state, view)
    rows: list[StatsRow] = []
    for unit in (*state.needed([view]), view):
        rows += _of_unit(state, view, unit, names.get(unit.id, {}))
    return [msgspec.structs.asdict(row) for row in rows]


def called(state: EngineState, view: View) -> dict[int, dict[str, str]]:
    """Return, for each subplan that the view needs, its nodes' names in the view's own plan."""
    out: dict[int, dict[str, str]] = {}
    waiting: list[tuple[Unit, Mapping[str, str]]] = [(view, {n.id: n.id for n in view.plan.nodes})]
    while waiting:
        unit, known = waiting.pop()
        for node, feeder in unit.feeds.items():
            shared = state.subplans.get(feeder)
            if shared is None or node not in known:
                continue
            mine = out.setdefault(feeder, {})
            mine.update(_alike(view.plan, known[node], shared.plan))
            waiting.append((shared, mine))
    return out


def _alike(whole: PhysicalPlan, node: str, part: PhysicalPlan) -> Iterator[tuple[str, str]]:
    """Pair each node of ``part`` with its equal in ``whole``, from ``node`` down, as names."""
    waiting = [(part.sink.input, node)]
    seen: set[str] = set()
    while waiting:
        theirs, ours = waiting.pop()
        if theirs in seen:
            continue
        seen.add(theirs)
        yield theirs, ours
        if isinstance(whole.node(ours), p.FeedSpec) or ours in whole.filled_from:
            continue  # nodes below belong to another view's plan (options from, first_rows)
        # Equal nodes have the same inputs in the same order (``subplans.meaning``).
        below = zip(p.inputs(part.node(theirs)), p.inputs(whole.node(ours)), strict=True)
        waiting.extend(below)


def _of_unit(
    state: EngineState, view: View, unit: Unit, names: Mapping[str, str]
) -> Iterator[StatsRow]:
    # A part of the view on another worker is a subplan that only the view reads.
    found, below = numbers(unit), isinstance(unit, Shared)
    shared = below and not unit.placed
    for node in unit.own.nodes:
        if node.id in unit.feeds or (below and node.id == unit.own.sink.id):
            continue  # its rows come from a subplan, or go on to the readers
        if below and node.id not in names:
            continue  # a node of the view that feeds this one
        known = found.get(node.id, {})
        size = known.get("state")
        last = below and node.id == unit.own.sink.input
        queue = _queue(state, view, unit) if isinstance(unit, Shared) and last else (None, None)
        yield StatsRow(
            names.get(node.id, node.id),
            p.kind(type(node)).lower(),
            shared,
            unit.placed or MAIN,
            sum(known.get("rows_in", ())),
            known.get("rows_out", 0),
            known.get("time_ends", 0),
            known.get("busy_ns", 0) // 1000,
            known.get("cpu_ns", 0) // 1000,
            state_rows=None if size is None else size[0],
            state_bytes=None if size is None else size[1],
            state_exact=None if size is None else size[2],
            queued_rows=queue[0],
            queued_bytes=queue[1],
            bytes_out=known.get("bytes_out", 0),
            since_s=known.get("since_s", 0.0),
        )


def _queue(state: EngineState, view: View, shared: Shared) -> tuple[int | None, int | None]:
    """Return rows in a subplan's queue, and bytes that its readers for the view have not read."""
    queue = shared.queue
    if queue is None:
        return None, None
    held = queue.contents()
    needed = {unit.id for unit in (view, *state.needed([view]))}
    behind = [
        held.behind[reader.id][1]
        for reader in state.readers(shared)
        if reader.id in needed and reader.id in held.behind
    ]
    return held.rows, max(behind, default=0)
