"""Metrics of the worker: counters of views and of each collection.

Read while the engine runs, like ``insight.py``.  Counters of a collection begin at zero when its
dataflow is created anew: with the worker, or after the view went back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from headrace.collections.plan import kind
from headrace.runtime import insight
from headrace.runtime.counted import counters
from headrace.runtime.engine_state import EngineState
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit
from headrace.sql.nodes import MAIN
from headrace.state.rocks import RocksStore

_NOTHING: Final[dict[str, Any]] = {}


class CollectionNumbers(msgspec.Struct, frozen=True):
    """Counters of one collection since its dataflow was created."""

    unit: int
    """ID of its view, or of its shared subplan (negative)."""
    node: str
    collection: str
    worker: str
    input: bool
    """Whether rows enter the view there, from a table or a shared subplan."""
    rows_in: int
    rows_out: int
    busy_s: float
    state_bytes: int | None
    """Bytes of its states in memory; None: they are on another worker."""


def measures(state: EngineState, collections_max: int) -> dict[str, Any]:
    """Return ``insight.gauges``, memory, workers, and at most that many ``CollectionNumbers``."""
    memory = [row for row in insight.memory(state) if row["views"] is None]
    whole: dict[str, Any] = {
        "collections": [],
        "collections_left_out": 0,
        "memory": memory,
        "memory_budget_bytes": state.settings.memory_bytes,
        "in_flight": len(state.pipeline.flights()),
    }
    # The oldest units first, so that a new one does not displace them.
    for unit in sorted(state.units, key=lambda unit: abs(unit.id)):
        found = _of_unit(state, unit)
        if len(whole["collections"]) + len(found) > collections_max:
            whole["collections_left_out"] += len(found)
            continue
        whole["collections"] += [msgspec.structs.asdict(row) for row in found]
    return insight.gauges(state) | whole


def _of_unit(state: EngineState, unit: Unit) -> list[CollectionNumbers]:
    counted, store = counters(unit), unit.store
    inputs = {spec.id for spec in unit.own.sources}
    inputs |= {node for node, feeder in unit.feeds.items() if not _part(state.unit(feeder))}
    # A part of a view on another worker counts for that view.
    views = state.views_of(unit) if _part(unit) else []
    owner = views[0].id if views else unit.id
    held = _held(store, {node.id for node in unit.own.nodes}) if _here(store) else None
    out = []
    for node in unit.own.nodes:
        if isinstance(unit, Shared) and node.id == unit.own.sink.id:
            continue  # its rows go on to the readers
        numbers = counted.get(node.id, _NOTHING)
        out.append(
            CollectionNumbers(
                owner,
                node.id,
                kind(type(node)).lower(),
                unit.placed or MAIN,
                node.id in inputs,
                sum(numbers.get("rows_in", ())),
                numbers.get("rows_out", 0),
                numbers.get("busy_ns", 0) / 1e9,
                None if held is None else held.get(node.id, 0),
            )
        )
    return out


def _part(unit: Unit | None) -> bool:
    """Return whether a unit is a part of one view, on another worker."""
    return isinstance(unit, Shared) and bool(unit.placed)


def _here(store: object) -> bool:
    return isinstance(store, RocksStore)


def _held(store: Any, nodes: Collection[str]) -> dict[str, int]:
    """Return bytes in memory by node; its states are named after it, with an optional suffix."""
    out: dict[str, int] = {}
    for name, tier in list(store.tiers.items()):
        node = name
        while node not in nodes and "." in node:
            node = node.rpartition(".")[0]
        out[node] = out.get(node, 0) + tier.map.live_bytes
    return out
