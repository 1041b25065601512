# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,no-any-return,untyped-decorator,misc"
"""Writes of the newest state, and the residency of groups.

Loops run without the interpreter lock, in short slices under the mutex, since a checkpoint may be
reading.  Out of memory is a MemoryError, and each key is either written or not: the caller rolls
the txid back.  This module works compiled only; its types are in skipwrites.pxd.
"""

from __future__ import annotations

from typing import Any

import cython
from cython.cimports.headrace.state.map.skipends import Ends
from cython.cimports.headrace.state.map.skipkeys import Keys
from cython.cimports.headrace.state.map.skipnodes import reserve
from cython.cimports.headrace.state.map.skipreads import check, is_open
from cython.cimports.headrace.state.map.skipseek import seek_many
from cython.cimports.headrace.state.map.skipslices import Batch, Run, key_bytes
from cython.cimports.headrace.state.map.skiptypes import (
    BLOCK_KEYS,
    DONE,
    LOADING,
    NEGATIVE,
    NO_WEIGHT,
    OVERFLOW,
    REMOVED,
    RESIDENT,
    SLICE_KEYS,
    SPILLED,
    NodeRef,
    Numbers,
    Path,
    PathRef,
    Slice,
    SliceRef,
    ValueRef,
    bytes_of,
    group_of,
    group_of_node,
    is_removed,
    links,
    newest,
    node_at,
    size_of,
)
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy

from headrace.errors import BugError

_LONGLONG_MAX = cython.declare(cython.longlong, 9223372036854775807)


@cython.cclass
class Writes(Ends):
    """See the module."""

    # ---- writing ---------------------------------------------------------------------------

    def put_many(
        self,
        keys: Keys,
        data: cython.const_uchar[::1],
        bounds: cython.const_longlong[::1],
        valid: cython.const_uchar[::1],
    ) -> None:
        """Set each key to its packed value; one that is not ``valid`` removes it.

        A later duplicate wins.
        """
        self._writable()
        new: Run = Run(data, bounds, valid)
        if keys.count != new.count:
            raise ValueError("keys and values differ in length")
        result: cython.int
        self._reserve_writing(keys.count)
        with cython.nogil:
            result = self._put(keys, new.slices)
        check(result)

    def _put(self, batch: Keys, values: SliceRef) -> cython.int:
        path = cython.declare(Path)
        keys: SliceRef = batch.slices
        count: cython.size_t = batch.count
        value: Slice
        handles = cython.declare(cython.uint[1024])
        i: cython.size_t
        end: cython.size_t
        start: cython.size_t = 0
        handle: cython.uint
        length: cython.uint
        result: cython.int = DONE
        self.start(cython.address(path))
        while start < count and result == DONE:
            i = start
            start = i + BLOCK_KEYS if count - i > BLOCK_KEYS else count
            self._seek_block(keys + i, start - i, cython.address(handles[0]))
            while i < start and result == DONE:
                end = i + SLICE_KEYS if start - i > SLICE_KEYS else start
                self.mutex.acquire()
                while i < end and result == DONE:
                    handle = handles[i % BLOCK_KEYS]
                    if handle == 0:
                        handle = self.seek(cython.address(path), keys[i])
                    value = values[batch.order[i]]
                    length = REMOVED
                    if value.data:
                        length = cython.cast(cython.uint, value.length)
                    result = self.write(cython.address(path), handle, keys[i], value.data, length)
                    i += 1
                self.mutex.release()
        return result

    def _seek_block(self, keys: SliceRef, count: cython.size_t, handles: Numbers) -> None:
        """Look up the nodes of a block's keys before the block is written; 0: seek the key later.

        In counter mode a write may free nodes, so each key is sought just before its write.
        """
        i: cython.size_t
        for i in range(count):
            self.requests[group_of(keys[i])] += 1
            handles[i] = 0
        if self.txids:
            seek_many(self, keys, count, handles, True, cython.NULL)

    def add_many(
        self,
        keys: Keys,
        deltas: cython.const_longlong[::1],
        missing: list[int],
        bases: list[bytes | None],
    ) -> int:
        """Add to weights; a weight of 0 is a removal.  Equal keys add up.

        ``missing`` is the result of ``missing(keys)``; ``bases`` are the base's values of these
        keys.  Returns the change of ``negatives``.  Values are weights: 8 bytes, little-endian.
        """
        self._writable()
        stored: Batch = Batch(bases, nones=True)
        before: cython.Py_ssize_t = self.negative_count
        result: cython.int
        i: cython.size_t
        position: cython.size_t
        known: Known = Known(keys.count)  # type: ignore[call-arg]  # for __cinit__
        if cython.cast(cython.size_t, deltas.shape[0]) != keys.count:
            raise ValueError("keys and deltas differ in length")
        if cython.cast(cython.size_t, len(missing)) != stored.count:
            raise ValueError("missing and bases differ in length")
        for i in range(stored.count):
            position = missing[i]
            if position >= keys.count:
                raise ValueError("a position beyond the keys")
            known.bases[position] = stored.slices[i]
        self._reserve_writing(keys.count)
        with cython.nogil:
            result = self._add(keys, deltas, known.bases)
        check(result)
        return self.negative_count - before

    def _add(self, batch: Keys, deltas: cython.const_longlong[::1], bases: SliceRef) -> cython.int:
        path = cython.declare(Path)
        keys: SliceRef = batch.slices
        count: cython.size_t = batch.count
        position: cython.size_t
        handles = cython.declare(cython.uint[1024])
        i: cython.size_t
        end: cython.size_t
        start: cython.size_t = 0
        handle: cython.uint
        result: cython.int = DONE
        self.start(cython.address(path))
        while start < count and result == DONE:
            i = start
            start = i + BLOCK_KEYS if count - i > BLOCK_KEYS else count
            self._seek_block(keys + i, start - i, cython.address(handles[0]))
            while i < start and result == DONE:
                end = i + SLICE_KEYS if start - i > SLICE_KEYS else start
                self.mutex.acquire()
                while i < end and result == DONE:
                    handle = handles[i % BLOCK_KEYS]
                    if handle == 0:
                        handle = self.seek(cython.address(path), keys[i])
                    position = batch.order[i]
                    result = self._add_one(
                        cython.address(path), handle, keys[i], deltas[position], bases[position]
                    )
                    i += 1
                self.mutex.release()
        return result

    def _add_one(
        self, path: PathRef, handle: cython.uint, key: Slice, delta: cython.longlong, base: Slice
    ) -> cython.int:
        weight: cython.longlong = 0
        value: ValueRef
        length: cython.uint = 8
        if handle:
            value = newest(self.arena, node_at(self.arena, handle))
            if not is_removed(value):
                if size_of(value) != 8:
                    return NO_WEIGHT
                memcpy(cython.address(weight), bytes_of(value), 8)
        elif base.data:
            if base.length != 8:
                return NO_WEIGHT
            memcpy(cython.address(weight), base.data, 8)
        if delta > 0:
            if weight > _LONGLONG_MAX - delta:
                return OVERFLOW
        elif weight < -_LONGLONG_MAX - delta:
            return OVERFLOW
        weight += delta
        if weight == 0:
            return self.write(path, handle, key, cython.NULL, REMOVED)
        if weight < 0:
            length |= NEGATIVE
        return self.write(
            path, handle, key, cython.cast(cython.p_uchar, cython.address(weight)), length
        )

    def _reserve_writing(self, count: cython.size_t) -> cython.int:
        """Reserve room to list every node of a batch, so that no loop fails half-way."""
        if self.txids and not reserve(self.writing, count):
            raise MemoryError
        return 0

    def _writable(self) -> cython.int:
        is_open(self)
        if self.txids and self.writing == cython.NULL:
            raise BugError("a write outside a txid")
        return 0

    # ---- residency -----------------------------------------------------------------------------

    def set_resident(self, group: int, flag: bool) -> None:
        """Mark a group as resident: all its entries are in the map; or as spilled."""
        self.where[_group(group)] = RESIDENT if flag else SPILLED

    def begin_load(self, group: int) -> None:
        """Begin to load a group: calls of ``load`` follow, then ``set_resident(group, True)``.

        Meanwhile no node of the group is removed, so that ``load`` does not bring back an entry
        deleted in the map.  REQUIRES: the iterator for ``load`` is made after this call.
        """
        if self.where[_group(group)] != SPILLED:
            raise BugError(f"group {group} is not spilled")
        self.where[group] = LOADING

    def load(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Add entries of the base to groups being loaded; newer entries of the map stay."""
        batch: Batch = Batch(keys)
        stored: Batch = Batch(values)
        if batch.count != stored.count:
            raise ValueError("keys and values differ in length")
        self._load_all(batch.slices, stored.slices, batch.count)

    def load_packed(
        self,
        keys: memoryview,
        key_bounds: memoryview,
        values: memoryview,
        value_bounds: memoryview,
    ) -> None:
        """Load (see ``load``) packed strings: number i is between bounds i and i + 1."""
        batch: Run = Run(keys, key_bounds)
        stored: Run = Run(values, value_bounds)
        if batch.count != stored.count:
            raise ValueError("keys and values differ in length")
        self._load_all(batch.slices, stored.slices, batch.count)

    def _load_all(self, keys: SliceRef, values: SliceRef, count: cython.size_t) -> cython.int:
        is_open(self)
        i: cython.size_t
        result: cython.int
        for i in range(count):
            group = group_of(keys[i])
            if self.where[group] != LOADING:
                raise BugError(f"group {group} is not being loaded")
        with cython.nogil:
            result = self._load(keys, values, count)
        return check(result)

    def _load(self, keys: SliceRef, values: SliceRef, count: cython.size_t) -> cython.int:
        path = cython.declare(Path)
        i: cython.size_t = 0
        end: cython.size_t
        result: cython.int = DONE
        self.start(cython.address(path))
        while i < count and result == DONE:
            end = i + SLICE_KEYS if count - i > SLICE_KEYS else count
            self.mutex.acquire()
            while i < end and result == DONE:
                result = self.load_one(
                    cython.address(path), keys[i], values[i], self.committed_txid
                )
                i += 1
            self.mutex.release()
        return result

    def spill(
        self, group: int, start: bytes | None = None, limit: int = 1 << 60
    ) -> tuple[int, bytes | None]:
        """Mark the group as spilled and drop the entries that the base has.

        Visits up to ``limit`` nodes from ``start`` on.  Returns the bytes freed and the next start
        (None: done).  Entries that the base does not have are dropped after their checkpoint.
        """
        is_open(self)
        self.set_resident(group, False)
        batch: Batch = Batch((bytes((group,)) if start is None else start,))
        first: Slice = batch.slices[0]
        before: cython.size_t = self.arena.live_bytes
        wanted: cython.uint = group
        count: cython.size_t = limit
        handle: cython.uint
        with cython.nogil:
            handle = self._spill(first, wanted, count)
        after = None
        if handle:
            after = key_bytes(node_at(self.arena, handle), 0)
        return before - self.arena.live_bytes, after

    def _spill(self, start: Slice, group: cython.uint, limit: cython.size_t) -> cython.uint:
        """Return the node to continue with; 0: done."""
        path = cython.declare(Path)
        node: NodeRef
        handle: cython.uint
        _steps: cython.size_t
        self.start(cython.address(path))
        self.seek(cython.address(path), start)
        while True:
            self.mutex.acquire()
            for _steps in range(SLICE_KEYS):
                handle = links(path.at[0])[0]
                if handle == 0 or limit == 0:
                    break
                node = node_at(self.arena, handle)
                if group_of_node(node) != group:
                    handle = 0
                    break
                limit -= 1
                self.remove_useless(cython.address(path), handle)
                if links(path.at[0])[0] == handle:  # it stayed
                    self.step(cython.address(path), node)
            self.mutex.release()
            if handle == 0 or limit == 0:
                break
        if handle:
            handle = links(path.at[0])[0]
            if handle and group_of_node(node_at(self.arena, handle)) != group:
                handle = 0
        return handle


@cython.cclass
class Known:
    """The base's values per position; NULL: none."""

    def __cinit__(self, count: cython.size_t) -> None:
        self.bases = cython.cast(SliceRef, calloc(count + 1, cython.sizeof(Slice)))
        if not self.bases:
            raise MemoryError

    def __dealloc__(self) -> None:
        free(self.bases)


@cython.cfunc
@cython.exceptval(-1)
def _group(group: Any) -> cython.int:
    if not 0 <= group < 256:
        raise ValueError("a group is a byte")
    return group
