"""What the worker tells for metrics: of views, and of each collection, how much it has done.

Read beside the engine, like ``insight.py``.  Numbers of a collection begin at zero whenever its
dataflow is made anew: with the worker, or after the view went back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any, Final

import msgspec

from headrace.collections.plan import kind
from headrace.errors import HeadraceError
from headrace.runtime import insight
from headrace.runtime.away import AwayStore
from headrace.runtime.book import Book
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit
from headrace.sql.nodes import MAIN
from headrace.state.rocks import RocksStore

_NOTHING: Final[dict[str, Any]] = {}


class CollectionNumbers(msgspec.Struct, frozen=True):
    """What one collection has done since its dataflow was made."""

    unit: int
    """The view, or the shared subplan (negative), that it is of."""
    node: str
    collection: str
    worker: str
    input: bool
    """Whether rows come into the view there: from a table, or from a shared subplan."""
    rows_in: int
    rows_out: int
    busy_s: float
    state_bytes: int | None
    """Of its states in memory; None: they are elsewhere."""


def measures(book: Book, collections_max: int) -> dict[str, Any]:
    """``insight.gauges``, memory, workers, and up to ``collections_max`` ``CollectionNumbers``."""
    memory = [row for row in insight.memory(book) if row["views"] is None]
    whole: dict[str, Any] = {
        "collections": [],
        "collections_left_out": 0,
        "memory": memory,
        "memory_budget_bytes": book.settings.memory_bytes,
        "in_flight": len(book.pipeline.flights()),
    }
    # The eldest first: one that is new pushes nobody out.
    for unit in sorted(book.units, key=lambda unit: abs(unit.id)):
        found = _of_unit(book, unit)
        if len(whole["collections"]) + len(found) > collections_max:
            whole["collections_left_out"] += len(found)
            continue
        whole["collections"] += [msgspec.structs.asdict(row) for row in found]
    return insight.gauges(book) | whole


def _of_unit(book: Book, unit: Unit) -> list[CollectionNumbers]:
    counted, store = _counted(unit), unit.store
    inputs = {spec.id for spec in unit.own.sources}
    inputs |= {node for node, feeder in unit.feeds.items() if not _part(book.unit(feeder))}
    # A part of a view that is placed elsewhere is that view's.
    views = book.views_of(unit) if _part(unit) else []
    owner = views[0].id if views else unit.id
    held = _held(store, {node.id for node in unit.own.nodes}) if _here(store) else None
    out = []
    for node in unit.own.nodes:
        if isinstance(unit, Shared) and node.id == unit.own.sink.id:
            continue  # it goes on to who reads it
        numbers = counted.get(node.id, _NOTHING)
        out.append(
            CollectionNumbers(
                *(owner, node.id, kind(type(node)).lower(), unit.placed or MAIN, node.id in inputs),
                sum(numbers.get("rows_in", ())),
                numbers.get("rows_out", 0),
                numbers.get("busy_ns", 0) / 1e9,
                None if held is None else held.get(node.id, 0),
            )
        )
    return out


def _part(unit: Unit | None) -> bool:
    """Whether it is a part of one view, on another worker."""
    return isinstance(unit, Shared) and bool(unit.placed)


def _here(store: object) -> bool:
    return isinstance(store, RocksStore)


def _held(store: Any, nodes: Collection[str]) -> dict[str, int]:
    """Bytes in memory, by node: its states are called like it, or that and a dot and a part."""
    out: dict[str, int] = {}
    for name, tier in list(store.tiers.items()):
        node = name
        while node not in nodes and "." in node:
            node = node.rpartition(".")[0]
        out[node] = out.get(node, 0) + tier.map.live_bytes
    return out


def _counted(unit: Unit) -> dict[str, Any]:
    """What its dataflow counts, by node; nothing where it has none, or cannot be asked."""
    store, flow = unit.store, unit.dataflow
    if isinstance(store, AwayStore):
        with contextlib.suppress(HeadraceError):
            return store.stats()
        return _NOTHING
    return flow.metrics() if flow is not None else _NOTHING
