# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,has-type,no-any-return,untyped-decorator,misc"
"""Reads of the newest state: points, prefixes, full scans, alone or over a base.

Groups that are not resident are merged with the base, an iterator with ``seek``,
``seek_for_prev``, ``seek_to_last``, ``valid``, ``key``, ``value``, ``next``, ``prev`` and
``status``.  Entries of the map override the base's.  An iterator at a damaged block looks as if it
were at the end and only ``status`` raises, so ``status`` is called at every end.

For the writer's thread: no other thread frees newest values, so no mutex is taken.  This module
works compiled only; its types are in skipreads.pxd.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import cython
from cython.cimports.headrace.state.map.skipnodes import Nodes
from cython.cimports.headrace.state.map.skipseek import seek_many
from cython.cimports.headrace.state.map.skipslices import Batch, Found, Hits, key_bytes, value_bytes
from cython.cimports.headrace.state.map.skiptypes import (
    CHUNK_BYTES,
    CHUNK_ENTRIES,
    RESIDENT,
    NodeRef,
    Numbers,
    Path,
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
    starts,
)
from cython.cimports.libc.string import memcpy

from headrace.errors import BugError

_unpack = struct.Struct("<q").unpack


@cython.cfunc
@cython.exceptval(-1)
def is_open(map: Reads) -> cython.int:  # noqa: A002
    """Raise BugError once the map is closed."""
    if map.closed or map.arena is None:
        raise BugError("the state map is closed")
    return 0


@cython.cfunc
@cython.exceptval(-1)
def weight_of(value: ValueRef) -> cython.longlong:
    """Decode a value as a weight; BugError if it is not 8 bytes."""
    weight: cython.longlong = 0
    if size_of(value) != 8:
        raise BugError("a value of the state map is not a weight")
    memcpy(cython.address(weight), bytes_of(value), 8)
    return weight


@cython.cclass
class Reads(Nodes):
    """See the module."""

    def get_many(self, keys: list[bytes]) -> tuple[list[bytes | None], list[int]]:
        """Return the newest values, and the positions to look up in the base."""
        is_open(self)
        batch: Batch = Batch(keys)
        found: Found = Found(batch.count)
        slices: SliceRef = batch.slices
        handles: Numbers = found.handles
        count: cython.size_t = batch.count
        i: cython.size_t
        with cython.nogil:
            for i in range(count):
                self.requests[group_of(slices[i])] += 1
            seek_many(self, slices, count, handles, True, cython.NULL)
        out: list[Any] = []
        missing: list[Any] = []
        for i in range(count):
            if handles[i]:
                out.append(value_bytes(newest(self.arena, node_at(self.arena, handles[i]))))
                continue
            out.append(None)
            if self.where[group_of(slices[i])] != RESIDENT:
                missing.append(i)
        return out, missing

    def missing(self, keys: list[bytes]) -> list[int]:
        """Return the positions to look up in the base; count no request."""
        is_open(self)
        batch: Batch = Batch(keys)
        found: Found = Found(batch.count)
        slices: SliceRef = batch.slices
        handles: Numbers = found.handles
        positions: Found = Found(batch.count)
        asked: Numbers = positions.handles
        count: cython.size_t = 0
        i: cython.size_t
        # Only keys of groups that are not resident are sought.
        for i in range(batch.count):
            if self.where[group_of(slices[i])] != RESIDENT:
                asked[count] = cython.cast(cython.uint, i)
                slices[count] = slices[i]
                count += 1
        with cython.nogil:
            seek_many(self, slices, count, handles, True, cython.NULL)
        return [asked[i] for i in range(count) if handles[i] == 0]

    def _handle(self, key: bytes) -> cython.uint:
        """Return the handle of a key's node; 0: none."""
        path = cython.declare(Path)
        batch: Batch = Batch((key,))
        self.start(cython.address(path))
        return self.seek(cython.address(path), batch.slices[0])

    # ---- prefixes ------------------------------------------------------------------------------

    def scan_many(
        self, prefixes: list[bytes], base: Any
    ) -> tuple[list[int], list[bytes], list[int]]:
        """Return (position in ``prefixes``, rest of the key, weight), in key order per prefix.

        A prefix is not empty: its first byte is the group.  ``base`` may be None if all groups
        are resident.
        """
        is_open(self)
        batch: Batch = prefixes_of(prefixes)
        positions: list[Any] = []
        rows: list[Any] = []
        weights: list[Any] = []
        i: cython.size_t = 0
        end: cython.size_t
        while i < batch.count:
            end = i
            while end < batch.count and self.where[batch.slices[end].data[0]] == RESIDENT:
                end += 1
            if end > i:
                self._scan_run(batch, i, end, positions, rows, weights)
            else:
                end = i + 1
                self._scan_over(batch, i, base, positions, rows, weights)
            i = end
        return positions, rows, weights

    def _scan_run(
        self,
        batch: Batch,
        start: cython.size_t,
        end: cython.size_t,
        positions: list[Any],
        rows: list[Any],
        weights: list[Any],
    ) -> cython.int:
        """Scan prefixes of resident groups."""
        hits: Hits = Hits()
        prefixes: SliceRef = batch.slices
        found: Found = Found(end - start)
        handles: Numbers = found.handles
        i: cython.size_t
        result: cython.int
        with cython.nogil:
            seek_many(self, prefixes + start, end - start, handles, False, cython.NULL)
            result = self._under(prefixes, start, end, handles, hits)
        if result:
            raise MemoryError
        for i in range(hits.count):
            if is_removed(hits.data[i].value):
                continue
            positions.append(hits.data[i].position)
            rows.append(key_bytes(hits.data[i].node, prefixes[hits.data[i].position].length))
            weights.append(weight_of(hits.data[i].value))
        return 0

    def _under(
        self,
        prefixes: SliceRef,
        start: cython.size_t,
        end: cython.size_t,
        firsts: Numbers,
        hits: Hits,
    ) -> cython.int:
        """Add the nodes under each prefix, removed ones included, to ``hits``; -1: out of memory.

        ``firsts``: the first nodes not before the prefixes.
        """
        i: cython.size_t
        handle: cython.uint
        node: NodeRef
        for i in range(start, end):
            self.requests[prefixes[i].data[0]] += 1
            handle = firsts[i - start]
            while handle:
                node = node_at(self.arena, handle)
                if not starts(node, prefixes[i]):
                    break
                if not hits.add(i, node, newest(self.arena, node)):
                    return -1
                handle = links(node)[0]
        return 0

    def _scan_over(
        self,
        batch: Batch,
        position: cython.size_t,
        base: Any,
        positions: list[Any],
        rows: list[Any],
        weights: list[Any],
    ) -> cython.int:
        """Scan a prefix of a group that is not resident: entries of the map override the base's."""
        hits: Hits = Hits()
        prefix: bytes = batch.items[position]
        length: cython.Py_ssize_t = len(prefix)
        i: cython.size_t = 0
        weight: cython.longlong
        mine: Any = None
        first = cython.declare(cython.uint)
        seek_many(self, batch.slices + position, 1, cython.address(first), False, cython.NULL)
        if self._under(batch.slices, position, position + 1, cython.address(first), hits):
            raise MemoryError
        base.seek(prefix)
        while base.valid():
            key: bytes = base.key()
            if not key.startswith(prefix):
                break
            row: bytes | None = key[length:]
            while i < hits.count:
                mine = key_bytes(hits.data[i].node, length)
                if mine > row:
                    break
                if not is_removed(hits.data[i].value):
                    positions.append(position)
                    rows.append(mine)
                    weights.append(weight_of(hits.data[i].value))
                i += 1
                if mine == row:
                    row = None
                    break
            if row is not None:
                weight = _unpack(base.value())[0]
                positions.append(position)
                rows.append(row)
                weights.append(weight)
            base.next()
        else:
            base.status()
        while i < hits.count:
            if not is_removed(hits.data[i].value):
                positions.append(position)
                rows.append(key_bytes(hits.data[i].node, length))
                weights.append(weight_of(hits.data[i].value))
            i += 1
        return 0

    def first_many(
        self, prefixes: list[bytes], starts: list[bytes], count: int, base: Any
    ) -> tuple[list[int], list[bytes], list[int]]:
        """Scan up to ``count`` entries of each prefix, from its start on; see ``scan_many``.

        ``starts[i]`` begins with ``prefixes[i]``.
        """
        is_open(self)
        batch: Batch = prefixes_of(prefixes)
        bounds: Batch = Batch(starts)
        found: Found = Found(batch.count)
        handles: Numbers = found.handles
        positions: list[Any] = []
        rows: list[Any] = []
        weights: list[Any] = []
        i: cython.size_t
        left: cython.longlong
        node: NodeRef
        prefix: Slice
        if bounds.count != batch.count:
            raise ValueError("prefixes and starts differ in length")
        with cython.nogil:
            seek_many(self, bounds.slices, bounds.count, handles, False, cython.NULL)
        for i in range(batch.count):
            prefix = batch.slices[i]
            self.requests[prefix.data[0]] += 1
            left = count
            if self.where[prefix.data[0]] != RESIDENT:
                base.seek(bounds.items[i])
                self._first_merged(handles[i], batch, i, left, base, positions, rows, weights)
                continue
            node = self._first(handles[i], prefix)
            while node and left > 0:
                positions.append(i)
                rows.append(key_bytes(node, prefix.length))
                weights.append(weight_of(newest(self.arena, node)))
                left -= 1
                node = self._first(links(node)[0], prefix)
        return positions, rows, weights

    def _first_merged(
        self,
        handle: cython.uint,
        batch: Batch,
        position: cython.size_t,
        left: cython.longlong,
        base: Any,
        positions: list[Any],
        rows: list[Any],
        weights: list[Any],
    ) -> cython.int:
        """Append up to ``left`` merged entries, of the map from a node on and of the base."""
        prefix: bytes = batch.items[position]
        length: cython.Py_ssize_t = len(prefix)
        weight: cython.longlong
        node: NodeRef
        while left > 0:
            node = node_at(self.arena, handle) if handle else cython.NULL
            if node and not starts(node, batch.slices[position]):
                node = cython.NULL
                handle = 0
            mine: Any = key_bytes(node, 0) if node else None
            theirs: Any = None
            if base.valid():
                theirs = base.key()
                if not theirs.startswith(prefix):
                    theirs = None
            else:
                base.status()
            if mine is None and theirs is None:
                break
            if mine is None or (theirs is not None and theirs < mine):
                weight = _unpack(base.value())[0]
                rows.append(theirs[length:])
                base.next()
            else:
                if mine == theirs:
                    base.next()
                handle = links(node)[0]
                if is_removed(newest(self.arena, node)):
                    continue
                weight = weight_of(newest(self.arena, node))
                rows.append(mine[length:])
            positions.append(position)
            weights.append(weight)
            left -= 1
        return 0

    def _first(self, handle: cython.uint, prefix: Slice) -> NodeRef:
        """Return the first entry under a prefix from a node on; NULL: none."""
        node: NodeRef
        while handle:
            node = node_at(self.arena, handle)
            if not starts(node, prefix):
                break
            if not is_removed(newest(self.arena, node)):
                return node
            handle = links(node)[0]
        return cython.NULL

    # ---- full scans ----------------------------------------------------------------------------

    def items(self, base: Any) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the newest entries in key order, in bounded chunks.

        A write between two chunks is seen if its key is above all yielded ones.  The iterator ends
        when the map is closed.
        """
        start: bytes | None = b""
        while start is not None and not self.closed:
            group = start[0] if start else 0
            stop = group + 1
            here = self.where[group] == RESIDENT
            while stop < 256 and (self.where[stop] == RESIDENT) == here:
                stop += 1
            if here:
                keys, values, start = self._page(start, stop)
            else:
                keys, values, start = self._page_over(start, stop, base)
            live = [i for i, value in enumerate(values) if value is not None]
            if len(live) < len(keys):
                keys = [keys[i] for i in live]
                values = [values[i] for i in live]
            if keys:
                yield keys, values

    def _page(self, start: bytes, stop_group: cython.int) -> tuple[Any, ...]:
        """Return (keys, values or None if removed, next key or None) of nodes before a group."""
        path = cython.declare(Path)
        batch: Batch = Batch((start,))
        keys: list[Any] = []
        values: list[Any] = []
        handle: cython.uint
        node: NodeRef
        size: cython.size_t = 0
        self.start(cython.address(path))
        self.seek(cython.address(path), batch.slices[0])
        handle = links(path.at[0])[0]
        while handle:
            node = node_at(self.arena, handle)
            if cython.cast(cython.int, group_of_node(node)) >= stop_group:
                break
            if len(keys) == CHUNK_ENTRIES or size > CHUNK_BYTES:
                return keys, values, key_bytes(node, 0)
            keys.append(key_bytes(node, 0))
            values.append(value_bytes(newest(self.arena, node)))
            size += node.key_length + size_of(newest(self.arena, node))
            handle = links(node)[0]
        return keys, values, bytes((stop_group,)) if stop_group < 256 else None

    def _page_over(self, start: bytes, stop_group: cython.int, base: Any) -> tuple[Any, ...]:
        """Return a page like ``_page``, of the map merged with the base."""
        merged: dict[bytes, bytes | None] = {}
        size: cython.size_t = 0
        key: bytes
        behind: Any
        bound: Any = None  # exclusive upper bound of the complete part of the page
        base.seek(start)
        while base.valid():
            key = base.key()
            if key and key[0] >= stop_group:
                break
            if len(merged) == CHUNK_ENTRIES or size > CHUNK_BYTES:
                bound = key
                break
            value = base.value()
            merged[key] = value
            size += len(key) + len(value)
            base.next()
        else:
            base.status()
        keys, values, behind = self._page(start, stop_group)
        merged.update(zip(keys, values))  # noqa: B905  both of one page
        truncated = behind is not None and behind != bytes((stop_group % 256,))
        if truncated and (bound is None or behind < bound):
            bound = behind
        if bound is not None:
            merged = {k: v for k, v in merged.items() if k < bound}
            behind = bound
        ordered = sorted(merged)
        return ordered, [merged[k] for k in ordered], behind


@cython.cfunc
def prefixes_of(prefixes: Any) -> Batch:
    """Make a batch of prefixes; BugError if one is empty and so has no group."""
    batch: Batch = Batch(prefixes)
    i: cython.size_t
    for i in range(batch.count):
        if batch.slices[i].length == 0:
            raise BugError("a prefix of no bytes has no group")
    return batch
