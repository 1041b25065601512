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
from headrace.runtime.views import Unit
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
        targets = _targets(book)
        last = book.records.get(book.records.last)
        now_us = last.commit_time_us if last is not None else 0
        waits = False
        for unit in book.units:
            for feeder in set(unit.feeds.values()):
                queue = book.subplans[feeder].queue
                if queue is not None:
                    at = unit.processed
                    waits |= self._note(queue, unit.id, at, targets.get(unit.id), now_us)
        queue, reader = book.retained.queue, book.retained.READER
        if queue is not None:
            target = min(targets.values(), default=None)
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


def _targets(book: Book) -> dict[int, int]:
    """How late units may be, milliseconds, by id: as late as the least view that needs them.

    Those of which every view stands still are left out.
    """
    out = {view.id: view.latency_ms for view in book.views.values() if view.live}
    found: list[Unit] = list(book.views.values())
    while found:
        unit = found.pop()
        target = out.get(unit.id)
        for feeder in set(unit.feeds.values()):
            shared = book.subplans.get(feeder)
            if shared is None or target is None or out.get(feeder, math.inf) <= target:
                continue
            out[feeder] = target
            found.append(shared)
    return out
