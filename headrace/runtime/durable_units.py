"""The units whose durable states have everything before a position, for a copy of the states.

Every method runs on the engine's thread.  The engine writes an early checkpoint, and goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.errors import TransientError
from headrace.runtime import worker_handles
from headrace.runtime.durability import Durability
from headrace.runtime.engine_state import EngineState
from headrace.runtime.views import Unit, View


@dataclass(frozen=True, slots=True)
class WantedUnits:
    """Units that must be durable, and the reasons why other views cannot be."""

    txids: dict[int, int]
    """Txid of each unit, by ID; each unit comes after those that it reads."""
    views: list[int]
    problems: dict[int, str]
    """Why a view does not show the position, by ID."""


def told(wanted: WantedUnits, units: Sequence[Unit], *, describe: bool) -> dict[str, Any]:
    """Return facts on units for another process; for any thread.

    ``describe``: include descriptions (``UnitRecord``), which take time for many views.
    """
    records = [worker_handles.record(unit) for unit in units] if describe else []
    return {
        "read": {unit.id: unit.feeds for unit in units},
        "workers": {unit.id: unit.placed for unit in units if unit.placed},
        "views": wanted.views,
        "problems": wanted.problems,
        "units": msgspec.json.encode(records).decode(),
    }


class DurableUnits:
    """Finds the units of views that read given tables."""

    def __init__(self, state: EngineState, durability: Durability) -> None:
        self._state = state
        self._durability = durability

    def leading(self, tables: Collection[int]) -> int | None:
        """Return a view that leads and reads one of ``tables``, or None."""
        return next((view.id for view in self._reading(tables) if view.leads), None)

    def wanted(self, lsn: int, tables: Collection[int]) -> WantedUnits | None:
        """Return the units of all views that read ``tables``; None: ``lsn`` is not reached.

        REQUIRES: nothing is in flight.
        """
        state = self._state
        if state.position.lsn < lsn:
            return None
        txids: dict[int, int] = {}
        views, problems = [], {}
        for view in self._reading(tables):
            problem = self._problem(view)
            if problem is not None:
                problems[view.id] = problem
                continue
            views.append(view.id)
            needed: list[Unit] = [*state.needed([view]), view]
            txids |= {unit.id: unit.mark.txid for unit in needed}
        return WantedUnits(txids, views, problems)

    def durable(self, wanted: WantedUnits) -> list[Unit] | None:
        """Return the wanted units once all are durable, without those that are gone.

        None: call again.

        Raises:
            TransientError: 40001, a unit went back, or its view does not lead any more.  A
                checkpoint might never contain it.
        """
        state = self._state
        self._durability.end()
        units = [u for u in map(state.unit, wanted.txids) if u is not None and u.store is not None]
        views = [view for view in map(state.views.get, wanted.views) if view is not None]
        back = any(u.mark.txid < wanted.txids[u.id] or not u.reachable for u in units)
        if back or not all(view.leads for view in views):
            raise TransientError("a view has fallen behind meanwhile", sqlstate="40001")
        if any(unit.durable.txid < wanted.txids[unit.id] for unit in units):
            if not state.checkpoints.underway:
                self._durability.begin()
            return None
        return units

    def _reading(self, tables: Collection[int]) -> list[View]:
        """Return the views that read ``tables``, in order of ID."""
        links, state = self._state.index.links, self._state
        units = {unit.id: unit for table in tables for unit in links.reading(table)}
        views = {view.id: view for unit in units.values() for view in state.views_of(unit)}
        return [views[view_id] for view_id in sorted(views)]

    def _problem(self, view: View) -> str | None:
        if view.cursor is None:
            return "the view has stopped"
        if view.parts:
            return "parts of the view are on other workers"
        if not view.leads or not self._state.has_all([view]):
            return f"the view is not up to date; its cursor is {view.cursor.value}"
        return None
