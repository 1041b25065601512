"""A worker's side of ``worker_handles.py``: states and collections of the units placed here.

    reader thread:   words ─► inbox            (urgent messages are handled at once)
    session thread:  inbox ─► dataflows ─► diffs and answers ─► coordinator

Batches of units that lag have threads of their own (``lagging_session.py``).

It decides nothing: txids, commits and marks come from the coordinator (``worker_handles.py``), and
results go back there.  The worker has its own state database and checkpoints.

* Invariant 1: a session begins with the durable marks.  Work in flight of the last session is
  forgotten, because the coordinator sends everything after the marks again.
* Invariant 2: the coordinator says when which snapshot is written (``snapshots.py``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from psycopg.conninfo import make_conninfo

from headrace import clock, errors, events
from headrace.collections import plan, subplans
from headrace.collections.dataflow import Dataflow
from headrace.config import Settings
from headrace.errors import BugError, HeadraceError, Interrupted, TransientError
from headrace.expressions.pool import Pool
from headrace.network.ends import Near
from headrace.network.messages import (
    AbortBatch,
    Alive,
    AskClock,
    AskRows,
    AskStats,
    Attach,
    BeginBatch,
    Bye,
    Commits,
    Deploy,
    Drop,
    Export,
    GoBack,
    Greeted,
    Greeting,
    Replan,
    Reply,
    TakeSnapshot,
    UnitRecord,
    Work,
    WriteSnapshot,
)
from headrace.network.port import Ended, FlightPort, FlightSession
from headrace.process import faults
from headrace.runtime import positions
from headrace.runtime.counted import numbers
from headrace.runtime.crash_attribution import LOADING, CrashAttribution
from headrace.runtime.lagging_session import LaggingSession
from headrace.runtime.positions import Meta, StateMark
from headrace.runtime.row_transfer import Inbox, Latest
from headrace.runtime.snapshots import ReportedCheckpoints
from headrace.runtime.worker_batches import Placed, WorkerBatches
from headrace.state.opening import open_database

_log = structlog.get_logger(__name__)

_TEND_S: Final = 0.005
"""Seconds between slices of the memory regulator's work when there is no batch."""
_REST_S: Final = 1.0
_NOT_TAKEN: Final = -1
"""Txid of a unit whose states the worker does not have: commits of other units do not acquit it."""


class WorkerService:
    """The units of one worker process."""

    def __init__(self, settings: Settings) -> None:
        """Open the state database; ``settings`` are the worker's own."""
        self._settings = settings
        self._files: Final = settings.tmp_dir / "sent"
        _empty(self._files)
        self._db, _ = open_database(settings.state_dir, settings.memory.states, lambda _: None)
        self._suspects: Final = CrashAttribution(settings.run_dir)
        self._evaluators: Final = Pool(settings.eval_connections_max, settings.turns_dir)
        self._units: dict[int, Placed] = {}
        self._batches: Final = WorkerBatches(
            self._settings, self._units, self._db, self._suspects, self._evaluators, self._ask
        )
        self._lagging: LaggingSession | None = None
        """The exchange of the current session for units that lag."""
        self._writing: Final = ThreadPoolExecutor(1, "headrace-host-checkpoint")
        self._snapshots: Final = ReportedCheckpoints(self._db, self._writing)
        self._answers: deque[Reply] = deque()
        self._inbox = Inbox()
        """Inbox of the current session."""
        self._resting = True
        """Whether the session waits for a message."""
        self._closed = False
        self._latest: Final = Latest()
        self._turn: Final = threading.Lock()
        """Held by the session that runs."""
        self._port: FlightPort | None = None

    @property
    def units(self) -> set[int]:
        """IDs of the units that are placed here; for any thread."""
        return set(self._units.copy())

    def status(self) -> dict[str, Any]:
        """Return the status for health requests; callable from any thread."""
        return {"memory_bytes": self._db.memory_bytes}

    def listen(self, end: Near) -> None:
        """Accept coordinators at ``end``; called once.

        Raises:
            OSError: the host cannot listen there.
        """
        self._port = FlightPort(end, self._serve, self._interrupt, self._files)

    def close(self) -> None:
        """End the worker and give up what is under way."""
        self._suspects.close()
        self._interrupt(())
        self._inbox.close()
        with self._turn:
            self._closed = True
            self._batches.close()
            self._writing.shutdown()
            self._evaluators.close()
            self._db.close()
        if self._port is not None:
            self._port.shutdown()

    # --- sessions

    def _serve(self, session: FlightSession) -> None:
        """Serve an exchange until it ends."""
        if not session.lagging:
            self._serve_session(session)
            return
        with contextlib.suppress(Ended):
            word, _ = session.receive()
            lagging = self._lagging
            if isinstance(word, Attach) and lagging is not None and lagging.name == word.session:
                lagging.serve(session)

    def _serve_session(self, session: FlightSession) -> None:
        """Read the session's messages; another thread handles them until the session ends."""
        inbox, ended = Inbox(), threading.Event()
        threads = [
            threading.Thread(target=self._work, args=(session, inbox), name="headrace-session"),
            threading.Thread(
                target=_beat,
                args=(session, ended, self._batches.works, lambda: not self._resting),
                name="headrace-beat",
            ),
        ]
        for thread in threads:
            thread.start()
        try:
            self._read(session, inbox)
        finally:
            inbox.put(None)
            ended.set()
            session.wake()
            # Messages sent after this thread has left would be lost.
            for thread in threads:
                thread.join()

    def _work(self, session: FlightSession, inbox: Inbox) -> None:
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
                lagging, self._lagging = self._lagging, None
                if lagging is not None:
                    self._interrupt(())
                    lagging.close()
                self._reset()
        with contextlib.suppress(Ended):
            session.send(Bye())

    def _read(self, session: FlightSession, inbox: Inbox) -> None:
        try:
            while True:
                word, batch = session.receive()
                if isinstance(word, Greeting):
                    self._latest.begin(word.epoch)
                    before = self._inbox
                    if before is not inbox:
                        # The earlier session's link may have been cut without notice.
                        self._interrupt(())
                        before.close()
                inbox.put((word, batch))
        except Ended:
            self._interrupt(())

    def _run(self, session: FlightSession, inbox: Inbox) -> None:
        worked_s = 0.0
        while True:
            wait_s = _TEND_S if self._regulate(worked_s) else _REST_S
            worked_s = 0.0
            self._end_checkpoint()
            while self._answers:
                session.send(self._answers.popleft())
            self._resting = True
            found = inbox.get(wait_s)
            self._resting = False
            if found is None:
                continue
            word, _ = found
            match word:
                case BeginBatch():
                    began = clock.monotonic()
                    self._commit(word.commits)
                    self._batches.run(session, word, inbox)
                    worked_s = clock.monotonic() - began
                case Greeting():
                    session.send(self._join(word, inbox))
                case TakeSnapshot():
                    self._snapshot(word)
                case WriteSnapshot() | AskStats() | Export():
                    self._ask(word)
                case Deploy() | GoBack() | AskClock() | AskRows() | Replan():
                    session.send(self._answered(word))
                case Drop():
                    self._drop(word.unit)
                case AbortBatch() | Alive():
                    pass
                case _:
                    raise BugError(f"{word!r} outside of a batch")

    def _regulate(self, worked_s: float) -> bool:
        """Let the memory regulator work if no lagging unit does; return whether it did."""
        lagging = self._lagging
        if lagging is None:
            return self._db.regulate(worked_s)
        with lagging.resting() as resting:
            return resting and self._db.regulate(worked_s)

    def _reset(self) -> None:
        """Forget everything in flight."""
        self._finish_checkpoint()
        self._answers.clear()
        for unit in self._units.values():
            unit.release()
        self._units.clear()
        _empty(self._files)

    def _interrupt(self, units: Sequence[int]) -> None:
        for unit in list(self._units.values()):
            if (not units or unit.id in units) and unit.bound is not None and unit.bound.inside:
                unit.bound.cancel(
                    Interrupted("the view was interrupted by a command", sqlstate="57014")
                )

    def _ask(self, word: WriteSnapshot | AskStats | Export) -> None:
        """Handle a request from another thread of the coordinator, also during a batch."""
        match word:
            case WriteSnapshot():
                wake = self._inbox.put
                try:
                    self._snapshots.write(word.number, lambda: wake((Alive(), None)))
                except TransientError as error:
                    self._answers.append(_failed(word.number, error))
            case Export():
                self._export(word)
            case AskStats():
                self._answers.append(self._answered(word))

    # --- units come and go

    def _join(self, word: Greeting, inbox: Inbox) -> Greeted:
        if word.login is not None:
            user, password = word.login
            dsn = make_conninfo(self._settings.source, user=user, password=password)
            if dsn != self._settings.eval_dsn:
                self._settings = self._settings.replace(eval_dsn=dsn)
                self._batches.log_in(self._settings)
        marks = positions.views(self._db)
        listed = {record.id for record in word.units}
        known = positions.get_lineage(self._db) == word.lineage
        for gone in (marks.keys() | self._db.views()) - (listed if known else set()):
            self._drop(gone)
        if not known:
            # The coordinator has lost its records, so these txids are meaningless.
            _log.info("states dropped", units=sorted(marks))
            marks, meta = {}, Meta()
            positions.put_lineage(meta, word.lineage)
            self._db.put_meta(meta, sync=True)
        for record in word.units:
            unit = self._units[record.id] = _made(record)
            mark = marks.get(record.id)
            if mark is not None:
                with self._suspects.during(unit.id, LOADING):
                    unit.restore(self._db.view(unit.id, mark.txid), mark)
        guilty = sorted(self._suspects.guilty & listed)
        self._suspects.stopped()
        self._lagging = LaggingSession(word.session, self._batches.run_lagging, inbox.close)
        found = {i: (m.txid, m.lsn, m.sink_txid) for i, m in marks.items() if i in listed}
        return Greeted(found, guilty, os.getpid())

    def _answered(self, word: Deploy | GoBack | AskClock | AskRows | AskStats | Replan) -> Reply:
        try:
            match word:
                case Replan():
                    self._commit(word.commits)
                    self._batches.unit(word.unit).compute(plan.from_json(word.plan))
                    return Reply(word.call)
                case Deploy():
                    return Reply(word.call, self._deploy(word))
                case GoBack():
                    return Reply(word.call, self._back(word))
                case AskClock():
                    flow = self._batches.unit(word.unit).flow(self._settings, self._evaluators)
                    return Reply(word.call, _clock(flow, word))
                case AskRows():
                    return Reply(
                        word.call, int(self._batches.unit(word.unit).has_rows(word.sources))
                    )
                case AskStats():
                    found = numbers(self._batches.unit(word.unit))
                    return Reply(word.call, text=msgspec.json.encode(found).decode())
        except (HeadraceError, OSError) as error:
            return _failed(word.call, error)

    def _deploy(self, word: Deploy) -> int:
        self._finish_checkpoint()
        unit, mark = _made(word.unit), StateMark(*word.mark)
        known = self._units.pop(unit.id, None)
        if known is not None:
            known.release()
        with self._suspects.during(unit.id, LOADING):
            self._take_in(unit, mark, word)
        self._units[unit.id] = unit
        _log.info("unit deployed", view=unit.id, txid=mark.txid)
        return mark.txid

    def _take_in(self, unit: Placed, mark: StateMark, word: Deploy) -> None:
        runs = [self._files / run for run in word.runs]
        keep = partial(subplans.keeps, unit.own) if word.partly else None
        self._db.ingest(unit.id, runs, keep)
        faults.point(faults.STATES_TAKEN)
        for run in runs:
            if run.parent == self._files:
                run.unlink(missing_ok=True)
        meta: Meta = {}
        positions.put_view(meta, unit.id, mark)
        self._db.put_meta(meta, sync=True)
        unit.restore(self._db.view(unit.id, mark.txid), mark)

    def _export(self, word: Export) -> None:
        """Export a unit's states on the checkpoint thread, while the unit does not change."""
        self._finish_checkpoint()

        def export() -> None:
            try:
                path, leave = self._files / word.path, set(word.leave)
                self._db.export(word.unit, path, lambda s: subplans.owner(s) not in leave)
                path.touch()  # it may have none
            except (HeadraceError, OSError) as error:
                self._answers.append(_failed(word.call, error))
            else:
                self._answers.append(Reply(word.call))
            self._inbox.put((Alive(), None))

        self._writing.submit(export)

    def _drop(self, unit_id: int) -> None:
        self._finish_checkpoint()
        self._suspects.forget(unit_id)
        unit = self._units.pop(unit_id, None)
        if unit is not None:
            unit.release()
        meta: Meta = {}
        positions.put_view(meta, unit_id, None)
        self._db.put_meta(meta, sync=False)
        self._db.drop_view(unit_id)

    def _back(self, word: GoBack) -> int:
        self._commit(word.commits)
        if self._snapshots.holds(word.unit):
            self._finish_checkpoint()
        unit = self._batches.unit(word.unit)
        with self._suspects.during(unit.id, word.txid):
            unit.back(word.txid)
        return unit.processed

    def _commit(self, commits: Commits) -> None:
        self._batches.commit(commits)
        self._suspects.review(self._committed)

    def _committed(self, unit_id: int) -> int | None:
        unit = self._units.get(unit_id)
        return unit.mark.txid if unit is not None else _NOT_TAKEN

    # --- checkpoints

    def _snapshot(self, word: TakeSnapshot) -> None:
        self._commit(word.commits)
        self._finish_checkpoint()
        meta: Meta = {}
        stores = []
        marks = {unit_id: StateMark(*mark) for unit_id, mark in word.marks.items()}
        for unit_id, mark in marks.items():
            unit = self._batches.unit(unit_id)
            unit.commit(mark)
            positions.put_view(meta, unit_id, mark)
            stores.append((unit.here, mark.txid))
        self._snapshots.take(word.number, stores, meta, marks)

    def _end_checkpoint(self, *, wait: bool = False) -> None:
        """Handle a checkpoint that was written; leave one that is not to be written yet."""
        found = self._snapshots.ended(wait=wait)
        if found is None:
            return
        number, marks, error = found
        if error is not None:
            self._answers.append(_failed(number, error))
            return
        for unit_id, mark in marks.items():
            if unit_id in self._units:
                self._units[unit_id].checkpointed(mark)
        self._answers.append(Reply(number))

    def _finish_checkpoint(self) -> None:
        """Finish the checkpoint under way, and give up a snapshot that is not to be written yet."""
        self._end_checkpoint(wait=True)
        self._snapshots.give_up()


def _empty(folder: Path) -> None:
    """Empty the folder of sent files; files of an earlier session are not used."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _made(record: UnitRecord) -> Placed:
    events.know_view(record.id, record.name)
    return Placed.of_record(record)


def _clock(flow: Dataflow, word: AskClock) -> int:
    match word.what:
        case "due":
            return int(flow.due(word.instant))
        case "rows":
            return flow.rows(word.instant)
        case "near":
            return flow.near(word.instant)
        case "crossing":
            return int(flow.crossing(word.instant))
        case "changed":
            return flow.changed(word.instant)
        case "now":
            return flow.now or 0


def _failed(call: int, error: BaseException) -> Reply:
    if isinstance(error, OSError):
        error = errors.StateDamaged(f"the view's staged state cannot be read: {error}")
    known = error if isinstance(error, HeadraceError) else BugError(repr(error))
    return Reply(call, error=errors.to_wire(known))


def _beat(
    session: FlightSession,
    ended: threading.Event,
    at: Callable[[], list[Work]],
    busy: Callable[[], bool],
) -> None:
    with contextlib.suppress(Ended):
        session.beat(ended, at, busy)
