"""The scheduler's side of the shared table: how urgent it is that who reads a queue reads on.

    urgency = 100 + 100 · how late what waits is / how late the view may be    (percent)

It is 0 where nothing waits, and where nobody works on it: what a paused view lacks need not be in
memory.  How late something is, is told by the source's clock alone: the newest commit that has come
in less the oldest that waits.  A shared subplan that reads another one is as urgent as the least
patient view that needs it.
"""

from __future__ import annotations

import contextlib
import math
from typing import Final

from headrace import clock
from headrace.runtime.book import Book
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.storage.queue import Queue

_TARGET_MS: Final = 50
"""How late a view may be that wants to be as early as can be; what a batch may gather."""
_STEP_S: Final = 0.05
"""Between two times that memory is exchanged, while something is on the disk."""


class Urgency:
    """Of one engine; every method runs on its thread."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._due = 0.0
        self.crowded = False
        """Whether queues have more memory than they may, until what is in it is durable."""

    def step(self) -> float:
        """Keep queues to their memory; read ahead for who is urgent, if something is on the disk.

        Returns when to come by again, on the monotonic clock.
        """
        storage, now = self._book.storage, clock.monotonic()
        if storage is None or now < self._due:
            return self._due
        self._due = now + _STEP_S
        self.crowded = False
        if storage.pool.is_crowded():
            # What nobody writes on may be behind a sink that stands still: no checkpoint comes.
            self.tend()
            self.crowded = storage.pool.is_crowded() and storage.unsynced
        if not any(queue.residence.left for queue in storage.queues):
            return math.inf
        again = storage.pool.leave_again()
        if self.write():  # else who becomes urgent comes with a batch
            storage.pool.upgrade()
            again = True
        return self._due if again else math.inf

    def tend(self, *, moved: bool = True) -> None:
        """Let queues give up memory and blocks that they need no more, by who is urgent now.

        Unless a reader has ``moved``, that is the same as it was the last time.
        """
        if moved:
            self.write()
        self._book.queues.tend()

    def write(self) -> bool:
        """Write it into the table, and where they read on; returns whether anybody waits."""
        book = self._book
        targets: dict[int, int | None] = {}
        last = book.records.get(book.records.last)
        now_us = last.commit_time_us if last is not None else 0
        waits = False
        for shared in book.subplans.values():
            if shared.queue is None:
                continue
            for unit in book.readers(shared):
                target = _target(book, unit, targets)
                waits |= self._note(shared.queue, unit.id, unit.processed, target, now_us)
        queue, reader = book.retained.queue, book.retained.READER
        if queue is not None:
            target = book.index.latency_ms if book.index.any_live else None
            waits |= self._note(queue, reader, book.taken.txid, target, now_us)
        return waits

    def _note(
        self, queue: Queue, reader: int | str, txid: int, target_ms: int | None, now_us: int
    ) -> bool:
        """Write the row of a reader, who has everything up to ``txid``."""
        oldest = queue.ends.commit_after(txid)
        urgency = 0.0
        if target_ms is not None and oldest is not None:
            late_ms = max(now_us - oldest, 0) / 1000 if oldest else 0.0
            urgency = 100 + 100 * late_ms / max(target_ms, _TARGET_MS)
        self._book.queues.pool.table.prioritise(queue.name, reader, urgency)
        # One that has no place there, or is not kept for, hears that when it reads.
        with contextlib.suppress(LookupError):
            queue.rewind(reader, max(txid, queue.base_txid))
        return urgency > 0


def _target(book: Book, unit: Unit, known: dict[int, int | None]) -> int | None:
    """Return how late a unit may be, milliseconds: as late as the least view that needs it.

    None: every view that needs it stands still.  ``known``: the answers so far, by id.
    """
    if isinstance(unit, View):
        return unit.latency_ms if unit.live else None
    if unit.id not in known:
        assert isinstance(unit, Shared), "the other kind of unit"
        found = (_target(book, reader, known) for reader in book.readers(unit))
        known[unit.id] = min((target for target in found if target is not None), default=None)
    return known[unit.id]
