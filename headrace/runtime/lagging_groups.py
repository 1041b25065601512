"""The side lane: slow commit groups are processed in parallel with the others.

    engine thread:     take ─► record ─► dataflows ─► (side queue) ─► marks …     main lane
    lane thread:                                          └► dataflows ─┐         side lane
    its sink thread:                                                    └► write

All groups begin in the main lane, where a batch is written when all groups have processed it.  A
group that takes most of the time of batches, and more than ``lane_ms`` each, moves to the side
lane.  There, its batches are queued, and processed one after the other.  Batches that have gathered
meanwhile are coalesced (a train), so that such a view does not fall behind for ever.  When the
group is fast again and has caught up, it returns.

A view in the side lane is one that is further behind, like a paused one, and all accounting of
positions treats it so.  Only work on states must be exclusive:

* Invariant 1: while the lane's thread works on units (``LaggingQueue.working``), no other thread
  touches their states: no checkpoint of them is under way, no memory is moved, no command runs.
* Invariant 2: the side lane never goes beyond the main lane's last commit since the stream began,
  so a group that returns has nothing in flight there.
* Invariant 3: a train crosses no txid at which an earlier run left a result table, or the output of
  a shared subplan, so that the earlier run is repeated in the same pieces.
* Invariant 4: the output of a shared subplan at a txid follows from that txid only, unless all its
  readers take the same train.

Groups with views that read the clock, or are placed on another worker, stay in the main lane.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import Final

import structlog

from headrace import clock
from headrace.errors import BugError, Interrupted
from headrace.runtime.batches import Outcome, Processor
from headrace.runtime.change_capture import ChangeCapture
from headrace.runtime.commits import Commits
from headrace.runtime.engine_state import EngineState
from headrace.runtime.intake import Intake
from headrace.runtime.lagging_jobs import LaggingJobs
from headrace.runtime.lagging_queue import CoalescedFrames
from headrace.runtime.lateness import Lateness
from headrace.runtime.shared import Shared
from headrace.runtime.views import View
from headrace.runtime.writing import SinkThread
from headrace.storage.blocks import NoRoom

_log = structlog.get_logger(__name__)

_SLOW_TIMES: Final = 2
"""Number of batches of which a group takes most, within ``_WITHIN_S``, that move it."""
_WITHIN_S: Final = 60.0
"""See ``_SLOW_TIMES``."""
_MOST: Final = 2.0
"""Minimum ratio of the group's time to that of all others."""
_STAY_S: Final = 30.0
"""Seconds for which a group stays in the side lane at least, the first time."""
_STAY_S_MAX: Final = 3_600.0
_GIVE_UP_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class _CoalescedBatch:
    frames: CoalescedFrames
    views: list[View]
    needed: list[Shared]
    end_lsn: int
    transactions: int
    begun: float


class LaggingGroups:
    """The side lane of one engine; the engine's thread calls every method."""

    def __init__(
        self,
        state: EngineState,
        intake: Intake,
        commits: Commits,
        taps: ChangeCapture,
        lateness: Lateness,
        processor: Processor,
        poke: Callable[[], None],
    ) -> None:
        """Create it; ``poke`` wakes the engine's thread, and may be called on any."""
        self._state = state
        self._intake = intake
        self._commits = commits
        self._taps = taps
        self._lateness = lateness
        self._processor = processor
        self._poke = poke
        self._jobs: Final = LaggingJobs()
        self._sink: Final = SinkThread(self._jobs, state.suspects, poke, "headrace-lane-sink")
        self._thread: Final = ThreadPoolExecutor(1, "headrace-lane")
        self._thread.submit(int)  # it is there from the beginning (E-15)
        self._train: _CoalescedBatch | None = None
        self._future: Future[Outcome] | None = None
        self._scores: Counter[str] = Counter()
        self._scored_at = 0.0
        self._stays: dict[str, tuple[float, float]] = {}
        """How long a group stays, and until when, by group."""
        self._refused_until = 0.0
        self.at_work: Final = processor.at_work
        """See ``Processor.at_work``; for any thread."""
        self.works: Final = processor.works
        """See ``Processor.works``; for any thread."""

    # --- what there is

    @property
    def working(self) -> bool:
        """Whether the lane's thread works on states."""
        return self._future is not None

    @property
    def busy(self) -> bool:
        """Whether a batch is being processed or written."""
        return self._future is not None or self._jobs.busy

    def statistics(self) -> dict[str, object]:
        """Return counters for the status; callable from any thread."""
        side = self._state.side
        return {"groups": sorted(side.groups), "waiting_txids": len(side.kept)}

    @property
    def due(self) -> float:
        """When to call ``look``, on the monotonic clock."""
        return min((self._stays[group][1] for group in self._caught_up()), default=math.inf)

    # --- what happens

    def step(self) -> None:
        """Begin to process waiting batches, if possible."""
        state, side = self._state, self._state.side
        if self.busy or not side.kept or side.queue is None:
            return
        views = state.lagging_views
        side.passed(min((view.processed for view in views), default=side.kept[-1].txid))
        if not side.kept or side.kept[0].txid > self._commits.passed:
            return
        if side.left_out or state.checkpoints.underway:
            return  # a checkpoint may hold their states, or has to be made up for
        first = side.kept[0].txid
        taking = [view for view in views if view.processed < first]
        for view in taking:
            if view.processed != first - 1:
                raise BugError(f"view {view.id} is at txid {view.processed} when {first} comes")
        needed = state.needed(taking)
        coalesced = side.coalesced(self._last(views, needed, first))
        frames = CoalescedFrames(side.queue, coalesced)
        units = [*taking, *(shared for shared in needed if shared.processed < first)]
        side.working = frozenset(unit.id for unit in units)
        transactions = sum(kept.transactions for kept in coalesced)
        self._train = _CoalescedBatch(
            frames, taking, needed, coalesced[-1].end_lsn, transactions, clock.monotonic()
        )
        self._future = self._thread.submit(self._processor.run, taking, frames, needed)
        self._future.add_done_callback(lambda _: self._poke())

    def _last(self, views: Sequence[View], needed: Iterable[Shared], first: int) -> int:
        """Return the last txid of a train from ``first`` on (Invariants 3 and 4)."""
        state = self._state
        if self._taps.any or not state.suspects.quiet:
            return first
        mine = {view.id for view in views}
        last = self._commits.passed
        for view in views:
            known = view.processed if view.progress is None else view.progress.txid
            last = min([last, *(at for at in (known, view.processed) if at >= first)])
        for shared in needed:
            at = shared.processed if shared.processed >= first else shared.output.last_txid
            others = {view.id for view in state.views_of(shared)} - mine
            # A view that is being created from its output also reads it, from some txid on.
            if shared.processed < first and (others or shared.awaited):
                return first
            if at >= first:
                last = min(last, at)
        return last

    def take(self) -> None:
        """Handle finished work.

        Raises:
            TransientError: nothing is lost; the work must be repeated.
        """
        future, coalesced = self._future, self._train
        if future is not None and coalesced is not None and future.done():
            self._future = self._train = None
            self._state.side.working = frozenset()
            outcome = future.result()
            self._took(coalesced, outcome)
            job = self._intake.finished(
                outcome,
                coalesced.views,
                coalesced.needed,
                coalesced.end_lsn,
                coalesced.transactions,
            )
            self._state.side.passed(coalesced.frames.txid)
            self._jobs.put(job)
        answer = self._jobs.answer()
        if answer is not None:
            self._commits.beside(answer)

    def abort(self, serve: Callable[[], None]) -> None:
        """Give up what is under way; return when no thread works on it any more.

        ``serve`` runs the functions that the lane's thread may wait for.
        """
        self._sink.leave()
        future, self._future, self._train = self._future, None, None
        if future is not None:
            for unit_id in self._state.side.working:
                unit = self._state.unit(unit_id)
                if unit is not None and unit.bound is not None and unit.bound.inside:
                    unit.bound.cancel(Interrupted("the stream begins anew", sqlstate="57014"))
            while not future.done():
                serve()
                wait_for([future], _GIVE_UP_S)
        self._state.side.working = frozenset()
        owner = self._state.connections
        self._jobs.abort(owner.interrupt_beside if owner is not None else _nothing)

    def rewind(self, txid: int) -> None:
        """Prepare for the batches after ``txid``.  REQUIRES: not ``busy``, all units are reset."""
        state = self._state
        self._jobs.rewind()
        if state.side.groups and self._begin(txid):
            self._sink.start(state.owner.beside())
        else:
            state.side.end(state.queues)

    def close(self) -> None:
        """End the threads.  REQUIRES: ``abort`` was called."""
        self._jobs.close()
        self._sink.close()
        self._thread.shutdown()

    # --- who goes where

    def classify(self, outcome: Outcome, worked_s: float) -> None:
        """Move slow groups to the side lane after a batch of the main lane.

        ``worked_s``: processing time of the batch.
        """
        limit_s = self._state.settings.lane_ms / 1000
        writes, self._commits.writes = self._commits.writes, {}
        if not limit_s or max([worked_s, *writes.values()]) < limit_s:
            return
        seconds = defaultdict[str, float](float, writes)
        slowest: dict[str, tuple[float, str]] = {}
        """By group: the time of its slowest unit, and the views that need the unit."""
        for unit_id in outcome.touched:
            unit = self._state.unit(unit_id)
            if unit is None or unit.bound is None:
                continue
            views = self._state.views_of(unit)
            groups = {view.commit_group for view in views}
            if len(groups) == 1:
                group, took = groups.pop(), unit.bound.taken_s
                seconds[group] += took
                names = ", ".join(view.target.shown for view in views)
                slowest[group] = max(slowest.get(group, (0.0, "")), (took, names))
        now = clock.monotonic()
        if now > self._scored_at + _WITHIN_S:
            self._scores.clear()
            self._scored_at = now
        total = sum(seconds.values())
        for group, took in seconds.items():
            if took >= limit_s and took >= _MOST * (total - took):
                self._scores[group] += 1
                if self._scores[group] >= _SLOW_TIMES and self._may(group):
                    self._set_lagging(group, *slowest.get(group, (0.0, "")))

    def look(self) -> None:
        """Move groups back to the main lane that have stayed long enough and have caught up."""
        side, now = self._state.side, clock.monotonic()
        for group in self._caught_up():
            if now >= self._stays[group][1]:
                side.groups.discard(group)
                _log.info("commit group is back", group=group)
        if side.queue is not None and not side.groups:
            side.end(self._state.queues)

    def _caught_up(self) -> list[str]:
        """Return the groups in the side lane that lack no batch."""
        side, taken = self._state.side, self._state.taken.txid
        if not side.groups or side.kept or self.busy:
            return []
        late = {view.commit_group for view in self._state.lagging_views if view.processed != taken}
        return [group for group in sorted(side.groups) if group not in late]

    def _may(self, group: str) -> bool:
        """Return whether a group can move to the side lane, and other groups benefit."""
        state, side = self._state, self._state.side
        if group in side.groups or not state.suspects.quiet:
            return False
        if clock.monotonic() < self._refused_until:
            return False
        live = [view for view in state.views.values() if view.live]
        others = {view.commit_group for view in live} - side.groups - {group}
        mine = [view for view in live if view.commit_group == group]
        return bool(others) and not any(v.temporal or v.placed or v.parts for v in mine)

    def _set_lagging(self, group: str, took_s: float, slowest: str) -> None:
        """Process a group in the side lane from the next batch on.

        ``slowest``: the views whose part took longest.  REQUIRES: its views have processed all that
        was taken.
        """
        state, side = self._state, self._state.side
        if side.queue is None:
            self._sink.start(state.owner.beside())
            if not self._begin(state.taken.txid):
                return
        side.groups.add(group)
        self._scores.pop(group, None)
        stay_s = min(2 * self._stays.get(group, (_STAY_S / 2, 0.0))[0], _STAY_S_MAX)
        self._stays[group] = stay_s, clock.monotonic() + stay_s
        for view in state.lagging_views:
            if view.commit_group == group:
                view.story.add("processed beside others")
        _log.info(
            "commit group is slow",
            **{"group": group, "stays_s": stay_s, "slowest": slowest, "took_s": round(took_s, 3)},
        )

    def dissolve(self) -> bool:
        """Move groups that cannot stay to the main lane; True: the stream must begin anew.

        Groups cannot stay if there is no room for their batches, or a view reads the clock now.
        """
        side = self._state.side
        if not side.groups:
            return False
        if side.overflowed:
            self._refuse()
            return True
        timed = {
            v.commit_group for v in self._state.lagging_views if v.temporal or v.placed or v.parts
        }
        side.groups -= timed
        return bool(timed)

    def _begin(self, txid: int) -> bool:
        """Queue the batches after ``txid``; False: there is no room, now and for a while."""
        try:
            self._state.side.begin(self._state.queues, txid)
        except (NoRoom, OSError) as error:
            self._refuse(str(error))
            return False
        return True

    def _refuse(self, reason: str = "") -> None:
        """Move no group to the side lane for a while."""
        side = self._state.side
        _log.warning("no room for what waits for slow commit groups", reason=reason)
        self._refused_until = clock.monotonic() + _STAY_S_MAX
        side.overflowed = False
        side.groups.clear()

    def _took(self, coalesced: _CoalescedBatch, outcome: Outcome) -> None:
        """Let groups stay longer whose train was slow."""
        now = clock.monotonic()
        self._lateness.processed(outcome, now - coalesced.begun, coalesced.views)
        if now - coalesced.begun < self._state.settings.lane_ms / 1000:
            return
        for group in {view.commit_group for view in coalesced.views if view.id in outcome.touched}:
            stay_s, _ = self._stays.get(group, (_STAY_S, 0.0))
            self._stays[group] = stay_s, now + stay_s


def _nothing() -> None:
    """Do nothing: there is no connection to interrupt."""
