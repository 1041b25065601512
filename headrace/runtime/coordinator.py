"""The coordinator: a pure state machine of the txids in flight (T-3, T-9 … T-13, T-23 … T-27).

    processing ──processed──► processed ──(all before are committed)──► committing ──► gone
        └────────────────────────── failed ─────────────────────────────────┘

Processing may overlap; commits are strictly ordered, one at a time.  A failure takes back its txid
and all later ones.  They are emitted again with a new attempt, before new batches; their records
make that possible while the source is idle.  The machine has no sockets and no clock: it turns
events into emissions.

* Invariant 1: txids in flight lie in the window ``[current, current + max_pending)``.
* Invariant 2: only ``current`` commits, so txids commit in order and one at a time.
* Invariant 3: each emission of a txid has a greater attempt than the one before, also after a
  rewind to an earlier txid.  So results of an earlier attempt can be dropped.
* Invariant 4: an answer of an attempt that is not in flight changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from headrace.errors import BugError


class FlightState(Enum):
    """Phase of a txid in flight."""

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
class Flight:
    """One txid in flight."""

    txid: int
    attempt: int
    state: FlightState


class Coordinator:
    """State machine of the txids in flight of one source, from ``first`` on."""

    def __init__(
        self,
        first: int = 1,
        max_pending: int = 1,
        *,
        recorded: int = 0,
        attempts: Mapping[int, int] | None = None,
    ) -> None:
        """Start at ``first``; ``attempts``: those of earlier runs; ``recorded``: see ``rewind``."""
        self.current = first
        """The txid that commits next."""
        self.source_ready = True
        """Whether the source has a batch that has not been emitted yet."""
        self._max_pending = max_pending
        self._active: dict[int, Flight] = {}
        self._emitted = max(first - 1, recorded)
        # How often each range of txids was taken back; by ranges, because a rewind may be long.
        self._taken: dict[tuple[int, int], int] = {
            (txid, txid): attempt + 1 for txid, attempt in (attempts or {}).items() if txid >= first
        }

    def tick(self, new: int | None = None) -> list[Emission]:
        """Emit what may be processed now: up to ``max_pending`` txids from the current one.

        ``new`` limits the number of txids that were never emitted or recorded.
        """
        out: list[Emission] = []
        for txid in range(self.current, self.current + self._max_pending):
            if txid in self._active:
                continue
            if txid > self._emitted:
                if not self.source_ready or new == 0:
                    break
                new = new - 1 if new is not None else None
                self._emitted = txid
            attempt = self._next_attempt(txid)
            self._active[txid] = Flight(txid, attempt, FlightState.PROCESSING)
            out.append(EmitBatch(txid, attempt))
        return out

    def processed(self, txid: int, attempt: int) -> list[Emission]:
        """Mark the txid as processed: all its diffs are computed."""
        flight = self._find(txid, attempt)
        if flight is None:
            return []
        if flight.state is not FlightState.PROCESSING:
            raise BugError(f"txid {txid} was processed while {flight.state.value}")
        flight.state = FlightState.PROCESSED
        return self._commit_next()

    def committed(self, txid: int, attempt: int) -> list[Emission]:
        """Remove the txid: its rows are in the result tables."""
        flight = self._find(txid, attempt)
        if flight is None:
            return []
        if flight.state is not FlightState.COMMITTING:
            raise BugError(f"txid {txid} was committed while {flight.state.value}")
        del self._active[txid]
        self.current = txid + 1
        return self._commit_next() + self.tick()

    def failed(self, txid: int, attempt: int) -> list[Emission]:
        """Take back ``txid`` and all later ones, and emit them again at once."""
        if self._find(txid, attempt) is None:
            return []
        self._take_back(txid)
        return self.tick()

    def rewind(self, current: int, recorded: int = 0) -> None:
        """Take everything back and go on from ``current``, which may have been committed before.

        That recomputes lost state; the sink skips the commits that were made.  Batches up to
        ``recorded`` can be emitted without the source.  The caller calls ``tick``.
        """
        self._take_back(min(current, self.current))
        self.current = current
        self._emitted = max(self._emitted, recorded, current - 1)
        self.durable(current - 1)

    def durable(self, txid: int) -> None:
        """Forget the attempts up to ``txid``: these txids will not be processed again."""
        for old in [r for r in self._taken if r[1] <= txid]:
            del self._taken[old]

    def attempt(self, txid: int) -> int | None:
        """Return the attempt of ``txid`` that is in flight, or None."""
        flight = self._active.get(txid)
        return flight.attempt if flight else None

    def state(self, txid: int) -> FlightState | None:
        """Return the state of ``txid``, or None if it is not in flight."""
        flight = self._active.get(txid)
        return flight.state if flight else None

    def flights(self) -> list[Flight]:
        """Return copies of the txids in flight, in order."""
        return [
            Flight(txid, flight.attempt, flight.state)
            for txid, flight in sorted(self._active.items())
        ]

    @property
    def in_flight(self) -> int:
        """Number of txids in flight."""
        return len(self._active)

    def _find(self, txid: int, attempt: int) -> Flight | None:
        # Invariant 4: compare before anything changes (T-25).
        flight = self._active.get(txid)
        if flight is None or flight.attempt != attempt:
            return None
        return flight

    def _take_back(self, first: int) -> None:
        """Remove txids from ``first`` on; the emitted ones get a new attempt."""
        # In flight is [current, last], without a gap; earlier txids are committed.
        last = self.current + len(self._active) - 1
        if first > last:
            return
        for txid in range(max(first, self.current), last + 1):
            del self._active[txid]
        taken = (first, last)
        self._taken[taken] = self._taken.get(taken, 0) + 1

    def _next_attempt(self, txid: int) -> int:
        return sum(n for (lo, hi), n in self._taken.items() if lo <= txid <= hi)

    def _commit_next(self) -> list[Emission]:
        flight = self._active.get(self.current)
        if flight is None or flight.state is not FlightState.PROCESSED:
            return []
        flight.state = FlightState.COMMITTING
        return [EmitCommit(self.current, flight.attempt)]
