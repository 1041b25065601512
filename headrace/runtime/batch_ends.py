"""The end of a batch of units that lag: the last of the txids that they process as one.

It is as late as its size permits, and so late that the units' readers and feeders still agree:

* Invariant 1: a batch crosses no txid at which an earlier run left a result table, so that the
  earlier run is repeated in the same pieces.
* Invariant 2: a batch of a shared subplan crosses no txid at which a unit that reads it, directly
  or not, stands or may stand again after a failure: the reader goes on from there.
* Invariant 3: the number of txids in a batch of a subplan is a power of two that divides the txid
  before it.  So of two batches of subplans with a common txid, one contains the other, and a reader
  of both has common ends.
* Invariant 4: a reader's batch begins and ends where batches of the subplans that it reads do.
* Invariant 5: a batch does not go beyond the one in which a value of the calendar changes, for a
  view of these units or of their readers, so that the change has its timestamp.

A subplan takes each txid by itself where such a position may be unknown: of a reader that is not
there yet, or on another worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from headrace.errors import HeadraceError
from headrace.runtime.change_capture import ChangeCapture
from headrace.runtime.cursors import Cursors
from headrace.runtime.engine_state import EngineState
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View


class BatchEnds:
    """Ends of batches of lagging units of one engine; its thread calls every method."""

    def __init__(self, state: EngineState, taps: ChangeCapture, cursors: Cursors) -> None:
        """Create it; while ``taps`` captures changes, each txid is processed by itself."""
        self._state: Final = state
        self._taps: Final = taps
        self._cursors: Final = cursors

    def end(
        self, views: Sequence[View], subplans: Sequence[Shared], reach: int, stop: int
    ) -> int | None:
        """Return the last txid of the next batch of units that stand at one txid.

        ``reach``: the last txid that they can read.  ``stop``: where they should stop if possible.
        None: there is no end at which all of them may stand.
        """
        units: list[Unit] = [*views, *subplans]
        at = units[0].processed
        fed, readers = self.feeders(units), self._readers(subplans)
        known = {txid for view in views for txid in view.written_txids}
        known.update(txid for unit in readers for txid in unit.resting_txids)
        later = [txid for txid in known if txid > at]
        least = min([reach, *(feeder.processed for feeder in fed), *later])
        size = min(unit.coalesced.count for unit in units)
        remote = any(unit.placed for unit in units)
        most = self._cursors.bounded(at, min(least, stop), size, remote=remote)
        if not self._state.suspects.quiet or self._taps.any:
            most = at + 1
        if not subplans:
            return _common(at, self._calendar_end(views, at + 1, most), least, fed)
        if views or not _coalesce(subplans, readers):
            most = at + 1
        reading = [unit for unit in readers if isinstance(unit, View)]
        since = self._state.records.time_of(at)
        return _doubled(at, self._calendar_end(reading, at + 1, most, since), least, fed)

    def feeders(self, units: Iterable[Unit]) -> list[Shared]:
        """Return the subplans that ``units`` read directly and that are further."""
        found = {f: self._state.subplans[f] for unit in units for f in unit.feeds.values()}
        at = min(unit.processed for unit in units)
        return [shared for shared in found.values() if shared.processed > at]

    def waits(self, unit: Unit) -> bool:
        """Return whether the subplans that a unit reads have no common end yet after its txid."""
        fed = self.feeders([unit])
        least = min((feeder.processed for feeder in fed), default=unit.processed + 1)
        return _common(unit.processed, 0, least, fed) is None

    def _readers(self, subplans: Iterable[Shared]) -> list[Unit]:
        """Return the units that read ``subplans``, directly or not."""
        state = self._state
        ids = {unit_id for shared in subplans for unit_id in state.all_readers(shared)}
        return [unit for unit in map(state.unit, ids) if unit is not None]

    def _calendar_end(self, views: Iterable[View], first: int, last: int, since: int = 0) -> int:
        """Return the last txid up to ``last`` with which a batch from ``first`` on may end.

        It is the first one in which a value of the calendar changes, if there is any.  ``since``:
        changes up to this time do not count.
        """
        state = self._state
        for view in views:
            if not view.temporal or last == first:
                continue
            with contextlib.suppress(HeadraceError):  # the batch meets the same error
                clocked, low = view.clocked(state.settings, state.evaluators), first
                if clocked.changed(state.records.time_of(last)) <= since:
                    continue
                while low < last:
                    middle = (low + last) // 2
                    if clocked.changed(state.records.time_of(middle)) > since:
                        last = middle
                    else:
                        low = middle + 1
        return last


def _coalesce(subplans: Iterable[Shared], readers: Iterable[Unit]) -> bool:
    """Return whether ``subplans`` may process several txids as one (Invariant 2)."""
    for shared in subplans:
        if shared.awaited or shared.placed or shared.output.last_txid > shared.processed:
            return False
    for unit in readers:
        if isinstance(unit, View) and unit.owned and unit.progress is None:
            return False
        if unit.placed or unit.staged or unit.store is None:
            return False
        if isinstance(unit, Shared) and unit.awaited:
            return False
    return True


def _fits(txid: int, fed: Iterable[Shared]) -> bool:
    return all(feeder.output.around(txid) == (txid, txid) for feeder in fed)


def _doubled(at: int, most: int, least: int, fed: Collection[Shared]) -> int | None:
    """Return the end of a subplan's batch after ``at`` (Invariants 3 and 4).

    It is the last one up to ``most``, else the first one up to ``least``.
    """
    if not _fits(at, fed):
        return at + 1  # output is lost, and the error shows it
    count = at & -at or 1 << 62
    ends = [at + (1 << log) for log in range(count.bit_length()) if 1 << log <= least - at]
    fitting = [end for end in ends if _fits(end, fed)]
    return max((end for end in fitting if end <= most), default=min(fitting, default=None))


def _common(at: int, most: int, least: int, fed: Collection[Shared]) -> int | None:
    """Return the end of a batch of views after ``at`` (Invariant 4); see ``_doubled``."""
    if not _fits(at, fed):
        return at + 1  # as above
    end, before = most, -1
    while end > at and end != before:
        before, end = end, min([end, *(feeder.output.around(end)[0] for feeder in fed)])
    if end > at:
        return end
    end, before = at + 1, -1
    while end <= least and end != before:
        before, end = end, max([end, *(feeder.output.around(end)[1] for feeder in fed)])
    return end if end <= least else None
