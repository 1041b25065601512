"""Handling of the sink thread's answers on the engine's thread: marks and positions move on."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.runtime.change_capture import ChangeCapture
from headrace.runtime.engine_state import EngineState
from headrace.runtime.jobs import Answer
from headrace.runtime.lateness import Lateness
from headrace.runtime.leading import LeadingUnits
from headrace.runtime.leaving import Leaving
from headrace.runtime.positions import Position
from headrace.runtime.views import Unit
from headrace.runtime.waits import PositionWaits


@dataclass(slots=True)
class Commits:
    """Answers of the pipeline; every method runs on the engine's thread."""

    _state: EngineState
    _leaving: Leaving
    _waits: PositionWaits
    _taps: ChangeCapture
    _lateness: Lateness
    leading: LeadingUnits = field(init=False)
    taking: bool = field(default=False, init=False)
    """Whether an answer is being handled; ``drain`` returns at once meanwhile."""
    passed: int = field(default=0, init=False)
    """Last txid whose answer was handled since the stream began, or the one it began after."""
    written_s: float = field(default=0.0, init=False)
    """Total seconds of writing, without those of lagging views."""
    writes: dict[str, float] = field(default_factory=dict, init=False)
    """Seconds of writing by commit group, since the reader last cleared them."""

    def __post_init__(self) -> None:
        self.leading = LeadingUnits(self._state, self._taps.has)

    def take(self, wait_s: float = 0.0) -> None:
        """Handle the commits so far; wait up to ``wait_s`` for the first."""
        for answer in self._state.pipeline.answers(wait_s):
            self.taking = True
            try:
                self._answer(answer)
            finally:
                self.taking = False

    def _answer(self, answer: Answer) -> None:
        """Move the marks of the views that have the txid; stop the views that could not take it."""
        state, job = self._state, answer.job
        self.written_s += sum(answer.seconds.values())
        for group, seconds in answer.seconds.items():
            self.writes[group] = self.writes.get(group, 0.0) + seconds
        moved = self._move(answer)
        if job.txid >= state.position.txid:
            # Before the position, which no unit in step may be behind.
            self.leading.committed(job.txid, job.lsn)
        if job.txid > state.position.txid:
            state.position = Position(job.txid, max(job.lsn, state.position.lsn))
        self._arrive()
        self.passed = job.txid
        if job.txid == state.position.txid:
            self.leading.join(moved)
        state.batches += 1
        self._stop_failed(answer)
        self.review()
        self._lateness.wrote(answer)

    def beside(self, answer: Answer) -> None:
        """Handle an answer for lagging views, which moves no position."""
        self.taking = True
        try:
            self._move(answer)
            self._stop_failed(answer)
            self.review()
            self._lateness.wrote(answer)
        finally:
            self.taking = False

    def _move(self, answer: Answer) -> list[Unit]:
        """Move the marks of the units that have the txid, and return them."""
        state, job = self._state, answer.job
        at, moved = Position(job.txid, job.lsn), list[Unit]()
        for part in job.parts:
            view = state.views.get(part.view_id)
            if view is None:
                continue
            view.progress = answer.progress.get(view.id, view.progress)
            # A view that failed has gone back already.
            left = view.id in answer.failed or view.id in answer.gone
            if left or view.processed < job.txid or view.progress is None or view.in_step:
                continue
            view.commit(view.mark_at(at))
            self._taps.passed(view, job, part.diffs)
            moved.append(view)
        state.gauges.committed(answer, {unit.id for unit in moved})
        for shared_id in job.shared:
            shared = state.subplans.get(shared_id)
            if shared is not None and shared.processed >= job.txid > shared.mark.txid:
                shared.commit(shared.mark_at(at))
                moved.append(shared)
        state.checkpoints.count()
        return moved

    def review(self) -> None:
        """Acquit the views that have committed, or loaded, all that workers died of."""
        self._state.suspects.review(self._committed)

    def _committed(self, unit_id: int) -> int | None:
        """Return the last txid that a unit has committed; None if no batch is processed for it."""
        unit = self._state.unit(unit_id)
        if unit is None or not any(view.live for view in self._state.views_of(unit)):
            return None
        return unit.mark.txid

    def _stop_failed(self, answer: Answer) -> None:
        """Stop the views that could not be written, and forget those that are gone."""
        state = self._state
        for view_id, error in answer.failed.items():
            if view_id in state.views:
                view = state.views[view_id]
                self._leaving.fail(view, self._leaving.classify(view, error))
        for view_id in answer.gone:
            self._leaving.forget(view_id)
        self._waits.caught_up()

    def idle(self, lsn: int) -> None:
        """Note that the source has nothing before ``lsn`` that was not taken."""
        state = self._state
        if lsn > state.taken.lsn:
            state.taken = Position(state.taken.txid, lsn)
            self._arrive()

    def _arrive(self) -> None:
        """Move the position over idle time if everything taken is committed."""
        state = self._state
        if state.taken.txid == state.position.txid:
            lsn = max(state.taken.lsn, state.position.lsn)
            state.position = Position(state.position.txid, lsn)
