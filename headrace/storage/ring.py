"""The blocks of one queue: which of them holds which part, and where the next frame goes.

*Places* are numbered from the queue's beginning; a place has a block of the file as long as it
holds something.  A queue begins with one block (A-11), used in a circle: the oldest block is
also its newest one, up to what the oldest still holds.  When that does not do, as many blocks
come as there are; when they stay near empty, half of them go.

* Invariant 1: a frame lies in blocks that follow each other in the file: it is read in place.
* Invariant 2: bytes are not written again before ``floor`` has passed them.
* Invariant 3: only the oldest block may stand there twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.storage import frames
from headrace.storage.blocks import BlockFile, Extent, NoRoom, runs

_NO_HEADER: Final = bytes(frames.HEADER_BYTES)
_SHRINK_PART: Final = 0.25
"""A queue that is not fuller is too large ..."""
_SHRINK_CHECKS: Final = 2
"""... when that was so at so many checks in turn."""


class Ring:
    """The blocks of a queue; its owner holds the lock of the file."""

    def __init__(
        self, number: int, file: BlockFile, found: Mapping[int, int] | None, base: int
    ) -> None:
        """``found``: the blocks that an earlier process has left, by place; None: a new queue."""
        self._number: Final = number
        self._file: Final = file
        self._bytes: Final = file.block_bytes
        self._first = base // self._bytes
        """The oldest place that has a block."""
        self._blocks: deque[int] = deque()
        """Blocks by place, from ``_first`` on."""
        self._idle: set[int] = set()
        """Blocks that hold nothing."""
        self._gaps: dict[int, int] = {}
        """Where nothing more stands up to the end of a block: where it goes on."""
        self._again = -1
        """The place at which the oldest block stands once more; -1: it does not."""
        self._open = 0
        """Up to here what comes next may be written behind what came last, at least."""
        self._low = 0
        self.begin = 0
        """Where the oldest block begins."""
        self.end = 0
        """Where the newest block ends."""
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
        """How many blocks there are."""
        return len(self._blocks) - (self._again >= 0) + len(self._idle)

    @property
    def capacity(self) -> int:
        """Bytes that they hold."""
        return self.count * self._bytes

    @property
    def contiguous(self) -> bool:
        """Whether they follow each other in the file (A-22)."""
        return len(runs(sorted(self.blocks))) <= 1

    def _moved(self) -> None:
        self.begin = self._first * self._bytes
        self.end = self.begin + len(self._blocks) * self._bytes

    def memory(self, at: int, size: int) -> memoryview:
        """The bytes of a frame at ``at``."""
        place, inside = divmod(at, self._bytes)
        return self._file.memory(self._blocks[place - self._first] * self._bytes + inside, size)

    def where(self, at: int) -> int:
        """Where in the file an offset is."""
        place, inside = divmod(at, self._bytes)
        return self._blocks[place - self._first] * self._bytes + inside

    def extents(self, begin: int, end: int) -> list[Extent]:
        """The blocks that hold what stands from ``begin`` up to ``end``, as runs in order."""
        first, last = begin // self._bytes, -(-end // self._bytes)
        places = range(max(first, self._first), min(last, self._first + len(self._blocks)))
        return runs(self._blocks[place - self._first] for place in places)

    def blocks_at(self, places: Iterable[int]) -> list[int]:
        """The blocks at places that have one."""
        begin, count = self._first, len(self._blocks)
        inside = (int(place) - begin for place in places)
        return [self._blocks[number] for number in inside if 0 <= number < count]

    @property
    def comes_round(self) -> bool:
        """Whether the oldest block is the newest one too."""
        return self._again >= 0

    def after_gap(self, at: int) -> int:
        """Where the frame begins that comes after ``at``."""
        return self._gaps.get(at, at)

    def add_gap(self, at: int, begin: int) -> None:
        """Between ``at`` and ``begin``, where a block begins, nothing stands."""
        self._gaps[at] = begin

    # --- where the next frame goes

    def follows(self, front: int, need: int) -> bool:
        """Whether a frame goes right behind the last one, so far as is known without ``room``."""
        return front + need <= self._open

    def room(self, front: int, need: int, floor: int) -> int:
        """Where a frame of ``need`` bytes goes when the last one has ended at ``front``.

        Raises:
            NoRoom: no block can be had.
        """
        while True:
            at = self._fitting(front, need, floor)
            if at is not None:
                self._open = self._limit(self._first + len(self._blocks) - 1, floor)
                return at
            self._grow(-(-need // self._bytes))

    def _fitting(self, front: int, need: int, floor: int) -> int | None:
        begin, limit = self.end, front
        if front < begin:
            place = begin // self._bytes - 1
            limit = self._limit(place, floor)
            if front + need <= limit:
                return front
            more = -(-(front + need) // self._bytes) - place - 1
            if limit == begin and self._follow(self._blocks[-1] + 1, more):
                return front
        # What is left of the block stays empty.
        count = -(-need // self._bytes)
        if not (
            self._follow(self._blocks[-1] + 1 if self._blocks else 0, count)
            or self._follow(self._idle_run(count), count)
            or (count == 1 and self._come_round(need, floor))
        ):
            return None
        if front < begin:
            self._gaps[front] = begin
            if front < limit:
                # One that was taken back may stand there, and must not be found.
                self.memory(front, frames.HEADER_BYTES)[:] = _NO_HEADER
        return begin

    def _idle_run(self, count: int) -> int:
        """Where ``count`` idle blocks begin that follow each other; -1: there are none."""
        return next((run.start for run in runs(sorted(self._idle)) if run.size >= count), -1)

    def _follow(self, start: int, count: int) -> bool:
        """Use ``count`` idle blocks from ``start`` next, if they are there."""
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
        """Use the oldest block again, up to what it still holds (A-12)."""
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
        """Up to where the block at ``place`` may be written."""
        if place == self._again:
            return place * self._bytes + floor % self._bytes
        return (place + 1) * self._bytes

    def _grow(self, least: int) -> None:
        """Take as many blocks as there are (A-13), or what a large frame needs."""
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
        """Nothing before ``floor`` is needed: blocks that lie before it hold nothing."""
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
        """What is from ``front`` on was never put."""
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
        """Give half of the blocks back if they are near empty for the second time (A-14)."""
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
        """Give all of them back."""
        self._file.give(self.blocks)
        self._open, self._again = 0, -1
        self._blocks.clear()
        self._idle.clear()
        self._moved()


def _listed(parts: Iterable[Extent]) -> list[int]:
    return [block for run in parts for block in range(run.start, sum(run))]
