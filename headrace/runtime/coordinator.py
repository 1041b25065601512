"""The coordinator: a pure state machine of the txids in flight (T-3 … T-10, T-23, T-25).

    processing ──processed──► processed ──(all before are committed)──► committing ──► gone
        └────────────────────────── failed ─────────────────────────────────┘

Processing may overlap; commits are strictly ordered, one at a time.  A failure takes the txid
and all later ones back: they are emitted again with a new attempt, first in line (their batches
are recorded, so that works while the source is idle too).  Answers of an old attempt are ignored.
No sockets, no clock: events in, emissions out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.errors import BugError


class State(Enum):
    """Where a txid is."""

    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"


@dataclass(frozen=True, slots=True)
class EmitBatch:
    """Process this batch."""

    txid: int
    attempt: int


@dataclass(frozen=True, slots=True)
class EmitCommit:
    """Commit this batch."""

    txid: int
    attempt: int


Emission = EmitBatch | EmitCommit


@dataclass(slots=True)
class _Entry:
    attempt: int
    state: State


class Coordinator:
    """Txids in flight of one source, from ``first`` on."""

    def __init__(self, first: int = 1, max_pending: int = 1) -> None:
        self.current = first
        """The txid that commits next."""
        self.source_ready = True
        """Whether the source has a batch that was not emitted yet."""
        self._max_pending = max_pending
        self._active: dict[int, _Entry] = {}
        self._attempts: dict[int, int] = {}
        self._emitted = first - 1

    def tick(self) -> list[Emission]:
        """Emit what may be processed now: up to ``max_pending`` from the current txid."""
        out: list[Emission] = []
        for txid in range(self.current, self.current + self._max_pending):
            if txid in self._active:
                continue
            if txid > self._emitted and not self.source_ready:
                break
            attempt = self._attempts.setdefault(txid, 0)
            self._active[txid] = _Entry(attempt, State.PROCESSING)
            self._emitted = max(self._emitted, txid)
            out.append(EmitBatch(txid, attempt))
        return out

    def processed(self, txid: int, attempt: int) -> list[Emission]:
        """All diffs of the batch are computed."""
        entry = self._entry(txid, attempt)
        if entry is None:
            return []
        if entry.state is not State.PROCESSING:
            raise BugError(f"txid {txid} was processed while {entry.state.value}")
        entry.state = State.PROCESSED
        return self._commit_next()

    def committed(self, txid: int, attempt: int) -> list[Emission]:
        """The batch is in the result tables, and so gone from here."""
        entry = self._entry(txid, attempt)
        if entry is None:
            return []
        if entry.state is not State.COMMITTING:
            raise BugError(f"txid {txid} was committed while {entry.state.value}")
        del self._active[txid]
        del self._attempts[txid]
        self.current = txid + 1
        return self._commit_next() + self.tick()

    def failed(self, txid: int, attempt: int) -> list[Emission]:
        """Take ``txid`` and all later ones back; they are emitted again at once."""
        if self._entry(txid, attempt) is None:
            return []
        for later in [t for t in self._active if t >= txid]:
            del self._active[later]
            self._attempts[later] += 1
        return self.tick()

    def state(self, txid: int) -> State | None:
        """Where ``txid`` is; None if it is not in flight."""
        entry = self._active.get(txid)
        return entry.state if entry else None

    @property
    def in_flight(self) -> int:
        """Number of txids in flight."""
        return len(self._active)

    def _entry(self, txid: int, attempt: int) -> _Entry | None:
        # T-25: compare before anything is changed, so that a stale answer does nothing.
        entry = self._active.get(txid)
        if entry is None or entry.attempt != attempt:
            return None
        return entry

    def _commit_next(self) -> list[Emission]:
        entry = self._active.get(self.current)
        if entry is None or entry.state is not State.PROCESSED:
            return []
        entry.state = State.COMMITTING
        return [EmitCommit(self.current, entry.attempt)]
