"""Residency of the blocks of a queue: which are in memory, which are evicted, and since when.

Written blocks are in memory; evicted blocks return when they are read, or by read-ahead.  This
information decides only which blocks are evicted and requested.  If it is wrong about a page, that
costs time only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.storage.blocks import BlockFile, runs
from headrace.storage.ring import Ring

_OUT: Final = np.inf
"""Value of ``_since`` for an evicted block."""
_NEVER_READ: Final = 1 << 60
"""Distance of a block from its reader if every reader is beyond it."""

Places = npt.NDArray[Any]
"""Numbers of blocks, counted from the queue's beginning."""


class Residency:
    """The residency of one queue; its owner holds the lock of the file."""

    def __init__(self, ring: Ring, file: BlockFile) -> None:
        self._ring: Final = ring
        self._file: Final = file
        self._size: Final = file.block_bytes
        self._first = 0
        """The place of the first entry of ``_since``."""
        self._since: npt.NDArray[np.float64] = np.zeros(0)
        """Time since which the block at a place is in memory; 0 if it was never evicted.  Blocks
        beyond the end of the array never were."""
        self._out = 0
        """Number of evicted blocks."""
        self.left = 0
        """No block beyond this offset is evicted."""
        self._sure = (0, 0)
        """Range of offsets for which no block need be requested."""
        self._lately: Places = np.zeros(0, np.int64)
        """Blocks evicted since the last look: some may have arrived only afterwards, and pages that
        the kernel was still putting away stay in memory."""

    def bytes(self, base: int, front: int) -> int:
        """Return the bytes between base and front that are, or may be, in memory."""
        self._pass_by(base)
        if not self._out:
            return front - base
        partly = base % self._size if self._since[0] == _OUT else 0
        return front - base - self._out * self._size + partly

    # --- leaving

    def choose(
        self, part: tuple[int, int], heads: Iterable[int], held: Iterable[tuple[int, int]],
        before: float,
    ) -> Places:  # fmt: skip
        """Return the blocks inside ``part`` that may be evicted, in reverse order of reading.

        Blocks in ``held`` are left out, and those that came to memory at ``before`` or later
        (seconds on the monotonic clock).
        """
        self._pass_by(part[0])
        first, last = part[0] // self._size, part[1] // self._size
        # The oldest block may also be the newest one, which is being written.
        first += self._ring.comes_round
        if last <= first:
            return np.zeros(0, np.int64)
        self._cover(last)
        may = self._since[first - self._first : last - self._first] < before
        for begin, end in held:
            may[max(begin // self._size - first, 0) : max(-(-end // self._size) - first, 0)] = False
        places = np.flatnonzero(may) + first
        reading = np.unique(np.array([head // self._size for head in heads], np.int64))
        if not len(reading):
            return places[::-1]
        nearest = np.searchsorted(reading, places, "right") - 1
        ahead = np.where(nearest >= 0, places - reading[nearest], _NEVER_READ)
        return places[np.argsort(-ahead, kind="stable")]

    def leave(self, places: Places) -> None:
        """Evict blocks, with one call for each run of the file (A-22).

        REQUIRES: ``choose`` has just returned them.
        """
        if not len(places):
            return
        self._lately = np.union1d(self._lately, places)
        self._since[places - self._first] = _OUT
        self._out += len(places)
        self.left = max(self.left, (int(places.max()) + 1) * self._size)
        self._sure = (0, 0)
        for run in runs(sorted(self._ring.blocks_at(places))):
            self._file.evict(run)

    def leave_again(self) -> bool:
        """Evict blocks that are in memory after their eviction; returns whether to look again."""
        places = self._lately
        if not len(places):
            return False
        places = places[(places >= self._first) & (places < self._first + len(self._since))]
        places = places[self._since[places - self._first] == _OUT]
        found = [
            run for run in runs(sorted(self._ring.blocks_at(places))) if self._file.resident([run])
        ]
        for run in found:
            self._file.evict(run)
        self._lately = places if self._file.resident(found) else places[:0]
        return len(self._lately) > 0

    def cut(self, front: int) -> None:
        """Forget the blocks from ``front`` on: other bytes will be written there."""
        kept = max(front // self._size - self._first, 0)
        if kept < len(self._since):
            self._out -= int(np.count_nonzero(self._since[kept:] == _OUT))
            self._since = self._since[:kept]
        self.left = min(self.left, front) if self._out else 0
        self._sure = (0, 0)

    # --- coming back

    def wanted(self, at: int, size: int) -> Places:
        """Return the blocks to request before a read at ``at``: ``size`` bytes from the first one.

        None while half as much after ``at`` is in memory: the disk works while that is read.
        """
        begin, end = self._sure
        if begin <= at < end:
            return np.zeros(0, np.int64)
        count = max(size // self._size, 1)
        missing = self.missing(at, count)
        half = max(count // 2, 1)
        if len(missing) and missing[0] < at // self._size + half:
            return self.missing(int(missing[0]) * self._size, count)
        safe = int(missing[0]) - half + 1 if len(missing) else at // self._size + count - half + 1
        self._sure = (at, safe * self._size)
        return missing[:0]

    def missing(self, at: int, count: int, *, further: bool = False) -> Places:
        """Return the evicted blocks among the ``count`` blocks from ``at`` on.

        ``further``: the first ``count`` evicted blocks from ``at`` on, however far away.
        """
        place = at // self._size
        begin = max(place - self._first, 0)
        seen = self._since[begin:] if further else self._since[begin : begin + count]
        return np.flatnonzero(seen == _OUT)[:count] + max(place, self._first)

    def load(self, places: Places, now: float) -> None:
        """Request evicted blocks, with one call for each run of the file."""
        if not len(places):
            return
        self._since[places - self._first] = now
        self._out -= len(places)
        if not self._out:
            self.left = 0
        self._sure = (0, 0)
        for run in runs(sorted(self._ring.blocks_at(places))):
            self._file.read_ahead(run)

    def map_in(self, at: int, end: int) -> None:
        """Map in the requested blocks from that of ``at`` up to ``end``."""
        begin = max(at // self._size, self._first)
        back = self._since[begin - self._first : end // self._size - self._first]
        came = np.flatnonzero((back > 0) & (back < _OUT)) + begin
        for run in runs(self._ring.blocks_at(came)):
            self._file.map_in(run)

    # --- inside

    def _pass_by(self, base: int) -> None:
        """Forget the blocks before ``base``."""
        gone = base // self._size - self._first
        if gone <= 0:
            return
        self._out -= int(np.count_nonzero(self._since[:gone] == _OUT))
        self._since = self._since[gone:].copy()
        self._first += gone
        if not self._out:
            self.left = 0

    def _cover(self, end: int) -> None:
        more = end - self._first - len(self._since)
        if more > 0:
            self._since = np.concatenate((self._since, np.zeros(more)))
