"""What goes out of a coordinator's end: at once, or behind what the other end has not taken in yet.

Rows are sent as far as no more is under way than ``LinkPace.window_bytes``; what is behind them
waits, up to a bound: then who sends does.  So neither end has more of them in memory than these
two.
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
from headrace.network import pace
from headrace.network.messages import Packing, Ping, ToWorker, packed, pieces
from headrace.network.meter import LinkFigures, LinkMeter
from headrace.network.pace import Override

_DIRECT_BYTES: Final = 1 << 16
"""No more is sent on the thread of who sends: what a slow wire takes at once."""
_WAITING_BYTES_MAX: Final = 1 << 24
"""So many bytes of rows may wait to be sent; then who sends them does."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A word that is to be sent."""

    word: ToWorker
    batch: pa.RecordBatch | None = None
    size: int = 0
    """Bytes of rows."""


class Sender:
    """Of one exchange; every method but ``run`` is for any thread.

    * Invariant 1: what is sent goes out in the order of the calls, but for pings.
    * Invariant 2: one thread writes at a time, that which has set ``_writing``.
    """

    def __init__(
        self, writer: Any, override: Override, failed: Callable[[str], None], *, far: bool
    ) -> None:
        """``failed`` is told why nothing can be written any more."""
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
        self._meter: Final = LinkMeter()
        self._override = override
        self._pace = pace.first(far=far)
        self._pinged = 0
        self._pings: dict[int, float] = {}
        """When they were sent; what is not answered yet."""

    def send(self, word: ToWorker, batch: pa.RecordBatch | None = None) -> bool:
        """Send; False: nothing can be."""
        if batch is None:
            return self._send(_Item(word))
        parts = pieces(batch, self._pace.piece_bytes)
        return all(self._send(_Item(word, part, part.nbytes)) for part in parts)

    def came(self, size: int, got: int) -> None:
        """So many bytes have come; the other end has taken in ``got`` of ours."""
        with self._changed:
            now = clock.monotonic()
            self._meter.came(size, now)
            self._meter.arrived(got, now)
            if self._waiting:
                self._changed.notify_all()

    def answered(self, ping: int) -> None:
        """The other end answers a ping, or says once more which was the last one."""
        with self._changed:
            asked = self._pings.pop(ping, None)
            if asked is not None:
                self._meter.answered(asked, clock.monotonic())
            self._pings = {n: at for n, at in self._pings.items() if n > ping}

    def ask(self) -> None:
        """See how far away the other end is, and say how rows are to be sent."""
        with self._changed:
            new = pace.of(self._meter.bandwidth, self._override.bytes_per_s, self._pace)
            if new != self._pace:
                known = (self._pace.packed, self._pace.piece_bytes)
                self._pace = new
                if new.piece_bytes is not None and known != (new.packed, new.piece_bytes):
                    self._waiting.append(_Item(Packing(new.packed, new.piece_bytes)))
            if not (self._waiting and isinstance(self._waiting[0].word, Ping)):
                self._pinged += 1
                # Before all that waits: it means the same anywhere.
                self._waiting.appendleft(_Item(Ping(self._pinged)))
            self._changed.notify_all()

    def told(self) -> LinkFigures:
        """What the link is like."""
        with self._changed:
            return self._meter.told(clock.monotonic())

    @property
    def packs(self) -> bool:
        """Whether rows are compressed."""
        return self._pace.packed

    @property
    def waiting_bytes(self) -> int:
        """Bytes of rows that wait, and of all that is under way."""
        with self._changed:
            return self._waiting_bytes + self._meter.under_way

    def override(self, said: Override) -> None:
        """Somebody says what the link is like."""
        with self._changed:
            self._override = said

    def close(self) -> None:
        """Nothing is sent any more; who waits for room hears it."""
        with self._changed:
            self._over = True
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()

    def end(self) -> None:
        """Let go of the exchange.  REQUIRES: it is closed, and what is written comes to an end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
        with contextlib.suppress(pa.ArrowException, OSError):
            self._writer.close()

    def run(self) -> None:
        """Send what waits, in order, as far as the other end takes it in, until it is closed."""
        while (item := self._next()) is not None:
            self._put(item)

    # --- inside

    def _send(self, item: _Item) -> bool:
        """Send at once where nothing stands before it, else leave it to ``run``."""
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
        """Whether a word goes out without delay: on this machine, as far as there is room."""
        if not self._far:
            return self._fits(item)
        return self._meter.under_way + item.size <= _DIRECT_BYTES

    def _fits(self, item: _Item) -> bool:
        under_way = self._meter.under_way
        return not (item.size and under_way) or under_way + item.size <= self._pace.window_bytes

    def _next(self) -> _Item | None:
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._ready())
            if self._over:
                return None
            item = self._waiting.popleft()
            self._waiting_bytes -= item.size
            self._writing = True
            self._changed.notify_all()
            return item

    def _ready(self) -> bool:
        return not self._writing and bool(self._waiting) and self._fits(self._waiting[0])

    def _put(self, item: _Item) -> bool:
        """Write a word; False: it cannot be.

        REQUIRES: ``_writing`` is this thread's; it ends with it.
        """
        word, number = item.word, next(self._numbers)
        try:
            message = packed(word, item.batch, compressed=self._pace.packed, number=number)
            with self._changed:
                now = clock.monotonic()
                self._meter.sends(message.size, now)
                if isinstance(word, Ping):
                    self._pings[word.number] = now
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
