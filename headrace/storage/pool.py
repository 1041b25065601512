"""The memory of the queues, and its distribution among them (A-15 … A-24).

The least urgent queues lose memory first, by the priorities in the shared table; within a queue,
the blocks that are read last.  A read for a running successor may take the memory of any queue
that is not being read.  Read-ahead may take only memory that a clearly less urgent queue has had
for a while, so that swinging priorities do not cause disk traffic (A-24).

With a mapped file, correctness does not depend on a block being in memory.  So when every queue is
being read, nothing is evicted, and the reader exceeds the limit.  ``overdrawn`` counts these cases,
and ``tend`` corrects them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Mapping
from typing import Final, Protocol

import numpy as np

from headrace import clock
from headrace.storage.blocks import BlockFile
from headrace.storage.frame_cache import FrameCache
from headrace.storage.residency import Residency
from headrace.storage.table import SharedTable

_SPILL_TO: Final = 0.8
"""Target part of the memory after the limit was exceeded (A-24)."""
_AHEAD_BYTES: Final = 16 << 20
"""Maximum bytes read back from the disk at once ..."""
_AHEAD_PART: Final = 4
"""... and at most the memory divided by this number."""
_MARGIN: Final = 1.25
"""Minimum ratio of the priorities of the queues that gain and lose memory by read-ahead."""
_STAY_S: Final = 0.1
"""Time in seconds for which a block read back is not exchanged."""


class Paged(Protocol):
    """The part of a queue that the pool uses; the caller holds its lock."""

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
    def residency(self) -> Residency:
        """See ``Queue``."""

    @property
    def frame_cache(self) -> FrameCache:
        """See ``Queue``."""


class BufferPool:
    """The memory of all queues of a worker; safe between threads."""

    def __init__(
        self, file: BlockFile, lock: threading.RLock, queues: Mapping[str, Paged], memory_bytes: int
    ) -> None:
        """Create a pool of ``memory_bytes`` (0: no limit); ``lock`` is that of ``file``."""
        self.file: Final = file
        self.lock: Final = lock
        self.table: Final = SharedTable()
        self._queues: Final = queues
        self._memory_bytes: Final = memory_bytes
        window = _AHEAD_BYTES
        if memory_bytes:
            window = min(window, memory_bytes // _AHEAD_PART)
        self.window_bytes: Final = max(window, file.block_bytes)
        """Bytes that are read ahead for a sequential reader."""
        self.upgrades = 0
        """Number of times that a more urgent queue got memory for read-ahead (A-20)."""
        self.overdrawn = 0
        """Number of reads beyond the limit, because nothing could be evicted."""

    @property
    def used_bytes(self) -> int:
        """Bytes of all queues in memory."""
        with self.lock:
            return sum(queue.resident_bytes for queue in self._queues.values())

    def is_crowded(self) -> bool:
        """Return whether the queues exceed the limit."""
        return 0 < self._memory_bytes < self.used_bytes

    def read(self, queue: Paged, at: int, whole: int = 0) -> None:
        """Load the blocks about to be read at ``at``, and some of the following ones.

        ``whole``: the bytes of a frame that is larger than that window.
        """
        size = self.file.block_bytes
        if whole:
            places = queue.residency.missing(at, -(-(at % size + whole) // size))
        else:
            places = queue.residency.wanted(at, self.window_bytes)
        if len(places):
            # These blocks were requested when the ones before them were read.
            queue.residency.map_in(at, int(places[0]) * size)
            self._admit(queue, len(places) * size, (at, (int(places[-1]) + 1) * size))
            queue.residency.load(places, clock.monotonic())

    def _admit(self, queue: Paged, size: int, kept: tuple[int, int]) -> None:
        """Make room for a read of ``queue``, without evicting its part ``kept`` (A-19)."""
        over = self.used_bytes + size - self._memory_bytes
        if not self._memory_bytes or over <= 0:
            return
        for other in self._order(queue):
            over -= self.spill(other, over, kept=kept if other is queue else None)
            if over <= 0:
                return
        self.overdrawn += 1

    def maintain(self) -> None:
        """Evict down to the limit, and write the resident share of each queue into the table."""
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
        """Evict blocks that arrived after their eviction; returns whether to call again."""
        with self.lock:
            return any([queue.residency.leave_again() for queue in self._queues.values()])

    def upgrade(self) -> bool:
        """Move memory from less urgent queues to the read-ahead of a more urgent one (A-20).

        Returns whether blocks were read ahead; to be called when idle.
        """
        with self.lock:
            urgent = [(self.table.priority(q.name), q) for q in self._queues.values()]
            for priority, queue in sorted(urgent, key=lambda pair: -pair[0]):
                if priority > 0 and queue.residency.left and self._upgrade(queue, priority):
                    return True
        return False

    def _upgrade(self, queue: Paged, priority: float) -> bool:
        size = self.file.block_bytes
        successors = queue.successors
        count, now = self.window_bytes // size, clock.monotonic()
        ahead = [
            queue.residency.missing(successors[name][1], count, further=True)
            for name in self.table.waiting(queue.name)
            if name in successors
        ]
        places = next((found for found in ahead if len(found)), np.zeros(0, np.int64))
        need = len(places) * size
        # Leave some room: the next writes would evict these blocks again.
        room = max(int(self._memory_bytes * _SPILL_TO) - self.used_bytes, 0) // size * size
        if not self._memory_bytes:
            room = need
        for other in self._order():
            if room >= need or self.table.priority(other.name) * _MARGIN > priority:
                break
            room += self.spill(other, need - room, now - _STAY_S)
        places = places[: room // size]
        queue.residency.load(places, now)
        self.upgrades += len(places) > 0
        return len(places) > 0

    def _order(self, reading: Paged | None = None) -> list[Paged]:
        """Return the queues in order of eviction, without those being read except ``reading``."""
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
        """Evict ``size`` bytes of a queue, or as many as possible; returns how many.

        Blocks stay that are not synced, are held (A-37), are ``kept``, or came to memory at
        ``before`` or later.
        """
        with self.lock:
            was = queue.resident_bytes
            held = queue.frame_cache.held_parts(queue.synced)
            if kept is not None:
                held.append(kept)
            heads = [head for _, head in queue.successors.values()]
            if queue.read_at is not None:
                heads.append(queue.read_at)
            part = (queue.base, queue.synced)
            places = queue.residency.choose(part, heads, held, before)
            places = places[: -(-size // self.file.block_bytes)]
            queue.residency.leave(places)
            return was - queue.resident_bytes

    def statistics(self) -> dict[str, int]:
        """Return counters for the status; from any thread."""
        return {
            "upgrades": self.upgrades,
            "overdrawn": self.overdrawn,
            "evictions": self.file.evictions,
            "reads": self.file.reads,
            "writes": self.file.writes,
        }
