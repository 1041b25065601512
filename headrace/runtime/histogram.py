"""Histograms of durations in seconds; one observation costs a bisection.

Counts begin at zero with the process, like counters, so readers use the rate of their growth.
Written on one thread, readable from any.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Final

import msgspec

SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of the buckets, from a millisecond to a minute."""


class HistogramCounts(msgspec.Struct, frozen=True):
    """Counts of a histogram so far."""

    bounds: Sequence[float]
    """Upper bounds of the buckets, in seconds; one more bucket has higher values."""
    counts: Sequence[int]
    """Observations by bucket."""
    sum_s: float


class Histogram:
    """Histogram of one kind of duration."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum_s = 0.0

    def note(self, seconds: float) -> None:
        """Count one observation."""
        self._counts[bisect.bisect_left(SECONDS, seconds)] += 1
        self._sum_s += seconds

    def counts(self) -> HistogramCounts:
        """Return a copy of the counts."""
        return HistogramCounts(SECONDS, list(self._counts), self._sum_s)
