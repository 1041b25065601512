"""Reading ahead: what is kept on our side need not wait for the views (``wal_retention = local``).

    source ──► batcher ──► retained queue ──► dataflows
                  └───────────────────────────────▲      while they keep pace

While views keep pace a batch is processed when it is taken.  When they do not (one is slow, or the
sink is), what has come fills the batcher; from half of that on batches are recorded and put into
the queue of retained ones first, and taken from there in their turn.  So the source is told, with
the next checkpoint, that it may forget what nobody here has looked at yet.

For whoever processes it is as a replay: the batch has its txid, and ends where it was recorded.

* Invariant: after the first batch that was kept ahead, all others are taken after it.

Not while a view reads the clock: how time passes between two batches is decided when the second one
is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.forwarder.batcher import Backlog, Batch
from headrace.forwarder.stream import Stream
from headrace.process import faults
from headrace.runtime.book import Book
from headrace.runtime.positions import BatchRecord

_AT_ONCE: Final = 64
"""Batches, at most: those that are processed must get their turn."""


class Ahead:
    """Of one engine; every method runs on its thread."""

    def __init__(self, book: Book, record: Callable[[int, int, Batch], BatchRecord]) -> None:
        """``record`` puts on record how a batch is cut (``Intake.record``)."""
        self._book = book
        self._record = record

    def step(self, stream: Stream) -> None:
        """Keep what waits, if much does."""
        for _ in range(_AT_ONCE):
            if not self._book.retained.taking or self._book.reads_clock:
                return
            if not stream.relieve(self._keep):
                return

    def _keep(self, batch: Batch) -> Backlog | None:
        """Record a batch and put it into the queue; None: there is no room for it."""
        retained = self._book.retained
        batch.txid = self._book.next_txid
        kept = retained.put(self._record(batch.txid, 0, batch), batch)
        faults.point(faults.BATCH_AHEAD)
        return retained.backlog(batch.txid - 1) if kept else None
