"""What each collection of a view has done, what it keeps, and what waits behind it.

Read beside the engine, as all of ``insight.py``.  A subplan that views share has names of its own
for its nodes, those of the view that it was cut from; here every node is called as in the view that
is asked about, which is what ``explain_view`` shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.collections import plan as p
from headrace.collections.plan import PhysicalPlan
from headrace.runtime.book import Book
from headrace.runtime.counted import numbers
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.sql.nodes import MAIN


class StatsRow(msgspec.Struct, frozen=True):
    """What a collection has done since its dataflow was made, and what it keeps."""

    node: str
    collection: str
    shared: bool
    worker: str
    rows_in: int = 0
    rows_out: int = 0
    batches: int = 0
    busy_us: int = 0
    cpu_us: int = 0
    """``busy_us`` without what was waited for Postgres."""
    state_rows: int | None = None
    """None: it keeps nothing, or that is not known."""
    state_bytes: int | None = None
    state_exact: bool | None = None
    queued_rows: int | None = None
    """In the queue behind it; None: there is none."""
    queued_bytes: int | None = None
    """Of them, what the view (or the subplan that it reads) has not read."""
    bytes_out: int = 0
    since_s: float = 0.0
    """For how long its dataflow has been there; 0: it is not."""


def stats(book: Book, view_id: int) -> list[dict[str, Any]]:
    """A ``StatsRow`` for each collection of a view and of the subplans that it shares."""
    view = book.views.get(view_id)
    if view is None:
        return []
    names = called(book, view)
    rows: list[StatsRow] = []
    for unit in (*book.needed([view]), view):
        rows += _of_unit(book, view, unit, names.get(unit.id, {}))
    return [msgspec.structs.asdict(row) for row in rows]


def called(book: Book, view: View) -> dict[int, dict[str, str]]:
    """By subplan that the view needs: how its nodes are called in the view's own plan."""
    out: dict[int, dict[str, str]] = {}
    waiting: list[tuple[Unit, Mapping[str, str]]] = [(view, {n.id: n.id for n in view.plan.nodes})]
    while waiting:
        unit, known = waiting.pop()
        for node, feeder in unit.feeds.items():
            shared = book.subplans.get(feeder)
            if shared is None or node not in known:
                continue
            mine = out.setdefault(feeder, {})
            mine.update(_alike(view.plan, known[node], shared.plan))
            waiting.append((shared, mine))
    return out


def _alike(whole: PhysicalPlan, node: str, part: PhysicalPlan) -> Iterator[tuple[str, str]]:
    """(name in ``part``, name in ``whole``) of ``node``, which all of ``part`` is, and below."""
    waiting = [(part.sink.input, node)]
    seen: set[str] = set()
    while waiting:
        theirs, ours = waiting.pop()
        if theirs in seen:
            continue
        seen.add(theirs)
        yield theirs, ours
        if isinstance(whole.node(ours), p.FeedSpec):
            continue  # what is below is no part of this view's plan (option from)
        # Equal nodes have the same inputs in the same order (``subplans.meaning``).
        below = zip(p.inputs(part.node(theirs)), p.inputs(whole.node(ours)), strict=True)
        waiting.extend(below)


def _of_unit(book: Book, view: View, unit: Unit, names: Mapping[str, str]) -> Iterator[StatsRow]:
    # A part of the view on another worker is a subplan that nobody else reads.
    found, below = numbers(unit), isinstance(unit, Shared)
    shared = below and not unit.placed
    for node in unit.own.nodes:
        if node.id in unit.feeds or (below and node.id == unit.own.sink.id):
            continue  # its rows come from there, or go on to who reads it
        if below and node.id not in names:
            continue  # a node of the view that this one is fed from
        known = found.get(node.id, {})
        size = known.get("state")
        last = below and node.id == unit.own.sink.input
        queue = _queue(book, view, unit) if isinstance(unit, Shared) and last else (None, None)
        yield StatsRow(
            *(names.get(node.id, node.id), p.kind(type(node)).lower(), shared),
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


def _queue(book: Book, view: View, shared: Shared) -> tuple[int | None, int | None]:
    """Rows in the queue of a subplan, and bytes that who reads it for the view has not read."""
    queue = shared.queue
    if queue is None:
        return None, None
    held = queue.contents()
    needed = {unit.id for unit in (view, *book.needed([view]))}
    behind = [
        held.behind[reader.id][1]
        for reader in book.readers(shared)
        if reader.id in needed and reader.id in held.behind
    ]
    return held.rows, max(behind, default=0)
