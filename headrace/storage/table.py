"""The shared table: what the scheduler and the storage manager tell each other (A-17).

It has a row for each successor of each queue.  The scheduler writes how much it matters that the
successor gets what is queued for it, and whether it is at work on it just now; the storage manager
writes how much of the queue is in memory, and evicts, and reads ahead, by what it finds (A-18).

The table does nothing by itself; any thread may read and write it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Final


@dataclass(slots=True)
class Standing:
    """A successor of a queue, as the table has it."""

    priority: float = 0.0
    """How much it matters that it reads on; 0: nothing waits for it, or it stands still."""
    resident_pct: int = 100
    """How much of its queue is in memory, of what somebody still needs."""
    at_work: int = 0
    """How many calls of it there are just now that read the queue."""

    @property
    def running(self) -> bool:
        """Whether it is being called with what it reads there (A-37)."""
        return self.at_work > 0


class SharedTable:
    """Rows by queue and successor."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._rows: Final[dict[str, dict[Hashable, Standing]]] = {}

    # --- for the scheduler

    def prioritise(self, queue: str, successor: Hashable, priority: float) -> None:
        """Write how much it matters that a successor reads on."""
        with self._lock:
            self._row(queue, successor).priority = priority

    @contextlib.contextmanager
    def running(self, queue: str, successors: Collection[Hashable]) -> Iterator[None]:
        """Successors are called with what they read in a queue; inside it is pinned (A-37)."""
        with self._lock:
            rows = [self._row(queue, successor) for successor in successors]
            for row in rows:
                row.at_work += 1
        try:
            yield
        finally:
            with self._lock:
                for row in rows:
                    row.at_work -= 1

    # --- for the storage manager

    def follow(self, queue: str, successors: Collection[Hashable], resident_pct: int) -> None:
        """These read a queue, of which so much is in memory."""
        with self._lock:
            rows = self._rows.setdefault(queue, {})
            for gone in [s for s, row in rows.items() if s not in successors and not row.running]:
                del rows[gone]
            for successor in successors:
                self._row(queue, successor).resident_pct = resident_pct

    def drop(self, queue: str) -> None:
        """A queue is gone."""
        with self._lock:
            self._rows.pop(queue, None)

    def priority(self, queue: str) -> float:
        """That of a queue: the highest of its successors'."""
        with self._lock:
            rows = self._rows.get(queue)
            return max((row.priority for row in rows.values()), default=0.0) if rows else 0.0

    def is_running(self, queue: str) -> bool:
        """Whether some successor of a queue is at work on it."""
        with self._lock:
            return any(row.running for row in self._rows.get(queue, {}).values())

    def waiting(self, queue: str) -> list[Hashable]:
        """The successors of a queue for whom something matters, the most urgent first."""
        with self._lock:
            rows = self._rows.get(queue, {})
            urgent = [successor for successor, row in rows.items() if row.priority > 0]
            return sorted(urgent, key=lambda successor: -rows[successor].priority)

    # --- for whoever looks

    def rows(self) -> dict[tuple[str, Hashable], Standing]:
        """All rows, as of now."""
        with self._lock:
            return {
                (queue, successor): replace(row)
                for queue, rows in self._rows.items()
                for successor, row in rows.items()
            }

    def _row(self, queue: str, successor: Hashable) -> Standing:
        return self._rows.setdefault(queue, {}).setdefault(successor, Standing())
