"""Which views run, stand still, lag or read the clock: kept up to date as units change.

The engine asks several times a second, whether anything happens or not.  So an answer costs as much
as there are units in it, and a change of one unit costs the same for any number of others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from typing import Final

from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.sql.status import Status
from headrace.state.rocks import RocksStore

_STANDING: Final = (Status.SINK_ERROR, Status.PAUSED)


class UnitIndex:
    """The units of one engine by what they are; the engine's thread changes it.

    The registries report each unit that comes or goes, and each unit its own changes.  ``behind``
    and ``live_in`` are for any thread, and so is a copy of one of the attributes.
    """

    def __init__(self) -> None:
        self.live: Final[dict[int, View]] = {}
        """Views for which batches are processed."""
        self.standing: Final[dict[int, View]] = {}
        """Views that are paused, or whose table cannot be written."""
        self.clocked: Final[dict[int, View]] = {}
        """Views that read the clock, and are owned."""
        self.placed: Final[dict[int, View]] = {}
        """Owned views with states on other workers."""
        self.parts: Final[dict[int, Shared]] = {}
        """Parts of views that are on other workers."""
        self.elsewhere: Final[dict[int, Unit]] = {}
        """Units whose states are not in this process, or nowhere at hand."""
        self._latencies: Final = Counter[int]()
        """How many live views may be so late, by milliseconds."""
        self._groups: Final[dict[str, dict[int, View]]] = {}
        """Live views by commit group."""
        self._latency_ms: Final[dict[int, int]] = {}
        """With which latency a live view is counted, by id."""
        self._lock: Final = threading.Lock()
        # Guarded by the lock.
        self._marks: Final[dict[int, int]] = {}
        """The txid at which an owned view or a part is, by id."""
        self._at: Final[dict[int, dict[int, Unit]]] = {}
        """These units, by that txid."""
        self._staged: Final[dict[int, Unit]] = {}
        """Those whose first states are still staged."""

    # --- answers

    @property
    def latency_ms(self) -> int:
        """The least of the latencies that live views allow; 0 without any."""
        return min(self._latencies, default=0)

    def behind(self, txid: int) -> list[Unit]:
        """Return the owned views and parts whose mark is before ``txid``, and the staged ones."""
        with self._lock:
            found = {
                unit_id: unit
                for at, units in self._at.items()
                if at < txid
                for unit_id, unit in units.items()
            }
            return list((found | self._staged).values())

    def holds_back(self, unit_id: int) -> bool:
        """Return whether the unit is an owned view or a part: what it lacks is kept for it."""
        return unit_id in self._marks

    def live_in(self, groups: Collection[str]) -> list[View]:
        """Return the live views of commit groups."""
        found = [list(self._groups.get(group, {}).values()) for group in list(groups)]
        return [view for views in found for view in views]

    # --- changes

    def update(self, unit: Unit) -> None:
        """Count a unit as what it is now."""
        self.remove(unit)
        if not isinstance(unit.store, RocksStore):
            self.elsewhere[unit.id] = unit
        if isinstance(unit, View):
            self._add_view(unit)
            held = unit.owned
        else:
            held = isinstance(unit, Shared) and bool(unit.placed)
            if isinstance(unit, Shared) and unit.placed:
                self.parts[unit.id] = unit
        if held:
            with self._lock:
                self._marks[unit.id] = unit.mark.txid
                self._at.setdefault(unit.mark.txid, {})[unit.id] = unit
                if unit.staged:
                    self._staged[unit.id] = unit

    def update_mark(self, unit: Unit) -> None:
        """Count a unit at its mark, where that alone has changed."""
        txid = unit.mark.txid
        with self._lock:
            before = self._marks.get(unit.id)
            if before is None or before == txid:
                return
            self._remove(unit.id, before)
            self._marks[unit.id] = txid
            self._at.setdefault(txid, {})[unit.id] = unit

    def remove(self, unit: Unit) -> None:
        """Count a unit no more."""
        unit_id = unit.id
        for index in (self.standing, self.clocked, self.placed, self.parts, self.elsewhere):
            index.pop(unit_id, None)
        if (view := self.live.pop(unit_id, None)) is not None:
            self._uncount(view)
        with self._lock:
            before = self._marks.pop(unit_id, None)
            if before is not None:
                self._remove(unit_id, before)
            self._staged.pop(unit_id, None)

    def _add_view(self, view: View) -> None:
        if view.status in _STANDING:
            self.standing[view.id] = view
        if view.owned and view.temporal:
            self.clocked[view.id] = view
        if view.owned and (view.placed or view.parts):
            self.placed[view.id] = view
        if view.live:
            self.live[view.id] = view
            self._latency_ms[view.id] = view.latency_ms
            self._latencies[view.latency_ms] += 1
            self._groups.setdefault(view.commit_group, {})[view.id] = view

    def _uncount(self, view: View) -> None:
        latency_ms = self._latency_ms.pop(view.id)
        self._latencies[latency_ms] -= 1
        if not self._latencies[latency_ms]:
            del self._latencies[latency_ms]
        group = self._groups[view.commit_group]
        del group[view.id]
        if not group:
            del self._groups[view.commit_group]

    def _remove(self, unit_id: int, txid: int) -> None:
        units = self._at[txid]
        del units[unit_id]
        if not units:
            del self._at[txid]
