"""The engine's loop: rewind, then batch after batch: process, write, checkpoint, confirm.

    stream ─► batcher ─► Frames ─► dataflows ─► result tables ─► checkpoint ─► confirm

The order of the last three is what makes a kill harmless at any point (architecture.md 4).
Everything that goes wrong and may be tried again ends in one place, *rewind*: forget what was
not checkpointed, own the views anew, and stream again from the least state, with the recorded
batches cut as they were.  A view skips the txids it has; a sink write that was already
committed is skipped too, because progress says so.

Everything here runs on one thread; others hand over functions by ``submit``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import psycopg
import structlog

from headrace import clock, pinned
from headrace.config import Settings
from headrace.errors import (
    BugError,
    ContinuityLost,
    HeadraceError,
    PrerequisiteError,
    SinkBlocked,
    StateDamaged,
    TransientError,
)
from headrace.forwarder import setup
from headrace.forwarder.batcher import Batch, Cut
from headrace.forwarder.stream import Identity, Stream
from headrace.kernels.pgoutput import Decoder
from headrace.runtime import batches, faults, lifecycle, positions
from headrace.runtime.coordinator import Coordinator, EmitBatch, EmitCommit
from headrace.runtime.ownership import Owner
from headrace.runtime.positions import Position, Record, StateMark
from headrace.runtime.story import Story
from headrace.runtime.views import View
from headrace.runtime.watch import Watch
from headrace.state.rocks import RocksDatabase

_log = structlog.get_logger(__name__)

_BACKOFF_S_MIN: Final = 0.2
_BACKOFF_S_MAX: Final = 10.0
_CHECK_S: Final = 1.0


class Engine:
    """All views of one database; see the module text."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        self.story: Final = Story()
        self.views: dict[int, View] = {}
        self.holds: dict[str, Position] = {}
        self.records: dict[int, Record] = {}
        self.position = Position(0, 0)
        self.confirmed = 0
        self.error: HeadraceError | None = None
        """Why the stream does not run now."""
        self.stream: Stream | None = None
        self.running = threading.Event()
        """Set once the first rewind has succeeded."""
        self.batches = 0
        self.reconnects = 0
        self._identity: Identity | None = None
        self._db: RocksDatabase | None = None
        self._owner: Owner | None = None
        self._last_pid: int | None = None
        self._decoder = Decoder()
        self._coordinator = Coordinator()
        self._processor = batches.Processor(settings)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._stopping = False
        self._confirm_at = 0.0
        self._check_at = 0.0
        self._asked = 0
        self.damage: StateDamaged | None = None
        """Why the state of earlier runs was set aside, if it was."""
        self.lifecycle = lifecycle.Lifecycle(self)
        self.watch = Watch(self)

    # --- for other threads

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Run ``work`` on the engine's thread, between two batches."""
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except psycopg.Error as error:
                future.set_exception(pinned.classify(error))
            except Exception as error:  # noqa: BLE001  it belongs to whoever asked
                future.set_exception(error)

        self._inbox.put(run)
        self._poke()
        return future

    def stop(self) -> None:
        """Finish the batch in hand, checkpoint, confirm, and return from ``run``."""
        self._stopping = True
        self._poke()

    # --- the loop

    def run(self) -> None:
        """Run until ``stop``; raises what no retry can mend."""
        pause = _BACKOFF_S_MIN
        self._open()
        try:
            while not self._stopping:
                try:
                    if self.stream is None:
                        self._rewind()
                        self.running.set()
                        pause = _BACKOFF_S_MIN
                    self._cycle()
                except ContinuityLost as error:
                    self._abandon(error)
                    self._lose(error)
                except (TransientError, psycopg.Error) as error:
                    known = (
                        error
                        if isinstance(error, HeadraceError)
                        else pinned.classify(error)
                    )
                    if not isinstance(known, TransientError):
                        raise
                    self._abandon(known)
                    self._rest(pause)
                    pause = min(pause * 2, _BACKOFF_S_MAX)
            self._finish()
        finally:
            self._close()

    @property
    def db(self) -> RocksDatabase:
        """The state database."""
        assert self._db is not None, "the engine runs"
        return self._db

    @property
    def owner(self) -> Owner:
        """The sink connection.

        Raises:
            TransientError: there is none now.
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
                hint=lifecycle.RESYNC,
            )
            aside = _set_aside(self.settings.state_dir)
            _log.error("state damaged", reason=str(error), set_aside=str(aside))
            self._read_state()

    def _read_state(self) -> None:
        self._db = RocksDatabase(self.settings.state_dir)
        self.records = positions.records(self.db)
        self.holds = positions.holds(self.db)
        self.confirmed = positions.get_confirmed(self.db)
        self.position = positions.get_position(self.db) or Position(0, 0)
        source = positions.get_source(self.db)
        if source is not None:
            self._identity = source[0]

    def _cycle(self) -> None:
        stream = self.stream
        assert stream is not None, "after a rewind"
        self._commands()
        self.watch.poll()
        self.lifecycle.enforce_budget()
        self.lifecycle.heal()
        if self._stopping or self.stream is not stream:
            return  # a command, or a view that healed, has asked for a rewind
        now = clock.monotonic()
        due = min(self._confirm_at, self.lifecycle.heal_at(), self.watch.due)
        batch = stream.batcher.take(max(due - now, 0.0))
        if batch is not None:
            try:
                self._process(batch)
            finally:
                batch.close()
        elif (
            not stream.batcher.replaying and stream.batcher.idle_lsn > self.position.lsn
        ):
            # Nothing is left before this position: views at the last txid are there.
            self.position = Position(self.position.txid, stream.batcher.idle_lsn)
        self._confirm_if_due(stream)

    def _commands(self) -> None:
        while True:
            try:
                work = self._inbox.get_nowait()
            except queue.Empty:
                return
            work()

    # --- rewind

    def rewind_soon(self) -> None:
        """End the stream; the loop opens the next one where the views need it."""
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
        for view in self.views.values():
            view.reset()
        cuts, start = self._plan_replay()
        stream = Stream(
            self.settings, self._owner.conn, start.lsn, cuts, self._identity
        )
        self.stream = stream
        if self._identity is None:
            self._identity = stream.identity
            meta: positions.Meta = {}
            positions.put_source(meta, stream.identity, self.settings.slot_name)
            self.db.checkpoint([], meta, sync=True)
        self._decoder = Decoder()
        self._coordinator = Coordinator(start.txid + 1)
        self.error = None
        self.story.add("rewind", txid=start.txid, lsn=start.lsn, batches=len(cuts))
        _log.info("stream started", txid=start.txid, lsn=start.lsn, replay=len(cuts))

    def _adopt_source(self) -> None:
        """Make sure of slot and publication; a new engine starts at the slot's position."""
        state = setup.ensure(self.owner.conn, self.settings)
        if self.position.lsn == 0:
            self.position = Position(self.position.txid, state.confirmed)
            self.confirmed = max(self.confirmed, state.confirmed)

    def _plan_replay(self) -> tuple[list[Cut], Position]:
        """Recorded batches that some live view lacks, and where the stream must start."""
        ends = {txid: record.end_lsn for txid, record in self.records.items()}
        for view in self.views.values():
            # The record may be lost with the machine's power; progress has the end as well.
            progress = view.progress
            if view.live and progress is not None and progress.txid > view.mark.txid:
                ends.setdefault(progress.txid, progress.lsn)
        live = [v.mark for v in self.views.values() if v.live]
        last = max([self.position.txid, *ends], default=0)
        behind = [m for m in live if m.txid < last]
        base = min((m.txid for m in behind), default=last)
        if not live:
            # Nobody needs the recorded batches; a record above the position has no effect.
            base = last
        lsn = min(map(self.covered, behind), default=self.position.lsn)
        if not behind and last > self.position.txid:
            lsn = max(self.position.lsn, ends[last])
        cuts = [Cut(t, end) for t, end in sorted(ends.items()) if t > base]
        if last > self.position.txid and not behind:
            self.position = Position(last, lsn)
        return cuts, Position(base, lsn)

    # --- one batch

    def _process(self, batch: Batch) -> None:
        (emit,) = self._coordinator.tick() or (None,)
        assert isinstance(emit, EmitBatch), "one batch is in flight at a time"
        # Replay may leap over txids that had no record because nobody lacked them.
        txid = batch.txid if batch.txid is not None else self._next_txid()
        if txid != emit.txid:
            self._coordinator = Coordinator(txid)
            (emit,) = self._coordinator.tick()
        assert isinstance(emit, EmitBatch), "a new coordinator starts with a batch"
        attempt = emit.attempt
        self._record(txid, batch)
        faults.point(faults.BATCH_RECORDED)
        behind = [v for v in self.views.values() if v.live and v.mark.txid < txid]
        frames = batches.Frames(
            batch, self._decoder, txid, attempt, self.watch.described
        )
        outcome = self._processor.run(behind, frames, txid, attempt)
        faults.point(faults.COLLECTIONS_DONE)
        (commit,) = self._coordinator.processed(txid, attempt)
        assert isinstance(commit, EmitCommit), "the only txid in flight is the next one"
        gone = self._write(behind, outcome, txid, attempt, batch)
        faults.point(faults.BEFORE_CHECKPOINT)
        self._checkpoint(behind, outcome, gone, txid, batch)
        faults.point(faults.CHECKPOINT_WRITTEN)
        self._coordinator.source_ready = False
        self._coordinator.committed(txid, attempt)
        self._coordinator.source_ready = True
        self.batches += 1
        for view_id, error in outcome.failed.items():
            self.lifecycle.fail(self.views[view_id], error)
        for view_id in gone:
            self.lifecycle.forget(view_id)
        self.lifecycle.caught_up()

    def _next_txid(self) -> int:
        return max(self.position.txid, max(self.records, default=0)) + 1

    def _record(self, txid: int, batch: Batch) -> None:
        known = self.records.get(txid)
        if known is not None:
            if known.end_lsn != batch.end_lsn:
                raise BugError(f"batch {txid} does not end where it was recorded")
            return
        record = Record(txid, self.position.lsn, batch.end_lsn, batch.commit_time_us)
        meta: positions.Meta = {}
        positions.put_record(meta, record)
        self.db.checkpoint([], meta, sync=False)
        self.records[txid] = record

    def _write(
        self,
        behind: list[View],
        outcome: batches.Outcome,
        txid: int,
        attempt: int,
        batch: Batch,
    ) -> list[int]:
        writing = []
        for view in behind:
            assert view.progress is not None, "live views are owned"
            # Crash table, row 2: the sink has this txid already, only the state is missing.
            if view.id not in outcome.failed and view.progress.txid < txid:
                writing.append(view)
        return batches.write(
            self.owner, writing, outcome, txid, attempt, batch.end_lsn,
            self.records[txid].commit_time_us,
        )  # fmt: skip

    def _checkpoint(
        self,
        behind: list[View],
        outcome: batches.Outcome,
        gone: list[int],
        txid: int,
        batch: Batch,
    ) -> None:
        meta: positions.Meta = {}
        stores = []
        for view in behind:
            if view.id in outcome.failed or view.id in gone:
                view.reset()
                continue
            assert view.progress is not None, "live views are owned"
            assert view.store is not None, "live views have state"
            stores.append(view.store)
            view.mark = StateMark(
                txid,
                max(batch.end_lsn, view.start_lsn),
                min(view.progress.txid, txid),
            )
            positions.put_view(meta, view.id, view.mark)
            self.lifecycle.taps.passed(
                view, txid, batch.end_lsn, batch.transactions,
                outcome.diffs.get(view.id),
            )  # fmt: skip
        if txid > self.position.txid:
            self.position = Position(txid, max(batch.end_lsn, self.position.lsn))
            positions.put_position(meta, self.position)
        self._trim(meta, outcome)
        self.db.checkpoint(stores, meta, sync=False)

    def _trim(self, meta: positions.Meta, outcome: batches.Outcome) -> None:
        """Forget records that nobody can ask for: all but the last before the least state."""
        needed = [
            v.mark.txid
            for v in self.views.values()
            if v.owned
            and not (
                v.id in outcome.failed
                and not isinstance(outcome.failed[v.id], SinkBlocked)
            )
        ]
        needed += [hold.txid for hold in self.holds.values()]
        least = min(needed, default=self.position.txid)
        for txid in [t for t in self.records if t < least]:
            del self.records[txid]
            positions.drop_record(meta, txid)

    # --- confirming

    def confirmable(self) -> int:
        """The position before which nobody needs the stream any more."""
        lsns = [self.position.lsn]
        lsns += [
            self.covered(view.mark)
            for view in self.views.values()
            if view.owned and view.mark.txid < self.position.txid
        ]
        lsns += [hold.lsn for hold in self.holds.values()]
        # A lower one would be ignored by the server, and mean a lost hold to us.
        return max(min(lsns), self.confirmed)

    def covered(self, mark: StateMark) -> int:
        """The position before which a view with this mark lacks nothing.

        Idle time after its last batch counts, for it may have been confirmed: the next batch's
        record says where that time ended.
        """
        if mark.txid >= self.position.txid:
            return self.position.lsn
        following = self.records.get(mark.txid + 1)
        return max(mark.lsn, following.start_lsn) if following else mark.lsn

    def _confirm_if_due(self, stream: Stream) -> None:
        now = clock.monotonic()
        asked = stream.asked != self._asked
        if now < self._confirm_at and not asked:
            return
        self._asked = stream.asked
        self._confirm_at = now + self.settings.feedback_interval_ms / 1000
        self._confirm(stream)
        if asked and stream.confirmed < stream.received and now >= self._check_at:
            # A server that stops waits for us to confirm everything; if we cannot (a hold, a
            # blocked view), ending the stream lets it go.  Its other connections are gone then.
            self._check_at = now + _CHECK_S
            self.owner.conn.execute("SELECT 1")

    def _confirm(self, stream: Stream) -> None:
        lsn = self.confirmable()
        if lsn <= stream.confirmed:
            return
        if lsn > self.confirmed:
            meta: positions.Meta = {}
            positions.put_position(meta, self.position)
            positions.put_confirmed(meta, lsn)
            # Everything written without sync before is on disk with it.
            self.db.checkpoint([], meta, sync=True)
            self.confirmed = lsn
        stream.confirm(lsn)
        faults.point(faults.FEEDBACK_SENT)

    # --- trouble

    def _abandon(self, error: HeadraceError) -> None:
        """Drop connections and everything that was not checkpointed."""
        if self.error is None or self.error.message != error.message:
            _log.warning("stream interrupted", reason=error.message, code=error.code)
        self.error = error
        self.reconnects += 1
        self.story.add("interrupted", reason=error.message)
        self.rewind_soon()
        if self._owner is not None:
            self._owner.close()
            self._owner = None
        for view in self.views.values():
            view.reset()

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
                    ContinuityLost(
                        error.message,
                        detail=error.detail,
                        hint="Drop the view and create it again.",
                    ),
                )
        # Nobody can use what it still has, and it may never get over it: a slot cannot
        # decode what was written while its publication was not there (E12).
        setup.drop_slot(conn, self.settings.slot_name)
        state = setup.ensure(conn, self.settings)
        self.position = Position(self._next_txid() - 1, state.confirmed)
        self.confirmed = state.confirmed
        self._identity = None
        meta: positions.Meta = {}
        meta |= {key: None for key in positions.hold_keys(self.holds)}
        for txid in self.records:
            positions.drop_record(meta, txid)
        self.holds.clear()
        self.records.clear()
        positions.put_position(meta, self.position)
        positions.put_confirmed(meta, self.confirmed)
        self.db.checkpoint([], meta, sync=True)

    def _rest(self, seconds: float) -> None:
        """Wait before the next try; commands are still served."""
        until = clock.monotonic() + seconds
        while not self._stopping:
            self._wake.clear()
            self._commands()
            left = until - clock.monotonic()
            if left <= 0:
                return
            self._wake.wait(left)

    def _poke(self) -> None:
        self._wake.set()
        stream = self.stream
        if stream is not None:
            stream.batcher.poke()

    def _finish(self) -> None:
        """A clean end: everything durable, and the source told."""
        if self.stream is not None:
            self._confirm(self.stream)
            self.stream.stop()
            self.stream = None

    def _close(self) -> None:
        self.rewind_soon()
        if self._owner is not None:
            self._owner.close()
            self._owner = None
        self._processor.close()
        self.views.clear()
        if self._db is not None:
            self._db.close()
            self._db = None
        gone = PrerequisiteError("the worker is stopping", sqlstate="57P01")
        self.lifecycle.give_up(gone)


def _set_aside(path: Path) -> Path:
    """Rename a damaged state database: nothing of it may be used, all of it may be looked at."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    return aside
