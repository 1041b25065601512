"""Figures of a link: results of its probes (``probe.py``), and the bytes of the last seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from headrace.network.probe import PROBES, Probed

_RATE_S: Final = 10
"""Seconds over which ``Rate`` averages."""


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """Figures of a link; None: not measured yet."""

    latency_us: int | None
    """One way, the least of the last probes, in microseconds."""
    bandwidth: int | None
    """The most of the last probes, in bytes per second."""
    most: int | None
    """The most of all probes."""
    out_now: int
    """Bytes per second that are sent, on average over ten seconds."""
    in_now: int
    """Bytes per second that are received."""


class Rate:
    """Bytes per second, averaged over the last seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()
        self.total = 0

    def add(self, size: int, now: float) -> None:
        """Count ``size`` bytes at ``now``, a time of the monotonic clock."""
        self.total += size
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            size += self._seconds.pop()[1]
        self._seconds.append((second, size))
        while self._seconds[0][0] <= second - _RATE_S:
            self._seconds.popleft()

    def per_s(self, now: float) -> int:
        """Return the bytes per second."""
        return sum(n for second, n in self._seconds if second > now - _RATE_S) // _RATE_S


class LinkMeter:
    """Figures of one link, at the coordinator.

    REQUIRES: one thread at a time.
    """

    def __init__(self) -> None:
        self.sent, self.received = Rate(), Rate()
        self._probes: deque[Probed] = deque(maxlen=PROBES)
        """The best of them counts, because a busy machine only makes a link look slow."""
        self._most: int | None = None

    def probed(self, found: Probed) -> None:
        """Take the result of a probe."""
        self._probes.append(found)
        self._most = max(self._most or 0, found.bandwidth)

    @property
    def bandwidth(self) -> int | None:
        """See ``LinkFigures``."""
        return max((found.bandwidth for found in self._probes), default=None)

    def figures(self, now: float) -> LinkFigures:
        """Return the figures at ``now``."""
        latency = min((found.latency_us for found in self._probes), default=None)
        rates = self.sent.per_s(now), self.received.per_s(now)
        return LinkFigures(latency, self.bandwidth, self._most, *rates)
