"""The shared table, through which the scheduler and the storage manager communicate (A-17).

The table has a row for each successor of each queue.  The scheduler writes the priority of the
successor's queued data, and whether the successor is reading it now.  The storage manager writes
how much of the queue is in memory, and evicts and reads ahead by these rows (A-18).

The table is passive; any thread may read and write it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Final


@dataclass(slots=True)
class Standing:
    """The row of one successor of a queue."""

    priority: float = 0.0
    """Priority of its reads; 0: nothing waits for it, or it stands still."""
    resident_pct: int = 100
    """Percentage of its queue's needed bytes that is in memory."""
    at_work: int = 0
    """Number of its calls in progress that read the queue."""

    @property
    def running(self) -> bool:
        """Whether a call of it reads the queue now (A-37)."""
        return self.at_work > 0


class SharedTable:
    """Rows by queue and successor."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._rows: Final[dict[str, dict[Hashable, Standing]]] = {}

    # --- for the scheduler

    def prioritise(self, queue: str, successor: Hashable, priority: float) -> None:
        """Set the priority of a successor's reads."""
        with self._lock:
            self._row(queue, successor).priority = priority

    @contextlib.contextmanager
    def running(self, queue: str, successors: Collection[Hashable]) -> Iterator[None]:
        """Mark successors as reading a queue, which pins the queue within the context (A-37)."""
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
        """Set the successors of a queue, and the percentage of it that is in memory."""
        with self._lock:
            rows = self._rows.setdefault(queue, {})
            for gone in [s for s, row in rows.items() if s not in successors and not row.running]:
                del rows[gone]
            for successor in successors:
                self._row(queue, successor).resident_pct = resident_pct

    def drop(self, queue: str) -> None:
        """Remove the rows of a dropped queue."""
        with self._lock:
            self._rows.pop(queue, None)

    def priority(self, queue: str) -> float:
        """Return the priority of a queue: the highest of its successors."""
        with self._lock:
            rows = self._rows.get(queue)
            return max((row.priority for row in rows.values()), default=0.0) if rows else 0.0

    def is_running(self, queue: str) -> bool:
        """Return whether a successor is reading the queue now."""
        with self._lock:
            return any(row.running for row in self._rows.get(queue, {}).values())

    def waiting(self, queue: str) -> list[Hashable]:
        """Return the successors of a queue with a priority above 0, the most urgent first."""
        with self._lock:
            rows = self._rows.get(queue, {})
            urgent = [successor for successor, row in rows.items() if row.priority > 0]
            return sorted(urgent, key=lambda successor: -rows[successor].priority)

    # --- for the status

    def rows(self) -> dict[tuple[str, Hashable], Standing]:
        """Return a copy of all rows."""
        with self._lock:
            return {
                (queue, successor): replace(row)
                for queue, rows in self._rows.items()
                for successor, row in rows.items()
            }

    def _row(self, queue: str, successor: Hashable) -> Standing:
        return self._rows.setdefault(queue, {}).setdefault(successor, Standing())
