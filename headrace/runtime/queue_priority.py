"""Priorities of queue readers, which decide whose data stay in memory.

    urgency = 100 + 100 · lag of the oldest waiting commit / allowed lag of the view    (percent)

It is 0 if no data wait, and for a view that is not running: the data that a paused view lacks need
not be in memory. The lag is measured on the source's clock alone: the commit time of the newest
received commit minus that of the oldest waiting one. A shared subplan that reads another one is as
urgent as the most urgent view that needs it.
"""

from __future__ import annotations

import contextlib
import math
from typing import Final

from headrace import clock
from headrace.runtime.engine_state import EngineState
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.storage.queue import Queue

_TARGET_MS: Final = 50
"""Minimum of latency targets in milliseconds: the time that a batch may gather."""
_STEP_S: Final = 0.05
"""Seconds between two exchanges of memory, while any data are on disk."""


class QueuePriorities:
    """The queue priorities of one engine; every method runs on its thread."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._due = 0.0
        self.crowded = False
        """Whether queues exceed their memory limit until their data are durable."""

    def step(self) -> float:
        """Keep queues within their memory; if any data are on disk, read ahead for urgent readers.

        Return when to call again, on the monotonic clock.
        """
        storage, now = self._state.storage, clock.monotonic()
        if storage is None or now < self._due:
            return self._due
        self._due = now + _STEP_S
        self.crowded = False
        if storage.pool.is_crowded():
            # If the sink is blocked, no checkpoint comes that would trim queues.
            self.maintain()
            self.crowded = storage.pool.is_crowded() and storage.unsynced
        if not any(queue.residency.left for queue in storage.queues):
            return math.inf
        again = storage.pool.leave_again()
        if self.write():  # otherwise a reader becomes urgent only with a new batch
            storage.pool.upgrade()
            again = True
        return self._due if again else math.inf

    def maintain(self, *, moved: bool = True) -> None:
        """Let queues release memory and blocks that they need no more, by present urgency.

        The urgency is only recomputed if a reader has ``moved``.
        """
        if moved:
            self.write()
        self._state.queues.maintain()

    def write(self) -> bool:
        """Write urgency and read position of each reader; return whether any reader is urgent."""
        state = self._state
        targets: dict[int, int | None] = {}
        last = state.records.get(state.records.last)
        now_us = last.commit_time_us if last is not None else 0
        waits = False
        for shared in state.subplans.values():
            if shared.queue is None:
                continue
            for unit in state.readers(shared):
                target = _target(state, unit, targets)
                waits |= self._note(shared.queue, unit.id, unit.processed, target, now_us)
        queue, reader = state.retained.queue, state.retained.READER
        if queue is not None:
            target = state.index.latency_ms if state.index.any_live else None
            waits |= self._note(queue, reader, state.taken.txid, target, now_us)
        return waits

    def _note(
        self, queue: Queue, reader: int | str, txid: int, target_ms: int | None, now_us: int
    ) -> bool:
        """Write the row of a reader that has everything up to ``txid``."""
        oldest = queue.ends.commit_after(txid)
        urgency = 0.0
        if target_ms is not None and oldest is not None:
            late_ms = max(now_us - oldest, 0) / 1000 if oldest else 0.0
            urgency = 100 + 100 * late_ms / max(target_ms, _TARGET_MS)
        self._state.queues.pool.table.prioritise(queue.name, reader, urgency)
        # A reader without a position in the queue gets that error when it reads.
        with contextlib.suppress(LookupError):
            queue.rewind(reader, max(txid, queue.base_txid))
        return urgency > 0


def _target(state: EngineState, unit: Unit, known: dict[int, int | None]) -> int | None:
    """Return a unit's latency target in milliseconds: the lowest of the views that need it.

    None: no view that needs it is running. ``known``: the results so far, by id.
    """
    if isinstance(unit, View):
        return unit.latency_ms if unit.live else None
    if unit.id not in known:
        assert isinstance(unit, Shared), "the other kind of unit"
        found = (_target(state, reader, known) for reader in state.readers(unit))
        known[unit.id] = min((target for target in found if target is not None), default=None)
    return known[unit.id]
