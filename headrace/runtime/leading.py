"""Units in step: leading units that share one position, so that most batches cost them nothing.

A batch concerns few views.  For the remaining leading ones only the position moves, as the batch is
processed and again as it is committed.  So they share one, a ``CommonPosition``.  A unit parts from
it when a batch concerns the unit, and joins it again once both are committed at the same txid.

    in step ──(rows of its tables or feeds, time, an error)──► apart ──(committed)──► in step

* Invariant 1: a unit in step leads, or a leading view needs it; no txid in flight has changed it.
* Invariant 2: the units in step have processed all batches before the present one.
* Invariant 3: while any unit is in step, the common position is the engine's committed one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from headrace.runtime.columns import Types, types_of
from headrace.runtime.engine_state import EngineState
from headrace.runtime.positions import Position
from headrace.runtime.shared import Shared
from headrace.runtime.unit_position import CommonPosition
from headrace.runtime.views import Unit, View
from headrace.state.rocks import RocksStore


class LeadingUnits:
    """Leading units of one engine; every method runs on its thread (see ``batches.Resting``)."""

    def __init__(self, state: EngineState, tapped: Callable[[int], bool]) -> None:
        """Create it; ``tapped`` returns whether the changes of a view are captured."""
        self._state: Final = state
        self._tapped: Final = tapped
        self._at: Final = CommonPosition()
        self._seen = -1
        self._ids: set[int] = set()
        self._trailing: dict[int, tuple[Unit, int]] = {}
        """Units that parted while txids were in flight, and the last of these."""
        self.order: Sequence[Shared] = ()
        """Subplans that leading views need, each after those that it reads."""
        self.types: Types = {}
        """Types by which the columns of changes are parsed."""

    def refresh(self) -> None:
        """Find the units that lead now; all others part.  REQUIRES: no batch is processed."""
        state, changes = self._state, self._state.index.changes
        if changes == self._seen:
            return
        # A view without states lacks the next batches until it catches up.
        views = [view for view in state.views.values() if view.leads and view.store is not None]
        self.order = state.needed(views)
        self.types = types_of([unit.own for unit in (*self.order, *views)])
        self._ids = {unit.id for unit in (*self.order, *views)}
        self.wake([unit for unit in state.index.in_step if unit.id not in self._ids])
        self._seen = changes

    @property
    def apart(self) -> list[Unit]:
        """Leading units that are not in step, subplans after those that they read."""
        apart = self._state.index.apart
        views = [unit for unit in apart if isinstance(unit, View) and unit.id in self._ids]
        return [*(shared for shared in self.order if not shared.in_step), *views]

    def rewind(self) -> None:
        """Let all units have their own positions.  REQUIRES: nothing is in flight."""
        for unit in self._state.index.in_step:
            unit.leave_step()
        self._trailing.clear()

    # --- while a batch is processed

    def reading(self, tables: Iterable[int]) -> list[Unit]:
        """Return the units in step that may read one of ``tables`` (OIDs)."""
        links = self._state.index.links
        found = {unit.id: unit for oid in tables for unit in links.reading(oid) if unit.in_step}
        return list(found.values())

    def readers(self, shared: Shared) -> list[Unit]:
        """Return the units in step that read a subplan."""
        return [unit for unit in self._state.readers(shared) if unit.in_step]

    def named(self, unit_ids: Collection[int]) -> list[Unit]:
        """Return those of the units that are in step."""
        found = map(self._state.unit, unit_ids)
        return [unit for unit in found if unit is not None and unit.in_step]

    @property
    def clocked(self) -> list[View]:
        """Views in step that read the clock."""
        return [view for view in self._state.index.clocked if view.in_step]

    def wake(self, units: Iterable[Unit]) -> None:
        """Let ``units`` have their own positions."""
        at = self._at
        for unit in units:
            unit.leave_step()
            if at.processed > at.committed.txid:
                self._trailing[unit.id] = unit, at.processed

    def passed(self, txid: int) -> None:
        """Note that a batch is processed."""
        self._at.processed = txid

    # --- when it is committed

    def committed(self, txid: int, lsn: int) -> None:
        """Move the units in step to ``txid``, and those that parted after it was processed."""
        at = Position(txid, lsn)
        for unit, last in list(self._trailing.values()):
            if unit.mark.txid < txid <= min(last, unit.processed) and unit.store is not None:
                unit.commit(unit.mark_at(at))
            if txid >= last:
                del self._trailing[unit.id]
        self._at.committed = at

    def join(self, units: Iterable[Unit]) -> None:
        """Let those of ``units`` that are at the common position share it."""
        self.refresh()
        for unit in units:
            if self._may_join(unit):
                self._state.index.join_step(unit, self._at)

    def _may_join(self, unit: Unit) -> bool:
        at = self._at
        level = unit.processed == at.processed and unit.mark.txid == at.committed.txid
        if not level or unit.in_step or unit.busy or unit.id not in self._ids:
            return False
        read = (self._state.subplans[feeder] for feeder in unit.feeds.values())
        if any(shared.placed or shared.processed != at.processed for shared in read):
            return False
        here = isinstance(unit.store, RocksStore) and not (unit.placed or unit.staged)
        return here and not (isinstance(unit, View) and (unit.parts or self._tapped(unit.id)))
