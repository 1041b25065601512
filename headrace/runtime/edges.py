"""Edges: the queue contract between an output and its successors.

One queue per output, one tail per successor: a message is kept until every successor has
pulled it (A-4, A-5).  It is in memory: the frames of batches in flight, which the pipeline limits.

* Invariant 1: messages come out in the order they were put, once per successor.
* Invariant 2: after TimeEnd(t) nothing at or before t may be put.
* Invariant 3: frames carry (txid, attempt); those of an old attempt are dropped and counted.
* Invariant 4: a successor gets a TimeEnd only after as many rows as its sender counted (T-29).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from headrace.errors import BugError, RowsLost
from headrace.types import Diffs, TimeEnd


@dataclass(frozen=True, slots=True)
class TableDiffs:
    """A change batch of one base table, on the edge between forwarder and dataflows."""

    table_oid: int
    diffs: Diffs


Frame = TableDiffs | Diffs | TimeEnd


class Edge:
    """An in-memory queue with one tail per successor; safe between threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._frames: deque[Frame] = deque()
        self._first = 0
        self._tails: dict[Hashable, int] = {}
        self._at: Counter[int] = Counter()
        """Number of tails at each position."""
        self._pulled: dict[Hashable, int] = {}
        self._attempt: tuple[int, int] = (-1, 0)
        self._ended = -1
        self._rows = 0
        self._sent = 0
        """Rows since the last TimeEnd."""
        self._put = 0
        self._dropped = 0

    def open(self, successors: Iterable[Hashable], after_txid: int) -> None:
        """Start with these successors, empty, after TimeEnd(``after_txid``)."""
        with self._lock:
            self._frames.clear()
            self._rows = self._sent = 0
            self._first = 0
            self._ended = after_txid
            self._attempt = (-1, 0)
            self._tails = dict.fromkeys(successors, 0)
            self._at = Counter({0: len(self._tails)})
            self._pulled = dict.fromkeys(self._tails, 0)

    def join(self, successor: Hashable) -> None:
        """Add a successor that needs nothing of what was put so far; ignore one that is there."""
        with self._lock:
            if successor in self._tails:
                return
            head = self._first + len(self._frames)
            self._tails[successor] = head
            self._at[head] += 1
            self._pulled[successor] = self._sent

    def leave(self, successor: Hashable) -> None:
        """Remove a successor; no messages are kept for it."""
        with self._lock:
            tail = self._tails.pop(successor, None)
            if tail is not None:
                self._at[tail] -= 1
            self._trim()

    def put(self, frame: Frame) -> None:
        """Add a frame at the head.

        Raises:
            BugError: its txid had ended (Invariant 2).
        """
        with self._lock:
            txid, attempt = _time(frame)
            if txid <= self._ended:
                raise BugError(f'edge "{self.name}" got txid {txid} after the end of {self._ended}')
            if txid == self._attempt[0] and attempt < self._attempt[1]:
                self._dropped += 1
                return
            self._attempt = (txid, attempt)
            self._sent += _rows(frame)
            if isinstance(frame, TimeEnd):
                self._ended, self._sent = txid, 0
            self._frames.append(frame)
            self._rows += _rows(frame)
            self._put += 1
            self._trim()

    def pull(self, successor: Hashable) -> list[Frame]:
        """Return all frames that ``successor`` has not pulled yet, and move its tail.

        Raises:
            RowsLost: a TimeEnd counts other rows than were pulled since the one before.
        """
        with self._lock:
            tail, head = self._tails[successor], self._first + len(self._frames)
            out = [self._frames[i] for i in range(tail - self._first, len(self._frames))]
            if tail != head:
                self._tails[successor] = head
                self._at[tail] -= 1
                self._at[head] += 1
                self._trim()
            for frame in out:
                self._count(successor, frame)
        return out

    def statistics(self) -> dict[str, int]:
        """Return counters."""
        with self._lock:
            return {
                "frames": len(self._frames),
                "rows": self._rows,
                "put": self._put,
                "successors": len(self._tails),
                "dropped": self._dropped,
            }

    def _count(self, successor: Hashable, frame: Frame) -> None:
        pulled = self._pulled[successor]
        if not isinstance(frame, TimeEnd):
            self._pulled[successor] = pulled + _rows(frame)
            return
        self._pulled[successor] = 0
        if pulled != frame.rows:
            raise RowsLost(
                f'got {pulled} of the {frame.rows} rows of txid {frame.txid} on edge "{self.name}"'
            )

    def _trim(self) -> None:
        while self._frames and not self._at[self._first]:
            del self._at[self._first]
            self._rows -= _rows(self._frames.popleft())
            self._first += 1


def _time(frame: Frame) -> tuple[int, int]:
    message = frame.diffs if isinstance(frame, TableDiffs) else frame
    return message.txid, message.attempt


def _rows(frame: Frame) -> int:
    match frame:
        case TableDiffs(diffs=diffs):
            return int(diffs.batch.num_rows)
        case Diffs(batch=batch):
            return int(batch.num_rows)
        case _:
            return 0
