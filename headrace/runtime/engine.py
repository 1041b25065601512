"""The engine loop: rewind the stream, then pass each batch through three stages.

    engine thread:      take ─► record ─► dataflows ─┐        ┌─► marks, status, waiting
    sink thread:                                     └► write ┘
    checkpoint thread:                                            states ─► disk ─► confirm

Up to ``max_inflight_batches`` txids are in flight, that is taken and not yet committed.  Each view
processes them in order, and the sink thread commits them in order.  The sink's commit precedes
the checkpoint, and the checkpoint precedes the confirmation to the source.  This order makes a
kill at any point harmless (docs/ARCHITECTURE.md).

Every error that may be retried leads to a *rewind*: forget all uncommitted work, take ownership of
the views again, and stream from the oldest state, with recorded batches cut as before.  A view
skips the txids that it has; progress rows let the sink skip writes that were committed already.

All bookkeeping runs on the engine's thread; other threads hand over functions with ``submit``.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import ContinuityLost, HeadraceError, Interrupted, TransientError
from headrace.forwarder import policy
from headrace.forwarder.batcher import Batch
from headrace.network.messages import Work
from headrace.postgres import failures
from headrace.postgres.decoding_standby import StandbyUnavailable
from headrace.runtime.attaching import Attaching
from headrace.runtime.catching_up import CatchingUp, EngineCalls
from headrace.runtime.change_capture import ChangeCapture
from headrace.runtime.checkpoints import Checkpoints
from headrace.runtime.commits import Commits
from headrace.runtime.coverage import Coverage
from headrace.runtime.durability import Durability
from headrace.runtime.durable_units import DurableUnits
from headrace.runtime.engine_state import EngineState
from headrace.runtime.failover import SwitchStored
from headrace.runtime.intake import CommitWaits, Intake
from headrace.runtime.lateness import Lateness
from headrace.runtime.leaving import Leaving
from headrace.runtime.lifecycle import Lifecycle
from headrace.runtime.loading import Loading
from headrace.runtime.moving import Moving
from headrace.runtime.overload import OverloadDetector
from headrace.runtime.partitions import Partitions
from headrace.runtime.read_ahead import ReadAhead
from headrace.runtime.reconnects import Reconnects
from headrace.runtime.recovery import Recovery
from headrace.runtime.retries import Retries
from headrace.runtime.sharing import Sharing
from headrace.runtime.state_reuse import StateReuse
from headrace.runtime.ticker import Ticker
from headrace.runtime.waits import PositionWaits
from headrace.runtime.watch import Watch
from headrace.runtime.watermark import Watermark
from headrace.runtime.worker_handles import WorkerHandles
from headrace.runtime.writing import SinkThread

_log = structlog.get_logger(__name__)

_REGULATE_S: Final = 0.005
"""Seconds between slices of the memory regulator's work when there is no batch."""
_BACKOFF_S_MAX: Final = 10.0
_DRAIN_S: Final = 1.0
_SETTLES_S: Final = 1.0
"""Seconds for which commands wait for commits before a checkpoint may begin."""


@dataclass(frozen=True, slots=True)
class _Command:
    """Work that begins when no batch is in flight."""

    run: Callable[[], None]
    still: bool
    """Whether no checkpoint may be being written then, either."""


class Engine:
    """The engine of one database and all its views; see the module docstring."""

    def __init__(self, settings: Settings) -> None:
        self.state: Final = EngineState(settings, Checkpoints(settings, self._poke))
        self.running: Final = threading.Event()
        """Set once the first rewind has succeeded."""
        self._rested_at = 0.0
        """Monotonic time from which the next batch is taken without waiting for more."""
        self._worked_s = 0.0
        self._settles_since: float | None = None
        """Since when no batch has begun because commands wait; None: batches may begin."""
        self._inbox: deque[_Command] = deque()
        self._urgent: deque[Callable[[], None]] = deque()
        self._wake: Final = threading.Event()
        state, drain = self.state, self.drain
        self.watermark: Final = Watermark(state)
        self._sink: Final = SinkThread(
            state.pipeline,
            state.suspects,
            self._poke,
            watermark=self.watermark,
            coverage=Coverage(state, lambda: self._ticker.passed),
        )
        # Lowest layer first.
        self.durability: Final = Durability(state, self._rest_lagging)
        self.watch: Final = Watch(state)
        self.waits: Final = PositionWaits(state)
        self.taps: Final = ChangeCapture(state)
        self._lateness: Final = Lateness(state)
        self.hosts: Final = WorkerHandles(state, self._poke)
        self.sharing: Final = Sharing(state, self.durability, self.watch, self.hosts, drain)
        self._partitions: Final = Partitions(
            state, self.durability, self.sharing, self.hosts, drain
        )
        self.leaving: Final = Leaving(
            state,
            self.durability,
            self.watch,
            self.sharing,
            self.waits,
            self.hosts,
            drain,
            self.quiesce,
        )
        loading = Loading(
            state, self.durability, self.watch, self.sharing, self.leaving, self.hosts
        )
        self._commits: Final = Commits(state, self.leaving, self.waits, self.taps, self._lateness)
        self._intake: Final = Intake(
            state,
            self.watch,
            self.leaving,
            self._commits.leading,
            self.hosts,
            CommitWaits(self._take, drain, self.quiesce),
        )
        self.capacity: Final = OverloadDetector(state)
        self._catching_up: Final = self._lagging()
        go_on = self._catching_up.go_on
        self._healing: Final = Retries(state, self.leaving, go_on)
        self._returning: Final = Reconnects(state, loading, self.leaving, go_on, self.hosts.lose)
        self._ahead: Final = ReadAhead(state, self._intake.record)
        self._ticker: Final = Ticker(state, self._intake.pass_time, self._catching_up.slow.lag)
        self._recovery: Final = Recovery(
            state, self.durability, self.sharing, loading, self.leaving
        )
        self.attaching: Final = Attaching(state, self.durability, self.sharing, drain)
        self.lifecycle: Final = Lifecycle(
            state, loading, self.leaving, self.waits, self.taps, self._ticker.force, go_on
        )
        self.moving: Final = Moving(state, loading, self.lifecycle, self.durability)
        self.keeping: Final = StateReuse(state, self.lifecycle, self.durability)
        self.durable_units: Final = DurableUnits(state, self.durability)

    def _lagging(self) -> CatchingUp:
        return CatchingUp(
            self.state,
            self._intake,
            self._commits,
            self.taps,
            self._lateness,
            self.watch,
            EngineCalls(
                self.hosts,
                self._on_engine,
                self._sink.admit,
                self.leaving.fail,
                self._poke,
                self.capacity.lagged,
            ),
        )

    # --- for other threads

    def submit(
        self, work: Callable[[], Any], *, quiet: bool = True, still: bool = False
    ) -> Future[Any]:
        """Run ``work`` on the engine's thread, between two batches.

        With ``quiet``, all batches in flight are committed first.  Other work waits neither for
        that nor for quiet work in the queue.  With ``still``, quiet work also begins only when no
        checkpoint is being written, so that no view waits for the disk because of it.
        """
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except psycopg.Error as error:
                future.set_exception(failures.classify(error))
            except Exception as error:  # noqa: BLE001  the caller gets it
                future.set_exception(error)

        if quiet:
            self._inbox.append(_Command(run, still))
        else:
            self._urgent.append(run)
        self._poke()
        return future

    def doing(self) -> str | None:
        """Return a description of what commands wait for now; callable from any thread."""
        busy = self._intake.at_work() or self._catching_up.at_work()
        if busy is None:
            away = self.hosts.at_work()
            if away is not None:
                return away
            if self.durability.begins_at == math.inf:
                return "a checkpoint"
            return "rows to be written" if self.state.pipeline.flights() else None
        unit_id, seconds = busy
        unit = self.state.unit(unit_id)
        views = [] if unit is None else self.state.views_of(unit)
        names = ", ".join(view.target.shown for view in views)
        return f"a batch of view {names}, {seconds:.0f} s" if names else "a batch"

    def works(self) -> list[Work]:
        """Return what units are working on, here and on other workers; callable from any thread."""
        return [*self._intake.works(), *self._catching_up.works(), *self.hosts.works()]

    @property
    def writes(self) -> tuple[int, int, float] | None:
        """ID of the view being written, its number of rows, and seconds so far; for any thread."""
        return self._sink.writes

    def unpublishing(self, entries: Collection[int]) -> None:
        """Make the engine read the catalog before it processes the next batch; any thread.

        ``entries``: OIDs of the pg_publication_rel rows that are about to be removed.
        """
        self.watch.withdrawn.update(entries)
        self.watch.due = 0.0
        self._poke()

    def interrupt(self, view_id: int) -> None:
        """Interrupt a view's current batch, because a command waits to stop it; any thread."""
        view = self.state.views.get(view_id)
        if view is not None:
            self.hosts.interrupt(view)
        bound = view.bound if view is not None else None
        if bound is not None and bound.inside:
            bound.cancel(Interrupted("the view was interrupted by a command", sqlstate="57014"))

    def stop(self) -> None:
        """Make ``run`` commit what is in flight, write a checkpoint, confirm, and return."""
        self.state.stopping = True
        self.state.suspects.close()
        self._poke()

    # --- the loop

    def run(self) -> None:
        """Run until ``stop``; raise errors that no retry can repair."""
        failures, state = 0, self.state  # failures since the stream last began
        try:
            self._recovery.open()
            while not state.stopping:
                try:
                    if state.stream is None:
                        self.drain()
                        self._rewind()
                        self.running.set()
                        failures = 0
                    self._cycle()
                except SwitchStored as error:
                    _log.warning("the engine starts again", reason=error.message)
                    return
                except ContinuityLost as error:
                    self._abandon(error)
                    self._recovery.lose(error)
                except (TransientError, psycopg.Error) as error:
                    known = _known(error)
                    if not isinstance(known, TransientError):
                        raise
                    if not self._awaits_standby(known):
                        self._abandon(known)
                    self._rest(policy.backoff_s(failures, _BACKOFF_S_MAX))
                    failures += 1
            self._finish()
        finally:
            self._close()

    def _cycle(self) -> None:
        state = self.state
        stream = state.stream
        assert stream is not None, "after a rewind"
        self._commits.take()
        self._catching_up.take()
        self.durability.end()
        settles = self._commands()
        # Also in a cycle that only moved the position, or let a view go on.
        self.waits.caught_up()
        self.taps.check()
        self.capacity.look(self._commits.written_s)
        self._lateness.look()
        if not self._catching_up.working:
            self.look_at_catalog()
            self._healing.enforce_budget()
            self._healing.retry()
            self.hosts.look()
            self._returning.look()
            self.sharing.join_ready()
        self._catching_up.dissolve()
        if state.stopping or state.stream is not stream:
            return  # a command or a retried view has asked for a rewind
        self.durability.end()
        if not self._inbox or self._catching_up.busy:
            self._catching_up.look()
            self._catching_up.step()
        due = min(self.durability.step(stream), self._catching_up.due)
        if not self._catching_up.working:
            due = min(due, self._healing.retry_at(), self._returning.due, self.watch.due)
            due = min(due, self.hosts.due)
            worked_s, self._worked_s = self._worked_s, 0.0
            if state.db.regulate(worked_s):
                due = min(due, clock.monotonic() + _REGULATE_S)
        self._ahead.step(stream)
        full, meeting_s = settles or not state.pipeline.room, self._catching_up.meeting_s()
        crowded = state.db.crowded or any(host.crowded for host in state.hosts.values())
        held = state.checkpoints.lagging or crowded
        wait = max(due - clock.monotonic(), 0.0)
        wait_s = policy.waits_s(wait, meeting_s, full=full, held=held)
        if wait_s is not None:
            began = clock.monotonic()
            self._commits.take(wait_s)
            if held:
                self.capacity.count_stall(clock.monotonic() - began)
            return
        if not stream.replaying:
            self._ticker.tick()
            due = min(due, self._ticker.due)
        batch = stream.take(
            max(due - clock.monotonic(), 0.0),
            rested_at=math.inf if state.pipeline.busy else self._rested_at,
            gather_s=policy.gather_s(state.latency_s, self._catching_up.longest_s()),
        )
        if batch is not None:
            self._process(batch)
        elif not stream.replaying:
            self._commits.idle(stream.batcher.idle_lsn)

    def _process(self, batch: Batch) -> None:
        try:
            self.look_at_catalog()
            if batch.txid is None:
                self._ticker.catch_up(batch.commit_time_us)
            begun = clock.monotonic()
            outcome = self._intake.process(batch)
            ended = clock.monotonic()
            self._worked_s = ended - begun
            self._rested_at = policy.rested_at(ended, self._worked_s)
        finally:
            batch.close()
        self.capacity.worked(outcome, self._worked_s)
        self._lateness.processed(outcome, self._worked_s)
        self._catching_up.classify(outcome, self._worked_s)

    def look_at_catalog(self) -> None:
        """Check what views rely on, if that is due; called between batches and before each one.

        A table may have left the publication before the last rows of the batch were committed.
        """
        if not self._catching_up.working:
            self.watch.poll(self.leaving.fail, self._partitions.follow)

    def _commands(self) -> bool:
        """Run the commands that wait, if nothing is in flight.

        Return whether no batch may begin until they have run.  Batches may while views that lag are
        worked on, or a command waits for a checkpoint: that can take long, and other views go on.
        """
        self._be_urgent()
        state, durability = self.state, self.durability
        while self._inbox and not self._catching_up.busy:
            now = clock.monotonic()
            command = self._inbox[0]
            if command.still and self._settles_since is None and state.checkpoints.writing:
                durability.begins_at = math.inf
                return False
            if state.pipeline.busy:
                if self._settles_since is None:
                    self._settles_since = now
                # Without one for long, queues would exceed their memory.
                durability.begins_at = self._settles_since + _SETTLES_S
                return True
            self._settles_since = None
            self._inbox.popleft().run()
        self._settles_since, durability.begins_at = None, 0.0
        return False

    def _on_engine(self, work: Callable[[], Any]) -> Any:
        """Return what ``work`` returns on the engine's thread; for other threads."""
        return self.submit(work, quiet=False).result()

    def _be_urgent(self) -> None:
        while self._urgent:
            self._urgent.popleft()()

    # --- verbs of the parts

    def drain(self) -> None:
        """Wait until everything in flight is committed.

        Raises:
            TransientError: a commit failed.
        """
        while not self._commits.taking and (self.state.pipeline.busy or self._catching_up.busy):
            self._take()

    def _rest_lagging(self) -> None:
        """Return when no thread works on views that lag."""
        self._catching_up.rest(self._be_urgent)

    def quiesce(self, units: Collection[int]) -> None:
        """Wait until everything in flight that concerns ``units`` (IDs) is committed.

        Views that lead do not wait for the batch of a view that lags.

        Raises:
            TransientError: a commit failed.
        """
        while not self._commits.taking and (
            self.state.pipeline.busy or not self._catching_up.concerned.isdisjoint(units)
        ):
            self._take()

    def _take(self) -> None:
        """Take what is finished, or wait for it for a moment."""
        self._be_urgent()
        self.durability.urgency.step()
        self._commits.take(_DRAIN_S)
        self._catching_up.take()

    def rewind_soon(self) -> None:
        """End the stream; the loop opens the next one where the views need it.

        Batches in flight are committed first.
        """
        state = self.state
        if state.stream is not None:
            state.last_commit = state.last_received
            state.stream.stop()
            state.stream = None

    def fail_batch(self, txid: int, caller: str | None) -> None:
        """Process a batch in flight and all later ones again (T-30).

        Raises:
            PrivilegeError: ``caller`` may not act as the engine's role.
            PrerequisiteError: the batch is not in flight.
        """
        self.state.owner.check_caller(caller)
        if self.state.pipeline.take_back(txid):
            self.rewind_soon()

    # --- trouble

    def _rewind(self) -> None:
        """Start the stream, from any state, with nothing in flight."""
        state = self.state
        start, again = self._recovery.stream()
        self._intake.rewind()
        attempts = {txid: record.attempt for txid, record in state.records.items()}
        state.pipeline.rewind(start.txid + 1, state.next_txid - 1, attempts)
        self._commits.passed = start.txid
        self.capacity.rewind()
        self._catching_up.rewind(start.txid)
        self._sink.start(state.owner)
        state.owner.announce()
        state.error = None
        state.story.add("rewind", txid=start.txid, lsn=start.lsn, batches=again)
        _log.info("stream started", txid=start.txid, lsn=start.lsn, replay=again)

    def _abandon(self, error: HeadraceError, *, entirely: bool = True) -> None:
        """End the stream after ``error``; ``entirely``: drop connections and uncommitted work."""
        state = self.state
        if state.error is None or state.error.message != error.message:
            _log.warning(
                "stream interrupted", reason=error.message, code=error.code, hint=error.hint
            )
        state.error = error
        state.reconnects += 1
        state.story.add("interrupted", reason=error.message)
        self.rewind_soon()
        if entirely:
            self._let_go()

    def _awaits_standby(self, error: TransientError) -> bool:
        """Keep the connections to the primary if only the standby of ``decode_from`` is away."""
        state = self.state
        if not isinstance(error, StandbyUnavailable) or state.connections is None:
            return False
        news = state.error is None or state.error.message != error.message
        self._abandon(error, entirely=False)
        try:
            self.drain()
            if self._recovery.loaded:
                self._sink.start(state.owner)
                state.owner.announce()
                if news:
                    self._recovery.tell(error)
        except (TransientError, psycopg.Error):
            self._let_go()
        return True

    def _let_go(self) -> None:
        """Abort what is in flight and close the connections, from any state."""
        state = self.state
        self._sink.leave()
        self._catching_up.abort(self._be_urgent)
        if state.opened is not None:
            state.checkpoints.give_up(state.opened)
        owner, state.connections = state.connections, None
        state.pipeline.abort(owner.interrupt if owner is not None else _nothing)
        if owner is not None:
            owner.close()
        for unit in state.units:
            unit.reset()

    def _rest(self, seconds: float) -> None:
        """Wait before the next attempt, while serving commands."""
        until = clock.monotonic() + seconds
        while not self.state.stopping:
            self._wake.clear()
            self._be_urgent()
            while self._inbox and not self._catching_up.busy:
                self.drain()
                self._inbox.popleft().run()
            left = until - clock.monotonic()
            if left <= 0 or self.state.stopping:
                return
            self._wake.wait(left)

    def _poke(self) -> None:
        self._wake.set()
        self.state.pipeline.wake()
        stream = self.state.stream
        if stream is not None:
            stream.batcher.poke()

    def _finish(self) -> None:
        """End cleanly: commit everything, make it durable, and confirm it to the source."""
        try:
            self.drain()
        except (TransientError, psycopg.Error) as error:
            _log.warning("stopped amid trouble", reason=str(error))
            self._let_go()
        if self.running.is_set():  # else it is not known which changes the views need
            self.durability.last()
        self.rewind_soon()

    def _close(self) -> None:
        state = self.state
        self.rewind_soon()
        self._let_go()
        state.pipeline.close()
        self._sink.close()
        self._catching_up.close()
        state.checkpoints.close()
        self.hosts.close()
        self._intake.close()
        state.evaluators.close()
        state.views.clear()
        state.holds.close()
        if state.opened is not None:
            state.opened.close()
            state.opened = None
        if state.storage is not None:
            state.storage.close()
            state.storage = None
        gone = TransientError("the worker is stopping", sqlstate="57P01")
        self.waits.give_up(gone)


def _known(error: HeadraceError | psycopg.Error) -> HeadraceError:
    """Classify a psycopg error; return a ``HeadraceError`` as it is."""
    if isinstance(error, HeadraceError):
        return error
    return failures.classify(error)


def _nothing() -> None:
    """Do nothing: there is no connection to interrupt."""
