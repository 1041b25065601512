"""One memory-mapped file of equal blocks, which holds the contents of the queues.

The file is sparse: a block gets disk space when it is taken, and loses it when ``trim`` releases
free blocks.  The file is mapped once, for the maximum number of blocks, so that addresses stay
valid while queues grow and shrink.  Most of the mapping is beyond the file's end and is never used.

* Invariant 1: no byte of a block is written before its space is allocated, so that a full disk
  is an error of ``take`` and never ends the process.
* Invariant 2: the owner of a block and its place in that queue are in the table beside the file
  before the block is written, so that the queues are found again after a kill.
* Invariant 3: a free block is in exactly one free run.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import BugError, TransientError

BLOCK_BYTES: Final = 131_072
"""Default size of a block (A-10)."""
_mincore: Final = ctypes.CDLL(None).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_madvise: Final = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_POPULATE_READ: Final = 22
"""MADV_POPULATE_READ, since Linux 5.14; an older kernel returns an error."""
_ASKED_BYTES: Final = 131_072
"""Bytes of a read-ahead request; Linux reads at least so much for one request on any disk."""
_NORESERVE: Final = getattr(mmap, "MAP_NORESERVE", 0)
_ROWS_STEP: Final = 4096
"""Table rows that are allocated together."""

_ROW: Final = np.dtype([("queue", "<u8"), ("newer", "<u8"), ("older", "<u8")])
"""``queue``: its number, 0 if the block is free.  ``newer`` and ``older``: one more than the place
of the block in the queue.  Both are set while its end still holds the oldest data of a ring whose
newest data is at its start.  A row may lie in two sectors of a disk, so a place has the number of
its queue, too: after a crash the place may belong to an earlier owner of the block."""
_NUMBER_SHIFT: Final = 48
"""Bits of a place; the number of the queue is above.  Version 0.2 and earlier wrote none there."""


class Extent(NamedTuple):
    """Adjacent blocks of the file."""

    start: int
    size: int


class NoRoom(TransientError):
    """No block is available now."""

    sqlstate = "53100"


class BlockFile:
    """A file of blocks; not thread-safe: its owner holds a lock."""

    def __init__(self, path: Path, blocks_max: int, block_bytes: int = BLOCK_BYTES) -> None:
        """Open or create a file of at most ``blocks_max`` blocks.

        Raises:
            ValueError: the block size is not a multiple of the page size.
            OSError: the file cannot be created.
        """
        if block_bytes <= 0 or block_bytes % mmap.PAGESIZE:
            message = f"a block of {block_bytes} bytes is no multiple of {mmap.PAGESIZE}"
            raise ValueError(message)
        self.block_bytes: Final = block_bytes
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        blocks_max = max(blocks_max, -(-os.fstat(self._file).st_size // block_bytes))
        self.blocks_max: Final = blocks_max
        self._map: Final = _mapped(self._file, blocks_max * block_bytes)
        # The owner knows better than the kernel which pages are read next: no kernel read-ahead.
        self._map.madvise(mmap.MADV_RANDOM)
        self._bytes: Final = memoryview(self._map)
        self._address: Final = np.frombuffer(self._map, np.uint8).ctypes.data
        self._rows_file = os.open(path.with_suffix(".table"), os.O_RDWR | os.O_CREAT, 0o600)
        self._rows_ready = os.fstat(self._rows_file).st_size // _ROW.itemsize
        self._rows_map: Final = _mapped(self._rows_file, blocks_max * _ROW.itemsize)
        self.rows: Final[npt.NDArray[Any]] = np.frombuffer(self._rows_map, _ROW)
        owned = np.flatnonzero(self.rows["queue"][: self._rows_ready])
        self._end = int(owned[-1]) + 1 if len(owned) else 0
        """Blocks from here on were never taken since the file was opened."""
        self._free = runs(np.flatnonzero(self.rows["queue"][: self._end] == 0).tolist())
        # Extend a truncated file: a read beyond its end is fatal, and zeros are no valid frame.
        missing = self._end * block_bytes - os.fstat(self._file).st_size
        if missing > 0:
            os.posix_fallocate(self._file, self._end * block_bytes - missing, missing)
        self._backed = set(owned.tolist())
        """Blocks that have space on the disk."""
        self.reads = 0
        """Number of runs requested from the disk (A-22)."""
        self.writes = 0
        """Number of runs written to the disk."""
        self.evictions = 0
        """Number of runs removed from memory."""

    # --- taking and giving back

    @property
    def free(self) -> list[Extent]:
        """Runs of free blocks, without those never taken."""
        return list(self._free)

    @property
    def backed(self) -> int:
        """Number of blocks that have space on the disk."""
        return len(self._backed)

    def take(self, count: int, queue: int) -> list[Extent]:
        """Take ``count`` blocks for a queue, in one run if possible.

        Raises:
            NoRoom: there are not enough, or the disk is full; none is taken.
        """
        chosen = self._choose(count)
        taken = [b for run in chosen for b in range(run.start, sum(run))]
        new = [b for b in taken if b not in self._backed]
        old = [b for b in taken if b in self._backed]
        try:
            self._reach(max(sum(run) for run in chosen))
            for run in runs(new):
                size = run.size * self.block_bytes
                os.posix_fallocate(self._file, run.start * self.block_bytes, size)
        except OSError as error:
            # Space for some of them may have been allocated before the error.
            self._unback(new)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise NoRoom(
                "the disk of the queues is full",
                detail=f"{error}.",
                hint="Free disk space. The write is retried, and nothing is lost meanwhile.",
            ) from error
        self._backed.update(new)
        # A partial write of a page reads it from the disk first; one read per run is cheaper.
        for run in runs(old):
            self._ask(run)
        for run in chosen:
            self._remove(run)
            self.rows["queue"][run.start : sum(run)] = queue
        return chosen

    def give(self, blocks: Iterable[int]) -> None:
        """Free ``blocks``."""
        for run in runs(sorted(blocks)):
            rows = self.rows[run.start : sum(run)]
            if not rows["queue"].all():
                message = f"a block of {run} is given back twice"
                raise BugError(message)
            rows["queue"] = rows["newer"] = rows["older"] = 0
            bisect.insort(self._free, run)
        self._free = _merged(self._free)

    def trim(self, spare: int = 0) -> int:
        """Release the disk space of all free blocks but ``spare``; return their number."""
        idle = [b for run in self._free for b in range(run.start, sum(run)) if b in self._backed]
        gone = idle[spare:]
        if gone:
            self._unback(gone)
        return len(gone)

    def _unback(self, blocks: Iterable[int]) -> None:
        """Release the disk space of ``blocks``, which are free and in ascending order."""
        gone = list(blocks)
        for run in runs(gone):
            size = run.size * self.block_bytes
            self._map.madvise(mmap.MADV_REMOVE, run.start * self.block_bytes, size)
        self._backed.difference_update(gone)
        os.ftruncate(self._file, (max(self._backed, default=-1) + 1) * self.block_bytes)

    def _choose(self, count: int) -> list[Extent]:
        for run in self._free:
            if run.size >= count:
                return [Extent(run.start, count)]
        last = self._free[-1] if self._free else None
        begin = last.start if last is not None and sum(last) == self._end else self._end
        if begin + count <= self.blocks_max:
            return [Extent(begin, count)]
        out, left = [], count
        for run in [*self._free, Extent(self._end, self.blocks_max - self._end)]:
            if left and run.size:
                out.append(Extent(run.start, min(run.size, left)))
                left -= out[-1].size
        if left:
            raise NoRoom(
                "the queues hold as much as they may",
                hint="Raise queue_bytes_max, or see in list_views() which view is lagging.",
            )
        return out

    def _remove(self, taken: Extent) -> None:
        """Remove ``taken`` from the free runs; it may extend beyond ``_end``."""
        out = []
        for run in self._free:
            for start, end in (
                (run.start, min(sum(run), taken.start)),
                (max(run.start, sum(taken)), sum(run)),
            ):
                if start < end:
                    out.append(Extent(start, end - start))
        self._free = _merged(sorted(set(out)))
        self._end = max(self._end, sum(taken))

    def _reach(self, rows: int) -> None:
        """Allocate space for ``rows`` rows of the table."""
        if rows > self._rows_ready:
            ready = min(-(-rows // _ROWS_STEP) * _ROWS_STEP, self.blocks_max)
            os.posix_fallocate(self._rows_file, 0, ready * _ROW.itemsize)
            self._rows_ready = ready

    # --- contents

    def place(self, block: int, newer: int | None, older: int | None = None) -> None:
        """Record the places of a block in its queue, before it is written (Invariant 2)."""
        row = self.rows[block]
        mark = int(row["queue"]) << _NUMBER_SHIFT
        # A kill between the two must not leave the block without the place that it keeps.
        if older is not None:
            row["older"] = mark + older + 1
        row["newer"] = 0 if newer is None else mark + newer + 1
        if older is None:
            row["older"] = 0

    def owners(self) -> dict[int, dict[int, int]]:
        """Return the blocks by queue and place, from the table."""
        out: dict[int, dict[int, int]] = {}
        for block in np.flatnonzero(self.rows["queue"][: self._rows_ready]).tolist():
            queue, *words = map(int, self.rows[block])
            places = out.setdefault(queue, {})
            for number, place in (divmod(word, 1 << _NUMBER_SHIFT) for word in words):
                if place and number in (queue, 0):
                    places[place - 1] = block
        return out

    def owned(self, queue: int) -> list[int]:
        """Return the blocks of a queue, including those without data."""
        owners = self.rows["queue"][: self._rows_ready]
        found: list[int] = np.flatnonzero(owners == queue).tolist()
        return found

    def memory(self, at: int, size: int) -> memoryview:
        """Return writable memory of the file from ``at``."""
        return self._bytes[at : at + size]

    def write(
        self, at: int, head: bytes, body: memoryview | None = None, filling: bytes = b""
    ) -> None:
        """Write ``head``, ``body`` and ``filling`` one after the other from ``at``; ``head`` last.

        It does not use the mapping, which would cost a page fault for each page.

        Raises:
            OSError: it cannot be written.
        """
        if body is not None:
            self._whole(at + len(head), [body, filling])
        self._whole(at, [head])

    def _whole(self, at: int, parts: list[bytes | memoryview]) -> None:
        left = [memoryview(part) for part in parts if part]
        while left:
            # Linux writes at most 2 GB per call.
            done = os.pwritev(self._file, left, at)
            at += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if left:
                left[0] = left[0][done:]

    def buffer(self, at: int, size: int, pin: object) -> pa.Buffer:
        """Return bytes from ``at`` without a copy; the buffer keeps ``pin`` alive."""
        return pa.foreign_buffer(self._address + at, size, pin)

    # --- memory and disk

    def sync(self, parts: Sequence[Extent]) -> None:
        """Write ``parts`` and the table to the disk."""
        for run in parts:
            self._map.flush(run.start * self.block_bytes, run.size * self.block_bytes)
            self.writes += 1
        if parts:
            os.fdatasync(self._file)
        os.fdatasync(self._rows_file)

    def evict(self, run: Extent) -> None:
        """Remove a run from memory; it is loaded again when it is read.

        Pages that are not synced stay in memory, as do those being read from the disk.
        """
        at, size = run.start * self.block_bytes, run.size * self.block_bytes
        self._map.madvise(mmap.MADV_DONTNEED, at, size)
        os.posix_fadvise(self._file, at, size, os.POSIX_FADV_DONTNEED)
        self.evictions += 1

    def read_ahead(self, run: Extent) -> None:
        """Start to read a run from the disk."""
        self._ask(run)
        self.reads += 1

    def _ask(self, run: Extent) -> None:
        at, end = run.start * self.block_bytes, sum(run) * self.block_bytes
        for begin in range(at, end, _ASKED_BYTES):
            self._map.madvise(mmap.MADV_WILLNEED, begin, min(_ASKED_BYTES, end - begin))

    def map_in(self, run: Extent) -> None:
        """Map all pages of a run, which is cheaper than one by one; wait for the disk."""
        at, size = run.start * self.block_bytes, run.size * self.block_bytes
        # mmap.madvise would hold the interpreter lock.
        _madvise(self._address + at, size, _POPULATE_READ)

    def resident(self, parts: Iterable[Extent]) -> int:
        """Return the bytes of ``parts`` that are in memory now; from any thread."""
        pages = 0
        for run in parts:
            count = run.size * self.block_bytes // mmap.PAGESIZE
            seen = np.zeros(count, np.uint8)
            at = self._address + run.start * self.block_bytes
            if not _mincore(at, count * mmap.PAGESIZE, seen.ctypes.data):
                pages += int(np.count_nonzero(seen & 1))
        return pages * mmap.PAGESIZE

    def close(self) -> None:
        """Close the files; the mapping ends with the last batch that uses it."""
        for file in (self._file, self._rows_file):
            if file >= 0:
                os.close(file)
        self._file = self._rows_file = -1


def _mapped(file: int, size: int) -> mmap.mmap:
    """Map ``size`` bytes of a file without a change of its size."""
    before = os.fstat(file).st_size
    os.ftruncate(file, size)
    try:
        return mmap.mmap(file, size, mmap.MAP_SHARED | _NORESERVE)
    finally:
        os.ftruncate(file, before)


def runs(blocks: Iterable[int]) -> list[Extent]:
    """Group ``blocks`` into runs of adjacent ones, in the given order."""
    out: list[Extent] = []
    for block in blocks:
        if out and sum(out[-1]) == block:
            out[-1] = Extent(out[-1].start, out[-1].size + 1)
        else:
            out.append(Extent(int(block), 1))
    return out


def _merged(parts: list[Extent]) -> list[Extent]:
    """Merge adjacent runs of ascending ``parts``."""
    out: list[Extent] = []
    for run in parts:
        if out and sum(out[-1]) == run.start:
            out[-1] = Extent(out[-1].start, out[-1].size + run.size)
        else:
            out.append(run)
    return out
