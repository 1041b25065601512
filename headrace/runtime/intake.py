"""What is done with a batch that was taken from the stream: recorded, processed, handed on.

Views that cannot process it stop at the one before; the others do not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from headrace import clock
from headrace.collections.plan import PhysicalPlan
from headrace.errors import BugError, HeadraceError, Interrupted, OwnerGone, RightEnded
from headrace.forwarder.batcher import Batch
from headrace.kernels.pgoutput import Decoder
from headrace.process import faults
from headrace.runtime import positions
from headrace.runtime.batches import Altered, Outcome, Processor
from headrace.runtime.book import Book
from headrace.runtime.columns import Types, types_of
from headrace.runtime.commits import Commits
from headrace.runtime.hosts import Hosts
from headrace.runtime.incoming import Frames, StreamFrames
from headrace.runtime.jobs import CommitJob, ViewPart
from headrace.runtime.leaving import Leaving
from headrace.runtime.positions import BatchRecord, Position
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.runtime.watch import Watch

_ROOM_S: Final = 1.0


class Intake:
    """The processing phase; all but ``at_work`` on the engine's thread."""

    def __init__(
        self,
        book: Book,
        watch: Watch,
        leaving: Leaving,
        commits: Commits,
        hosts: Hosts,
        drain: Callable[[], None],
    ) -> None:
        self._book = book
        self._watch = watch
        self._leaving = leaving
        self._commits = commits
        self._hosts = hosts
        self._drain = drain
        self._decoder = Decoder()
        self._plans: list[PhysicalPlan] = []
        self._types: Types = {}
        """Of what the plans read: how the columns of changes are parsed."""
        self._processor = Processor(
            book.settings, book.suspects, watch.altered, book.evaluators, book.grants
        )
        self.at_work: Final = self._processor.at_work
        """See there; for any thread."""
        self.works: Final = self._processor.works
        """Likewise."""

    def rewind(self) -> None:
        """The stream begins anew, and describes its tables again."""
        self._decoder = Decoder()

    def close(self) -> None:
        """End the threads."""
        self._processor.close()

    def beside(self, altered: Altered) -> Processor:
        """Another processor, which shares the pool of this one; ``altered``: see there."""
        book = self._book
        return Processor(
            *(book.settings, book.suspects, altered, book.evaluators, book.grants),
            self._processor.pool,
        )

    def process(self, batch: Batch) -> Outcome:
        """The processing phase: the dataflows; what comes out goes to the sink thread."""
        book, began_s = self._book, clock.monotonic()
        txid = batch.txid if batch.txid is not None else book.next_txid
        careful = book.suspects.careful(txid)
        if careful:
            self._drain()
        attempt = book.pipeline.begin(txid)
        record = self.record(txid, attempt, batch)
        faults.point(faults.BATCH_RECORDED)
        book.retained.put(record, batch)
        faults.point(faults.BATCH_KEPT)
        behind = self._behind(txid)
        here = [view for view in behind if not view.placed]
        instant = record.commit_time_us
        late = self._late(txid)
        away = [*(view for view in behind if view.placed), *late]
        needed = [s for s in book.needed(behind) if s.id not in {part.id for part in late}]
        side = book.side
        aside = book.aside
        plans = [unit.own for unit in (*needed, *late, *behind, *book.needed(aside), *aside)]
        if plans != self._plans:  # the same ones, as a rule
            self._plans, self._types = plans, types_of(plans)
        frames = StreamFrames(
            batch, self._decoder, txid, attempt, self._watch, instant, self._types
        )
        if side.groups:
            frames.pass_on.append(partial(side.put, txid, attempt, batch.oldest_us))
        outcome = self._run(here, away, frames, needed)
        if side.groups:
            side.close(frames, batch.end_lsn, batch.transactions)
        faults.point(faults.COLLECTIONS_DONE)
        job = self.finished(
            *(outcome, behind, [*needed, *late], batch.end_lsn, batch.transactions),
            began_s=began_s,
        )
        book.taken = Position(txid, max(batch.end_lsn, book.taken.lsn))
        book.pipeline.processed(job)
        if careful:
            self._drain()
        return outcome

    def _run(
        self, here: list[View], away: list[Unit], frames: StreamFrames, needed: list[Shared]
    ) -> Outcome:
        if not away:
            return self._processor.run(here, frames, needed)
        crew = self._hosts.begin(away, frames)
        frames.pass_on.append(crew.put)
        try:
            return self._processor.run(here, frames, needed, crew)
        except BaseException:
            crew.abort()
            raise

    def finished(
        self,
        outcome: Outcome,
        views: Sequence[View],
        needed: Sequence[Shared],
        end_lsn: int,
        transactions: int,
        *,
        began_s: float = 0.0,
    ) -> CommitJob:
        """What is to be written of what was processed; those who have failed stop."""
        if outcome.failed:
            self._stop_failed(outcome)
        frames = outcome.frames
        parts = [
            ViewPart.of(view, outcome.diffs.get(view.id), self._watch.relied_on)
            for view in views
            if view.processed == frames.txid
        ]
        return CommitJob(
            *(frames.txid, frames.attempt, end_lsn, transactions, frames.instant, tuple(parts)),
            tuple(shared.id for shared in needed if shared.processed == frames.txid),
            sum(diffs.nbytes for diffs in outcome.diffs.values()),
            *(frames.oldest_us, began_s, clock.monotonic()),
        )

    def pass_time(self, instant: int) -> None:
        """A batch in which nothing happens but that it is ``instant`` now."""
        while not self._book.pipeline.room:
            self._commits.take(_ROOM_S)
        self.process(Batch(end_lsn=self._book.start_lsn, commit_time_us=instant))

    def record(self, txid: int, attempt: int, batch: Batch) -> BatchRecord:
        """Have it on record how a batch was cut, before anything is done with it."""
        book = self._book
        meta: positions.Meta = {}
        start = book.start_lsn
        before = book.records.get(txid - 1)
        # Time never goes back from one batch to the next, whatever the source's clock does.
        instant = max(batch.commit_time_us, before.commit_time_us if before else 0)
        record = book.records.record(
            meta, BatchRecord(txid, start, batch.end_lsn, instant, attempt)
        )
        if meta:
            # What a view that reads the clock was shown must be shown again: nothing else
            # would tell a batch's instant once its record is lost.
            book.db.put_meta(meta, sync=book.reads_clock)
        return record

    def _behind(self, txid: int) -> list[View]:
        """The views that take part in ``txid``, but for those that do so later, beside."""
        aside = self._book.side.groups
        out = [
            view
            for view in self._book.views.values()
            # Who has no states now will lack it.
            if view.live
            and view.processed < txid
            and view.store is not None
            and view.commit_group not in aside
        ]
        for view in out:
            if view.processed != txid - 1:
                raise BugError(f"view {view.id} is at txid {view.processed} when {txid} comes")
        return out

    def _late(self, txid: int) -> list[Shared]:
        """The parts of views that lack ``txid``, on other workers."""
        out = self._book.late(txid)
        for part in out:
            if part.processed != txid - 1:
                raise BugError(f"unit {part.id} is at txid {part.processed} when {txid} comes")
        return out

    def _stop_failed(self, outcome: Outcome) -> None:
        """Views that cannot process the batch stop at the one before."""
        book = self._book
        self._drain()
        for unit_id, error in outcome.failed.items():
            shared = book.subplans.get(unit_id)
            if shared is not None:
                self._stop_all(shared, book.views_of(shared), error, outcome.frames)
        for unit_id, error in outcome.failed.items():
            failed = book.views.get(unit_id)
            # One that is not live could not write an earlier txid, or has just failed.
            if failed is not None and failed.live:
                self._stop_all(failed, [failed], error, outcome.frames)

    def _stop_all(
        self, unit: Unit, views: Sequence[View], error: HeadraceError, frames: Frames
    ) -> None:
        """``views``, which need ``unit``, stop; interrupted ones are tried again."""
        judged = [self._leaving.judge(view, error) for view in views]
        final = [e for e in judged if not isinstance(e, Interrupted)]
        known = self._reason(unit, views, final[0] if final else error, frames)
        for view, own in zip(views, judged, strict=True):
            self._leaving.fail(view, own if isinstance(own, Interrupted) else known)

    def _reason(
        self, unit: Unit, views: Sequence[View], error: HeadraceError, frames: Frames
    ) -> HeadraceError:
        """Why ``views`` stop that need ``unit``: what was altered, before a row is blamed."""
        for view in views:
            known = self._watch.cause(view, error)
            # What somebody may not read any more is his own view's reason only.
            if known is not error and not isinstance(known, RightEnded | OwnerGone):
                unit.back(frames.txid)
                return known
        if unit.placed:
            unit.back(frames.txid)
            return error  # who has its states has looked for the row
        return self._processor.blame(unit, error, frames)
