"""A worker's side: states and collections of the units that are placed here.

    reader thread:   words ─► inbox            (what must not wait is done at once)
    session thread:  inbox ─► dataflows ─► diffs and answers ─► coordinator

It decides nothing: txids, commits and marks come from the coordinator (``hosts.py``), and what it
computes goes back there.  What is its own is a state database and its checkpoints.

* Invariant 1: a session begins with the durable marks; what was in flight when the last one ended
  is forgotten, for the coordinator sends all after the marks again.
* Invariant 2: a checkpoint is written only after the coordinator has said that its own records of
  these txids are durable: else they might be cut otherwise when they come again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import structlog

from headrace import clock, errors
from headrace.collections import plan
from headrace.config import Settings
from headrace.errors import BugError, HeadraceError, Interrupted, RowsLost
from headrace.expressions.pool import Pool
from headrace.network.link import ALIVE_S
from headrace.network.messages import (
    AbortBatch,
    Alive,
    AskClock,
    AskStats,
    BatchDone,
    BeginBatch,
    Bye,
    Commits,
    Deploy,
    Drop,
    EndBatch,
    GoBack,
    Greeted,
    Greeting,
    Reply,
    TableRows,
    TakeSnapshot,
    ToWorker,
    UnitDiffs,
    UnitRecord,
    WriteSnapshot,
)
from headrace.network.port import Ended, FlightPort, FlightSession
from headrace.process.grants import GRANT_BYTES_MIN, Grants
from headrace.runtime import positions
from headrace.runtime.batches import Outcome, Processor
from headrace.runtime.edges import TableDiffs
from headrace.runtime.incoming import Frames
from headrace.runtime.positions import Meta, StateMark
from headrace.runtime.suspects import Suspects
from headrace.runtime.views import Unit
from headrace.state import files
from headrace.state.rocks import RocksCheckpoint, RocksDatabase
from headrace.types import Diffs

_log = structlog.get_logger(__name__)

_WAITING_MAX: Final = 64
"""Words that wait; then the coordinator does."""
_KEPT_BYTES_MAX: Final = 64 << 20
"""Of a batch's rows, for who is to be blamed."""
_TEND_S: Final = 0.005
"""Between slices of the memory regulator's work when there is no batch."""
_REST_S: Final = 1.0

Word = tuple[ToWorker, pa.RecordBatch | None]


@dataclass(slots=True)
class Placed(Unit):
    """A unit that is placed here."""

    owner: str = ""

    @property
    def whose(self) -> str:
        """See ``View``."""
        return f"owner {self.owner}"


class _Inbox:
    """Words of one session, in order; ended when the coordinator is gone."""

    def __init__(self) -> None:
        self._words: queue.Queue[Word | None] = queue.Queue(_WAITING_MAX)
        self._over = False

    def put(self, word: Word | None) -> None:
        """Add a word; None: there will be no other."""
        while not self._over:
            with contextlib.suppress(queue.Full):
                self._words.put(word, timeout=_REST_S)
                return

    def get(self, timeout_s: float | None = None) -> Word | None:
        """The next word; None: nothing for so long.

        Raises:
            Ended: there will be none.
        """
        try:
            found = None if self._over else self._words.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if found is None:
            self._over = True
            raise Ended
        return found

    def next(self) -> Word:
        """The next word, for which it waits; see ``get``."""
        while (found := self.get()) is None or isinstance(found[0], Alive):
            pass
        return found

    def close(self) -> None:
        """Nobody reads on; who waits for a word hears it."""
        self._over = True
        with contextlib.suppress(queue.Full):
            self._words.put_nowait(None)


class _SentFrames(Frames):
    """The rows of a batch as the coordinator sends them."""

    def __init__(
        self,
        begin: BeginBatch,
        inbox: _Inbox,
        aside: Callable[[WriteSnapshot | AskStats], None],
    ) -> None:
        """``aside`` is given what comes from other threads of the coordinator meanwhile."""
        super().__init__(begin.txid, begin.txid, begin.attempt, begin.instant, begin.oldest_us)
        self._inbox = inbox
        self._aside = aside
        self._kept: list[TableDiffs] | None = []
        self._bytes = 0
        self._rows = 0
        self.ended = False
        """Whether all of them, or that there are no more, has come."""

    def __iter__(self) -> Iterator[list[TableDiffs]]:
        """Chunks of frames.

        Raises:
            Interrupted: the coordinator has given the batch up.
            Ended: it is gone.
        """
        if self.ended:
            yield from [] if self._kept is None else [self._kept]
            return
        while (frame := self._next()) is not None:
            yield [frame]

    def _next(self) -> TableDiffs | None:
        word, batch = self._inbox.next()
        while isinstance(word, WriteSnapshot | AskStats):
            self._aside(word)
            word, batch = self._inbox.next()
        match word:
            case TableRows() if batch is not None:
                self._rows += batch.num_rows
                frame = TableDiffs(word.table_oid, Diffs(self.txid, self.attempt, batch))
                self._keep(frame)
                return frame
            case EndBatch():
                self.ended = True
                if (word.txid, word.rows) != (self.txid, self._rows):
                    raise RowsLost(f"got {self._rows} of the {word.rows} rows of txid {word.txid}")
                return None
            case AbortBatch():
                self.ended = True
                self._kept = None
                raise _GivenUp
        raise BugError(f"{word!r} amid a batch")

    def _keep(self, frame: TableDiffs) -> None:
        self._bytes += frame.diffs.batch.nbytes
        if self._bytes > _KEPT_BYTES_MAX:
            self._kept = None
        if self._kept is not None:
            self._kept.append(frame)

    def rest(self) -> None:
        """Take in what is still to come."""
        while not self.ended:
            with contextlib.suppress(RowsLost):
                self._next()

    def all(self) -> list[TableDiffs] | None:
        """Every frame; None when they are too many to keep."""
        return self._kept


class _GivenUp(Exception):
    """The coordinator wants nothing of the batch any more."""


class Host:
    """The units of one worker process."""

    def __init__(self, settings: Settings, socket: Path) -> None:
        """``settings`` are the worker's own; ``socket`` is where it listens."""
        self._settings = settings
        self._db: Final = _opened(settings)
        self._suspects: Final = Suspects(settings.run_dir)
        self._evaluators: Final = Pool(settings.eval_connections_max)
        grants = Grants(max(settings.memory.batches, GRANT_BYTES_MIN), GRANT_BYTES_MIN)
        self._processor: Final = Processor(
            settings, self._suspects, _unaltered, self._evaluators, grants
        )
        self._units: dict[int, Placed] = {}
        self._writing: Final = ThreadPoolExecutor(1, "headrace-host-checkpoint")
        self._underway: tuple[int, RocksCheckpoint, dict[int, StateMark]] | None = None
        self._written: Future[None] | None = None
        self._answers: deque[Reply] = deque()
        self._inbox = _Inbox()
        """Of the session there is."""
        self._closed = False
        self._turn: Final = threading.Lock()
        """One session at a time."""
        self._port: Final = FlightPort(socket, self._serve, self._interrupt)

    @property
    def units(self) -> set[int]:
        """Ids of those that are placed here; from any thread."""
        return set(self._units.copy())

    @property
    def memory_bytes(self) -> int:
        """Bytes of the states in memory; from any thread."""
        return self._db.memory_bytes

    def close(self) -> None:
        """End: what is under way is given up."""
        self._suspects.close()
        self._interrupt(())
        self._inbox.close()
        with self._turn:
            self._closed = True
            self._processor.close()
            self._writing.shutdown()
            self._evaluators.close()
            self._db.close()
        self._port.shutdown()

    # --- sessions

    def _serve(self, session: FlightSession) -> None:
        """Read what comes; a thread works on it until no more does."""
        inbox, ended = _Inbox(), threading.Event()
        threads = [
            threading.Thread(target=self._work, args=(session, inbox), name="headrace-session"),
            threading.Thread(target=_beat, args=(session, ended), name="headrace-beat"),
        ]
        for thread in threads:
            thread.start()
        try:
            self._read(session, inbox)
        finally:
            inbox.put(None)
            ended.set()
            # Whoever sends after this thread has left would do so into nothing.
            for thread in threads:
                thread.join()

    def _work(self, session: FlightSession, inbox: _Inbox) -> None:
        with self._turn:
            if self._closed:
                inbox.close()
            self._inbox = inbox
            try:
                self._run(session, inbox)
            except Ended:
                _log.info("session ended")
            except HeadraceError as error:
                _log.exception("session ended", reason=error.message)
            except Exception:  # noqa: BLE001  the coordinator begins another one
                _log.exception("session ended by a bug")
            finally:
                inbox.close()
                self._reset()
        with contextlib.suppress(Ended):
            session.send(Bye())

    def _read(self, session: FlightSession, inbox: _Inbox) -> None:
        try:
            while True:
                word, batch = session.receive()
                inbox.put((word, batch))
        except Ended:
            self._interrupt(())

    def _run(self, session: FlightSession, inbox: _Inbox) -> None:
        worked_s = 0.0
        while True:
            wait_s = _TEND_S if self._db.regulate(worked_s) else _REST_S
            worked_s = 0.0
            self._end_checkpoint()
            while self._answers:
                session.send(self._answers.popleft())
            found = inbox.get(wait_s)
            if found is None:
                continue
            word, _ = found
            match word:
                case BeginBatch():
                    began = clock.monotonic()
                    self._batch(session, word, inbox)
                    worked_s = clock.monotonic() - began
                case Greeting():
                    session.send(self._join(word))
                case TakeSnapshot():
                    self._snapshot(word)
                case WriteSnapshot():
                    self._write(word)
                case Deploy() | GoBack() | AskClock() | AskStats():
                    session.send(self._answered(word))
                case Drop():
                    self._drop(word.unit)
                case AbortBatch() | Alive():
                    pass
                case _:
                    raise BugError(f"{word!r} outside of a batch")

    def _reset(self) -> None:
        """Nobody knows what is in flight any more."""
        self._finish_checkpoint()
        self._answers.clear()
        for unit in self._units.values():
            unit.release()
        self._units.clear()

    def _interrupt(self, units: Sequence[int]) -> None:
        for unit in list(self._units.values()):
            if (not units or unit.id in units) and unit.bound is not None and unit.bound.inside:
                unit.bound.cancel(
                    Interrupted("the view was interrupted by a command", sqlstate="57014")
                )

    # --- units come and go

    def _join(self, word: Greeting) -> Greeted:
        marks = positions.views(self._db)
        listed = {record.id for record in word.units}
        for gone in (marks.keys() | self._db.views()) - listed:
            self._drop(gone)
        for record in word.units:
            unit = self._units[record.id] = _made(record)
            mark = marks.get(record.id)
            if mark is not None:
                unit.restore(self._db.view(unit.id, mark.txid), mark)
        guilty = sorted(self._suspects.guilty & listed)
        self._suspects.stopped()
        found = {i: (m.txid, m.lsn, m.sink_txid) for i, m in marks.items() if i in listed}
        return Greeted(found, guilty, os.getpid())

    def _answered(self, word: Deploy | GoBack | AskClock | AskStats) -> Reply:
        try:
            match word:
                case Deploy():
                    return Reply(word.call, self._deploy(word))
                case GoBack():
                    return Reply(word.call, self._back(word))
                case AskClock():
                    return Reply(word.call, self._ask(word))
                case AskStats():
                    flow = self._unit(word.unit).dataflow
                    numbers = flow.metrics() if flow is not None else {}
                    return Reply(word.call, text=msgspec.json.encode(numbers).decode())
        except (HeadraceError, OSError) as error:
            return _failed(word.call, error)

    def _deploy(self, word: Deploy) -> int:
        self._finish_checkpoint()
        unit, mark = _made(word.unit), StateMark(*word.mark)
        known = self._units.pop(unit.id, None)
        if known is not None:
            known.release()
        self._db.ingest(unit.id, [Path(run) for run in word.runs])
        meta: Meta = {}
        positions.put_view(meta, unit.id, mark)
        self._db.put_meta(meta, sync=True)
        unit.restore(self._db.view(unit.id, mark.txid), mark)
        self._units[unit.id] = unit
        _log.info("unit deployed", view=unit.id, txid=mark.txid)
        return mark.txid

    def _drop(self, unit_id: int) -> None:
        self._finish_checkpoint()
        unit = self._units.pop(unit_id, None)
        if unit is not None:
            unit.release()
        meta: Meta = {}
        positions.put_view(meta, unit_id, None)
        self._db.put_meta(meta, sync=False)
        self._db.drop_view(unit_id)

    def _back(self, word: GoBack) -> int:
        self._commit(word.commits)
        self._finish_checkpoint()
        unit = self._unit(word.unit)
        unit.back(word.txid)
        return unit.processed

    def _ask(self, word: AskClock) -> int:
        flow = self._unit(word.unit).flow(self._settings, self._evaluators)
        match word.what:
            case "near":
                return flow.near(word.instant)
            case "crossing":
                return int(flow.crossing(word.instant))
            case "now":
                return flow.now or 0

    def _commit(self, commits: Commits) -> None:
        for unit_id, txids in commits.items():
            unit = self._units.get(unit_id)
            if unit is None or unit.store is None:
                continue
            for txid in txids:
                unit.commit(StateMark(txid, 0, 0))
        if commits:
            self._suspects.passed(max(txids[-1] for txids in commits.values()))

    def _unit(self, unit_id: int) -> Placed:
        unit = self._units.get(unit_id)
        if unit is None or unit.store is None:
            raise BugError(f"unit {unit_id} is not placed here")
        return unit

    # --- batches

    def _batch(self, session: FlightSession, word: BeginBatch, inbox: _Inbox) -> None:
        self._commit(word.commits)

        def aside(other: WriteSnapshot | AskStats) -> None:
            if isinstance(other, WriteSnapshot):
                self._write(other)
            else:
                self._answers.append(self._answered(other))

        frames = _SentFrames(word, inbox, aside)
        trouble: HeadraceError | None = None
        outcome = Outcome(frames)
        try:
            units = [self._unit(unit_id) for unit_id in word.units]
            outcome = self._processor.run(units, frames)
            for unit_id, error in outcome.failed.items():
                outcome.failed[unit_id] = self._processor.blame(self._unit(unit_id), error, frames)
        except _GivenUp:
            return
        except HeadraceError as error:
            trouble = error
            try:
                frames.rest()
            except _GivenUp:
                return
        for unit_id, diffs in outcome.diffs.items():
            if unit_id not in outcome.failed and trouble is None:
                session.send(UnitDiffs(unit_id), diffs)
        session.send(self._done(word, outcome, trouble))

    def _done(self, word: BeginBatch, outcome: Outcome, trouble: HeadraceError | None) -> BatchDone:
        took = {
            unit_id: round(unit.bound.taken_s * 1e6)
            for unit_id in outcome.touched
            if (unit := self._units.get(unit_id)) is not None and unit.bound is not None
        }
        return BatchDone(
            word.txid,
            word.attempt,
            sorted(outcome.touched),
            {unit_id: errors.to_wire(error) for unit_id, error in outcome.failed.items()},
            None if trouble is None else errors.to_wire(trouble),
            took,
            self._db.checkpoint_due,
            self._db.crowded,
            self._db.memory_bytes,
        )

    # --- checkpoints

    def _snapshot(self, word: TakeSnapshot) -> None:
        self._commit(word.commits)
        self._finish_checkpoint()
        meta: Meta = {}
        stores = []
        marks = {unit_id: StateMark(*mark) for unit_id, mark in word.marks.items()}
        for unit_id, mark in marks.items():
            unit = self._unit(unit_id)
            unit.commit(mark)
            positions.put_view(meta, unit_id, mark)
            stores.append((unit.here, mark.txid))
        self._underway = word.number, self._db.begin_checkpoint(stores, meta), marks

    def _write(self, word: WriteSnapshot) -> None:
        if self._underway is None or self._underway[0] != word.number:
            raise BugError(f"snapshot {word.number} is not under way")
        checkpoint = self._underway[1]
        self._written = self._writing.submit(checkpoint.write, sync=True)
        wake = self._inbox.put
        self._written.add_done_callback(lambda _: wake((Alive(), None)))

    def _end_checkpoint(self, *, wait: bool = False) -> None:
        """Take note of one that was written; one that is not to be written yet goes on."""
        if self._underway is None or self._written is None:
            return
        number, checkpoint, marks = self._underway
        checkpoint.pace.hurried |= wait
        if not wait and not self._written.done():
            return
        error = self._written.exception()
        self._underway = self._written = None
        self._db.end_checkpoint(checkpoint)
        if error is not None:
            self._answers.append(_failed(number, error))
            return
        for unit_id, mark in marks.items():
            if unit_id in self._units:
                self._units[unit_id].checkpointed(mark)
        self._answers.append(Reply(number))

    def _finish_checkpoint(self) -> None:
        """None is under way afterwards; one that was not to be written yet is given up."""
        self._end_checkpoint(wait=True)
        if self._underway is not None:
            self._db.end_checkpoint(self._underway[1])
            self._underway = None


def _opened(settings: Settings) -> RocksDatabase:
    """The state database; one that is damaged is set aside, for a new one."""
    try:
        return RocksDatabase(settings.state_dir, memory_bytes=settings.memory.states)
    except errors.StateDamaged as error:
        aside = files.set_aside(settings.state_dir)
        _log.error("state damaged", reason=str(error), set_aside=str(aside))
        return RocksDatabase(settings.state_dir, memory_bytes=settings.memory.states)


def _made(record: UnitRecord) -> Placed:
    return Placed(
        *(record.id, plan.from_json(record.plan), record.settings, record.start_lsn),
        record.owner,
        limits=record.limits,
    )


def _failed(call: int, error: BaseException) -> Reply:
    if isinstance(error, OSError):
        error = errors.StateDamaged(f"the view's staged state cannot be read: {error}")
    known = error if isinstance(error, HeadraceError) else BugError(repr(error))
    return Reply(call, error=errors.to_wire(known))


def _unaltered(_: Sequence[Unit]) -> dict[int, HeadraceError]:
    """The coordinator looks at what was altered."""
    return {}


def _beat(session: FlightSession, ended: threading.Event) -> None:
    with contextlib.suppress(Ended):
        while not ended.wait(ALIVE_S):
            session.send(Alive())
