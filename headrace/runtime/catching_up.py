"""Views that lag: they read the intake log from their own position, in parallel with all others.

    engine thread:   take ─► log ─► dataflows ─► marks …            the views that lead
                              │
    lagging thread:           └► cursor ─► dataflows ─┐             the views that lag
    its sink thread:                                  └► write

A view lags (its cursor is ``catching_up``) if it begins further back than the last batch taken: it
was just populated, it was paused or its table was locked.  A commit group lags if it is slow
(``slow_groups.py``).  Batches are coalesced as far as that is exact, and the leading views take
fewer and larger batches while a view catches up, so that it does not fall behind for ever.  A view
that has reached the last batch taken leads again; a slow group does so once it is fast.

All accounting of positions treats a lagging view like a paused one.  Only work on states must be
exclusive:

* Invariant 1: while the thread works on units (``Lagging.working``), no other thread changes their
  states: no checkpoint of them begins or ends, no memory is moved, no command runs.
* Invariant 2: lagging views never go beyond the last commit of the leading ones since the stream
  began, so a view that leads again has nothing in flight here.

A shared subplan goes ahead of its readers, which then read its output.  Where a coalesced batch may
end, so that all of them agree, ``batch_ends.py`` says.

Views take turns by their ``latency_ms`` (``policy.FairShares``): those with the same target go on
together where they meet.

Views on other workers lag likewise: their batches go over an exchange of their own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from functools import partial
from typing import Final

import psycopg
import structlog

from headrace import clock
from headrace.errors import ContinuityLost, HeadraceError, Interrupted, TransientError
from headrace.forwarder import policy
from headrace.runtime.batch_ends import BatchEnds
from headrace.runtime.batches import Outcome
from headrace.runtime.change_capture import ChangeCapture
from headrace.runtime.coalesced_batch import CoalescedBatch, Result, part_of
from headrace.runtime.columns import types_of
from headrace.runtime.commits import Commits
from headrace.runtime.cursor import OnEngine
from headrace.runtime.cursors import Cursors
from headrace.runtime.engine_state import EngineState
from headrace.runtime.intake import Intake
from headrace.runtime.jobs import Answer
from headrace.runtime.lateness import Lateness
from headrace.runtime.shared import Shared
from headrace.runtime.single_job import SingleJob
from headrace.runtime.slow_groups import SlowGroups
from headrace.runtime.views import Unit, View
from headrace.runtime.watch import Watch
from headrace.runtime.worker_handles import WorkerHandles
from headrace.runtime.writing import SinkThread
from headrace.sql.status import CursorState

_log = structlog.get_logger(__name__)

_GIVE_UP_S: Final = 0.05
_REST_S: Final = 1.0
"""Seconds for which views that lead wait for the end of a coalesced batch, if they must."""
_RETRY_S_MAX: Final = 5.0
"""Longest pause after a coalesced batch that met a temporary error."""


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """The functions of the engine that the lagging views call, and the other workers."""

    hosts: WorkerHandles
    on_engine: OnEngine
    """Callable from any thread but the engine's."""
    admit: Callable[[int, int], None]
    """``SinkThread.admit`` of the leading views."""
    fail: Callable[[View, HeadraceError], None]
    """``Leaving.fail``."""
    poke: Callable[[], None]
    """Wakes the engine's thread; callable from any thread."""
    lagged: Callable[[Sequence[Unit], float], None]
    """``OverloadDetector.lagged``."""


class CatchingUp:
    """The lagging views of one engine; its thread calls every method."""

    def __init__(
        self,
        state: EngineState,
        intake: Intake,
        commits: Commits,
        taps: ChangeCapture,
        lateness: Lateness,
        watch: Watch,
        calls: EngineCalls,
    ) -> None:
        self._state = state
        self._hosts = calls.hosts
        self._intake = intake
        self._commits = commits
        self._taps = taps
        self._lateness = lateness
        self._watch = watch
        self._on_engine = calls.on_engine
        self._admit = calls.admit
        self._fail = calls.fail
        self._poke = calls.poke
        self._lagged = calls.lagged
        self._processor: Final = intake.beside(self._altered)
        self._watched = True
        """Whether a view of the current turn depends on definitions besides tables."""
        self._job: Final = SingleJob()
        self._sink: Final = SinkThread(
            self._job, state.suspects, calls.poke, "headrace-lagging-sink"
        )
        self._connected = False
        """Whether the sink thread has a connection."""
        self._thread: Final = ThreadPoolExecutor(1, "headrace-lagging")
        self._thread.submit(int)  # it is there from the beginning (E-15)
        self._cursors: Final = Cursors(state, watch, calls.on_engine, calls.fail, calls.poke)
        self._ends: Final = BatchEnds(state, taps, self._cursors)
        self._coalesced: CoalescedBatch | None = None
        self._turn: CoalescedBatch | None = None
        """The batch that is processed or written."""
        self._future: Future[Result] | None = None
        self._turns = policy.FairShares()
        self._size = policy.first_part()
        self._waiting: Collection[float] = ()
        """The latency targets of the views that had work when the last turn was given."""
        self._errors = 0
        """Coalesced batches that met a temporary error, since the last one that did not."""
        self._retry_at = 0.0
        self._meeting = policy.Meeting()
        self._passed = policy.PassingTimes()
        self.slow: Final = SlowGroups(state, self._connect)
        self.at_work: Final = self._processor.at_work
        """See ``Processor.at_work``; for any thread."""
        self.works: Final = self._processor.works
        """See ``Processor.works``; for any thread."""

    # --- state

    @property
    def working(self) -> bool:
        """Whether the thread works on states."""
        return self._future is not None

    @property
    def busy(self) -> bool:
        """Whether a coalesced batch is being processed or written."""
        return self._future is not None or self._job.busy

    @property
    def concerned(self) -> frozenset[int]:
        """IDs of the views and subplans whose coalesced batch is processed or written."""
        turn = self._turn if self.busy else None
        return frozenset(u.id for u in (*turn.units, *turn.needed)) if turn else frozenset()

    @property
    def due(self) -> float:
        """When to call ``look`` or ``step``, on the monotonic clock."""
        if self.busy or not (self._state.lagging.groups or self._state.lagging_views):
            return math.inf
        now = clock.monotonic()
        retry = [self._retry_at] if self._retry_at > now else []
        return min(self.slow.due, self._cursors.due, *retry)

    def meeting_s(self) -> float:
        """Return for how many seconds at most new batches should wait."""
        state, now = self._state, clock.monotonic()
        self._passed = self._passed.noted(self._commits.passed, now)
        lacks = lacks_s = math.inf
        if views := self._to_catch_up():
            has = -1
            for view in views:  # of many views, few are ahead of those before them
                if view.processed > has:
                    has = max(has, state.least(view))
            lacks, lacks_s = state.taken.txid - has, now - self._passed.since(has, now)
        self._meeting, meeting_s = self._meeting.at(
            now, lacks, lacks_s, state.pipeline.inflight_max
        )
        return meeting_s

    def longest_s(self) -> float:
        """Return for how long a view has been catching up, at most; slow groups do not count.

        It is negative if no batch of such a view is under way.
        """
        views = self._to_catch_up() if self.busy else []
        left = (view.left_at for view in views if view.left_at is not None)
        return clock.monotonic() - min(left, default=math.inf)

    def _to_catch_up(self) -> list[View]:
        """Return the views that lag, but not because their commit group is slow."""
        slow = self._state.lagging.groups
        return [view for view in self._state.lagging_views if view.commit_group not in slow]

    # --- progress

    def go_on(self, view: View, reason: str) -> None:
        """Let a live view lead, or catch up if it lacks batches; no other view notices.

        ``reason``: why it may lack batches.
        """
        state = self._state
        if not view.live or view.store is None or state.stream is None:
            return  # the next stream begins where its views stand
        lacks = state.least(view) < state.taken.txid
        if not lacks and not self.busy and view.commit_group not in state.lagging.groups:
            view.turn(CursorState.LEADING)
            return
        if any(unit.store is None for unit in state.units_of(view)):
            return  # until its worker is back
        if lacks and not state.can_lag(view, state.taken.txid):
            self._fail(view, ContinuityLost("the changes that the view lacks are gone"))
            return
        # Jobs in flight may still have what the view could not take.
        self._admit(view.id, state.taken.txid)
        self._sink.admit(view.id, 0)
        view.turn(CursorState.CATCHING_UP, reason)
        self._poke()

    def step(self) -> None:
        """Begin to process the next coalesced batch, if possible."""
        state, lagging = self._state, self._state.lagging
        views = state.lagging_views
        if not views:
            self._cursors.reach([], 0)
            self._size = policy.first_part()
        if self.busy or not views or clock.monotonic() < self._retry_at:
            return
        if lagging.awaited:
            return  # first a checkpoint that has their states
        self._commits.review()  # without new changes, no commit does that
        if any(map(state.leads, state.suspects.repeated)):
            return  # the next crash tells whether a leading view is the cause
        coalesced = self._next() if self._connect() else None
        if coalesced is None:
            return
        lagging.working = frozenset(unit.id for unit in coalesced.units)
        types = types_of([unit.own for unit in coalesced.units])
        self._coalesced = self._turn = coalesced
        readers = {view.id: view for unit in coalesced.units for view in state.views_of(unit)}
        self._watched = any(self._watch.definitions(view) for view in readers.values())
        facts = self._watch.table_facts(readers)
        self._future = self._thread.submit(coalesced.run, self._processor, types, facts)
        self._future.add_done_callback(lambda _: self._poke())

    def _altered(self, units: Iterable[Unit]) -> dict[int, HeadraceError]:
        """See ``Watch.altered``; on the thread of lagging views."""
        if not self._watched:
            return {}  # without a wait for the engine's thread
        errors: dict[int, HeadraceError] = self._on_engine(partial(self._watch.altered, units))
        return errors

    def _next(self) -> CoalescedBatch | None:
        """Return the next coalesced batch; None: there is nothing to process."""
        state = self._state
        views = state.lagging_views
        shared = state.needed(views)
        end = self._commits.passed
        behind = sorted({u.processed for u in (*views, *shared) if u.processed < end})
        possible = [at for at in behind if self._possible(at, views, shared)]
        reach = self._cursors.reach(possible, end)
        readable = [at for at in possible if reach[at] > at]
        if not readable:
            return None
        targets = self._targets(views, shared)
        going = self._going(views, shared, reach, readable)
        while waiting := _by_target(targets, going, readable):
            self._waiting = waiting
            target_s, at = self._turns.next(waiting)
            there = [u for u in going if u.processed == at and targets[u.id] == target_s]
            stop = min([reach[at], *(txid for txid in behind if txid > at)])
            made = self._batch(there, shared, reach[at], stop, target_s)
            if made is not None:
                return made
            going = [unit for unit in going if unit not in there]
        return None

    def _batch(
        self,
        there: Sequence[Unit],
        shared: Sequence[Shared],
        reach: int,
        stop: int,
        target_s: float,
    ) -> CoalescedBatch | None:
        """Return the next batch of units that stand at one txid; None: they must wait.

        ``shared``: the subplans that lagging views need.  ``reach``, ``stop``: see ``BatchEnds``.
        """
        state, at = self._state, there[0].processed
        whole = state.lagging.groups
        views = part_of([u for u in there if isinstance(u, View)], self._size.count, whole)
        for taking in (views, []) if views else ([],):
            now = [*taking, *(unit for unit in there if not isinstance(unit, View))]
            needed_now = {s.id for s in (*state.needed(now), *now)}
            needed = [s for s in shared if s.id in needed_now]
            subplans = [s for s in needed if s.processed == at]
            units = [*subplans, *taking]
            last = self._ends.end(taking, subplans, reach, stop) if units else None
            if last is None:
                continue
            remote = self._hosts.batch([unit for unit in units if unit.placed], lagging=True)
            cursor = self._cursors.at(at, last)
            return CoalescedBatch(
                at + 1,
                last,
                self._attempt(last),
                taking,
                needed,
                units,
                remote,
                cursor,
                target_s,
                clock.monotonic(),
            )
        return None

    def _attempt(self, txid: int) -> int:
        """Return the number of earlier attempts at a batch."""
        record = self._state.records.get(txid)
        return self._errors + (record.attempt if record is not None else 0)

    def _going(
        self,
        views: Sequence[View],
        shared: Sequence[Shared],
        reach: Mapping[int, int],
        readable: Collection[int],
    ) -> list[Unit]:
        """Return the units that may go on: a shared subplan goes ahead of its readers.

        Its readers then write many txids at once.  The views of a commit group that meet go on
        together.  So do all units that read the source: one copied stream serves them, and none may
        miss what it has passed.
        """
        state = self._state
        slow = {
            s.id for s in shared if s.processed in readable and self._cursors.logged(s.processed)
        }
        if not slow:
            return [*views, *shared]
        lasts: dict[tuple[int, bool], int] = {}

        def last(at: int, remote: bool) -> int:
            if (at, remote) not in lasts:
                most = self._cursors.bounded(at, reach[at], remote=remote)
                lasts[at, remote] = min(most, at + policy.AHEAD_TXIDS)
            return lasts[at, remote]

        def waits(unit: Unit) -> bool:
            at = unit.processed
            if at not in readable or not self._cursors.logged(at):
                return False
            behind = [s for s in state.needed([unit]) if s.id in slow]
            late = any(s.processed < last(at, bool(unit.placed)) for s in behind)
            return late or self._ends.waits(unit)

        held = {(view.commit_group, view.processed) for view in views if waits(view)}
        going: list[Unit] = [v for v in views if (v.commit_group, v.processed) not in held]
        return [*going, *(s for s in shared if not waits(s))]

    def _targets(self, views: Sequence[View], shared: Iterable[Shared]) -> dict[int, float]:
        """Return the latency targets of units in seconds, by ID: the least of those that need it.

        The views of a commit group have one target, so that they go on together.
        """
        groups = defaultdict[str, float](lambda: math.inf)
        for view in views:
            target_s = policy.target_s(view.latency_ms)
            groups[view.commit_group] = min(groups[view.commit_group], target_s)
        targets = {view.id: groups[view.commit_group] for view in views}
        for unit in shared:
            readers = (targets[v.id] for v in self._state.views_of(unit) if v.id in targets)
            targets[unit.id] = min(readers, default=policy.target_s(0))
        return targets

    def _possible(self, at: int, views: Sequence[View], shared: Sequence[Shared]) -> bool:
        """Return whether the units at ``at`` can go on: all that they read is not behind them.

        A part whose worker is out of reach may have no states until it is back.
        """
        state = self._state
        units: list[Unit] = [unit for unit in (*views, *shared) if unit.processed == at]
        if state.checkpoints.elsewhere and any(unit.placed for unit in units):
            return False  # their worker ends it beside their next batch
        return all(unit.store is not None for unit in units) and all(
            state.subplans[feeder].processed >= at
            for unit in units
            for feeder in unit.feeds.values()
        )

    def take(self) -> None:
        """Handle finished work.

        Raises:
            TransientError: nothing is lost; the work must be repeated.
        """
        future, coalesced = self._future, self._coalesced
        if future is not None and coalesced is not None and future.done():
            self._future = self._coalesced = None
            self._state.lagging.working = frozenset()
            try:
                done = future.result()
            except TransientError as error:
                if self._cursors.lost(coalesced.cursor, coalesced.first - 1):
                    raise
                self._try_again(coalesced, error)
            else:
                self._took(coalesced, done)
        answer = self._job.answer()
        if answer is not None:
            self._commits.beside(answer)
        if self._turn is not None and not self.busy:
            took_s = clock.monotonic() - self._turn.begun
            self._lagged(self._turn.units, took_s)
            if self._turn.views:
                self._size = self._size.took(len(self._turn.views), took_s)
            self._turn = None

    def _took(self, coalesced: CoalescedBatch, done: Result) -> None:
        self._errors = 0
        now = clock.monotonic()
        worked_s = now - coalesced.begun
        self._turns = self._turns.took(self._waiting, coalesced.target_s, worked_s)
        for unit in coalesced.units:
            unit.coalesced = unit.coalesced.took(coalesced.last - coalesced.first + 1, worked_s)
        outcome, batch = done
        coalesced.take_fewer(outcome)
        self._lateness.processed(outcome, worked_s, coalesced.views)
        if worked_s >= self._state.settings.slow_batch_ms / 1000:
            # A group whose coalesced batch was slow stays longer.
            self.slow.prolong(v for v in coalesced.views if v.id in outcome.touched)
        job = self._intake.finished(outcome, coalesced.views, coalesced.needed, batch)
        batch.close()
        if coalesced.views:
            self._job.put(job)
        else:
            self._commits.beside(Answer(job))
        self._cursors.moved(coalesced.cursor, {unit.processed for unit in self._units()})

    def _try_again(self, coalesced: CoalescedBatch, error: TransientError) -> None:
        """Process a coalesced batch again, after a pause; other views are not concerned."""
        self._errors += 1
        self._retry_at = clock.monotonic() + policy.backoff_s(self._errors, _RETRY_S_MAX)
        _log.warning("views that lag are interrupted", txid=coalesced.last, reason=error.message)
        coalesced.remote.give_up()
        for unit in coalesced.units:
            unit.reset()

    def rest(self, serve: Callable[[], None]) -> None:
        """Return when the thread does not work; ``serve``: see ``abort``.

        The views that lead wait for that, so a batch that takes longer than a second is given up,
        and processed again.
        """
        until, coalesced = clock.monotonic() + _REST_S, self._coalesced
        while not self._rests(serve):
            if coalesced is not None and clock.monotonic() > until:
                coalesced.cancel(TransientError("other views wait for the batch", sqlstate="57014"))

    def _rests(self, serve: Callable[[], None]) -> bool:
        """Return whether the thread does not work, after a moment in which ``serve`` is called."""
        if self._future is not None and not self._future.done():
            serve()
            wait_for([self._future], _GIVE_UP_S)
        return self._future is None or self._future.done()

    def abort(self, serve: Callable[[], None]) -> None:
        """Give up what is under way; return when no thread works on it any more.

        ``serve`` runs the functions that the thread may wait for.
        """
        self._sink.leave()
        self._connected = False
        coalesced = self._coalesced
        if coalesced is not None:
            for unit in coalesced.remote.units:
                self._hosts.interrupt_unit(unit)
            coalesced.cancel(Interrupted("the stream begins anew", sqlstate="57014"))
            while not self._rests(serve):
                pass
            coalesced.remote.give_up()
        self._future = self._coalesced = self._turn = None
        self._cursors.leave()
        self._state.lagging.working = frozenset()
        owner = self._state.connections
        self._job.abort(owner.interrupt_beside if owner is not None else _nothing)

    def rewind(self, txid: int) -> None:
        """Let the views lead that have all up to ``txid``, after which the stream begins.

        REQUIRES: not ``busy``, all units are reset.
        """
        state, lagging = self._state, self._state.lagging
        self._job.rewind()
        self._cursors.rewind()
        self._errors, self._retry_at, self._connected = 0, 0.0, False
        self.slow.check_room()
        for view in list(state.views.values()):
            if not view.live:
                continue
            if view.commit_group in lagging.groups:
                view.turn(CursorState.CATCHING_UP, "its commit group is slow")
            elif view.store is None or state.least(view) < txid or state.must_coalesce(view):
                view.turn(CursorState.CATCHING_UP, "it is behind the start of the stream")
            else:
                view.turn(CursorState.LEADING)
        if state.lagging_views:
            self._sink.start(state.owner.beside())
            self._connected = True

    def close(self) -> None:
        """End the threads.  REQUIRES: ``abort`` was called."""
        self._cursors.close()
        self._job.close()
        self._sink.close()
        self._thread.shutdown()

    def _connect(self) -> bool:
        """Give the sink thread its connection; return False if there is none now."""
        if not self._connected:
            try:
                self._sink.start(self._state.owner.beside())
            except (TransientError, psycopg.Error) as error:
                self._errors += 1
                self._retry_at = clock.monotonic() + policy.backoff_s(self._errors, _RETRY_S_MAX)
                _log.warning("no connection for the views that lag", reason=str(error))
                return False
            self._connected = True
        return True

    def _units(self) -> list[Unit]:
        views = self._state.lagging_views
        return [*views, *self._state.needed(views)]

    # --- membership

    def look(self) -> None:
        """Let the views lead that have reached the last batch taken."""
        state = self._state
        if self.busy:
            return
        self.slow.end(clock.monotonic())
        for view in self._to_catch_up():
            if view.processed == state.taken.txid and state.has_all([view]):
                view.turn(CursorState.LEADING)
                self._meeting = self._meeting.met()
                self._poke()  # a caller may wait for that

    def classify(self, outcome: Outcome, worked_s: float) -> None:
        """Let slow groups lag after a batch of the leading views.

        ``worked_s``: processing time of the batch.
        """
        writes, self._commits.writes = self._commits.writes, {}
        self.slow.classify(outcome, worked_s, writes)

    def dissolve(self) -> None:
        """Let slow groups lead that cannot lag any more; see ``SlowGroups``."""
        if self._future is None:
            self.slow.dissolve()


def _by_target(
    targets: Mapping[int, float], units: Iterable[Unit], positions: Sequence[int]
) -> dict[float, list[int]]:
    """Return, by latency target, those of ``positions`` at which units with that target stand."""
    found = defaultdict[float, set[int]](set)
    for unit in units:
        found[targets[unit.id]].add(unit.processed)
    at = {target: [p for p in positions if p in found[target]] for target in found}
    return {target: some for target, some in at.items() if some}


def _nothing() -> None:
    """Do nothing: there is no connection to interrupt."""
