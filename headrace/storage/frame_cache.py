"""Frames by their offset in a ring, read in place, with the readers' pins on them.

A frame is checked whenever it is taken from its block.  The last frames read are cached while they
are still needed, so that successors that keep pace share the check and the decoded batch.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec
import pyarrow as pa

from headrace.storage import frames
from headrace.storage.blocks import BlockFile
from headrace.storage.frames import Header
from headrace.storage.ring import Ring
from headrace.storage.schemas import Schemas

_KEPT_MAX: Final = 32
"""Maximum number of cached frames."""


class Damaged(Exception):
    """A frame is damaged; the contents of the queue from there on are lost."""


class Frame(msgspec.Struct, frozen=True):
    """A frame that was read."""

    header: Header
    batch: pa.RecordBatch | None
    """The record batch, read in place; None for a TimeEnd."""
    end: int
    """Offset at which the next frame begins."""


class _Pin:
    """A pin of the batches at ``offset``; when the last one is freed, it notes in ``released``."""

    __slots__ = ("offset", "released", "size")

    def __init__(self, offset: int, size: int, released: deque[tuple[int, int]]) -> None:
        self.offset = offset
        self.size = size
        self.released = released

    def __del__(self) -> None:
        self.released.append((self.offset, self.size))


class FrameCache:
    """The frame cache of one queue; its owner holds the lock of the file."""

    def __init__(self, ring: Ring, file: BlockFile, schemas: Schemas) -> None:
        self._ring: Final = ring
        self._file: Final = file
        self._schemas: Final = schemas
        self._pins: dict[int, tuple[int, int]] = {}
        """For each pinned frame: its number of pins, and its end."""
        self._released: deque[tuple[int, int]] = deque()
        """Offset and size of batches that were freed."""
        self.held_bytes = 0
        """Bytes of batches that are held by readers or cached."""
        self.kept: Final[dict[int, Frame]] = {}
        """The cached frames, by the offset at which they were requested."""

    def frame(self, at: int) -> Frame:
        """Return the frame at ``at``, checked, and decoded once for all its readers.

        Raises:
            Damaged: its checksum or header is wrong.
        """
        kept = self.kept.get(at)
        if kept is not None:
            return kept
        found = self._taken(self._ring.after_gap(at))
        if len(self.kept) >= _KEPT_MAX:
            del self.kept[next(iter(self.kept))]
        self.kept[at] = found
        return found

    def _taken(self, at: int) -> Frame:
        header = self._header(at)
        if header is None or not self._whole(header):
            message = f"it is damaged at {at}"
            raise Damaged(message)
        size = header.body_bytes
        if not size:
            return Frame(header, None, at + frames.HEADER_BYTES)
        pin = _Pin(at, size, self._released)
        self._pins[at] = self._pins.get(at, (0, 0))[0] + 1, at + header.size
        self.held_bytes += size
        buffer = self._file.buffer(self._ring.where(at) + frames.HEADER_BYTES, size, pin)
        batch = pa.ipc.read_record_batch(buffer, self._schemas[header.schema])
        return Frame(header, batch, at + header.size)

    def following(self, at: int, epoch: int | None) -> Header | None:
        """Return the header of the frame put when ``at`` was the front, or None if it is damaged.

        The frame is at ``at``, or where the next block begins.  One of another epoch is no such
        frame, but was left in the block by an earlier use; None: it is of any epoch.  If there is a
        frame at both places, the one of the earlier epoch was discarded.
        """
        size, found = self._file.block_bytes, None
        for begin in (at, -(-at // size) * size):
            header = self._header(begin)
            if header is None or header.gap != begin - at or not self._whole(header):
                continue
            if epoch is not None and header.epoch != epoch:
                continue
            if found is None or header.epoch > found.epoch:
                found = header
        return found

    def cut(self, front: int) -> None:
        """Forget the cached frames after ``front``; no reader holds them."""
        for at in [at for at, frame in self.kept.items() if frame.end > front]:
            del self.kept[at]

    def held_from(self, least: int) -> int:
        """Return ``least``, or the offset of the first held batch if that is lower.

        Cached frames before ``least`` are released.
        """
        for at in [at for at in self.kept if at < least]:
            del self.kept[at]
        while self._released:
            offset, size = self._released.popleft()
            self.held_bytes -= size
            count, end = self._pins.pop(offset)
            if count > 1:
                self._pins[offset] = count - 1, end
        return min((least, *self._pins))

    def held_parts(self, least: int) -> list[tuple[int, int]]:
        """Return the begin and end of each held frame.

        Cached frames before ``least`` are released.
        """
        self.held_from(least)
        return [(at, end) for at, (_, end) in self._pins.items()]

    @property
    def held(self) -> bool:
        """Whether a reader holds a batch; for a queue that is being dropped, clears the cache."""
        self.kept.clear()
        self.held_from(0)
        return bool(self._pins)

    def _header(self, at: int) -> Header | None:
        """Return the header at ``at`` if a frame of this queue begins there."""
        ring = self._ring
        if not ring.begin <= at < ring.end:
            return None
        header = frames.read(ring.memory(at, frames.HEADER_BYTES))
        if header is None or header.offset != at or at + header.size > ring.end:
            return None
        return header

    def _whole(self, header: Header) -> bool:
        known = not header.body_bytes or header.schema < len(self._schemas)
        return known and frames.whole(self._ring.memory(header.offset, header.size))
