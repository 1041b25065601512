"""Read-ahead: batches retained locally need not wait for the views (``wal_retention = local``).

    source ──► batcher ──► retained queue ──► dataflows
                  └───────────────────────────────▲      while they keep pace

While views keep pace, a batch is processed when it is taken.  If a view or the sink is slow, the
batcher fills.  Once it is half full, batches are recorded and put into the queue of retained
batches first, and taken from there in their turn.  So the next checkpoint can confirm batches that
have not been processed yet.

Processing is as in a replay: the batch has its txid, and ends where it was recorded.

* Invariant: after the first batch that was read ahead, all later ones are taken after it.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.forwarder import policy
from headrace.forwarder.batcher import Backlog, Batch
from headrace.forwarder.stream import Stream
from headrace.process import faults
from headrace.runtime.engine_state import EngineState
from headrace.runtime.positions import BatchRecord


class ReadAhead:
    """Read-ahead of one engine; every method runs on its thread."""

    def __init__(
        self, state: EngineState, record: Callable[[int, int, Batch], BatchRecord]
    ) -> None:
        """Create it; ``record`` records how a batch is cut (``Intake.record``)."""
        self._state = state
        self._record = record

    def step(self, stream: Stream) -> None:
        """Put waiting batches into the queue, if there are many."""
        state, moved = self._state, 0
        while policy.may_read_ahead(
            moved, has_room=state.retained.taking, reads_clock=state.reads_clock
        ) and stream.relieve(self._keep):
            moved += 1

    def _keep(self, batch: Batch) -> Backlog | None:
        """Record a batch and put it into the queue; None: there is no room for it."""
        retained = self._state.retained
        batch.txid = self._state.next_txid
        kept = retained.put(self._record(batch.txid, 0, batch), batch)
        faults.point(faults.BATCH_AHEAD)
        return retained.backlog(batch.txid - 1) if kept else None
