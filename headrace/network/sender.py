"""Sending on the coordinator's end of a link, in the order of the calls.

The flow control of HTTP/2 blocks a write until the worker has read.  Arrow Flight's writes do
not report beforehand whether they will block.  So rows for another machine are written by a
separate thread, which takes them from a bounded queue: a slow link then delays neither the engine
nor the links to other workers.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace import clock
from headrace.network.messages import (
    COMPRESSED_BELOW,
    FAST_PIECE_BYTES,
    PIECE_BYTES,
    Packing,
    ToWorker,
    packed,
    pieces,
)
from headrace.network.meter import LinkFigures, LinkMeter
from headrace.network.probe import Probed

_DIRECT_BYTES: Final = 1 << 16
"""Bytes that the caller's thread writes before the next message from the worker.  HTTP/2 lets at
least so many be in flight, so these writes do not block."""
_WAITING_BYTES_MAX: Final = 1 << 24
"""Bytes of rows in the queue; a caller with more rows waits."""


@dataclass(frozen=True, slots=True)
class _Item:
    """Message to be sent."""

    word: ToWorker
    batch: pa.RecordBatch | None = None
    size: int = 0
    """Bytes of rows."""


class Sender:
    """Sender of the messages of one exchange; every method except ``run`` is for any thread.

    * Invariant 1: messages go out in the order of the calls.
    * Invariant 2: one thread writes at a time: the one that has set ``_writing``.
    """

    def __init__(
        self, writer: Any, said: int | None, failed: Callable[[str], None], *, far: bool
    ) -> None:
        """Send with ``writer``; ``failed`` gets the reason when a write fails.

        ``said``: the bandwidth that ``add_link`` gave, in bytes per second.
        """
        self._writer = writer
        self._failed = failed
        self._far: Final = far
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        # Guarded by the condition's lock.
        self._over = False
        self._writing = False
        self._waiting: deque[_Item] = deque()
        self._waiting_bytes = 0
        self._unheard_bytes = 0
        """Bytes sent since the last message from the worker."""
        self._meter: Final = LinkMeter()
        self._said: int | None = None
        self._form = Packing(True, PIECE_BYTES)
        """Form in which rows are sent to another machine."""
        self.override(said)  # before anything is measured

    def send(self, word: ToWorker, batch: pa.RecordBatch | None = None) -> bool:
        """Send a message; return False if the link is dead."""
        if batch is None:
            return self._send(_Item(word))
        parts = pieces(batch, self._form.piece_bytes if self._far else None)
        return all(self._send(_Item(word, part, part.nbytes)) for part in parts)

    def heard(self, size: int) -> None:
        """Count a message of ``size`` bytes from the worker."""
        with self._changed:
            self._unheard_bytes = 0
            self._meter.received.add(size, clock.monotonic())

    def probed(self, found: Probed) -> None:
        """Take the result of a probe of the link."""
        with self._changed:
            self._meter.probed(found)
            self._choose()

    def override(self, said: int | None) -> None:
        """Take the bandwidth that ``add_link`` gave; None: the measured one counts."""
        with self._changed:
            self._said = said
            self._choose()

    @property
    def said(self) -> int | None:
        """The bandwidth that ``add_link`` gave."""
        return self._said

    def figures(self) -> LinkFigures:
        """Return the figures of the link."""
        with self._changed:
            return self._meter.figures(clock.monotonic())

    @property
    def moved(self) -> int:
        """Bytes of messages that were sent and received so far."""
        return self._meter.sent.total + self._meter.received.total

    @property
    def compresses(self) -> bool:
        """Whether rows are compressed."""
        return self._far and self._form.packed

    def close(self) -> None:
        """Stop sending, and wake callers that wait for room."""
        with self._changed:
            self._over = True
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()

    def end(self) -> None:
        """Close the exchange.  REQUIRES: the sender is closed, and a write under way will end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
        with contextlib.suppress(pa.ArrowException, OSError):
            self._writer.close()

    def run(self) -> None:
        """Send what is queued, in order, until the sender is closed."""
        while (item := self._next()) is not None:
            self._put(item)

    # --- inside

    def _choose(self) -> None:
        """Compress rows for another machine unless the link is known to be fast.

        The size of pieces depends on the measured bandwidth, not on the one that was stated.
        """
        measured = self._meter.bandwidth
        known = measured if self._said is None else self._said
        fast = measured is not None and measured >= COMPRESSED_BELOW
        form = Packing(
            known is None or known < COMPRESSED_BELOW, FAST_PIECE_BYTES if fast else PIECE_BYTES
        )
        if self._far and form != self._form and not self._over:
            self._form = form
            self._waiting.append(_Item(form))
            self._changed.notify_all()

    def _send(self, item: _Item) -> bool:
        """Write at once if nothing is queued and that does not block, else leave it to ``run``."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._room(item))
            if self._over:
                return False
            if self._writing or self._waiting or not self._direct(item):
                self._waiting.append(item)
                self._waiting_bytes += item.size
                self._changed.notify_all()
                return True
            self._writing = True
        return self._put(item)

    def _room(self, item: _Item) -> bool:
        return not item.size or self._waiting_bytes < _WAITING_BYTES_MAX

    def _direct(self, item: _Item) -> bool:
        return not self._far or self._unheard_bytes + item.size <= _DIRECT_BYTES

    def _next(self) -> _Item | None:
        with self._changed:
            self._changed.wait_for(lambda: self._over or (self._waiting and not self._writing))
            if self._over:
                return None
            item = self._waiting.popleft()
            self._waiting_bytes -= item.size
            self._writing = True
            self._changed.notify_all()
            return item

    def _put(self, item: _Item) -> bool:
        """Write a message; return False if the link is dead.

        REQUIRES: this thread has set ``_writing``; this method resets it.
        """
        try:
            message = packed(
                item.word, item.batch, compressed=self.compresses, number=next(self._numbers)
            )
            with self._changed:
                self._unheard_bytes += message.size
                self._meter.sent.add(message.size, clock.monotonic())
            self._writer.write_metadata(message)
        except (pa.ArrowException, OSError) as error:
            self._failed(str(error))
            return False
        finally:
            with self._changed:
                self._writing = False
                if self._waiting or self._over:
                    self._changed.notify_all()
        return True
