"""The processing phase of a batch taken from the stream: record, process, hand to the sink.

A view that cannot process the batch stops at the one before; other views are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from headrace import clock
from headrace.errors import BugError, HeadraceError, Interrupted, OwnerGone, RightEnded
from headrace.forwarder.batcher import Batch
from headrace.kernels.pgoutput import Decoder
from headrace.process import bounds, faults
from headrace.runtime import positions
from headrace.runtime.batches import Outcome, Processor, ViewAlteration
from headrace.runtime.engine_state import EngineState
from headrace.runtime.incoming import Frames, StreamFrames
from headrace.runtime.jobs import CommitJob, ViewPart
from headrace.runtime.leading import LeadingUnits
from headrace.runtime.leaving import Leaving
from headrace.runtime.positions import BatchRecord, Position
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.runtime.watch import Watch
from headrace.runtime.worker_handles import WorkerHandles
from headrace.sql.history import XIDS_MAX


@dataclass(frozen=True, slots=True)
class CommitWaits:
    """Waits for commits of batches in flight, as the engine offers them to its parts.

    Meanwhile it runs commands that need not wait, and keeps queues within their memory.
    """

    next: Callable[[], None]
    """Wait for the next commit, or a moment."""
    drain: Callable[[], None]
    """See ``Engine.drain``."""
    quiesce: Callable[[Collection[int]], None]
    """See ``Engine.quiesce``."""


class Intake:
    """The processing phase; all but ``at_work`` and ``works`` is for the engine's thread."""

    def __init__(
        self,
        state: EngineState,
        watch: Watch,
        leaving: Leaving,
        leading: LeadingUnits,
        hosts: WorkerHandles,
        waits: CommitWaits,
    ) -> None:
        self._state = state
        self._watch = watch
        self._leaving = leaving
        self._hosts = hosts
        self._leading: Final = leading
        self._waits = waits
        self._decoder = Decoder()
        self._processor = Processor(
            state.settings, state.suspects, watch.altered, state.evaluators, state.grants
        )
        self.at_work: Final = self._processor.at_work
        """See ``Processor.at_work``; for any thread."""
        self.works: Final = self._processor.works
        """See ``Processor.works``; for any thread."""

    def rewind(self) -> None:
        """Prepare for a new stream, which describes its tables again."""
        self._decoder = Decoder()
        self._leading.rewind()

    def close(self) -> None:
        """End the threads."""
        self._processor.close()

    def beside(self, altered: ViewAlteration) -> Processor:
        """Return a second processor on the same thread pool; ``altered``: see ``Processor``."""
        state = self._state
        return Processor(
            state.settings,
            state.suspects,
            altered,
            state.evaluators,
            state.grants,
            self._processor.pool,
        )

    def process(self, batch: Batch) -> Outcome:
        """Run the dataflows on a batch, and hand the result to the sink thread."""
        state = self._state
        while not state.pipeline.room:
            self._waits.next()  # a tick of the clock may have used it since the last look
        began_s = clock.monotonic()
        txid = batch.txid if batch.txid is not None else state.next_txid
        sequential = state.suspects.sequential(txid)
        if sequential:
            self._waits.drain()
        attempt = state.pipeline.begin(txid)
        record = self.record(txid, attempt, batch)
        faults.point(faults.BATCH_RECORDED)
        state.retained.put(record, batch)
        faults.point(faults.BATCH_KEPT)
        leading = self._leading
        leading.refresh()
        late = self._late(txid)
        behind, needed = self._apart(txid, late)
        here = [view for view in behind if not view.placed]
        instant = record.commit_time_us
        away = [*(view for view in behind if view.placed), *late]
        frames = StreamFrames(
            batch, self._decoder, txid, attempt, self._watch, instant, leading.types
        )
        outcome = self._hosts.batch(away).run(self._processor, here, frames, needed, leading)
        faults.point(faults.COLLECTIONS_DONE)
        woken = outcome.woken
        job = self.finished(
            outcome,
            sorted([*behind, *(u for u in woken if isinstance(u, View))], key=lambda v: v.id),
            [*needed, *late, *(u for u in woken if isinstance(u, Shared))],
            batch,
            began_s=began_s,
        )
        state.taken = Position(txid, max(batch.end_lsn, state.taken.lsn))
        state.pipeline.processed(job)
        if sequential:
            self._waits.drain()
        return outcome

    def finished(
        self,
        outcome: Outcome,
        views: Sequence[View],
        needed: Sequence[Shared],
        batch: Batch,
        *,
        began_s: float = 0.0,
    ) -> CommitJob:
        """Return the job that writes the processed views; stop the views that failed."""
        if outcome.failed:
            self._stop_failed(outcome)
        frames = outcome.frames
        xids: tuple[int, ...] = ()
        requests: tuple[str | None, ...] = ()
        parts = [
            ViewPart.of(view, outcome.diffs.get(view.id), self._watch.relied_on)
            for view in views
            if view.processed == frames.txid
        ]
        if any(p.kept for p in parts):
            xids = tuple(islice(frames.xids.values(), XIDS_MAX))
            if frames.requests:
                requests = tuple(map(frames.requests.get, islice(frames.xids, XIDS_MAX)))
        return CommitJob(
            frames.txid,
            frames.attempt,
            batch.end_lsn,
            batch.transactions,
            frames.instant,
            tuple(parts),
            tuple(s.id for s in needed if s.mark.txid < frames.txid <= s.processed),
            sum(map(bounds.size_of, outcome.diffs.values())),
            frames.oldest_us,
            batch.first_lsn,
            began_s,
            clock.monotonic(),
            xids,
            requests,
            alone=len(self._state.views) == 1,
        )

    def pass_time(self, instant: int) -> None:
        """Process an empty batch, which only moves the clock to ``instant``."""
        self.process(Batch(end_lsn=self._state.start_lsn, commit_time_us=instant))

    def record(self, txid: int, attempt: int, batch: Batch) -> BatchRecord:
        """Record how the batch is cut, before it is processed."""
        state = self._state
        meta: positions.Meta = {}
        start = state.start_lsn
        before = state.records.get(txid - 1)
        # Time never goes back between batches, even if the source's clock does.
        instant = max(batch.commit_time_us, before.commit_time_us if before else 0)
        record = state.records.record(
            meta, BatchRecord(txid, start, batch.end_lsn, instant, attempt)
        )
        if meta:
            # A view that reads the clock must get the same timestamp again, and only the
            # record has it.
            state.db.put_meta(meta, sync=state.reads_clock)
        return record

    def _apart(self, txid: int, late: Sequence[Shared]) -> tuple[list[View], list[Shared]]:
        """Return the leading views that are not in step and lack ``txid``, and such subplans.

        Units that lag process it later.
        """
        apart, aside = self._leading.apart, {part.id for part in late}
        views = [unit for unit in apart if isinstance(unit, View) and unit.processed < txid]
        for view in views:
            if view.processed != txid - 1:
                raise BugError(f"view {view.id} is at txid {view.processed} when {txid} comes")
        return views, [u for u in apart if isinstance(u, Shared) and u.id not in aside]

    def _late(self, txid: int) -> list[Shared]:
        """Return the parts on other workers that lack ``txid``."""
        out = self._state.late(txid)
        for part in out:
            if part.processed != txid - 1:
                raise BugError(f"unit {part.id} is at txid {part.processed} when {txid} comes")
        return out

    def _stop_failed(self, outcome: Outcome) -> None:
        """Stop the views that cannot process the batch at the one before."""
        state = self._state
        units = [unit for unit in map(state.unit, outcome.failed) if unit is not None]
        views = [view.id for unit in units for view in state.views_of(unit)]
        self._waits.quiesce([*outcome.failed, *views])
        for unit_id, error in outcome.failed.items():
            shared = state.subplans.get(unit_id)
            if shared is None:
                continue
            if outcome.failed.keys().isdisjoint(shared.feeds.values()):
                self._stop_all(shared, state.views_of(shared), error, outcome.frames)
            else:  # its views stop because of what it reads
                shared.back(outcome.frames.txid)
        for unit_id, error in outcome.failed.items():
            failed = state.views.get(unit_id)
            # A view that is not live failed at an earlier txid, or just now.
            if failed is not None and failed.live:
                self._stop_all(failed, [failed], error, outcome.frames)

    def _stop_all(
        self, unit: Unit, views: Sequence[View], error: HeadraceError, frames: Frames
    ) -> None:
        """Stop ``views``, which need ``unit``; interrupted ones are tried again."""
        judged = [self._leaving.classify(view, error) for view in views]
        final = [e for e in judged if not isinstance(e, Interrupted)]
        known = self._reason(unit, views, final[0] if final else error, frames)
        for view, own in zip(views, judged, strict=True):
            if isinstance(own, Interrupted):
                self._leaving.fail(view, own)
            elif isinstance(unit, Shared):
                self._leaving.fail(view, self._leaving.of_subplan(view, unit, known))
            else:
                self._leaving.fail(view, known)

    def _reason(
        self, unit: Unit, views: Sequence[View], error: HeadraceError, frames: Frames
    ) -> HeadraceError:
        """Return why ``views``, which need ``unit``, stop: altered definitions before a bad row."""
        for view in views:
            known = self._watch.cause(view, error)
            # A lost right of one view's owner is the reason of that view only.
            if known is not error and not isinstance(known, RightEnded | OwnerGone):
                unit.back(frames.txid)
                return known
        if unit.placed:
            unit.back(frames.txid)
            return error  # its worker has searched for the row already
        return self._processor.blame(unit, error, frames)
