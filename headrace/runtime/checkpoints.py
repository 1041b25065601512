"""Checkpoints, which make state durable while processing and commits go on.

The engine's thread begins and ends them; a separate thread writes them.

A checkpoint holds the states and marks of all views, the position, and the position to confirm
once it is on disk, in one atomic, synced write.  Only then is anything confirmed, or a record
forgotten (rule 1: sink commit before checkpoint before confirming).

A failed write (a full disk) changes nothing and is retried after a growing pause.  The engine
goes on until several checkpoints are missing; then it takes no more batches.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError, OutOfReach, TransientError
from headrace.forwarder import policy
from headrace.network.messages import Mark, TakeSnapshot, WriteSnapshot
from headrace.process import faults
from headrace.runtime import positions
from headrace.runtime.histogram import Histogram
from headrace.runtime.positions import Position, StateMark
from headrace.runtime.remote_worker import RemoteStore
from headrace.runtime.views import Unit
from headrace.state.rocks import RocksDatabase, RocksStore
from headrace.storage.manager import Storage

_log = structlog.get_logger(__name__)

_PAUSE_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Promise:
    """Positions that a checkpoint is to hold."""

    position: Position
    confirmed: int
    """LSN that may be confirmed to the source once the checkpoint is on disk."""


@dataclass(frozen=True, slots=True)
class Durable(Promise):
    """Contents of a written checkpoint."""

    marks: dict[int, StateMark]


@dataclass(slots=True)
class _Underway:
    checkpoint: Any
    away: list[tuple[RemoteStore, int]]
    """Snapshots on other workers: one of the worker's stores, and the snapshot's number."""
    sync: Callable[[], None]
    queues: Storage
    holds: Durable
    txids: int
    error: Exception | None = None
    took_s: float = 0.0
    done: bool = False


class Checkpoints:
    """Checkpoints of one engine; all methods run on its thread, only the writing does not."""

    def __init__(self, settings: Settings, wake: Callable[[], None]) -> None:
        """Start the thread; it calls ``wake`` when a checkpoint can be ended."""
        self._limits = policy.CheckpointLimits(
            max(settings.checkpoint_txids, 1),
            settings.checkpoint_interval_ms / 1000,
            settings.feedback_interval_ms / 1000,
        )
        self._wake = wake
        self._underway: _Underway | None = None
        self.held = False
        """Whether the one under way must not be written yet; see ``release``."""
        self._last = clock.monotonic()
        self._retry_at = 0.0
        self._failed = 0
        """Checkpoints that failed since the last one that was written."""
        self.pending = 0
        """Committed txids that no checkpoint has begun to hold."""
        self.written = 0
        """Number of checkpoints."""
        self.failures = 0
        """Number of failed checkpoints."""
        self._durations: Final = Histogram()
        self.error: HeadraceError | None = None
        """Why the last checkpoint failed; None if it did not."""
        self._work: queue.SimpleQueue[_Underway | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-checkpoint", daemon=True)
        self._thread.start()

    @property
    def units(self) -> Set[int]:
        """IDs of the units in the checkpoint that is under way."""
        return self._underway.holds.marks.keys() if self._underway is not None else frozenset()

    @property
    def elsewhere(self) -> bool:
        """Whether other workers write a part of the checkpoint that is under way."""
        return self._underway is not None and bool(self._underway.away)

    @property
    def underway(self) -> bool:
        """Whether a checkpoint was begun and not ended."""
        return self._underway is not None

    @property
    def writing(self) -> bool:
        """Whether one is being written, or was and is not ended; not one that is held."""
        return self._underway is not None and not self.held

    @property
    def confirming(self) -> int:
        """LSN to confirm when the checkpoint under way is on disk; 0 if there is none."""
        return self._underway.holds.confirmed if self._underway is not None else 0

    @property
    def lagging(self) -> bool:
        """Whether so many checkpoints are missing that no more batches may be taken.

        While one waits for a standby, none is missing: that wait is short, and no view may wait.
        """
        return not self.held and self._limits.missing(self.pending)

    def due(self, *, owed: bool, large: bool, crowded: bool, ahead: bool) -> float:
        """Return when to begin the next checkpoint; see ``CheckpointLimits.due``."""
        if self._underway is not None:
            return math.inf
        due = self._limits.due(
            self._last, self.pending, owed=owed, large=large, crowded=crowded, ahead=ahead
        )
        return max(due, self._retry_at)

    def count(self) -> None:
        """Count a committed txid that no checkpoint has begun to hold."""
        self.pending += 1
        if self._underway is not None and self.pending >= self._limits.txids:
            self._underway.checkpoint.pace.hurried = True  # the next one is due

    def begin(
        self,
        db: RocksDatabase,
        queues: Storage,
        units: Sequence[Unit],
        promise: Promise,
        meta: positions.Meta,
        *,
        held: bool = False,
    ) -> None:
        """Begin a checkpoint of ``units`` at their marks; do nothing if a worker is out of reach.

        ``meta`` is written with it.  ``held``: not before ``release``.  REQUIRES: none is under
        way.
        """
        assert self._underway is None, "one at a time"
        positions.put_position(meta, promise.position)
        positions.put_confirmed(meta, promise.confirmed)
        written = [u for u in units if u.store is not None and u.mark != u.durable]
        try:
            away = _snapshots(written)
        except OutOfReach:
            return  # the next checkpoint leaves the worker's units out
        stores = []
        marks = {}
        for unit in written:
            marks[unit.id] = unit.mark
            positions.put_view(meta, unit.id, unit.mark)
            unit.note(meta)
            if isinstance(unit.store, RocksStore):
                stores.append((unit.store, unit.mark.txid))
        checkpoint = db.begin_checkpoint(stores, meta)
        holds = Durable(promise.position, promise.confirmed, marks)
        self._underway = _Underway(checkpoint, away, db.sync, queues, holds, self.pending)
        self._last = clock.monotonic()
        self.pending = 0
        self._ended.clear()
        self.held = held
        if not held:
            self._work.put(self._underway)

    def release(self, meta: positions.Meta) -> None:
        """Let the checkpoint that is held be written, with ``meta``."""
        assert self._underway is not None, "it is held"
        self._underway.checkpoint.amend(meta)
        self.held = False
        self._work.put(self._underway)

    def give_up(self, db: RocksDatabase) -> None:
        """Give up the checkpoint that is held; do nothing if there is none."""
        now = self._underway
        if now is None or not self.held:
            return
        self._underway, self.held = None, False
        db.end_checkpoint(now.checkpoint)
        self.pending += now.txids

    def end(self, db: RocksDatabase, *, wait: bool = False) -> Durable | None:
        """Return what has become durable since the last call, or None; one that is held stays.

        Raises:
            StateDamaged: the state database is damaged.
        """
        now = self._underway
        if now is None or self.held:
            return None
        if wait:
            now.checkpoint.pace.hurried = True
            self._ended.wait()
        if not now.done:
            return None
        self._underway = None
        db.end_checkpoint(now.checkpoint)
        if now.checkpoint.written:
            self.written += 1
            self._durations.note(now.took_s)
            self.error = None
            self._failed = 0
            return now.holds
        if not isinstance(now.error, TransientError):
            assert now.error is not None, "it was not written"
            raise now.error
        if self.error is None or self.error.message != now.error.message:
            _log.warning("checkpoint failed", reason=now.error.message)
        self.error = now.error
        self.failures += 1
        self._retry_at = clock.monotonic() + policy.backoff_s(self._failed, _PAUSE_S_MAX)
        self._failed += 1
        self.pending += now.txids
        return None

    def statistics(self) -> dict[str, Any]:
        """Return counters for the status; callable from any thread."""
        error = self.error
        return {
            "written": self.written,
            "failures": self.failures,
            "durations": msgspec.structs.asdict(self._durations.counts()),
            "underway": self.underway,
            "pending_txids": self.pending,
            "error": error.message if error else None,
        }

    def close(self) -> None:
        """Let the checkpoint under way be written, and end the thread."""
        if self._underway is not None:
            self._underway.checkpoint.pace.hurried = True
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            began = clock.monotonic()
            try:
                faults.point(faults.CHECKPOINT_BEGUN)
                # First the queues, which hold the output of units up to their marks.
                work.queues.sync()
                faults.point(faults.QUEUES_SYNCED)
                _write_remote(work)
                work.checkpoint.write(sync=True)
            except Exception as error:  # noqa: BLE001  the engine's thread raises it
                work.error = error
            work.took_s = clock.monotonic() - began
            work.done = True
            self._ended.set()
            self._wake()


def _snapshots(units: Sequence[Unit]) -> list[tuple[RemoteStore, int]]:
    """Make other workers take snapshots of their units.

    Raises:
        OutOfReach: a worker is gone.
    """
    by_worker: dict[str, tuple[RemoteStore, dict[int, Mark]]] = {}
    for unit in units:
        if isinstance(unit.store, RemoteStore):
            _, marks = by_worker.setdefault(unit.store.host.name, (unit.store, {}))
            marks[unit.id] = unit.progress_mark
    made: list[tuple[RemoteStore, int]] = []
    for store, marks in by_worker.values():
        number = store.link.number()
        store.link.send(TakeSnapshot(number, marks, store.host.take_commits()))
        made.append((store, number))
    return made


def _write_remote(work: _Underway) -> None:
    """Make other workers write their snapshots, after the records that these rely on are synced."""
    if not work.away:
        return
    work.sync()
    for store, number in work.away:
        store.link.send(WriteSnapshot(number))
    for store, number in work.away:
        store.link.answer(number)
    faults.point(faults.AWAY_WRITTEN)
