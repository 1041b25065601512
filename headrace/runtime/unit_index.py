"""An index of units by property: which run, are stopped, lag or read the clock.

The engine asks several times a second, even when it is idle. So a query costs as much as it has
results, and the cost of a change does not depend on the number of units.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from typing import Final

from headrace.runtime.shared import Shared
from headrace.runtime.unit_links import UnitLinks
from headrace.runtime.unit_position import CommonPosition
from headrace.runtime.views import Unit, View
from headrace.sql.status import CursorState
from headrace.state.rocks import RocksStore

_STANDING: Final = (CursorState.BLOCKED, CursorState.LOST, CursorState.PAUSED)


class UnitIndex:
    """The units of one engine by their properties; every method is for any thread.

    The registries add and remove units, and each unit reports its own changes.

    * Invariant 1: a change is atomic. Under the lock a unit is in its old place or in its new one,
      and never in neither: the watermark must not pass a view that is missing from all lists for a
      moment.
    * Invariant 2: no code that takes another lock is called under this lock.
    * Invariant 3: the mark of a unit in step is not before the engine's position (``leading.py``).
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self.links: Final = UnitLinks(self._lock)
        self.changes = 0
        """Number of changes of units so far, except changes of their marks."""
        # The lock guards all of these. They are keyed by unit id unless stated otherwise.
        self._known: Final[dict[int, Unit]] = {}
        self._in_step: Final[dict[int, Unit]] = {}
        """Units that share their position; the following indexes of marks are without them."""
        self._apart: Final[dict[int, Unit]] = {}
        """All other units."""
        self._standing: Final[dict[int, View]] = {}
        self._catching_up: Final[dict[int, View]] = {}
        self._clocked: Final[dict[int, View]] = {}
        self._placed: Final[dict[int, View]] = {}
        self._parts: Final[dict[int, Shared]] = {}
        self._elsewhere: Final[dict[int, Unit]] = {}
        self._live: Final[dict[int, int]] = {}
        """Latency under which a live view is counted."""
        self._latencies: Final = Counter[int]()
        """Number of live views, by latency in milliseconds."""
        self._marks: Final[dict[int, int]] = {}
        """The txid of an owned view or a part that is not in step."""
        self._at: Final[dict[int, dict[int, Unit]]] = {}
        """The same units, by that txid."""
        self._staged: Final[dict[int, Unit]] = {}
        """Owned units whose first states are still staged."""
        self._undurable: Final[dict[int, Unit]] = {}
        """Owned views and subplans not in step whose mark is newer than the last checkpoint."""
        self._durable: Final[dict[int, int]] = {}
        """The durable txid of an owned view or a part."""
        self._durable_at: Final = Counter[int]()
        """Number of these units, by that txid."""

    # --- answers

    @property
    def latency_ms(self) -> int:
        """The lowest latency that a live view allows, in milliseconds; 0 without live views."""
        with self._lock:
            return min(self._latencies, default=0)

    @property
    def any_live(self) -> bool:
        """Whether there is a live view."""
        with self._lock:
            return bool(self._live)

    @property
    def standing(self) -> list[View]:
        """Views that are paused, blocked or lost."""
        with self._lock:
            return list(self._standing.values())

    @property
    def catching_up(self) -> list[View]:
        """Views that catch up."""
        with self._lock:
            return list(self._catching_up.values())

    @property
    def clocked(self) -> list[View]:
        """Owned views that read the clock."""
        with self._lock:
            return list(self._clocked.values())

    @property
    def placed(self) -> list[View]:
        """Owned views with states on other workers."""
        with self._lock:
            return list(self._placed.values())

    @property
    def parts(self) -> list[Shared]:
        """Parts of views on other workers."""
        with self._lock:
            return list(self._parts.values())

    @property
    def elsewhere(self) -> list[Unit]:
        """Units whose states are not in this process, or not available."""
        with self._lock:
            return list(self._elsewhere.values())

    def behind(self, txid: int) -> list[Unit]:
        """Return the owned views and parts whose mark is before ``txid``, and the staged ones."""
        with self._lock:
            found = {
                unit_id: unit
                for at, units in self._at.items()
                if at < txid
                for unit_id, unit in units.items()
            }
            first = next(iter(self._in_step.values()), None)
            if first is not None and first.mark.txid < txid:
                found |= {i: unit for i, unit in self._in_step.items() if i in self._durable}
            return list((found | self._staged).values())

    @property
    def undurable(self) -> list[Unit]:
        """Owned views and subplans whose mark is newer than the last checkpoint."""
        with self._lock:
            moved = (unit for unit in self._in_step.values() if unit.mark != unit.durable)
            return [*self._undurable.values(), *moved]

    @property
    def apart(self) -> list[Unit]:
        """Units that are not in step, in order of id."""
        with self._lock:
            return [self._apart[unit_id] for unit_id in sorted(self._apart)]

    @property
    def in_step(self) -> list[Unit]:
        """Units in step."""
        with self._lock:
            return list(self._in_step.values())

    @property
    def durable_txids(self) -> list[int]:
        """The distinct txids of owned views and parts in the last checkpoint."""
        with self._lock:
            return list(self._durable_at)

    def owned(self, unit_ids: Collection[int]) -> list[Unit]:
        """Return those of the units that are owned views or parts."""
        with self._lock:
            return [self._known[unit_id] for unit_id in unit_ids if unit_id in self._durable]

    # --- changes

    def add(self, unit: Unit) -> None:
        """Add a unit with its present properties; it replaces another one of its id."""
        with self._lock:
            self._count(unit)

    def update(self, unit: Unit) -> None:
        """Re-index a unit with its present properties; ignore one that was removed."""
        with self._lock:
            if self._known.get(unit.id) is unit:
                self._count(unit)

    def update_mark(self, unit: Unit) -> None:
        """Re-index a unit of which only the marks have changed."""
        with self._lock:
            if self._known.get(unit.id) is not unit:
                return
            before, txid = self._marks.get(unit.id), unit.mark.txid
            if before is not None and before != txid:
                self._leave_mark(unit.id)
                self._put_mark(unit, txid)
            if unit.id in self._durable or isinstance(unit, Shared):
                self._count_durable(unit)

    def join_step(self, unit: Unit, step: CommonPosition) -> None:
        """Let a known unit share a position that is its own now; see ``Unit.join_step``."""
        with self._lock:
            assert self._known.get(unit.id) is unit, "it is registered"
            unit.join_step(step)
            self._in_step[unit.id] = self._apart.pop(unit.id)
            self._undurable.pop(unit.id, None)
            if unit.id in self._marks:
                self._leave_mark(unit.id)

    def leave_step(self, unit: Unit) -> None:
        """Give a unit in step its own position again; do nothing if it is not in step."""
        with self._lock:
            self._leave_step(unit)

    def remove(self, unit: Unit) -> None:
        """Remove a unit; ignore it if another one has its id by now."""
        with self._lock:
            self._leave_step(unit)
            if self._known.get(unit.id) is unit:
                self._uncount(unit.id)
                self.links.remove(unit.id)
                self.changes += 1

    # --- under the lock

    def _leave_step(self, unit: Unit) -> None:
        if self._in_step.get(unit.id) is not unit:
            return
        unit.freeze()
        del self._in_step[unit.id]
        self._apart[unit.id] = unit
        if unit.id in self._durable:
            self._put_mark(unit, unit.mark.txid)
        if unit.id in self._durable or isinstance(unit, Shared):
            self._count_durable(unit)

    def _count(self, unit: Unit) -> None:
        before = self._known.get(unit.id)
        if before is not None and before is not unit:
            self._leave_step(before)
        self._uncount(unit.id)
        self.changes += 1
        self._known[unit.id] = unit
        if not unit.in_step:
            self._apart[unit.id] = unit
        self.links.put(unit)
        if not isinstance(unit.store, RocksStore):
            self._elsewhere[unit.id] = unit
        if isinstance(unit, View):
            self._count_view(unit)
            owned = unit.owned
        else:
            owned = isinstance(unit, Shared) and bool(unit.placed)
            if isinstance(unit, Shared) and unit.placed:
                self._parts[unit.id] = unit
        if owned:
            if not unit.in_step:
                self._put_mark(unit, unit.mark.txid)
            self._put_durable(unit)
            if unit.staged:
                self._staged[unit.id] = unit
        if owned or isinstance(unit, Shared):
            self._count_durable(unit)

    def _count_view(self, view: View) -> None:
        if view.cursor in _STANDING:
            self._standing[view.id] = view
        elif view.cursor == CursorState.CATCHING_UP:
            self._catching_up[view.id] = view
        if view.owned and view.temporal:
            self._clocked[view.id] = view
        if view.owned and (view.placed or view.parts):
            self._placed[view.id] = view
        if view.live:
            self._live[view.id] = view.latency_ms
            self._latencies[view.latency_ms] += 1

    def _uncount(self, unit_id: int) -> None:
        for units in (
            *(self._known, self._standing, self._clocked, self._placed, self._parts),
            *(self._elsewhere, self._staged, self._undurable, self._catching_up, self._apart),
        ):
            units.pop(unit_id, None)
        self._leave_durable(unit_id)
        if unit_id in self._marks:
            self._leave_mark(unit_id)
        if unit_id in self._live:
            latency_ms = self._live.pop(unit_id)
            self._latencies[latency_ms] -= 1
            if not self._latencies[latency_ms]:
                del self._latencies[latency_ms]

    def _put_mark(self, unit: Unit, txid: int) -> None:
        self._marks[unit.id] = txid
        self._at.setdefault(txid, {})[unit.id] = unit

    def _leave_mark(self, unit_id: int) -> None:
        txid = self._marks.pop(unit_id)
        del self._at[txid][unit_id]
        if not self._at[txid]:
            del self._at[txid]

    def _count_durable(self, unit: Unit) -> None:
        if unit.in_step or unit.mark == unit.durable:
            self._undurable.pop(unit.id, None)
        else:
            self._undurable[unit.id] = unit
        if unit.id in self._durable and self._durable[unit.id] != unit.durable.txid:
            self._leave_durable(unit.id)
            self._put_durable(unit)

    def _put_durable(self, unit: Unit) -> None:
        txid = self._durable[unit.id] = unit.durable.txid
        self._durable_at[txid] += 1

    def _leave_durable(self, unit_id: int) -> None:
        txid = self._durable.pop(unit_id, None)
        if txid is not None:
            self._durable_at[txid] -= 1
            if not self._durable_at[txid]:
                del self._durable_at[txid]
