"""What a link is like, by what goes over it anyway: how long a word takes, how much fits through.

Nothing is sent to find out but a word a second, and to that the signs of life are the answers.

Most of what goes over a link says nothing of its bandwidth: a few bytes now and then, and the first
bytes of each burst, which fill buffers on the way or come out of one.  So the bandwidth is measured
over stretches in which much is under way all the time and the other end says what it has got, and
only where such a stretch is long beside a round trip.  It is not known before that.

Source: Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016: the round trip is the
least of late, the bandwidth the most that arrived while something was always under way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

_MEASURED_BYTES: Final = 1 << 18
"""So much has to arrive for it to say something of the bandwidth."""
_MEASURED_S: Final = 0.05
"""So long it has to take, but for the way: what fits into a buffer takes less."""
_ROUND_TRIPS: Final = 2
"""So many round trips it has to take, or their jitter counts for more than the bandwidth."""
_BACKLOG_BYTES: Final = 1 << 17
"""As long as more is under way, the link decides how fast it arrives, and not who sends.  Less than
the smallest window (``pace.py``) less a piece: else a link that was measured once as slow would
never be measured again."""
_FILLED_S: Final = 0.02
"""What comes so soon after the first of a burst stood in a buffer, while nobody read."""
_CLOCK_S: Final = 1e-6
"""Times are no more exact than that."""
_MESSAGE_BYTES: Final = 1 << 14
"""Messages of less, on average, are of somebody who has not more to send."""
_SPAN_S: Final = 2.0
"""After which a stretch in which something is always under way is judged, and a new one begins."""
_LATE_S: Final = 30.0
"""What is older says nothing of the link as it is now."""
_NOW_S: Final = 10
"""Seconds over which the rates of now are told."""
_BURST_S: Final = 0.05
"""What comes later than that after another is not of one stretch."""


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """What is known of a link; None: nothing has told it yet."""

    latency_us: int | None
    """Half of a round trip, the least of late; microseconds."""
    bandwidth: int | None
    """The most that has gone through of late, whichever way; bytes per second."""
    most: int | None
    """The most that ever has."""
    out_now: int
    """What is sent now; bytes per second."""
    in_now: int
    """What comes now."""


class Rate:
    """Bytes of the last seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()

    def add(self, size: int, now: float) -> None:
        """``size`` bytes more, at ``now``."""
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            size += self._seconds.pop()[1]
        self._seconds.append((second, size))
        while self._seconds[0][0] <= second - _NOW_S:
            self._seconds.popleft()

    def per_s(self, now: float) -> int:
        """How many in a second."""
        return sum(n for second, n in self._seconds.copy() if second > now - _NOW_S) // _NOW_S


class Most:
    """The most of late, and ever."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque()
        """With times; each is more than all that came after it."""
        self.ever: float | None = None

    def add(self, value: float, now: float) -> None:
        """Another one, at ``now``."""
        while self._late and self._late[-1][1] <= value:
            self._late.pop()
        self._late.append((now, value))
        # The last that there was is better than none.
        while len(self._late) > 1 and self._late[0][0] < now - _LATE_S:
            self._late.popleft()
        self.ever = value if self.ever is None else max(self.ever, value)

    @property
    def late(self) -> float | None:
        """The most of late."""
        return self._late[0][1] if self._late else None


@dataclass(slots=True)
class _Burst:
    """What comes without a pause."""

    began: float
    last: float
    """When the last of it came."""
    since: float = 0.0
    """From when on it is counted; 0: what was in buffers may still come."""
    size: int = 0
    """Bytes that have come since."""
    messages: int = 0


class LinkMeter:
    """Of one link, seen from one end; ``now`` is on the monotonic clock.

    REQUIRES: one thread at a time.
    """

    def __init__(self) -> None:
        self._sent = self._arrived = 0
        self._begun: tuple[float, int] | None = None
        """Since when much has always been under way, and what had arrived before."""
        self._burst: _Burst | None = None
        self._trip = Most()
        """Negative: of round trips the least counts."""
        self._through, self._back = Most(), Most()
        self._out, self._in = Rate(), Rate()

    @property
    def under_way(self) -> int:
        """Bytes that were sent, and not said to have arrived."""
        return self._sent - self._arrived

    def sends(self, size: int, now: float) -> None:
        """``size`` bytes are sent."""
        self._sent += size
        if self._begun is None and self.under_way >= _BACKLOG_BYTES:
            self._begun = (now, self._arrived)
        self._out.add(size, now)

    def arrived(self, total: int, now: float) -> None:
        """The other end has got ``total`` bytes so far."""
        self._arrived = max(self._arrived, min(total, self._sent))
        if self._begun is None:
            return
        began, before = self._begun
        size, drained = self._arrived - before, self.under_way < _BACKLOG_BYTES
        # The way there and that of the answer are no part of what it takes to go through.
        took_s, way_s = now - began, self._round_trip_s
        enough = size >= _MEASURED_BYTES and took_s - way_s >= max(
            _MEASURED_S, _ROUND_TRIPS * way_s
        )
        if enough and (drained or took_s >= _SPAN_S):
            self._through.add(size / (took_s - way_s), now)
            self._begun = (now, self._arrived)
        if drained:
            self._begun = None

    def answered(self, asked: float, now: float) -> None:
        """A word that was sent at ``asked`` was answered at once."""
        self._trip.add(-max(now - asked, 0.0), now)

    def came(self, size: int, now: float) -> None:
        """``size`` bytes have come."""
        self._in.add(size, now)
        burst = self._burst
        if burst is None or now - burst.last > max(_BURST_S, self._round_trip_s):
            self._burst = _Burst(now, now)
            return
        burst.last = now
        if not burst.since:
            if now - burst.began >= _FILLED_S - _CLOCK_S:
                burst.since = now
            return
        burst.size += size
        burst.messages += 1
        took_s = now - burst.since
        full = burst.size >= _MESSAGE_BYTES * burst.messages
        if full and burst.size >= _MEASURED_BYTES and took_s >= _MEASURED_S - _CLOCK_S:
            self._back.add(burst.size / took_s, now)
        if took_s >= _SPAN_S:
            burst.since, burst.size, burst.messages = now, 0, 0

    def told(self, now: float) -> LinkFigures:
        """What is known."""
        late = self._through.late if self._through.late is not None else self._back.late
        ever = [most.ever for most in (self._through, self._back) if most.ever is not None]
        trip = self._trip.late
        return LinkFigures(
            None if trip is None else round(-trip * 1e6 / 2),
            *(None if late is None else round(late), round(max(ever)) if ever else None),
            *(self._out.per_s(now), self._in.per_s(now)),
        )

    @property
    def bandwidth(self) -> int | None:
        """See ``LinkFigures``."""
        late = self._through.late if self._through.late is not None else self._back.late
        return None if late is None else round(late)

    @property
    def _round_trip_s(self) -> float:
        trip = self._trip.late
        return 0.0 if trip is None else -trip
