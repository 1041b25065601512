# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,has-type,name-defined,no-any-return,untyped-decorator"
# ruff: noqa: F821  Slab and Segment are structs of arena.pxd
"""Slab allocator for the small blocks of the state map, which returns free memory to the system.

Memory comes in *segments*, from the system or mapped from an unlinked file in a directory.  A
segment is cut into *slabs*.  A slab holds blocks of one size for one *zone*, such as a key group:
blocks that are freed together share slabs.  A slab without used blocks is returned to the system at
once; its addresses are reused.  A block larger than a quarter of a slab is a separate slab.

A block is identified by its *handle*: 32 bits, (slab, unit of 8 bytes in it), never 0.  It does
not move.  One arena holds up to 32 GiB with slabs of 64 KiB.  No function takes the interpreter
lock; callers ensure that one thread at a time changes an arena.

This module works compiled only (see kernels/README.md); its types are in arena.pxd.
"""

from __future__ import annotations

import tempfile

import cython
from cython.cimports.libc.stdlib import abort, calloc, free, malloc, realloc
from cython.cimports.libc.string import memset
from cython.cimports.posix.fcntl import posix_fallocate
from cython.cimports.posix.mman import (
    MADV_DONTNEED,
    MADV_REMOVE,
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_NORESERVE,
    MAP_PRIVATE,
    MAP_SHARED,
    PROT_READ,
    PROT_WRITE,
    madvise,
    mmap,
    munmap,
)
from cython.cimports.posix.unistd import ftruncate

_PAGE = cython.declare(cython.size_t, 4096)
_SEGMENT_SLABS = cython.declare(cython.size_t, 16)
_LARGE = cython.declare(cython.uint, 255)


@cython.cclass
class Arena:
    """See the module.

    ``slab_bytes`` 0: every block comes from the C library, so that a memory checker sees each.
    ``directory``: for the file from which segments are mapped; None: anonymous memory.
    """

    def __cinit__(self, slab_bytes: int, directory: str | None) -> None:
        self.descriptor = -1
        watched: cython.bint = slab_bytes == 0
        if watched:
            slab_bytes = 4096
        if slab_bytes < 4096 or slab_bytes & (slab_bytes - 1) or slab_bytes > 1 << 20:
            raise ValueError("slab_bytes must be a power of two from 4 KiB to 1 MiB")
        self.slab_bytes = slab_bytes
        self.units = slab_bytes >> 3
        self.mask = self.units - 1
        self.shift = self.units.bit_length() - 1
        self.block_bytes_max = 0 if watched else slab_bytes >> 2
        # Block sizes: every 8 bytes up to 128, then eight steps to each doubling.
        sizes: list[int] = []
        size = 8
        while size < slab_bytes >> 2:
            sizes.append(size)
            size += max(8, (1 << (size.bit_length() - 1)) >> 3)
        sizes.append(slab_bytes >> 2)
        self.kind_count = len(sizes)
        self.sizes = cython.cast(
            cython.pointer[cython.uint], malloc(len(sizes) * cython.sizeof(cython.uint))
        )
        self.kinds = cython.cast(cython.pointer[cython.uchar], malloc((slab_bytes >> 5) + 1))
        self.room = cython.cast(
            cython.pointer[cython.uint], calloc(self.kind_count, cython.sizeof(cython.uint))
        )
        if not self.sizes or not self.kinds or not self.room:
            raise MemoryError
        self.zone_count = 1
        kind: cython.uint = 0
        i: cython.size_t
        for i in range(self.kind_count):
            self.sizes[i] = sizes[i]
        for i in range((slab_bytes >> 5) + 1):
            while self.sizes[kind] < i << 3:
                kind += 1
            self.kinds[i] = kind
        if self._new_entry() != 0:  # slab 0 stays empty: no handle is 0
            raise MemoryError
        if directory is not None:
            self.file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  unlinked
            self.descriptor = self.file.fileno()

    def __dealloc__(self) -> None:
        i: cython.size_t
        for i in range(self.slab_count):
            if self.slabs[i].size and self.slabs[i].kind == _LARGE:
                self._free_large(i)
        for i in range(self.segment_count):
            munmap(self.segments[i].data, self.segments[i].size)
        free(self.segments)
        free(self.slabs)
        free(self.bases)
        free(self.room)
        free(self.kinds)
        free(self.sizes)

    def split(self, zones: cython.uint) -> cython.bint:
        """Increase the number of zones from one to ``zones``; False if out of memory."""
        more: cython.pointer[cython.uint] = cython.cast(
            cython.pointer[cython.uint],
            realloc(
                self.room,
                cython.cast(cython.size_t, zones) * self.kind_count * cython.sizeof(cython.uint),
            ),
        )
        if not more:
            return False
        memset(
            more + self.zone_count * self.kind_count,
            0,
            cython.cast(cython.size_t, zones - self.zone_count)
            * self.kind_count
            * cython.sizeof(cython.uint),
        )
        self.room = more
        self.zone_count = zones
        return True

    def alloc(self, zone: cython.uint, size: cython.size_t) -> cython.uint:
        """Allocate a block of at least ``size`` bytes, uninitialised; 0 if out of memory."""
        if size > self.block_bytes_max:
            return self._alloc_large(size)
        kind: cython.uint = self.kinds[(size + 7) >> 3]
        number: cython.uint = self.room[zone * self.kind_count + kind]
        if number == 0:
            number = self._new_slab(zone, kind)
            if number == 0:
                return 0
        slab: cython.pointer[Slab] = self.slabs + number
        unit: cython.uint
        step: cython.uint = self.sizes[kind] >> 3
        if slab.free:
            unit = slab.free - 1
            slab.free = cython.cast(
                cython.pointer[cython.uint],
                self.bases[number] + (cython.cast(cython.size_t, unit) << 3),
            )[0]
        else:
            unit = slab.bump
            slab.bump += step
            self._touch(
                cython.cast(cython.size_t, unit) << 3, cython.cast(cython.size_t, slab.bump) << 3
            )
        slab.live += 1
        if not slab.free and slab.bump + step > self.units:
            self._unlist(number)
        self.live_bytes += self.sizes[kind]
        self.blocks += 1
        return (number << self.shift) | unit

    def free(self, handle: cython.uint) -> None:
        """Free a block; its handle is invalid afterwards."""
        number: cython.uint = handle >> self.shift
        unit: cython.uint = handle & self.mask
        slab: cython.pointer[Slab] = self.slabs + number
        if not (0 < number < self.slab_count and slab.live):
            abort()  # the block is not in use: memory would be corrupted
        self.blocks -= 1
        if slab.kind == _LARGE:
            self.live_bytes -= slab.size
            self._free_large(number)
            return
        self.live_bytes -= self.sizes[slab.kind]
        cython.cast(
            cython.pointer[cython.uint],
            self.bases[number] + (cython.cast(cython.size_t, unit) << 3),
        )[0] = slab.free
        slab.free = unit + 1
        slab.live -= 1
        if slab.live == 0:
            self._give_back(number)
        elif not slab.listed:
            self._list(number)

    def fits(self, handle: cython.uint, size: cython.size_t) -> cython.bint:
        """Return whether a new block of ``size`` bytes would have the same size as this one."""
        slab: cython.pointer[Slab] = self.slabs + (handle >> self.shift)
        if slab.kind == _LARGE or size > self.block_bytes_max:
            return slab.size == size
        return slab.kind == self.kinds[(size + 7) >> 3]

    def block_bytes(self, handle: cython.uint) -> cython.size_t:
        """Return the bytes that the block takes: the requested size, rounded up."""
        slab: cython.pointer[Slab] = self.slabs + (handle >> self.shift)
        if slab.kind == _LARGE:
            return slab.size
        return self.sizes[slab.kind]

    def _new_slab(self, zone: cython.uint, kind: cython.uint) -> cython.uint:
        """Allocate an empty slab for blocks of a zone and kind; 0 if out of memory."""
        if self.unused == 0 and not self._map():
            return 0
        number: cython.uint = self.unused
        slab: cython.pointer[Slab] = self.slabs + number
        # If the disk is full, a write to a hole in the file would raise SIGBUS.
        if self.descriptor >= 0 and posix_fallocate(self.descriptor, slab.offset, self.slab_bytes):
            return 0
        self.unused = slab.next
        slab.zone = zone
        slab.kind = kind
        slab.size = 0
        slab.free = slab.bump = slab.live = 0
        self._list(number)
        return number

    def _new_entry(self) -> cython.uint:
        """Add an entry to the table of slabs and return its number; all ones: out of memory."""
        capacity: cython.size_t
        slabs: cython.pointer[Slab]
        bases: cython.pointer[cython.pointer[cython.uchar]]
        none: cython.uint = 0
        none -= 1
        if self.slab_count == self.slab_capacity:
            capacity = self.slab_capacity * 2 if self.slab_capacity else 64
            slabs = cython.cast(
                cython.pointer[Slab], realloc(self.slabs, capacity * cython.sizeof(Slab))
            )
            if not slabs:
                return none
            self.slabs = slabs
            bases = cython.cast(
                cython.pointer[cython.pointer[cython.uchar]],
                realloc(self.bases, capacity * cython.sizeof(cython.p_uchar)),
            )
            if not bases:
                return none
            self.bases = bases
            self.slab_capacity = capacity
        if self.slab_count > none >> self.shift:
            return none
        memset(self.slabs + self.slab_count, 0, cython.sizeof(Slab))
        self.bases[self.slab_count] = cython.NULL
        self.slab_count += 1
        return cython.cast(cython.uint, self.slab_count - 1)

    def _map(self) -> cython.bint:
        """Map a segment and add its slabs to the unused ones; False if out of memory."""
        size: cython.size_t = self.slab_bytes * _SEGMENT_SLABS
        capacity: cython.size_t
        segments: cython.pointer[Segment]
        data: cython.p_void
        number: cython.uint
        i: cython.size_t
        if self.segment_count == self.segment_capacity:
            capacity = self.segment_capacity * 2 if self.segment_capacity else 16
            segments = cython.cast(
                cython.pointer[Segment], realloc(self.segments, capacity * cython.sizeof(Segment))
            )
            if not segments:
                return False
            self.segments = segments
            self.segment_capacity = capacity
        if self.descriptor < 0:
            data = mmap(
                cython.NULL,
                size,
                PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1,
                0,
            )
        else:
            if ftruncate(self.descriptor, self.file_bytes + size):
                return False
            data = mmap(
                cython.NULL,
                size,
                PROT_READ | PROT_WRITE,
                MAP_SHARED,
                self.descriptor,
                self.file_bytes,
            )
        if data == MAP_FAILED:
            return False
        self.segments[self.segment_count].data = data
        self.segments[self.segment_count].size = size
        self.segment_count += 1
        for i in range(_SEGMENT_SLABS):
            number = self._new_entry()
            if number == 0 or number > self.slab_count:
                break  # the rest of the segment stays unused
            self.bases[number] = cython.cast(cython.p_uchar, data) + i * self.slab_bytes
            self.slabs[number].offset = self.file_bytes + i * self.slab_bytes
            self.slabs[number].next = self.unused
            self.unused = number
        self.file_bytes += size
        return self.unused != 0

    def _alloc_large(self, size: cython.size_t) -> cython.uint:
        """Allocate a block as a separate slab, from the C library."""
        number: cython.uint
        size = (size + 15) & ~cython.cast(cython.size_t, 15)
        number = self.spare
        if number:
            self.spare = self.slabs[number].next
        else:
            number = self._new_entry()
            if number > self.slab_count:
                return 0
        self.bases[number] = cython.cast(cython.p_uchar, malloc(size))
        if not self.bases[number]:
            self.slabs[number].next = self.spare
            self.spare = number
            return 0
        self.slabs[number].kind = _LARGE
        self.slabs[number].size = size
        self.slabs[number].live = 1
        self.live_bytes += size
        self.mapped_bytes += size
        self.blocks += 1
        return number << self.shift

    def _free_large(self, number: cython.uint) -> None:
        free(self.bases[number])
        self.bases[number] = cython.NULL
        self.mapped_bytes -= self.slabs[number].size
        self.slabs[number].size = 0
        self.slabs[number].live = 0
        self.slabs[number].next = self.spare
        self.spare = number

    def _list(self, number: cython.uint) -> None:
        """Insert a slab at the head of its zone's and kind's list of slabs with room."""
        slab: cython.pointer[Slab] = self.slabs + number
        at: cython.size_t = slab.zone * self.kind_count + slab.kind
        slab.previous = 0
        slab.next = self.room[at]
        if slab.next:
            self.slabs[slab.next].previous = number
        self.room[at] = number
        slab.listed = True

    def _unlist(self, number: cython.uint) -> None:
        slab: cython.pointer[Slab] = self.slabs + number
        if slab.next:
            self.slabs[slab.next].previous = slab.previous
        if slab.previous:
            self.slabs[slab.previous].next = slab.next
        else:
            self.room[slab.zone * self.kind_count + slab.kind] = slab.next
        slab.listed = False

    def _give_back(self, number: cython.uint) -> None:
        """Return an empty slab's memory to the system; its addresses can be reused."""
        slab: cython.pointer[Slab] = self.slabs + number
        used: cython.size_t = cython.cast(cython.size_t, slab.bump) << 3
        if slab.listed:
            self._unlist(number)
        self.mapped_bytes -= (used + _PAGE - 1) & ~(_PAGE - 1)
        if self.descriptor < 0:
            madvise(self.bases[number], self.slab_bytes, MADV_DONTNEED)
        else:
            madvise(self.bases[number], self.slab_bytes, MADV_REMOVE)
        slab.next = self.unused
        self.unused = number

    def _touch(self, before: cython.size_t, after: cython.size_t) -> None:
        """Count the pages that a slab uses for the first time."""
        self.mapped_bytes += ((after + _PAGE - 1) & ~(_PAGE - 1)) - (
            (before + _PAGE - 1) & ~(_PAGE - 1)
        )
