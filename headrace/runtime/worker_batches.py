"""A worker's processing of batches, of units that lead and of units that lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace import errors
from headrace.collections import plan
from headrace.config import Settings
from headrace.errors import BugError, HeadraceError, Interrupted
from headrace.expressions.pool import Pool
from headrace.network.messages import (
    AskStats,
    BeginBatch,
    Commits,
    Export,
    StageDone,
    UnitDiffs,
    UnitRecord,
    Work,
    WriteSnapshot,
)
from headrace.network.port import FlightSession
from headrace.process.memory_reservations import GRANT_BYTES_MIN, Grants
from headrace.runtime.batches import Outcome, Processor
from headrace.runtime.crash_attribution import CrashAttribution
from headrace.runtime.positions import StateMark
from headrace.runtime.row_transfer import GivenUp, Inbox, SentFrames
from headrace.runtime.views import Unit
from headrace.state.rocks import RocksDatabase


@dataclass(slots=True)
class Placed(Unit):
    """A unit that is placed here."""

    owner: str = ""

    @classmethod
    def of_record(cls, record: UnitRecord) -> Placed:
        """Return the unit that a record describes, without states."""
        made = cls(
            record.id,
            plan.from_json(record.plan),
            record.settings,
            record.start_lsn,
            record.owner,
            limits=record.limits,
        )
        made.feed_on(record.feeds)
        return made

    @property
    def session_owner(self) -> str:
        """See ``View``."""
        return f"owner {self.owner}"


class WorkerBatches:
    """The batches of one worker; at most one of leading units and one of lagging units at a time.

    No unit is in both.
    """

    def __init__(
        self,
        settings: Settings,
        units: Mapping[int, Placed],
        db: RocksDatabase,
        suspects: CrashAttribution,
        evaluators: Pool,
        ask: Callable[[WriteSnapshot | AskStats | Export], None],
    ) -> None:
        """Create it for ``units``; ``ask`` handles other requests that come amid a batch."""
        self._units = units
        self._db = db
        self._suspects = suspects
        self._evaluators = evaluators
        self._ask = ask
        self._leading, self._lagging = self._processors(settings)

    def _processors(self, settings: Settings) -> tuple[Processor, Processor]:
        """Return two processors on one thread pool."""
        grants = Grants(max(settings.memory.batches, GRANT_BYTES_MIN), GRANT_BYTES_MIN)
        given = (settings, self._suspects, _unaltered, self._evaluators, grants)
        leading = Processor(*given)
        return leading, Processor(*given, leading.pool)

    def log_in(self, settings: Settings) -> None:
        """Evaluate expressions with the login in ``settings``.  REQUIRES: no batch runs."""
        self.close()
        self._leading, self._lagging = self._processors(settings)

    def works(self) -> list[Work]:
        """Return what units are working on; callable from any thread."""
        return [*self._leading.works(), *self._lagging.works()]

    def close(self) -> None:
        """End the threads."""
        self._leading.close()

    def unit(self, unit_id: int) -> Placed:
        """Return a unit that has its states here.

        Raises:
            BugError: there is none.
        """
        unit = self._units.get(unit_id)
        if unit is None or unit.store is None:
            raise BugError(f"unit {unit_id} is not placed here")
        return unit

    def commit(self, commits: Commits) -> None:
        """Commit txids of units, on the thread that works on them."""
        for unit_id, txids in commits.items():
            unit = self._units.get(unit_id)
            if unit is None or unit.store is None:
                continue
            for txid in txids:
                unit.commit(StateMark(txid, 0, 0))

    def run(self, session: FlightSession, word: BeginBatch, inbox: Inbox) -> None:
        """Process a batch of leading units, and send the result."""
        self._run(session, word, inbox, self._leading)

    def run_lagging(self, session: FlightSession, word: BeginBatch, inbox: Inbox) -> None:
        """Process a batch of units that lag, and send the result; on their thread."""
        self.commit(word.commits)
        self._run(session, word, inbox, self._lagging)

    def _run(
        self, session: FlightSession, word: BeginBatch, inbox: Inbox, processor: Processor
    ) -> None:
        frames = SentFrames(word, inbox, self._ask)
        try:
            stages = [[self._behind(i, word) for i in stage] for stage in word.stages]

            def end(number: int, outcome: Outcome) -> None:
                for unit in stages[number]:
                    if unit.id in outcome.failed:
                        error = processor.blame(unit, outcome.failed[unit.id], frames)
                        outcome.failed[unit.id] = error
                    elif unit.id in outcome.diffs:
                        session.send_rows(UnitDiffs(unit.id), outcome.diffs[unit.id])
                done = self._done(word, stages[number], outcome)
                done.last = number == len(stages) - 1
                session.send(done)

            units = [unit for stage in stages for unit in stage]
            outcome = processor.run(units, frames, elsewhere=BatchStages(stages, frames, end))
            # Last of all: the next message about these units may come to another thread.
            end(len(stages) - 1, outcome)
        except GivenUp:
            session.send(self._done(word, trouble=_given_up()))
        except HeadraceError as error:
            trouble = error
            try:
                frames.rest()
            except GivenUp:
                trouble = _given_up()
            session.send(self._done(word, trouble=trouble))

    def _behind(self, unit_id: int, word: BeginBatch) -> Placed:
        """Return a unit that has processed all earlier txids that have anything for it."""
        unit, before = self.unit(unit_id), word.first - 1
        if unit.processed != word.last.get(unit_id, before):
            raise BugError(f"unit {unit_id} is at txid {unit.processed} when {word.first} comes")
        unit.processed = before
        return unit

    def _done(
        self,
        word: BeginBatch,
        units: Sequence[Unit] = (),
        outcome: Outcome | None = None,
        trouble: HeadraceError | None = None,
    ) -> StageDone:
        touched = outcome.touched if outcome is not None else set[int]()
        failed = outcome.failed if outcome is not None else {}
        return StageDone(
            word.txid,
            word.attempt,
            {u.id: u.bound.taken_s if u.bound else 0.0 for u in units if u.id in touched},
            {u.id: errors.to_wire(failed[u.id]) for u in units if u.id in failed},
            None if trouble is None else errors.to_wire(trouble),
            self._db.checkpoint_due,
            self._db.crowded,
            self._db.memory_bytes,
        )


@dataclass(frozen=True, slots=True)
class BatchStages:
    """The stages of a batch on this worker, which end when the coordinator has sent their rows."""

    of: Sequence[Sequence[Unit]]
    frames: SentFrames
    end: Callable[[int, Outcome], None]
    """Sends the results of a stage, by its number; not called for the last one."""
    units: Sequence[Unit] = ()

    def feeds(self, _: Unit) -> bool:
        """Return True: each unit has its stage."""
        return True

    def stages(self, _: Sequence[Unit], outcome: Outcome) -> Iterator[Sequence[Unit]]:
        """Yield the units of each stage, with what they read in ``outcome``; see ``Elsewhere``."""
        for number, units in enumerate(self.of):
            if number:
                self.frames.next_stage()
            outcome.sent.update(self.frames.fed)
            outcome.forgotten.update(self.frames.failed)
            yield units
            if number < len(self.of) - 1:
                self.end(number, outcome)


def _given_up() -> Interrupted:
    return Interrupted("the coordinator gave up the batch", sqlstate="57014")


def _unaltered(_: Sequence[Unit]) -> dict[int, HeadraceError]:
    """Return nothing: the coordinator checks for altered definitions."""
    return {}
