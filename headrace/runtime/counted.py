"""Counters of a unit's collections and states, on whichever worker it is."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from headrace.collections import plan as p
from headrace.collections.plan import PhysicalPlan
from headrace.errors import HeadraceError
from headrace.runtime.remote_worker import RemoteStore
from headrace.runtime.views import Unit
from headrace.state.rocks import RocksStore
from headrace.state.sizes import StoredSize, sizes


def counters(unit: Unit) -> dict[str, Any]:
    """Return the counters of a unit's dataflow by node.

    Empty if the unit has no dataflow, or its worker is out of reach.
    """
    store, flow = unit.store, unit.dataflow
    if isinstance(store, RemoteStore):
        with contextlib.suppress(HeadraceError):
            return store.stats()
        return {}
    return flow.metrics() if flow is not None else {}


def numbers(unit: Unit) -> dict[str, Any]:
    """Return the ``counters`` of a unit with ``state``: (rows, bytes, exact).

    Sizes of states on disk are read from there, at a bounded cost.
    """
    found = counters(unit)
    if isinstance(unit.store, RocksStore):
        for node, size in _states(unit.own, sizes(unit.store)).items():
            found.setdefault(node, {})["state"] = size
    return found


def _states(own: PhysicalPlan, found: Mapping[str, StoredSize]) -> dict[str, tuple[int, int, bool]]:
    """Return the sum of each node's states (``id`` or ``id.part``)."""
    owners = {}
    for node in own.nodes:
        owners[node.id] = node.id
        if isinstance(node, p.RecursiveSpec):
            owners |= dict.fromkeys((n.id for n in node.step), node.id)
    out: dict[str, tuple[int, int, bool]] = {}
    for state, size in found.items():
        owner = owners.get(state.partition(".")[0])
        if owner is not None:
            rows, octets, exact = out.get(owner, (0, 0, True))
            out[owner] = rows + size.rows, octets + size.bytes, exact and size.exact
    return out
