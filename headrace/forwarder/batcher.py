"""Batches of whole source transactions: gathered until the interval is over, never split.

    stream thread ── add(), keepalive() ──► Batcher ── take() ──► engine thread

The engine says when it can take a batch: at once if it has rested, not while others are in
flight.  Until then a batch gathers transactions, for at most the interval since the first of
them, or up to ``rows_max``.  So batches grow with the load.  If all views may be later than that
interval, a batch gathers for longer.  During replay (``cuts``) batches end exactly at the
recorded end LSNs instead.

* Invariant 1: a batch ends at the end of a source transaction.
* Invariant 2: a transaction that committed before the start position is dropped, by our own
  position (H17).  Its Relation messages are kept, since the server will not send them again.  If
  one is ``expected``, no later one is accepted before it (``last_commit.py``).
* Invariant 3: memory is bounded.  ``add`` asks the caller to wait while more than ``bytes_max`` are
  buffered; one transaction's bytes beyond ``spool_bytes_min`` go to a file.
* Invariant 4: ``idle_lsn`` is a keepalive position.  When all taken batches are processed, nothing
  before it is left to process (H15).

A caller that waits for a position (``hurry``) need not wait for the interval: the batch that has
everything before it is closed at once.

Batches may also have to end at certain positions (``divide``).  A position that is not known yet is
that of a snapshot which is being made.  Until it is known, transactions stay apart.  If the engine
cannot take them one by one, the oldest are joined: the position is rarely that old.  If they are
never joined, every transaction is a separate batch.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from headrace import clock
from headrace.errors import ContinuityLost, HeadraceError
from headrace.forwarder import last_commit, policy
from headrace.forwarder.spool import Spool
from headrace.kernels.pgoutput import Commit, read_begin, read_commit
from headrace.types import format_lsn

_B, _C, _R, _Y, _M = b"BCRYM"
_WITHOUT_ROWS: Final = frozenset((_B, _M))
_MESSAGE_BYTES: Final = 64
"""Memory overhead of a message beyond its content."""
_IDLE_S: Final = 0.5
"""Minimum time between two wake-ups of the engine for a keepalive position."""
_CHUNK_MESSAGES: Final = 100_000
_CHUNK_BYTES: Final = 16 * 1024 * 1024


class Stored(Protocol):
    """Messages outside the batch, which can be read any number of times."""

    def read(self, bytes_max: int) -> Iterator[list[bytes]]:
        """Yield all messages in order, in chunks of bounded size."""

    def close(self) -> None:
        """Release the messages; they are not read any more."""


Part = list[bytes] | Stored


@dataclass(frozen=True, slots=True)
class Cut:
    """A recorded batch, which must end at ``end_lsn`` again."""

    txid: int
    end_lsn: int


@dataclass(slots=True)
class Batch:
    """Whole source transactions, as raw messages in stream order."""

    end_lsn: int = 0
    commit_time_us: int = 0
    """Commit time of its last transaction, in microseconds since 2000-01-01."""
    transactions: int = 0
    first_lsn: int = 0
    """End LSN of its first transaction; 0: unknown."""
    messages: int = 0
    size: int = 0
    """Bytes in memory."""
    apart: bool = False
    """Whether it may be joined with its neighbours, if they may be, too."""
    txid: int | None = None
    """The recorded txid during replay."""
    first: int | None = None
    """The first of several txids in it; None: it has one."""
    opened_at: float = 0.0
    oldest_us: int = 0
    """Commit time of its oldest transaction, likewise; 0: unknown (A-42)."""
    parts: list[Part] = field(default_factory=list)

    def chunks(self) -> Iterator[list[bytes]]:
        """Yield all messages, in chunks of bounded size; may be read again."""
        for part in self.parts:
            if not isinstance(part, list):
                yield from part.read(_CHUNK_BYTES)
                continue
            for start in range(0, len(part), _CHUNK_MESSAGES):
                yield part[start : start + _CHUNK_MESSAGES]

    def add(self, after: Batch) -> None:
        """Add the transactions of the batch after this one."""
        if not self.transactions:
            self.first_lsn = after.first_lsn
        self.end_lsn, self.commit_time_us = after.end_lsn, after.commit_time_us
        self.transactions += after.transactions
        self.messages += after.messages
        self.size += after.size
        times = [us for us in (self.oldest_us, after.oldest_us) if us]
        self.oldest_us = min(times, default=0)  # the source's clock may go back
        for part in after.parts:
            if self.parts and isinstance(part, list) and isinstance(self.parts[-1], list):
                self.parts[-1] += part
            else:
                self.parts.append(part)

    @property
    def spooled(self) -> bool:
        """Whether a part of it is on disk."""
        return any(not isinstance(part, list) for part in self.parts)

    def close(self) -> None:
        """Forget the messages."""
        for part in self.parts:
            if not isinstance(part, list):
                part.close()
        self.parts = []


@dataclass(slots=True)
class Backlog:
    """Recorded batches from storage, which come before the batches of the stream."""

    left: int
    _batches: Iterator[Batch]

    def take(self) -> Batch:
        """Return the next batch; REQUIRES: one is left."""
        batch = next(self._batches)
        self.left -= 1
        return batch


class Batcher:
    """The buffer between the stream of one connection and the engine; see the module text."""

    def __init__(
        self,
        *,
        start_lsn: int,
        cuts: Sequence[Cut] = (),
        interval_s: float = 0.05,
        rows_max: int = 100_000,
        bytes_max: int = 64 * 1024 * 1024,
        spool_bytes_min: int = 32 * 1024 * 1024,
        spool_dir: Path | None = None,
    ) -> None:
        """Create a batcher that drops transactions which ended at or before ``start_lsn``."""
        self._start_lsn = start_lsn
        self.expected: Commit | None = None
        """Transaction that must be sent again; set before the first message."""
        self.last: Commit | None = None
        """Last transaction accepted; any thread may read it."""
        self._cuts = deque(cuts)
        self._interval_s = interval_s
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._spool_bytes_min = spool_bytes_min
        self._spool_dir = spool_dir
        self._lock = threading.Condition()
        self._idle_at = 0.0
        # Guarded by the lock.
        self._closed: deque[Batch] = deque()
        self._open = Batch()
        self._error: HeadraceError | None = None
        self._poked = False
        self._idle_lsn = 0
        self._kept_alive = 0
        self._urgent = 0
        self._ends: Collection[int] = ()
        self._apart_s: float | None = None
        self._buffered = 0
        # The transaction being received; used by the stream thread only.
        self._tx: list[bytes] = []
        self._tx_bytes = 0
        self._tx_messages = 0
        self._tx_parts: list[Part] = []
        self._tx_open = False
        self._tx_late = False
        self._final_lsn = 0
        self.duplicates = 0
        """Number of transactions dropped because they had been processed before."""

    @property
    def accepted(self) -> int:
        """End LSN of the last transaction accepted, or 0; any thread may read it."""
        last = self.last
        return 0 if last is None else last.end_lsn

    # --- the stream's side

    def add(self, messages: Sequence[bytes]) -> bool:
        """Add messages in stream order; returns False if ``wait_for_room`` must be called first."""
        tx = self._tx
        for message in messages:
            kind = message[0]
            if kind == _C:
                self._commit(message)
                tx = self._tx
                continue
            if kind == _B:
                self._begin(message)
            elif self._tx_late and kind not in (_R, _Y):
                continue
            tx.append(message)
            self._tx_bytes += len(message) + _MESSAGE_BYTES
            if self._tx_bytes > self._spool_bytes_min and self._spool_dir is not None:
                self._spill()
        with self._lock:
            return not self._full()

    def keepalive(self, lsn: int) -> None:
        """Note that the server has sent everything before ``lsn`` that it will ever send."""
        if self._tx_open:
            return
        if self.expected is not None and self.expected.end_lsn <= lsn:
            raise last_commit.missing(self.expected)
        with self._lock:
            while self._cuts and self._cuts[0].end_lsn <= lsn:
                self._close_open(self._cuts.popleft())
            self._kept_alive = max(self._kept_alive, lsn)
            self._note_idle()
            self._tell(opens=False)

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait for room for at most ``timeout_s``; returns whether there is room."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._full(), timeout_s)

    def fail(self, error: HeadraceError) -> None:
        """Note that the stream has ended; ``take`` raises ``error`` after the remaining batches."""
        with self._lock:
            self._error = self._error or error
            self._lock.notify_all()

    # --- the engine's side

    def take(
        self, timeout_s: float, *, rested_at: float = math.inf, gather_s: float = 0.0
    ) -> Batch | None:
        """Return the next batch; None when poked or after ``timeout_s``.

        ``rested_at``: time (``clock.monotonic``) from which batches stop gathering.
        ``gather_s``: gather at least this long since the first transaction, if no caller hurries.

        Raises:
            HeadraceError: the stream has ended.
        """
        until = clock.monotonic() + timeout_s
        with self._lock:
            while True:
                now, due = clock.monotonic(), self._due(rested_at, gather_s)
                if due <= now:
                    return self._next()
                if self._error is not None:
                    raise self._error
                if self._poked:
                    self._poked = False
                    return None
                if until <= now:
                    return None
                self._lock.wait(min(until, due) - now)

    def relieve(self, keep: Callable[[Batch], bool]) -> bool:
        """Move the next batch to other storage, if more than half of the buffer is in use.

        ``keep`` records the batch and returns whether it is stored elsewhere.  If not, it is taken
        next, with the txid that it got.  Returns whether the batch was moved.
        """
        with self._lock:
            waiting = self._buffered + _spooled((*self._closed, self._open))
            if self._cuts or not policy.is_crowded(waiting, self._bytes_max):
                return False
            if not self._closed:
                self._close_open()
            self._join()
            batch = self._closed[0]  # other threads only append
        if batch.txid is not None or not keep(batch):
            return False
        with self._lock:
            self._closed.popleft()
            self._buffered -= batch.size
            self._lock.notify_all()
        batch.close()
        return True

    def hurry(self, lsn: int) -> None:
        """Hurry until everything before ``lsn`` is received and taken; 0: stop hurrying."""
        with self._lock:
            self._urgent = lsn
            if 0 < lsn <= self._idle_lsn:
                self._poked = True
            self._lock.notify_all()

    def divide(self, ends: Collection[int], apart_s: float | None) -> None:
        """Let batches end at ``ends`` from now on, and at one that is not known yet.

        ``apart_s``: seconds for which transactions are not joined because of that one; infinite:
        they never are; None: there is none.
        """
        with self._lock:
            self._ends, self._apart_s = ends, apart_s
            if apart_s is not None and self._open.transactions and not self._cuts:
                self._close_open()
            self._lock.notify_all()

    @property
    def urgent(self) -> bool:
        """Whether a caller waits for a position that the server has not reported yet."""
        with self._lock:
            return self._urgent > self._seen()

    def poke(self) -> None:
        """Make ``take`` return, so that the engine can do other work."""
        with self._lock:
            self._poked = True
            self._lock.notify_all()

    @property
    def idle_lsn(self) -> int:
        """See Invariant 4; 0 if not known."""
        with self._lock:
            return self._idle_lsn

    @property
    def replaying(self) -> bool:
        """Whether recorded batches are still to come."""
        with self._lock:
            return bool(self._cuts) or any(b.txid is not None for b in self._closed)

    def statistics(self) -> dict[str, int]:
        """Return counters for the status."""
        with self._lock:
            return {
                "buffered_bytes": self._buffered,
                "closed_batches": len(self._closed),
                "open_transactions": self._open.transactions,
                "spooled_bytes": _spooled(
                    (*self._closed, self._open, Batch(parts=list(self._tx_parts)))
                ),
                "duplicates": self.duplicates,
            }

    def close(self) -> None:
        """Drop all buffered messages."""
        with self._lock:
            for batch in (*self._closed, self._open, Batch(parts=self._tx_parts)):
                batch.close()
            self._closed.clear()

    # --- inside

    def _begin(self, message: bytes) -> None:
        if self._tx_open:
            raise ContinuityLost("the stream has a nested Begin")
        self._final_lsn = read_begin(message).final_lsn
        self._tx_open = True
        # The start position is the end of a transaction: one that committed before it also ended
        # at or before it.
        self._tx_late = self._final_lsn < self._start_lsn

    def _commit(self, message: bytes) -> None:
        if not self._tx_open:
            raise ContinuityLost("the stream has a Commit without Begin")
        commit = read_commit(message)
        if commit.commit_lsn != self._final_lsn:
            raise ContinuityLost(
                f"the stream's Commit is at {format_lsn(commit.commit_lsn)}, its Begin said"
                f" {format_lsn(self._final_lsn)}"
            )
        self._tx_open = False
        if self.expected is not None and last_commit.repeats(self.expected, commit):
            self.expected = None
        if self._tx_late:
            # The server does not describe its tables again: keep the descriptions without the rows.
            self._tx_late = False
            self.duplicates += 1
            if self._tx and self._tx[-1][0] == _B:
                self._tx_bytes -= len(self._tx.pop()) + _MESSAGE_BYTES
            else:
                self._tx.append(message)
                self._tx_bytes += len(message) + _MESSAGE_BYTES
            return
        if not self._tx_parts and all(m[0] in _WITHOUT_ROWS for m in self._tx):
            # The server sends it for the sake of logical messages that we do not want.
            self._tx.clear()
            self._tx_bytes = 0
            self.keepalive(commit.end_lsn)
            return
        self._tx.append(message)
        self._tx_bytes += len(message) + _MESSAGE_BYTES
        with self._lock:
            opens = self._open.transactions == 0
            self.last = commit
            self._accept(commit.end_lsn, commit.commit_time_us)
            self._tell(opens=opens)

    def _accept(self, end_lsn: int, time_us: int) -> None:
        while self._cuts and self._cuts[0].end_lsn < end_lsn:
            self._close_open(self._cuts.popleft())
        if self._is_divided(self._open, end_lsn) and not self._cuts:
            self._close_open()
        batch = self._open
        if batch.transactions == 0:
            batch.opened_at = clock.monotonic()
            batch.first_lsn = end_lsn
            batch.apart = self._apart_s is not None and not self._cuts
        # The source's clock may go back.
        batch.oldest_us = min(batch.oldest_us or time_us, time_us)
        batch.transactions += 1
        batch.end_lsn, batch.commit_time_us = end_lsn, time_us
        batch.size += self._tx_bytes
        batch.messages += self._tx_messages + len(self._tx)
        self._buffered += self._tx_bytes
        last = batch.parts[-1] if batch.parts else None
        if not self._tx_parts and isinstance(last, list):
            last.extend(self._tx)
        else:
            batch.parts.extend((*self._tx_parts, self._tx))
        self._tx, self._tx_parts = [], []
        self._tx_bytes = self._tx_messages = 0
        if self._cuts:
            if self._cuts[0].end_lsn == end_lsn:
                self._close_open(self._cuts.popleft())
        elif policy.is_complete(batch.messages, self._rows_max, alone=batch.spooled or batch.apart):
            self._close_open()

    def _is_divided(self, batch: Batch, end_lsn: int) -> bool:
        """Return whether a batch must end before the transaction that ends at ``end_lsn``."""
        return batch.transactions > 0 and any(batch.end_lsn <= e < end_lsn for e in self._ends)

    def _join(self) -> None:
        """Join the first closed batch with those after it, as far as they need not stay apart.

        Batches of transactions that were kept apart wait here if the engine is too slow for them.
        """
        first = self._closed[0]
        apart_s = self._apart_s
        latest = math.inf if apart_s is None else clock.monotonic() - apart_s
        while first.apart and len(self._closed) > 1:
            after = self._closed[1]
            complete = policy.is_complete(
                first.messages + after.messages, self._rows_max, alone=after.spooled
            )
            if not after.apart or complete or after.opened_at > latest:
                return
            if first.spooled or self._is_divided(first, after.end_lsn):
                return
            first.add(after)
            del self._closed[1]

    def _close_open(self, cut: Cut | None = None) -> None:
        if cut is not None:
            self._open.txid, self._open.end_lsn = cut.txid, cut.end_lsn
        self._closed.append(self._open)
        self._open = Batch()

    def _due(self, rested_at: float, gather_s: float) -> float:
        """Return when ``_next`` may be called; infinite: not before more has come."""
        batch = self._open
        if self._closed:
            return -math.inf
        if self._cuts or batch.transactions == 0:
            return math.inf
        # A stream that has ended sends no more: complete transactions need not wait.
        pressed = self._error is not None or self._full() or 0 < self._urgent <= self._seen()
        return policy.closes_at(
            batch.opened_at, self._interval_s, rested_at, gather_s, pressed=pressed
        )

    def _next(self) -> Batch:
        """Remove and return the next batch."""
        if not self._closed:
            self._close_open()
        self._join()
        batch = self._closed.popleft()
        self._buffered -= batch.size
        self._note_idle()
        self._lock.notify_all()
        return batch

    def _tell(self, *, opens: bool) -> None:
        """Wake a caller of ``take`` if a batch is ready or (``opens``) its wait becomes shorter.

        Under load there are a thousand commits and keepalives a second; few of them matter here.
        """
        hurried = 0 < self._urgent <= self._seen()
        if opens or self._closed or self._poked or hurried or self._full():
            self._lock.notify_all()

    def _seen(self) -> int:
        """Return the position before which every ended transaction has been received."""
        return max(self._kept_alive, self._open.end_lsn)

    def _note_idle(self) -> None:
        """Set ``idle_lsn`` to the last keepalive if nothing is buffered (Invariant 4)."""
        if self._closed or self._open.transactions or self._cuts:
            return
        if self._kept_alive > self._idle_lsn:
            self._idle_lsn = self._kept_alive
            now = clock.monotonic()
            # The engine advances its position, from which lag is measured.  A server that writes
            # only unpublished changes sends a keepalive for each flush.
            if 0 < self._urgent <= self._idle_lsn or now - self._idle_at >= _IDLE_S:
                self._poked = True
                self._idle_at = now

    def _full(self) -> bool:
        # An open recorded batch cannot be taken before it is complete.
        takeable = bool(self._closed) or (self._open.transactions > 0 and not self._cuts)
        return policy.is_full(self._buffered, self._bytes_max, takeable=takeable)

    def _spill(self) -> None:
        assert self._spool_dir is not None, "asked by the caller"
        if not self._tx_parts:
            self._tx_parts.append(Spool(self._spool_dir))
        spool = self._tx_parts[-1]
        assert isinstance(spool, Spool), "only spools are parts of an open transaction"
        spool.write(self._tx)
        self._tx_messages += len(self._tx)
        self._tx.clear()
        self._tx_bytes = 0


def _spooled(batches: Iterable[Batch]) -> int:
    return sum(part.bytes for b in batches for part in b.parts if isinstance(part, Spool))
