"""The blocks of one queue: which block holds which part, and where the next frame goes.

*Places* are numbered from the queue's beginning; a place has a block of the file as long as it
holds data.  A queue begins with one block (A-11), used as a ring: the oldest block is also the
newest one, up to the data that it still holds.  If that is too small, the number of blocks is
doubled; if they stay almost empty, half of them are released.

* Invariant 1: a frame lies in blocks that are adjacent in the file, so it is read in place.
* Invariant 2: bytes are not overwritten, and their block gets no other place, before ``floor`` has
  passed them.
* Invariant 3: only the oldest block may be there twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.storage.blocks import BlockFile, Extent, NoRoom, runs

_SHRINK_PART: Final = 0.25
"""A queue is too large if at most this part of it is used ..."""
_SHRINK_CHECKS: Final = 2
"""... at this number of consecutive checks."""


class Ring:
    """The blocks of a queue; its owner holds the lock of the file."""

    def __init__(
        self, number: int, file: BlockFile, found: Mapping[int, int] | None, base: int
    ) -> None:
        """Create a ring; ``found``: an earlier process's blocks, by place; None: a new queue."""
        self._number: Final = number
        self._file: Final = file
        self._bytes: Final = file.block_bytes
        self._first = base // self._bytes
        """The first place that has a block."""
        self._blocks: deque[int] = deque()
        """Blocks by place, from ``_first`` on."""
        self._idle: set[int] = set()
        """Blocks that hold no data."""
        self._gaps: dict[int, int] = {}
        """Offset of each gap at the end of a block, with the offset of the next frame."""
        self._again = -1
        """The second place of the oldest block, if it is used again; -1: it is not."""
        self._open = 0
        """Offset up to which the next frame may directly follow the last one, at least."""
        self._low = 0
        self.begin = 0
        """Offset at which the oldest block begins."""
        self.end = 0
        """Offset at which the newest block ends."""
        self._moved()
        if found is None:
            self._idle.update(_listed(file.take(1, number)))
            return
        place = self._first
        while place in found:
            self._blocks.append(found[place])
            place += 1
        self._moved()
        self._idle.update(file.owned(number))
        self._idle.difference_update(self._blocks)
        if self._blocks.count(self._blocks[0] if self._blocks else -1) > 1:
            self._again = self._first + self._blocks.index(self._blocks[0], 1)

    # --- what there is

    @property
    def blocks(self) -> set[int]:
        """All blocks of the queue."""
        return set(self._blocks) | self._idle

    @property
    def count(self) -> int:
        """Number of blocks."""
        return len(self._blocks) - (self._again >= 0) + len(self._idle)

    @property
    def capacity(self) -> int:
        """Capacity of the blocks in bytes."""
        return self.count * self._bytes

    @property
    def contiguous(self) -> bool:
        """Whether the blocks are adjacent in the file (A-22)."""
        return len(runs(sorted(self.blocks))) <= 1

    def _moved(self) -> None:
        self.begin = self._first * self._bytes
        self.end = self.begin + len(self._blocks) * self._bytes

    def memory(self, at: int, size: int) -> memoryview:
        """Return the memory of a frame at ``at``."""
        place, inside = divmod(at, self._bytes)
        return self._file.memory(self._blocks[place - self._first] * self._bytes + inside, size)

    def where(self, at: int) -> int:
        """Return the position in the file of an offset."""
        place, inside = divmod(at, self._bytes)
        return self._blocks[place - self._first] * self._bytes + inside

    def extents(self, begin: int, end: int) -> list[Extent]:
        """Return the blocks that hold the offsets from ``begin`` to ``end``, as runs in order."""
        first, last = begin // self._bytes, -(-end // self._bytes)
        places = range(max(first, self._first), min(last, self._first + len(self._blocks)))
        return runs(self._blocks[place - self._first] for place in places)

    def blocks_at(self, places: Iterable[int]) -> list[int]:
        """Return the blocks at those of ``places`` that have one."""
        begin, count = self._first, len(self._blocks)
        inside = (int(place) - begin for place in places)
        return [self._blocks[number] for number in inside if 0 <= number < count]

    @property
    def comes_round(self) -> bool:
        """Whether the oldest block is also the newest one."""
        return self._again >= 0

    def after_gap(self, at: int) -> int:
        """Return the offset of the frame that comes at ``at``, after a gap if there is one."""
        return self._gaps.get(at, at)

    def add_gap(self, at: int, begin: int) -> None:
        """Add a gap from ``at`` to ``begin``, where a block begins."""
        self._gaps[at] = begin

    # --- where the next frame goes

    def follows(self, front: int, need: int) -> bool:
        """Return whether a frame is known to fit directly after the last one, without ``room``."""
        return front + need <= self._open

    def room(self, front: int, need: int, floor: int) -> int:
        """Return the offset for a frame of ``need`` bytes after the last one's end, ``front``.

        Raises:
            NoRoom: no block is available.
        """
        while True:
            at = self._fitting(front, need, floor)
            if at is not None:
                self._open = self._limit(self._first + len(self._blocks) - 1, floor)
                return at
            self._grow(-(-need // self._bytes))

    def _fitting(self, front: int, need: int, floor: int) -> int | None:
        begin = self.end
        if front < begin:
            place = begin // self._bytes - 1
            limit = self._limit(place, floor)
            if front + need <= limit:
                return front
            more = -(-(front + need) // self._bytes) - place - 1
            if limit == begin and self._follow(self._blocks[-1] + 1, more):
                return front
        # The rest of the block stays empty.
        count = -(-need // self._bytes)
        if not (
            self._follow(self._blocks[-1] + 1 if self._blocks else 0, count)
            or self._follow(self._idle_run(count), count)
            or (count == 1 and self._come_round(need, floor))
        ):
            return None
        if front < begin:
            self._gaps[front] = begin
        return begin

    def _idle_run(self, count: int) -> int:
        """Return the start of ``count`` adjacent idle blocks; -1: there are none."""
        return next((run.start for run in runs(sorted(self._idle)) if run.size >= count), -1)

    def _follow(self, start: int, count: int) -> bool:
        """Append the ``count`` blocks from ``start`` if all are idle; returns whether they were."""
        wanted = range(start, start + count)
        if not self._idle.issuperset(wanted):
            return False
        for block in wanted:
            self._file.place(block, self._first + len(self._blocks))
            self._idle.discard(block)
            self._blocks.append(block)
        self._moved()
        return True

    def _come_round(self, need: int, floor: int) -> bool:
        """Use the oldest block again, up to the data that it still holds (A-12)."""
        if floor // self._bytes != self._first or not self._blocks:
            return False
        if self._again >= 0 or floor % self._bytes < need:
            return False
        self._again = self._first + len(self._blocks)
        self._file.place(self._blocks[0], self._again, self._first)
        self._blocks.append(self._blocks[0])
        self._moved()
        return True

    def _limit(self, place: int, floor: int) -> int:
        """Return the offset up to which the block at ``place`` may be written."""
        if place == self._again:
            return place * self._bytes + floor % self._bytes
        return (place + 1) * self._bytes

    def _grow(self, least: int) -> None:
        """Double the number of blocks (A-13), or take as many as a large frame needs."""
        count = max(self.count, least)
        try:
            found = self._file.take(count, self._number)
        except NoRoom:
            if count == least:
                raise
            found = self._file.take(least, self._number)
        if least > 1 and not any(run.size >= least for run in found):
            self._file.give(_listed(found))
            raise NoRoom(
                f"the queues have no {least} blocks that follow each other",
                hint="Raise queue_bytes_max.",
            )
        self._idle.update(_listed(found))
        self._low = 0

    # --- what is gone

    def pass_by(self, floor: int) -> None:
        """Release the blocks before ``floor``, which is the first needed offset."""
        while self._blocks and self.begin + self._bytes <= floor:
            block = self._blocks.popleft()
            self._first += 1
            self._moved()
            if self._again >= 0:
                self._file.place(block, self._again)
                self._again = -1
            else:
                self._idle.add(block)
        while self._gaps and (at := next(iter(self._gaps))) < floor:
            del self._gaps[at]

    def cut(self, front: int) -> None:
        """Release the blocks from ``front`` on, as if nothing had been put there."""
        for at in [at for at in self._gaps if at >= front]:
            del self._gaps[at]
        self._open = 0
        needed = -(-front // self._bytes) - self._first
        while len(self._blocks) > max(needed, 0):
            block = self._blocks.pop()
            self._moved()
            if self._first + len(self._blocks) == self._again:
                self._file.place(block, self._first)
                self._again = -1
            else:
                self._file.place(block, None)
                self._idle.add(block)

    def shrink(self, used: int) -> int:
        """Release half of the blocks if they are almost empty for the second time (A-14)."""
        have = self.count
        if have == 1 or used > have * self._bytes * _SHRINK_PART:
            self._low = 0
            return 0
        self._low += 1
        if self._low < _SHRINK_CHECKS:
            return 0
        self._low = 0
        gone = sorted(self._idle, reverse=True)[: have - max(have // 2, 1)]
        self._idle.difference_update(gone)
        self._file.give(gone)
        return len(gone)

    def give_up(self) -> None:
        """Release all blocks."""
        self._file.give(self.blocks)
        self._open, self._again = 0, -1
        self._blocks.clear()
        self._idle.clear()
        self._moved()


def _listed(parts: Iterable[Extent]) -> list[int]:
    return [block for run in parts for block in range(run.start, sum(run))]
