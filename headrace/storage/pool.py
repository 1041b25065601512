"""The memory that queues may take, and who of them has it (A-15 … A-24).

The least urgent leave it first, by the priorities in the shared table; within a queue what is read
last.  What comes for a successor that is at work may take the memory of anybody who is not; what is
read ahead of that takes it only of who is clearly less urgent, and has had it for a while, so that
priorities that swing do not make the disk swing with them (A-24).

With a mapped file nothing depends on it that a block is in memory.  So where everybody is at work,
nothing leaves, and who reads gets his blocks beside: that is counted, and made good when queues are
tended.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Mapping
from typing import Final, Protocol

import numpy as np

from headrace import clock
from headrace.storage.blocks import BlockFile
from headrace.storage.residence import Residence
from headrace.storage.shelf import Shelf
from headrace.storage.table import SharedTable

_SPILL_TO: Final = 0.8
"""The part of the memory that may be in use after it was too much (A-24)."""
_AHEAD_BYTES: Final = 16 << 20
"""What is asked back from the disk at once, at most ..."""
_AHEAD_PART: Final = 4
"""... and of the memory, one part in so many."""
_MARGIN: Final = 1.25
"""By how much more urgent who gets memory ahead of its turn must be than who loses it."""
_STAY_S: Final = 0.1
"""For how long what has come to memory is not exchanged."""


class Paged(Protocol):
    """What is asked of a queue here; its lock is held."""

    @property
    def name(self) -> str:
        """See ``Queue``."""

    @property
    def base(self) -> int:
        """See ``Queue``."""

    @property
    def queued_bytes(self) -> int:
        """See ``Queue``."""

    @property
    def resident_bytes(self) -> int:
        """See ``Queue``."""

    @property
    def synced(self) -> int:
        """See ``Queue``."""

    @property
    def read_at(self) -> int | None:
        """See ``Queue``."""

    @property
    def successors(self) -> dict[Hashable, tuple[int, int]]:
        """See ``Queue``."""

    @property
    def residence(self) -> Residence:
        """See ``Queue``."""

    @property
    def shelf(self) -> Shelf:
        """See ``Queue``."""


class BufferPool:
    """The memory of all queues of a worker; safe between threads."""

    def __init__(
        self, file: BlockFile, lock: threading.RLock, queues: Mapping[str, Paged], memory_bytes: int
    ) -> None:
        """``memory_bytes``: what they may take together; 0: any.  ``lock`` is that of ``file``."""
        self.file: Final = file
        self.lock: Final = lock
        self.table: Final = SharedTable()
        self._queues: Final = queues
        self._memory_bytes: Final = memory_bytes
        window = _AHEAD_BYTES
        if memory_bytes:
            window = min(window, memory_bytes // _AHEAD_PART)
        self.window_bytes: Final = max(window, file.block_bytes)
        """How much is read ahead of a successor that reads on."""
        self.upgrades = 0
        """Times that memory went to who was more urgent, ahead of its turn (A-20)."""
        self.overdrawn = 0
        """Times that what was read found no memory, for everybody was at work."""

    @property
    def used_bytes(self) -> int:
        """What all queues have in memory."""
        with self.lock:
            return sum(queue.resident_bytes for queue in self._queues.values())

    def is_crowded(self) -> bool:
        """Whether that is more than they may."""
        return 0 < self._memory_bytes < self.used_bytes

    def read(self, queue: Paged, at: int, whole: int = 0) -> None:
        """Have in memory what is about to be read at ``at``, and some of what comes behind.

        ``whole``: the bytes of a frame that is larger than that.
        """
        size = self.file.block_bytes
        if whole:
            places = queue.residence.missing(at, -(-(at % size + whole) // size))
        else:
            places = queue.residence.wanted(at, self.window_bytes)
        if len(places):
            # It was asked back when what is before it was read.
            queue.residence.map_in(at, int(places[0]) * size)
            self._admit(queue, len(places) * size, (at, (int(places[-1]) + 1) * size))
            queue.residence.load(places, clock.monotonic())

    def _admit(self, queue: Paged, size: int, kept: tuple[int, int]) -> None:
        """Make room for what a queue is read for, but not by what is ``kept`` of it (A-19)."""
        over = self.used_bytes + size - self._memory_bytes
        if not self._memory_bytes or over <= 0:
            return
        for other in self._order(queue):
            over -= self.spill(other, over, kept=kept if other is queue else None)
            if over <= 0:
                return
        self.overdrawn += 1

    def tend(self) -> None:
        """Keep to the memory there is, and write into the table who has how much of it."""
        with self.lock:
            if self.is_crowded():
                used = self.used_bytes
                for queue in self._order():
                    if used <= self._memory_bytes * _SPILL_TO:
                        break
                    used -= self.spill(queue, math.ceil(used - self._memory_bytes * _SPILL_TO))
            for queue in self._queues.values():
                queued = queue.queued_bytes
                percent = 100 * queue.resident_bytes // queued if queued else 100
                self.table.follow(queue.name, queue.successors.keys(), percent)

    def leave_again(self) -> bool:
        """Leave to the disk what came after it was left; whether to come by again for that."""
        with self.lock:
            return any([queue.residence.leave_again() for queue in self._queues.values()])

    def upgrade(self) -> bool:
        """Exchange memory of a less urgent queue for what a more urgent one reads next (A-20).

        Returns whether something was read ahead; to be called when there is nothing else to do.
        """
        with self.lock:
            urgent = [(self.table.priority(q.name), q) for q in self._queues.values()]
            for priority, queue in sorted(urgent, key=lambda pair: -pair[0]):
                if priority > 0 and queue.residence.left and self._upgrade(queue, priority):
                    return True
        return False

    def _upgrade(self, queue: Paged, priority: float) -> bool:
        size = self.file.block_bytes
        successors = queue.successors
        count, now = self.window_bytes // size, clock.monotonic()
        ahead = [
            queue.residence.missing(successors[name][1], count, further=True)
            for name in self.table.waiting(queue.name)
            if name in successors
        ]
        places = next((found for found in ahead if len(found)), np.zeros(0, np.int64))
        need = len(places) * size
        # Not up to the brim: what is written next would drive it out again.
        room = max(int(self._memory_bytes * _SPILL_TO) - self.used_bytes, 0) // size * size
        if not self._memory_bytes:
            room = need
        for other in self._order():
            if room >= need or self.table.priority(other.name) * _MARGIN > priority:
                break
            room += self.spill(other, need - room, now - _STAY_S)
        places = places[: room // size]
        queue.residence.load(places, now)
        self.upgrades += len(places) > 0
        return len(places) > 0

    def _order(self, reading: Paged | None = None) -> list[Paged]:
        """Who loses memory first; not those who are at work, but for who is ``reading``."""
        may = [
            queue
            for queue in self._queues.values()
            if queue is reading or not self.table.is_running(queue.name)
        ]
        return sorted(may, key=lambda q: (self.table.priority(q.name), -q.resident_bytes))

    def spill(
        self,
        queue: Paged,
        size: int,
        before: float = math.inf,
        kept: tuple[int, int] | None = None,
    ) -> int:
        """Leave ``size`` bytes of a queue to the disk, or as many as may leave; returns how many.

        What is not synced stays, what somebody holds (A-37), what is ``kept``, and what has come
        to memory at ``before`` or later.  What was only kept decoded is checked again.
        """
        with self.lock:
            was = queue.resident_bytes
            held = queue.shelf.held_parts(queue.synced)
            if kept is not None:
                held.append(kept)
            heads = [head for _, head in queue.successors.values()]
            if queue.read_at is not None:
                heads.append(queue.read_at)
            part = (queue.base, queue.synced)
            places = queue.residence.choose(part, heads, held, before)
            places = places[: -(-size // self.file.block_bytes)]
            queue.residence.leave(places, clock.monotonic())
            return was - queue.resident_bytes

    def statistics(self) -> dict[str, int]:
        """Numbers for the status; from any thread."""
        return {
            "upgrades": self.upgrades,
            "overdrawn": self.overdrawn,
            "evictions": self.file.evictions,
            "reads": self.file.reads,
            "writes": self.file.writes,
        }
