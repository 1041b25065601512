"""The engine's loop: rewind, then batch after batch through three stages.

    engine thread:      take ─► record ─► dataflows ─┐        ┌─► marks, status, waiting
    sink thread:                                     └► write ┘
    checkpoint thread:                                            states ─► disk ─► confirm

Up to ``max_inflight_batches`` txids are between taken and committed; a view processes them, and
the sink thread commits them, strictly in order.  That the sink's commit precedes the checkpoint,
and the checkpoint the confirming, is what makes a kill harmless at any point (docs/ARCHITECTURE.md).

Everything that goes wrong and may be tried again ends in one place, *rewind*: forget what was
not committed, own the views anew, and stream again from the least state, with the recorded
batches cut as they were.  A view skips the txids it has; a sink write that was already
committed is skipped too, because progress says so.

All bookkeeping is done on the engine's thread; others hand over functions by ``submit``.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import (
    RESYNC,
    BugError,
    ContinuityLost,
    HeadraceError,
    Interrupted,
    OwnerGone,
    RightEnded,
    StateDamaged,
    TransientError,
)
from headrace.expressions.pool import Pool
from headrace.forwarder.batcher import Batch
from headrace.forwarder.stream import Identity, Stream
from headrace.kernels.pgoutput import Decoder
from headrace.postgres import failures
from headrace.postgres import slot as setup
from headrace.process import faults
from headrace.runtime import batches, lifecycle, positions, replay
from headrace.runtime.checkpoints import Checkpoints
from headrace.runtime.durability import Durability
from headrace.runtime.holds import Holds
from headrace.runtime.jobs import Answer, Job, Part
from headrace.runtime.ownership import Owner
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.positions import Position, Record, StateMark
from headrace.runtime.sharing import Sharing
from headrace.runtime.story import Story
from headrace.runtime.suspects import Suspects
from headrace.runtime.ticker import Ticker
from headrace.runtime.views import Unit, View
from headrace.runtime.watch import Watch
from headrace.runtime.writing import SinkThread
from headrace.state.rocks import RocksDatabase

_log = structlog.get_logger(__name__)

_REGULATE_S: Final = 0.005
"""Between slices of the memory regulator's work when there is no batch."""
_BACKOFF_S_MIN: Final = 0.2
_BACKOFF_S_MAX: Final = 10.0
_DRAIN_S: Final = 1.0


class Engine:
    """All views of one database; see the module text."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        self.story: Final = Story()
        self.views: dict[int, View] = {}
        self.holds: Final = Holds()
        self.records = positions.Records()
        self.position = Position(0, 0)
        """What is committed."""
        self.confirmed = 0
        self.error: HeadraceError | None = None
        """Why the stream does not run now."""
        self.stream: Stream | None = None
        self.running = threading.Event()
        """Set once the first rewind has succeeded."""
        self.batches = 0
        self.reconnects = 0
        self.damage: StateDamaged | None = None
        """Why the state of earlier runs was set aside, if it was."""
        self.pipeline: Final = Pipeline(settings.max_inflight_batches)
        self.checkpoints: Final = Checkpoints(settings, self._poke)
        self._identity: Identity | None = None
        self._db: RocksDatabase | None = None
        self._owner: Owner | None = None
        self._last_pid: int | None = None
        self._decoder = Decoder()
        self.suspects: Final = Suspects(settings.run_dir)
        self._sink: Final = SinkThread(self.pipeline, self.suspects, self._poke)
        self.watch = Watch(self)
        self.evaluators: Final = Pool(settings.eval_connections_max)
        self._processor = batches.Processor(
            settings, self.suspects, self.watch.altered, self.evaluators
        )
        self._taken = Position(0, 0)
        """What is taken from the stream: committed, or in flight."""
        self._inbox: deque[Callable[[], None]] = deque()
        self._urgent: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._answering = False
        self.lifecycle = lifecycle.Lifecycle(self)
        self.sharing: Final = Sharing(self)
        self.durability: Final = Durability(self)
        self.ticker: Final = Ticker(self)

    # --- for other threads

    def submit(self, work: Callable[[], Any], *, quiet: bool = True) -> Future[Any]:
        """Run ``work`` on the engine's thread, between two batches.

        If ``quiet``, what is in flight is committed first; other work does not wait for that,
        nor for quiet work that does.
        """
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except psycopg.Error as error:
                future.set_exception(failures.classify(error))
            except Exception as error:  # noqa: BLE001  it belongs to whoever asked
                future.set_exception(error)

        (self._inbox if quiet else self._urgent).append(run)
        self._poke()
        return future

    def doing(self) -> str | None:
        """What commands wait for now, in words for whoever waits; from any thread."""
        busy = self._processor.at_work()
        if busy is None:
            return "rows to be written" if self.pipeline.flights() else None
        unit_id, seconds = busy
        shared = self.sharing.subplans.get(unit_id)
        views = (
            [self.views.get(unit_id)]
            if shared is None
            else (self.sharing.views_of(shared))
        )
        names = ", ".join(view.target.shown for view in views if view is not None)
        return f"a batch of view {names}, {seconds:.0f} s" if names else "a batch"

    def interrupt(self, view_id: int) -> None:
        """Have a view that is at work give up, for somebody waits to stop it; any thread."""
        view = self.views.get(view_id)
        bound = view.bound if view is not None else None
        if bound is not None and bound.inside:
            bound.cancel(
                Interrupted("the view was interrupted by a command", sqlstate="57014")
            )

    def stop(self) -> None:
        """Finish what is in flight, checkpoint, confirm, and return from ``run``."""
        self._stopping = True
        self.suspects.close()
        self._poke()

    @property
    def stopping(self) -> bool:
        """Whether the engine is to end."""
        return self._stopping

    # --- the loop

    def run(self) -> None:
        """Run until ``stop``; raises what no retry can mend."""
        pause = _BACKOFF_S_MIN
        try:
            self._open()
            while not self._stopping:
                try:
                    if self.stream is None:
                        self.drain()
                        self._rewind()
                        self.running.set()
                        pause = _BACKOFF_S_MIN
                    self._cycle()
                except ContinuityLost as error:
                    self._abandon(error)
                    self._lose(error)
                except (TransientError, psycopg.Error) as error:
                    known = _known(error)
                    if not isinstance(known, TransientError):
                        raise
                    self._abandon(known)
                    self._rest(pause)
                    pause = min(pause * 2, _BACKOFF_S_MAX)
            self._finish()
        finally:
            self._close()

    @property
    def units(self) -> list[Unit]:
        """Views, and the subplans that they share."""
        return [*self.views.values(), *self.sharing.subplans.values()]

    @property
    def db(self) -> RocksDatabase:
        """The state database."""
        assert self._db is not None, "the engine runs"
        return self._db

    @property
    def connected(self) -> bool:
        """Whether there are connections now."""
        return self._owner is not None

    @property
    def owner(self) -> Owner:
        """The connections.

        Raises:
            TransientError: there are none now.
        """
        if self._owner is None:
            raise TransientError("the source database cannot be reached now")
        return self._owner

    def _open(self) -> None:
        try:
            self._read_state()
        except StateDamaged as error:
            if self._db is not None:
                self._db.close()
            self.damage = StateDamaged(
                "the view's state was damaged",
                detail=error.detail,
                hint=RESYNC,
            )
            aside = _set_aside(self.settings.state_dir)
            _log.error("state damaged", reason=str(error), set_aside=str(aside))
            self._read_state()

    def _read_state(self) -> None:
        self._db = RocksDatabase(
            self.settings.state_dir, memory_bytes=self.settings.state_memory_bytes
        )
        self.records = positions.records(self.db)
        self.holds.load(self.db)
        self.confirmed = positions.get_confirmed(self.db)
        self.position = positions.get_position(self.db) or Position(0, 0)
        self.durability.position = self.position
        self.sharing.read(self._db)
        source = positions.get_source(self.db)
        if source is not None:
            self._identity = source[0]

    def _cycle(self) -> None:
        stream = self.stream
        assert stream is not None, "after a rewind"
        self._take_answers()
        self._commands()
        self.watch.poll()
        self.lifecycle.enforce_budget()
        self.lifecycle.heal()
        self.sharing.settle()
        if self._stopping or self.stream is not stream:
            return  # a command, or a view that healed, has asked for a rewind
        durability_at = self.durability.step(stream)
        due = min(
            durability_at, self.lifecycle.heal_at(), self.watch.due, self.ticker.due
        )
        if self.db.regulate():
            due = min(due, clock.monotonic() + _REGULATE_S)
        wait = max(due - clock.monotonic(), 0.0)
        if not self.pipeline.room or self.checkpoints.lagging:
            self._take_answers(wait)
            return
        if not stream.batcher.replaying:
            self.ticker.tick()
        batch = stream.batcher.take(wait)
        if batch is not None:
            try:
                if batch.txid is None:
                    self.ticker.catch_up(batch.commit_time_us)
                self._process(batch)
            finally:
                batch.close()
        elif not stream.batcher.replaying:
            self._idle(stream.batcher.idle_lsn)

    def _idle(self, lsn: int) -> None:
        """Nothing is left before ``lsn`` when all that was taken is committed."""
        if lsn > self._taken.lsn:
            self._taken = Position(self._taken.txid, lsn)
            self._arrive()

    def _arrive(self) -> None:
        """All that was taken may be committed now: the position counts idle time as well."""
        if self._taken.txid == self.position.txid:
            lsn = max(self._taken.lsn, self.position.lsn)
            self.position = Position(self.position.txid, lsn)

    def _commands(self) -> None:
        self._be_urgent()
        while self._inbox:
            self.drain()
            self._inbox.popleft()()

    def _be_urgent(self) -> None:
        while self._urgent:
            self._urgent.popleft()()

    # --- rewind

    def rewind_soon(self) -> None:
        """End the stream; the loop opens the next one where the views need it.

        What is in flight is committed before.
        """
        if self.stream is not None:
            self.stream.stop()
            self.stream = None

    def _rewind(self) -> None:
        """From any situation to a running stream at the least position a live view needs."""
        if self._owner is None:
            self._owner = Owner(self.settings, self._last_pid)
            self._last_pid = self._owner.pid
            self._adopt_source()
            self.lifecycle.load()
        for unit in self.units:
            unit.reset()
        cuts, start = replay.plan(self)
        stream = Stream(
            self.settings, self._owner.conn, start.lsn, cuts, self._identity
        )
        self.stream = stream
        if self._identity is None:
            self._identity = stream.identity
            meta: positions.Meta = {}
            positions.put_source(meta, stream.identity, self.settings.slot_name)
            self.db.put_meta(meta, sync=True)
        self._decoder = Decoder()
        self._taken = start
        attempts = {txid: record.attempt for txid, record in self.records.items()}
        self.pipeline.rewind(start.txid + 1, self._next_txid() - 1, attempts)
        self._sink.start(self._owner)
        self._owner.announce()
        self.error = None
        self.story.add("rewind", txid=start.txid, lsn=start.lsn, batches=len(cuts))
        _log.info("stream started", txid=start.txid, lsn=start.lsn, replay=len(cuts))

    def _adopt_source(self) -> None:
        """Make sure of slot and publication; a new engine starts at the slot's position."""
        state = setup.ensure(self.owner.conn, self.settings)
        if self.position.lsn == 0:
            self.position = Position(self.position.txid, state.confirmed)
            self.confirmed = max(self.confirmed, state.confirmed)
            # Durable before the first view: an engine that comes back must not take the slot's
            # position for its own, which another one may have moved on (H21).
            meta: positions.Meta = {}
            positions.put_position(meta, self.position)
            positions.put_confirmed(meta, self.confirmed)
            self.db.put_meta(meta, sync=True)
        self.holds.begin(Position(self.position.txid, self.confirmed))

    # --- one batch

    def _process(self, batch: Batch) -> None:
        """The processing phase: the dataflows; what comes out goes to the sink thread."""
        txid = batch.txid if batch.txid is not None else self._next_txid()
        careful = self.suspects.careful(txid)
        if careful:
            self.drain()
        attempt = self.pipeline.begin(txid)
        record = self._record(txid, attempt, batch)
        faults.point(faults.BATCH_RECORDED)
        behind = self._behind(txid)
        frames = batches.Frames(
            batch,
            self._decoder,
            txid,
            attempt,
            self.watch,
            record.commit_time_us,
        )
        needed = self.sharing.needed(behind)
        outcome = self._processor.run(behind, frames, txid, attempt, needed)
        faults.point(faults.COLLECTIONS_DONE)
        if outcome.failed:
            self._stop_failed(outcome, frames, txid)
        parts = [
            Part.of(view, outcome.diffs.get(view.id), self.watch.relied_on)
            for view in behind
            if view.processed == txid
        ]
        self._taken = Position(txid, max(batch.end_lsn, self._taken.lsn))
        self.pipeline.processed(
            Job(
                txid, attempt, batch.end_lsn, batch.transactions,
                record.commit_time_us, tuple(parts),
                tuple(shared.id for shared in needed if shared.processed == txid),
            )
        )  # fmt: skip
        if careful:
            self.drain()

    def _next_txid(self) -> int:
        return max(self.position.txid, self.records.last) + 1

    @property
    def _start_lsn(self) -> int:
        """Where the next batch begins."""
        if self._taken.txid == self.position.txid:
            # Idle time before a replay counts, the replay has not seen it.
            return max(self._taken.lsn, self.position.lsn)
        return self._taken.lsn

    def pass_time(self, instant: int) -> None:
        """A batch in which nothing happens but that it is ``instant`` now."""
        while not self.pipeline.room:
            self._take_answers(_DRAIN_S)
        self._process(Batch(end_lsn=self._start_lsn, commit_time_us=instant))

    def _record(self, txid: int, attempt: int, batch: Batch) -> Record:
        meta: positions.Meta = {}
        start = self._start_lsn
        before = self.records.get(txid - 1)
        # Time never goes back from one batch to the next, whatever the source's clock does.
        instant = max(batch.commit_time_us, before.commit_time_us if before else 0)
        record = self.records.record(
            meta, Record(txid, start, batch.end_lsn, instant, attempt)
        )
        if meta:
            # What a view that reads the clock was shown must be shown again: nothing else
            # would tell a batch's instant once its record is lost.
            self.db.put_meta(meta, sync=self.ticker.needed)
        return record

    def _behind(self, txid: int) -> list[View]:
        """The views that take part in ``txid``."""
        out = [v for v in self.views.values() if v.live and v.processed < txid]
        for view in out:
            if view.processed != txid - 1:
                raise BugError(
                    f"view {view.id} is at txid {view.processed} when {txid} comes"
                )
        return out

    def _stop_failed(
        self, outcome: batches.Outcome, frames: batches.Frames, txid: int
    ) -> None:
        """Views that cannot process ``txid`` stop at the one before."""
        self.drain()
        for unit_id, error in outcome.failed.items():
            shared = self.sharing.subplans.get(unit_id)
            if shared is not None:
                self._stop_all(
                    shared, self.sharing.views_of(shared), error, frames, txid
                )
        for unit_id, error in outcome.failed.items():
            failed = self.views.get(unit_id)
            # One that is not live could not write an earlier txid, or has just failed.
            if failed is not None and failed.live:
                self._stop_all(failed, [failed], error, frames, txid)

    def _stop_all(
        self,
        unit: Unit,
        views: Sequence[View],
        error: HeadraceError,
        frames: batches.Frames,
        txid: int,
    ) -> None:
        """``views``, which need ``unit``, stop; interrupted ones are tried again."""
        judged = [self.lifecycle.judge(view, error) for view in views]
        final = [e for e in judged if not isinstance(e, Interrupted)]
        known = self._reason(unit, views, final[0] if final else error, frames, txid)
        for view, own in zip(views, judged, strict=True):
            self.lifecycle.fail(view, own if isinstance(own, Interrupted) else known)

    def _reason(
        self,
        unit: Unit,
        views: Sequence[View],
        error: HeadraceError,
        frames: batches.Frames,
        txid: int,
    ) -> HeadraceError:
        """Why ``views`` stop that need ``unit``: what was altered, before a row is blamed."""
        for view in views:
            known = self.watch.cause(view, error)
            # What somebody may not read any more is his own view's reason only.
            if known is not error and not isinstance(known, RightEnded | OwnerGone):
                unit.back(txid)
                return known
        return self._processor.blame(unit, error, frames, txid)

    def fail_batch(self, txid: int, caller: str | None) -> None:
        """Process a batch that is in flight, and all later ones, again (T-30).

        Raises:
            PrivilegeError: ``caller`` may not act for us.
            PrerequisiteError: it is not in flight.
        """
        self.owner.check_caller(caller)
        if self.pipeline.take_back(txid):
            self.rewind_soon()

    # --- what has been committed

    def drain(self) -> None:
        """Wait until everything in flight is committed.

        Raises:
            TransientError: it cannot be.
        """
        while not self._answering and self.pipeline.busy:
            self._be_urgent()
            self._take_answers(_DRAIN_S)

    def _take_answers(self, wait_s: float = 0.0) -> None:
        for answer in self.pipeline.answers(wait_s):
            self._answering = True
            try:
                self._answer(answer)
            finally:
                self._answering = False

    def _answer(self, answer: Answer) -> None:
        """Move the marks of the views that have the txid; stop those that could not take it."""
        job = answer.job
        for part in job.parts:
            view = self.views.get(part.view_id)
            if view is None:
                continue
            view.progress = answer.progress.get(view.id, view.progress)
            # One that has failed since, or before, has gone back.
            left = view.id in answer.failed or view.id in answer.gone
            if left or view.processed < job.txid or view.progress is None:
                continue
            view.commit(
                StateMark(
                    job.txid,
                    max(job.lsn, view.start_lsn),
                    min(view.progress.txid, job.txid),
                )
            )
            self.lifecycle.taps.passed(
                view,
                job.txid,
                job.lsn,
                job.transactions,
                part.diffs,
                job.commit_time_us,
            )
        for shared_id in job.shared:
            shared = self.sharing.subplans.get(shared_id)
            if shared is not None and shared.processed >= job.txid > shared.mark.txid:
                lsn = max(job.lsn, shared.start_lsn)
                shared.commit(StateMark(job.txid, lsn, job.txid))
        if job.txid > self.position.txid:
            self.position = Position(job.txid, max(job.lsn, self.position.lsn))
        self._arrive()
        self.batches += 1
        self.checkpoints.count()
        self.suspects.passed(job.txid)
        for view_id, error in answer.failed.items():
            if view_id in self.views:
                view = self.views[view_id]
                self.lifecycle.fail(view, self.lifecycle.judge(view, error))
        for view_id in answer.gone:
            self.lifecycle.forget(view_id)
        self.lifecycle.caught_up()

    # --- positions

    def confirmable(self) -> int:
        """The position before which nobody needs the stream any more, were all durable."""
        return max(self.holds.limit(self._needless()), self._confirmed_soon)

    def promise(self) -> int:
        """That position, which is about to be confirmed: a hold may come too late for it."""
        return self.holds.promise(
            Position(self.position.txid, self._needless()), self._confirmed_soon
        )

    @property
    def _confirmed_soon(self) -> int:
        """A lower one would be ignored by the server, and mean a lost hold to us."""
        return max(self.confirmed, self.checkpoints.confirming)

    def _needless(self) -> int:
        """The position before which no view needs the stream any more."""
        lsns = [self.position.lsn]
        lsns += [
            self.covered(view.mark)
            for view in self.views.values()
            if view.owned and view.mark.txid < self.position.txid
        ]
        return min(lsns)

    def covered(self, mark: StateMark) -> int:
        """The position before which a view with this mark lacks nothing.

        Idle time after its last batch counts, for it may have been confirmed: the next batch's
        record says where that time ended.
        """
        if mark.txid >= self.position.txid:
            return self.position.lsn
        following = self.records.get(mark.txid + 1)
        return max(mark.lsn, following.start_lsn) if following else mark.lsn

    def still(self) -> None:
        """Wait until no checkpoint is being written."""
        self.durability.end(wait=True)

    # --- trouble

    def _abandon(self, error: HeadraceError) -> None:
        """Drop connections and everything that is not committed."""
        if self.error is None or self.error.message != error.message:
            _log.warning("stream interrupted", reason=error.message, code=error.code)
        self.error = error
        self.reconnects += 1
        self.story.add("interrupted", reason=error.message)
        self.rewind_soon()
        self._let_go()

    def _let_go(self) -> None:
        """Give up what is in flight, and the connections; from any situation."""
        self._sink.leave()
        owner, self._owner = self._owner, None
        self.pipeline.abort(owner.interrupt if owner is not None else _nothing)
        if owner is not None:
            owner.close()
        for unit in self.units:
            unit.reset()

    def _lose(self, error: ContinuityLost) -> None:
        """The stream cannot go on: every view stops, and a new position is found."""
        _log.error("continuity lost", reason=error.message, detail=error.detail)
        self.story.add("continuity lost", reason=error.message)
        self._owner = Owner(self.settings, self._last_pid)
        self._last_pid = self._owner.pid
        conn = self._owner.conn
        self.lifecycle.load()
        for view in list(self.views.values()):
            if view.owned:
                self.lifecycle.fail(
                    view,
                    ContinuityLost(error.message, detail=error.detail, hint=RESYNC),
                )
        # Nobody can use what it still has, and it may never get over it: a slot cannot
        # decode what was written while its publication was not there (E12).
        setup.drop_slot(conn, self.settings.slot_name)
        state = setup.ensure(conn, self.settings)
        self.still()
        self.position = Position(self._next_txid() - 1, state.confirmed)
        self.durability.position = self.position
        self.confirmed = state.confirmed
        self._identity = None
        meta: positions.Meta = {}
        for txid in self.records:
            positions.drop_record(meta, txid)
        self.holds.lose(self.position)
        self.records.clear()
        positions.put_position(meta, self.position)
        positions.put_confirmed(meta, self.confirmed)
        self.db.put_meta(meta, sync=True)

    def _rest(self, seconds: float) -> None:
        """Wait before the next try; commands are still served."""
        until = clock.monotonic() + seconds
        while not self._stopping:
            self._wake.clear()
            self._commands()
            left = until - clock.monotonic()
            if left <= 0 or self._stopping:
                return
            self._wake.wait(left)

    def _poke(self) -> None:
        self._wake.set()
        self.pipeline.wake()
        stream = self.stream
        if stream is not None:
            stream.batcher.poke()

    def _finish(self) -> None:
        """A clean end: everything committed and durable, and the source told."""
        try:
            self.drain()
        except (TransientError, psycopg.Error) as error:
            _log.warning("stopped amid trouble", reason=str(error))
            self._let_go()
        self.durability.finish()
        self.rewind_soon()

    def _close(self) -> None:
        self.rewind_soon()
        self._let_go()
        self.pipeline.close()
        self._sink.close()
        self.checkpoints.close()
        self._processor.close()
        self.evaluators.close()
        self.views.clear()
        self.holds.close()
        if self._db is not None:
            self._db.close()
            self._db = None
        gone = TransientError("the worker is stopping", sqlstate="57P01")
        self.lifecycle.give_up(gone)


def _known(error: HeadraceError | psycopg.Error) -> HeadraceError:
    """The error of our tree for what ended the stream."""
    if isinstance(error, HeadraceError):
        return error
    return failures.classify(error)


def _nothing() -> None:
    """There is no connection to interrupt."""


def _set_aside(path: Path) -> Path:
    """Rename a damaged state database: nothing of it may be used, all of it may be looked at.

    The last two are kept: who mends by itself may not fill the disk with them.
    """
    name = f"{path.name}.damaged-"
    ends = [found.name.removeprefix(name) for found in path.parent.glob(f"{name}*")]
    numbers = sorted(int(end) for end in ends if end.isdecimal())
    for number in numbers[:-1]:
        shutil.rmtree(path.with_name(f"{name}{number}"), ignore_errors=True)
    aside = path.with_name(f"{name}{max(numbers, default=0) + 1}")
    path.rename(aside)
    return aside
