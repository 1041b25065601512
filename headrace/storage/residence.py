"""Which part of a queue is in memory: what is too much for it is left to the disk.

Left to the disk is all from behind the block of the base up to some place; of that, the part is in
memory that was asked back, in large pieces, for who reads it.
"""

from __future__ import annotations

from typing import Final

from headrace.storage.blocks import BlockFile
from headrace.storage.ring import Ring

_AHEAD_BYTES: Final = 16 << 20
"""What is asked back from the disk at once."""


class Residence:
    """Of one queue; its owner holds the lock of the file."""

    def __init__(self, ring: Ring, file: BlockFile) -> None:
        self._ring: Final = ring
        self._file: Final = file
        self.left = 0
        """Up to here, from behind the base on, it was left to the disk ..."""
        self._back = (0, 0)
        """... of which this was asked back for who reads it."""

    def bytes(self, base: int, front: int) -> int:
        """Bytes between base and front that are in memory, or may be."""
        begin, end = self._back
        return front - max(base, self.left) + max(end - max(begin, base), 0)

    def leave(self, base: int, end: int) -> None:
        """Leave to the disk what is before ``end``, but for the block of the base.

        REQUIRES: it is synced, and nobody holds it.
        """
        size = self._file.block_bytes
        begin = base if self._back[1] else max(base, self.left)
        begin, end = -(-begin // size) * size, end // size * size
        if end > begin:
            for run in self._ring.extents(begin, end):
                self._file.evict(run)
            self.left, self._back = max(self.left, end), (0, 0)

    def cut(self, front: int) -> None:
        """What is from ``front`` on was never put."""
        begin, end = self._back
        self.left = min(self.left, front)
        self._back = (begin, min(end, front)) if begin < front else (0, 0)

    def read_ahead(self, at: int) -> None:
        """What comes at ``at`` is read, and was left to the disk: ask for many blocks (A-22)."""
        begin, end = self._back
        size = self._file.block_bytes
        # The disk works on while the last half is read.
        if end < self.left and at + _AHEAD_BYTES // 2 >= end:
            for run in self._ring.extents(at // size * size, end // size * size):
                # It was asked back when what is before it was read.
                self._file.map_in(run)
            start = max(at, end)
            self._back = (begin if end else at), min(start + _AHEAD_BYTES, self.left)
            for run in self._ring.extents(start, self._back[1]):
                self._file.read_ahead(run)
