"""What a link is like, by what goes over it anyway: how long a word takes, how much fits through.

Nothing is sent to find out but a word a second, and to that the signs of life are the answers.

Source: Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016: the round trip is the
least of late, the bandwidth the most that arrived while something was always under way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

_MEASURED_BYTES: Final = 1 << 16
"""So much has to arrive for it to say something of the bandwidth."""
_SPAN_S: Final = 2.0
"""After which a stretch in which something is always under way is judged, and a new one begins."""
_LATE_S: Final = 30.0
"""What is older says nothing of the link as it is now."""
_NOW_S: Final = 10
"""Seconds over which the rates of now are told."""
_BURST_S: Final = 0.05
"""What comes later than that after another is not of one stretch."""
_SHORT_S: Final = 1e-4


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


class LinkMeter:
    """Of one link, seen from one end; ``now`` is on the monotonic clock.

    REQUIRES: one thread at a time.
    """

    def __init__(self) -> None:
        self._sent = self._arrived = 0
        self._begun: tuple[float, int] | None = None
        """Since when something has always been under way, and what had arrived before."""
        self._burst: tuple[float, float, int] | None = None
        """When what comes began, when the last of it came, and how much but for the first."""
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
        if self._begun is None:
            self._begun = (now, self._arrived)
        self._sent += size
        self._out.add(size, now)

    def arrived(self, total: int, now: float) -> None:
        """The other end has got ``total`` bytes so far."""
        self._arrived = max(self._arrived, min(total, self._sent))
        if self._begun is None:
            return
        began, before = self._begun
        size, idle = self._arrived - before, self._arrived == self._sent
        took_s = now - began
        if size >= _MEASURED_BYTES and (idle or took_s >= _SPAN_S):
            # The way there and that of the answer are no part of what it takes to go through.
            flat_s = max(took_s - self._round_trip_s, _SHORT_S)
            self._through.add(size / flat_s, now)
            self._begun = (now, self._arrived)
        if idle:
            self._begun = None

    def answered(self, asked: float, now: float) -> None:
        """A word that was sent at ``asked`` was answered at once."""
        self._trip.add(-max(now - asked, 0.0), now)

    def came(self, size: int, now: float) -> None:
        """``size`` bytes have come."""
        self._in.add(size, now)
        if self._burst is None or now - self._burst[1] > max(_BURST_S, self._round_trip_s):
            self._burst = (now, now, 0)
            return
        began, _, before = self._burst
        self._burst = (began, now, before + size)
        if before + size >= _MEASURED_BYTES:
            self._back.add((before + size) / max(now - began, _SHORT_S), now)
            if now - began >= _SPAN_S:
                self._burst = (now, now, 0)

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
