"""Txids in flight, between taken and committed: the coordinator and the job queue, under a lock.

    engine thread: begin ─► (dataflows) ─► processed       answers ◄─┐
                                              │                      │
    sink thread:                              └─► next_job ─► committed / failed

Both threads report to the coordinator under one lock, so the next commit need not wait for the
engine's thread.  This module has no connections and no dataflows: jobs in, answers out.

* Invariant 1: jobs come out in the order of their txids, one at a time (the coordinator's 2).
* Invariant 2: after a failure no job comes out until ``rewind``, so no txid is committed after one
  that was not.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import Final

from headrace import clock
from headrace.errors import BugError, PrerequisiteError, TransientError
from headrace.runtime.coordinator import Coordinator, Emission, EmitBatch, Flight, FlightState
from headrace.runtime.jobs import Answer, CommitJob, Jobs


class Pipeline(Jobs):
    """Up to ``inflight_max`` txids of one source in flight; shared by engine and sink threads."""

    def __init__(self, inflight_max: int, bytes_max: int = sys.maxsize) -> None:
        """Create it; ``room`` is false while more than ``bytes_max`` bytes wait to be written."""
        super().__init__()
        self.inflight_max: Final = max(inflight_max, 1)
        self._bytes_max: Final = bytes_max
        self._coordinator: Coordinator | None = None
        self._emitted: deque[EmitBatch] = deque()
        self._processed: dict[int, CommitJob] = {}
        self._begun: dict[int, float] = {}
        """Monotonic times at which the txids in flight were taken."""
        self._answers: deque[Answer] = deque()
        self._woken = False

    # --- the engine's side

    def rewind(self, first: int, recorded: int, attempts: Mapping[int, int]) -> None:
        """Go on from ``first``; batches up to ``recorded`` are emitted without the source.

        ``attempts``: those of earlier runs.  REQUIRES: nothing is in flight.
        """
        with self._changed:
            assert not self._processed, "whoever rewinds has drained or aborted"
            # The sink thread may be checking its connection, which is quick.
            self._changed.wait_for(lambda: not self._writing)
            if self._coordinator is None:
                self._coordinator = Coordinator(
                    first, self.inflight_max, recorded=recorded, attempts=attempts
                )
                self._coordinator.source_ready = False
            else:
                self._coordinator.rewind(first, recorded)
            self._forget()
            self._take_in(self._coordinator.tick())

    def begin(self, txid: int) -> int:
        """Start processing ``txid``, and return the attempt.  REQUIRES: ``room``."""
        with self._changed:
            made = self._made()
            if not self._emitted:
                made.source_ready = True
                self._take_in(made.tick(1))
                made.source_ready = False
            if not self._emitted or self._emitted[0].txid != txid:
                raise BugError(f"batch {txid} is not the next one: {made.flights()}")
            self._begun[txid] = clock.monotonic()
            return self._emitted.popleft().attempt

    def processed(self, job: CommitJob) -> None:
        """Let ``job`` be committed in its turn: all its diffs are computed."""
        with self._changed:
            made = self._made()
            if made.attempt(job.txid) != job.attempt:
                return
            self._processed[job.txid] = job
            self._take_in(made.processed(job.txid, job.attempt))

    @property
    def room(self) -> bool:
        """Whether one more batch may be taken."""
        with self._changed:
            made = self._made()
            if self._waiting() > self._bytes_max:
                return False
            return bool(self._emitted) or made.in_flight < self.inflight_max

    @property
    def busy(self) -> bool:
        """Whether answers are still to come, or to be taken."""
        with self._changed:
            return bool(self._processed or self._answers)

    @property
    def busy_s(self) -> float:
        """Seconds since the oldest txid in flight was taken."""
        with self._changed:
            now = clock.monotonic()
            return now - min(self._begun.values(), default=now)

    def answers(self, timeout_s: float = 0.0) -> list[Answer]:
        """Return the commits since the last call, after waiting up to ``timeout_s`` for the first.

        A call of ``wake`` ends the wait.

        Raises:
            Exception: the sink thread's error, once all earlier answers were returned.
        """
        with self._changed:
            if timeout_s > 0:
                self._changed.wait_for(
                    lambda: self._answers or self._failure or self._woken, timeout_s
                )
            self._woken = False
            out = list(self._answers)
            self._answers.clear()
            if not out and self._failure is not None:
                raise self._failure
            return out

    def wake(self) -> None:
        """Make ``answers`` return."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def durable(self, txid: int) -> None:
        """Forget the attempts up to ``txid``."""
        with self._changed:
            if self._coordinator is not None:
                self._coordinator.durable(txid)

    def take_back(self, txid: int) -> bool:
        """Take back ``txid`` and all later ones; earlier ones commit (T-30).

        Return False if it is being committed: whether it was is found out as after a lost
        connection.  Then ``answers`` raises, and ``abort`` must follow; otherwise ``rewind``.

        Raises:
            PrerequisiteError: it is not in flight.
        """
        with self._changed:
            made = self._made()
            attempt = made.attempt(txid)
            flying = [f.txid for f in self._flights()]
            if attempt is None or txid not in flying:
                told = ", ".join(map(str, flying)) or "none"
                raise PrerequisiteError(
                    f"batch {txid} is not in flight", detail=f"In flight: {told}."
                )
            if made.state(txid) is FlightState.COMMITTING and not self._jobs:
                self._failure = self._failure or TransientError(
                    f"batch {txid} was failed on request", sqlstate="40001"
                )
                self._changed.notify_all()
                return False
            self._jobs = deque(j for j in self._jobs if j.txid < txid)
            self._processed = {t: j for t, j in self._processed.items() if t < txid}
            self._begun = {t: at for t, at in self._begun.items() if t < txid}
            self._emitted.clear()
            self._take_in(made.failed(txid, attempt))
            return True

    def flights(self) -> list[Flight]:
        """Return the txids in flight, with state and attempt; callable from any thread."""
        with self._changed:
            return self._flights()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of rows processed and not yet committed; for any thread."""
        with self._changed:
            return self._waiting()

    # --- inside, under the lock

    def _answered(self, answer: Answer) -> None:
        made, job = self._made(), answer.job
        if made.attempt(job.txid) != job.attempt:
            return  # given up in the meantime
        self._answers.append(answer)
        del self._processed[job.txid]
        self._begun.pop(job.txid, None)
        self._take_in(made.committed(job.txid, job.attempt))

    def _made(self) -> Coordinator:
        assert self._coordinator is not None, "after a rewind"
        return self._coordinator

    def _take_in(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            if isinstance(emission, EmitBatch):
                self._emitted.append(emission)
            else:
                self._jobs.append(self._processed[emission.txid])
        self._changed.notify_all()

    def _waiting(self) -> int:
        return sum(job.size for job in self._processed.values())

    def _flights(self) -> list[Flight]:
        made = self._coordinator
        waiting = {e.txid for e in self._emitted}
        return [f for f in (made.flights() if made else []) if f.txid not in waiting]

    def _forget(self) -> None:
        super()._forget()
        self._emitted.clear()
        self._begun.clear()
        self._processed.clear()
        self._answers.clear()
