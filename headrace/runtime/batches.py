"""Processing of one batch by the dataflows of the views."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa
import structlog

from headrace import clock
from headrace.collections.changes import TableChanges
from headrace.collections.dataflow import Dataflow
from headrace.config import Settings
from headrace.errors import (
    BugError,
    DefiniteFailure,
    HeadraceError,
    Interrupted,
    LimitExceeded,
    RowsLost,
    SessionsTerminated,
    StateDamaged,
    StructureChanged,
    TransientError,
)
from headrace.expressions.pool import Pool
from headrace.network.messages import Work
from headrace.process import bounds, faults, thread_pools
from headrace.process.bounds import Bound
from headrace.process.memory_reservations import Grants
from headrace.runtime import culprit
from headrace.runtime.crash_attribution import CrashAttribution
from headrace.runtime.edges import Edge, TableDiffs
from headrace.runtime.incoming import Frames
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.types import TimeEnd

_log = structlog.get_logger(__name__)

_LOOK_ROWS_MAX: Final = 1000
"""Largest batch for which a unit is asked whether it is concerned; larger ones concern most."""
_BRIEF_S: Final = 0.005
"""Seconds; a unit whose last transaction took less runs small ones without another thread."""
_FREE_BYTES: Final = 1 << 20
"""Bytes of a batch below which no memory is reserved for processing it."""
_BYTES_PER_BYTE: Final = 4
"""Bytes needed per byte of ingested rows: the rows, their keys, and the changes of state."""
LOST_MAX: Final = 3
"""Attempts of a batch that may lose rows on an edge; after that it is a bug."""


ViewAlteration = Callable[[Sequence[Unit]], dict[int, HeadraceError]]
"""Returns, by ID, the errors of those units whose definitions, or whose readers', were altered."""


@dataclass(slots=True)
class Outcome:
    """Result of a batch: diffs per view, and the views that failed."""

    frames: Frames
    rows: int = 0
    """Changes that the batch has had so far."""
    complete: bool = False
    """Whether the TimeEnd is on the edge, so that no more changes follow."""
    touched: set[int] = field(default_factory=set)
    """IDs of the units that took part."""
    woken: list[Unit] = field(default_factory=list)
    """Units that were resting."""
    remote_s: dict[int, float] = field(default_factory=dict)
    """Seconds of work, or of waiting for it, by unit, of those on other workers that took part."""
    diffs: dict[int, pa.RecordBatch] = field(default_factory=dict)
    failed: dict[int, HeadraceError] = field(default_factory=dict)
    """Errors by unit ID, also of shared subplans."""
    sent: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    """Diffs of shared subplans, by ID."""
    forgotten: dict[int, HeadraceError] = field(default_factory=dict)
    """Shared subplans whose earlier output is lost, by ID; units that need it fail."""

    @property
    def telling(self) -> set[int]:
        """IDs of the shared subplans that have rows for their readers, or an error."""
        sending = {at for at, sent in self.sent.items() if any(b.num_rows for b in sent)}
        return sending | self.failed.keys() | self.forgotten.keys()


class Elsewhere(Protocol):
    """The other workers' part of a batch (``RemoteBatch``, ``worker_batches.BatchStages``)."""

    @property
    def units(self) -> Sequence[Unit]:
        """Units placed on other workers."""

    def feeds(self, unit: Unit) -> bool:
        """Return whether a unit must wait for output from there."""

    def stages(self, waiting: Sequence[Unit], outcome: Outcome) -> Iterator[Sequence[Unit]]:
        """Add results to ``outcome``; yield those of the ``waiting`` units that may then end.

        Raises:
            TransientError: see ``Processor.run``.
        """


class Resting(Protocol):
    """Units that have processed all earlier batches, and rest while a batch does not concern them.

    ``LeadingUnits`` implements it; ``NONE_RESTING`` has no units.
    """

    @property
    def order(self) -> Sequence[Shared]:
        """All shared subplans that may take part, each after those that it reads."""

    @property
    def clocked(self) -> Sequence[View]:
        """Resting views that read the clock."""

    def reading(self, tables: Iterable[int], /) -> Sequence[Unit]:
        """Return the resting units that may read one of ``tables`` (OIDs)."""

    def readers(self, shared: Shared, /) -> Sequence[Unit]:
        """Return the resting units that read a subplan."""

    def named(self, unit_ids: Collection[int], /) -> Sequence[Unit]:
        """Return those of the units that rest."""

    def wake(self, units: Sequence[Unit], /) -> None:
        """Take units that take part out of the resting ones."""

    def passed(self, txid: int, /) -> None:
        """Note that all resting units have processed ``txid``."""


class _NoneResting:
    """No units rest."""

    order: Sequence[Shared] = ()
    clocked: Sequence[View] = ()

    def reading(self, tables: Iterable[int]) -> Sequence[Unit]:
        return ()

    def readers(self, shared: Shared) -> Sequence[Unit]:
        return ()

    def named(self, unit_ids: Collection[int]) -> Sequence[Unit]:
        return ()

    def wake(self, units: Sequence[Unit]) -> None:
        pass

    def passed(self, txid: int) -> None:
        pass


NONE_RESTING: Final[Resting] = _NoneResting()


@dataclass(slots=True)
class _Active:
    """The units of one batch: those given at its beginning, and those that were resting."""

    views: list[Unit]
    shared: dict[int, Shared]
    """Subplans that process the batch, by ID."""
    units: list[Unit]
    """All of them."""

    def add(self, unit: Unit) -> None:
        self.units.append(unit)
        if isinstance(unit, Shared):
            self.shared[unit.id] = unit
        else:
            self.views.append(unit)


class Processor:
    """Runs dataflows on a pool of threads whose number does not depend on the views."""

    def __init__(
        self,
        settings: Settings,
        suspects: CrashAttribution,
        altered: ViewAlteration,
        evaluators: Pool,
        grants: Grants,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Create it; ``altered`` is called before and after a batch touches units.

        ``pool``: the thread pool of another processor, to share.
        """
        self._grants = grants
        self._settings = settings
        self._evaluators = evaluators
        self._suspects = suspects
        self._altered = altered
        self.pool: Final = _pool() if pool is None else pool
        self.edge = Edge("source")
        self._began = 0.0
        self._looks: list[TableChanges] = []
        """Views of the change batches that are on the edge now."""
        self._working: dict[int, tuple[float, Bound]] = {}
        """Units at work, by ID: monotonic start time, and bound."""

    def at_work(self) -> tuple[int, float] | None:
        """Return the unit that has worked longest, and the batch's seconds so far; any thread."""
        working = sorted(self._working.copy().items(), key=lambda item: item[1][0])
        return (working[0][0], clock.monotonic() - self._began) if working else None

    def works(self) -> list[Work]:
        """Return what all units at work are doing; callable from any thread."""
        now, out = clock.monotonic(), []
        for unit_id, (since, bound) in self._working.copy().items():
            asked, asked_at = bound.asking or ("", None)
            asked_s = None if asked_at is None else now - asked_at
            out.append(Work(unit_id, now - since, asked, asked_s))
        return out

    def close(self) -> None:
        """End the threads of the pool."""
        self.pool.shutdown()

    def run(
        self,
        views: Sequence[Unit],
        frames: Frames,
        needed: Sequence[Shared] = (),
        elsewhere: Elsewhere | None = None,
        resting: Resting = NONE_RESTING,
    ) -> Outcome:
        """Process one batch for ``views``, each of which has processed all earlier ones.

        An error of one view (``Interrupted``, a bug, no memory) stays with that view.

        ``needed`` are the shared subplans that the views read, each after those that it reads.  A
        subplan that has processed the batch already contributes its stored output.  A view or
        subplan that fails for good is in ``failed``; the caller must reset its state.

        ``elsewhere``: the part that other workers process meanwhile; its results are included.
        ``resting``: other units that have processed all earlier batches; those that this batch
        concerns take part.

        Raises:
            TransientError: nothing is lost; the whole batch must be processed again.
        """
        outcome, txid = Outcome(frames), frames.txid
        self._began = clock.monotonic()
        behind = _behind(needed, outcome)
        active = _Active(list(views), {shared.id: shared for shared in behind}, [*behind, *views])
        sent = self._take_in(active, resting, outcome)
        if frames.instant:
            left = [v for v in active.views if v.temporal and v.id not in outcome.touched]
            left = [view for view in left if view.id not in outcome.failed]
            woken = [view for view in resting.clocked if _is_due(view, frames.instant)]
            due = [*(view for view in left if _is_due(view, frames.instant)), *woken]
            self._wake(woken, active, resting, outcome)
            self._enter(due, outcome)
        if not outcome.complete:
            self.edge.put(TimeEnd(txid, frames.attempt, sent))
        away = () if elsewhere is None else elsewhere.units
        with contextlib.ExitStack() as pinned:
            for shared in resting.order or needed:
                if shared.id in active.shared:
                    self._end([shared], outcome)
                    if shared.id in outcome.telling:
                        self._wake(resting.readers(shared), active, resting, outcome)
                elif shared.id not in outcome.failed and shared.processed >= txid:
                    readers = [
                        u.id for u in (*active.units, *away) if shared.id in u.feeds.values()
                    ]
                    if readers:  # else it may have forgotten the output
                        pinned.enter_context(shared.read_by(readers))
                        _recall(shared, outcome)
            # Views fed by other workers wait for them; all other views work meanwhile.
            waiting = [] if elsewhere is None else [v for v in active.views if elsewhere.feeds(v)]
            later = {view.id for view in waiting}
            self._end([view for view in active.views if view.id not in later], outcome)
            for ready in () if elsewhere is None else elsewhere.stages(waiting, outcome):
                self._end(ready, outcome)
        units = [*active.units, *away]
        unseen = [u for u in units if u.id in outcome.touched and not _will_look(u, outcome)]
        outcome.failed |= self._altered(unseen)
        for unit in units:
            if unit.id not in outcome.failed:
                unit.processed = txid
        resting.passed(txid)
        return outcome

    def _wake(
        self, units: Sequence[Unit], active: _Active, resting: Resting, outcome: Outcome
    ) -> None:
        """Have resting units take part from now on."""
        resting.wake(units)
        for unit in units:
            active.add(unit)
            outcome.woken.append(unit)
            self.edge.join(unit.id)

    def _take_in(self, active: _Active, resting: Resting, outcome: Outcome) -> int:
        """Have units ingest the batch's changes; return the number of rows."""
        sent, frames = 0, outcome.frames
        self.edge.open((unit.id for unit in active.units), frames.first - 1)
        for chunk, last in _chunks(frames):
            if frames.stopped:
                self._wake(resting.named(frames.stopped), active, resting, outcome)
            outcome.failed |= _only(frames.stopped, active.units)
            looks = self._looks = [TableChanges(frame.diffs.batch) for frame in chunk]
            left = [unit for unit in active.units if unit.id not in outcome.failed]
            read = resting.reading({frame.table_oid for frame in chunk})
            woken = [unit for unit in read if self._reached(unit, chunk, looks)]
            busy = [*(unit for unit in left if self._reached(unit, chunk, looks)), *woken]
            self._wake(woken, active, resting, outcome)
            if not busy:
                continue  # neither sent nor counted
            for frame in chunk:
                self.edge.put(frame)
                sent += frame.diffs.batch.num_rows
            outcome.rows = sent
            taken = {unit.id for unit in busy}
            for unit in active.units:
                if unit.id not in taken and unit.id not in outcome.failed:
                    self.edge.pull(unit.id)
            if last:
                self.edge.put(TimeEnd(frames.txid, frames.attempt, sent))
                outcome.complete = True
            self._enter(busy, outcome)
            for unit_id in outcome.failed:
                self.edge.leave(unit_id)
        self._looks = []
        return sent

    def _enter(self, units: Sequence[Unit], outcome: Outcome) -> None:
        """Have ``units`` begin the batch, if they have not, and ingest what is on the edge.

        Views that read no subplan end it in the same step if the batch is complete.
        """
        new = {unit.id for unit in units} - outcome.touched
        outcome.touched |= new
        outcome.failed |= self._altered([unit for unit in units if unit.id in new])

        def work(unit: Unit) -> None:
            self._ingest(new, outcome.frames, unit)
            if outcome.complete and isinstance(unit, View) and not unit.feeds:
                self._finish(unit, (), outcome)

        self._each([unit for unit in units if unit.id not in outcome.failed], work, outcome)
        for unit_id in outcome.failed:
            self.edge.leave(unit_id)

    def _end(self, units: Sequence[Unit], outcome: Outcome) -> None:
        """Have ``units`` end the batch, as all that they read is complete."""
        touched, telling = outcome.touched, outcome.telling
        fed = {
            unit.id: _fed(unit, outcome)
            for unit in (units if telling else ())
            if not telling.isdisjoint(unit.feeds.values())
        }
        left = [u for u in units if u.id not in outcome.failed and u.id not in outcome.diffs]
        woken = [u for u in left if fed.get(u.id) and u.id not in touched]
        if woken:
            self._enter(woken, outcome)

        def work(unit: Unit) -> None:
            self.edge.pull(unit.id)
            self._finish(unit, fed.get(unit.id, ()), outcome)

        ending = [u for u in left if u.id in touched and u.id not in outcome.failed]
        self._each(ending, work, outcome)

    def _finish(
        self, unit: Unit, fed: Sequence[tuple[str, pa.RecordBatch]], outcome: Outcome
    ) -> None:
        """Feed a unit what it reads of subplans, and end its batch."""
        frames, flow = outcome.frames, unit.flow(self._settings, self._evaluators)
        for node, diffs in fed:
            flow.feed(node, diffs)
        diffs = flow.end(frames.txid)
        if isinstance(unit, Shared):
            outcome.sent[unit.id] = [diffs]
            unit.send(frames.first, frames.txid, frames.attempt, frames.oldest_us, diffs)
        else:
            outcome.diffs[unit.id] = diffs
        # Before the sink's commit: a result whose state cannot be stored must not appear.
        unit.here.prepare()

    def _reached(
        self, unit: Unit, chunk: Sequence[TableDiffs], looks: Sequence[TableChanges]
    ) -> bool:
        """Return whether changes concern a unit; always true where it has many rows to take."""
        flow = unit.dataflow
        read = flow.tables if flow else {spec.table_oid for spec in unit.own.sources}
        mine = [(f, look) for f, look in zip(chunk, looks, strict=True) if f.table_oid in read]
        many = sum(frame.diffs.batch.num_rows for frame, _ in mine) > _LOOK_ROWS_MAX
        if not mine or flow is None or many:
            return bool(mine)
        try:
            return any(flow.reached(frame.table_oid, look) for frame, look in mine)
        except Exception:  # noqa: BLE001  the same error comes up in ``_ingest``, which is guarded
            return True

    def _ingest(self, new: set[int], frames: Frames, unit: Unit) -> None:
        flow = unit.flow(self._settings, self._evaluators)
        if unit.id in new:
            unit.begin(frames.txid)
            flow.begin(frames.txid, frames.instant)
        for frame in self.edge.pull(unit.id):
            if isinstance(frame, TableDiffs):
                faults.rows(unit.id, frame.diffs.batch)
                self._take_up(flow, frame.table_oid, frame.diffs.batch)

    def _take_up(self, flow: Dataflow, table_oid: int, batch: pa.RecordBatch) -> None:
        """Have ``flow`` ingest a batch; split a large one to fit the memory (E-24)."""
        made = next((look for look in self._looks if look.batch is batch), None)
        size = bounds.size_of(batch) if made is None else made.nbytes
        if size <= _FREE_BYTES:
            flow.ingest(table_oid, batch, made)
            return
        done, rows, row_bytes = 0, batch.num_rows, batch.nbytes * _BYTES_PER_BYTE // batch.num_rows
        while done < rows:
            with self._grants.ask((rows - done) * row_bytes, bounds.check) as granted:
                piece = batch.slice(done, max(granted // row_bytes, 1))
                flow.ingest(table_oid, piece)
            done += piece.num_rows

    def _each(self, units: Sequence[Unit], work: Callable[[Unit], None], outcome: Outcome) -> None:
        """Run ``work`` on every unit: slow units in parallel, brief ones in turn.

        Threads that compete for the interpreter lock cost more than brief work is worth.
        """
        txid = outcome.frames.txid

        def alone(unit: Unit) -> HeadraceError | None:
            with self._suspects.during(unit.id, txid):
                return self._guarded(work, unit)

        small = outcome.rows <= _LOOK_ROWS_MAX
        apart = [unit for unit in units if not (small and unit.brief)]
        if len(units) == 1 or self._suspects.sequential(txid):
            apart = []
        sent = {unit.id: self.pool.submit(alone, unit) for unit in apart}
        errors = self._in_turn([unit for unit in units if unit.id not in sent], work, txid)
        errors |= {unit_id: future.result() for unit_id, future in sent.items()}
        for view in units:
            error = errors[view.id]
            if isinstance(error, RowsLost) and outcome.frames.attempt >= LOST_MAX:
                outcome.failed[view.id] = BugError(
                    f"rows are lost in every attempt: {error.message}"
                )
                continue
            if isinstance(error, TransientError) and not isinstance(error, Interrupted):
                raise error
            if error is not None:
                outcome.failed[view.id] = error

    def _in_turn(
        self, units: Sequence[Unit], work: Callable[[Unit], None], txid: int
    ) -> dict[int, HeadraceError | None]:
        """Run ``work`` on units one after the other, on this thread; return their errors."""
        if not units:
            return {}
        errors: dict[int, HeadraceError | None] = {}
        with self._suspects.in_turn() as mark:
            for unit in units:
                mark(unit.id, txid)
                errors[unit.id] = self._guarded(work, unit)
        return errors

    def _guarded(self, work: Callable[[Unit], None], unit: Unit) -> HeadraceError | None:
        bound = unit.bounded(self._settings)
        self._working[unit.id] = (clock.monotonic(), bound)
        try:
            with bound.applied():
                return _guarded(work, unit)
        finally:
            del self._working[unit.id]
            unit.brief = bound.taken_s < _BRIEF_S

    def blame(self, view: Unit, error: HeadraceError, frames: Frames) -> HeadraceError:
        """Return ``error`` with the source row that causes it, where one can be found.

        Views that read shared subplans are not searched.  Afterwards the state is that before the
        batch, or an earlier one.
        """
        with self._suspects.during(view.id, frames.txid):
            return self._blame(view, error, frames)

    def _blame(self, view: Unit, error: HeadraceError, frames: Frames) -> HeadraceError:
        everything, txid = frames.all(), frames.txid
        terminates = isinstance(error, SessionsTerminated)
        by_row = terminates or (
            isinstance(error, DefiniteFailure)
            and not isinstance(error, StateDamaged | StructureChanged | LimitExceeded)
        )
        view.back(txid)
        if everything is None or not by_row or view.id in frames.stopped or view.feeds:
            return error

        def fails(prefix: Sequence[TableDiffs]) -> bool:
            view.back(txid)
            if view.processed != frames.first - 1:
                return False  # the state went back further, so this try proves nothing
            try:
                view.begin(txid)
                flow = view.flow(self._settings, self._evaluators)
                flow.begin(txid, frames.instant)
                for frame in prefix:
                    flow.ingest(frame.table_oid, frame.diffs.batch)
                flow.end(txid)
            except SessionsTerminated:
                return True
            except LimitExceeded:
                raise
            except (DefiniteFailure, Interrupted):
                return True
            return False

        # One bound for all tries: on a row other than the culprit a function may never end.
        bound = Bound(view.bounded(self._settings).limits)
        try:
            with (
                bound.applied(),
                self._evaluators.search() if terminates else contextlib.nullcontext(),
            ):
                where = culprit.find(view.plan, everything, fails)
        except Exception as second:  # noqa: BLE001  the boundary of one view's dataflow
            _log.warning("culprit not found", view=view.id, reason=repr(second))
            return error
        finally:
            view.back(txid)
        if not where:
            return error
        return error.again(culprit=where)


def _chunks(frames: Frames) -> Iterator[tuple[list[TableDiffs], bool]]:
    """Yield each chunk, and whether it is known to be the last one, which small chunks are."""
    chunks = iter(frames)
    chunk = next(chunks, None)
    while chunk is not None:
        if sum(frame.diffs.batch.num_rows for frame in chunk) > _LOOK_ROWS_MAX:
            yield chunk, False
            chunk = next(chunks, None)
        else:
            following = next(chunks, None)
            yield chunk, following is None
            chunk = following


def _pool() -> ThreadPoolExecutor:
    """Start all threads at once, so that their number does not depend on the work (E-15)."""
    pool = ThreadPoolExecutor(thread_pools.BATCHES, "headrace-cpu")
    ready = threading.Barrier(thread_pools.BATCHES)
    for _ in range(thread_pools.BATCHES):
        pool.submit(ready.wait)
    return pool


def _only(errors: dict[int, HeadraceError], units: Sequence[Unit]) -> dict[int, HeadraceError]:
    return {unit.id: errors[unit.id] for unit in units if unit.id in errors}


def _behind(needed: Sequence[Shared], outcome: Outcome) -> list[Shared]:
    """Return the shared subplans that have not processed the batch."""
    txid = outcome.frames.txid
    out = [shared for shared in needed if shared.processed < txid]
    for shared in out:
        if shared.processed != outcome.frames.first - 1:
            outcome.failed[shared.id] = BugError(
                f"shared subplan {shared.id} is at txid {shared.processed} when {txid} comes"
            )
    return [shared for shared in out if shared.id not in outcome.failed]


def _recall(shared: Shared, outcome: Outcome) -> None:
    """Read from its queue what a shared subplan sent when it processed the batch."""
    frames = outcome.frames
    try:
        outcome.sent[shared.id] = shared.sent(frames.first, frames.txid)
    except TransientError:
        raise
    except HeadraceError as error:
        _log.exception("diffs of a shared subplan lost", subplan=shared.id)
        outcome.forgotten[shared.id] = error


def _fed(unit: Unit, outcome: Outcome) -> list[tuple[str, pa.RecordBatch]]:
    """Return what shared subplans send to a unit, by node; if one has failed, so does the unit."""
    out = []
    for node, feeder in unit.feeds.items():
        error = outcome.failed.get(feeder) or outcome.forgotten.get(feeder)
        if error is not None:
            outcome.failed.setdefault(unit.id, error)
            return []
        out += [(node, b) for b in outcome.sent.get(feeder, ()) if b.num_rows]
    return out


def _is_due(view: Unit, instant: int) -> bool:
    """Return whether time alone may change rows of a view that reads the clock."""
    try:
        return view.dataflow is None or view.dataflow.due(instant)
    except Exception:  # noqa: BLE001  the same error comes up when the batch ends, which is guarded
        return True


def _will_look(unit: Unit, outcome: Outcome) -> bool:
    """Return whether the sink checks the definitions of a view, because it writes rows."""
    diffs = outcome.diffs.get(unit.id)
    if not isinstance(unit, View) or diffs is None or unit.progress is None:
        return False
    return diffs.num_rows > 0 and unit.progress.txid < unit.processed + 1


def _guarded(work: Callable[[Unit], None], view: Unit) -> HeadraceError | None:
    """Run ``work`` and return its error, if any; log a bug, which stops only its view."""
    try:
        work(view)
    except TransientError as error:
        return error
    except HeadraceError as error:
        if isinstance(error, BugError):
            _log.exception("view stopped by a bug", view=view.id, story=view.story.lines())
        return error
    except Exception as error:  # noqa: BLE001  the boundary of one view's dataflow
        _log.exception("view stopped by a bug", view=view.id, story=view.story.lines())
        return BugError(f"internal error in the view's dataflow: {error!r}")
    return None
