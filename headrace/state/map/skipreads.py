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
from cython.cimports.headrace.state.map.skipkeys import Keys
from cython.cimports.headrace.state.map.skipnodes import Nodes
from cython.cimports.headrace.state.map.skipseek import seek_many
from cython.cimports.headrace.state.map.skipslices import Batch, Found, Hits, key_bytes, value_bytes
from cython.cimports.headrace.state.map.skiptypes import (
    CHUNK_BYTES,
    CHUNK_ENTRIES,
    DONE,
    NO_MEMORY,
    NO_WEIGHT,
    NOT_RUNNING,
    OVERFLOW,
    RESIDENT,
    HitRef,
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
    key_of,
    links,
    newest,
    node_at,
    size_of,
    starts,
)
from cython.cimports.libc.stdlib import free, malloc
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
def check(result: cython.int) -> cython.int:
    """Raise the error of a loop's result code, if it is one."""
    if result == NO_MEMORY:
        raise MemoryError
    if result == NO_WEIGHT:
        raise BugError("a value of the state map is not a weight")
    if result == OVERFLOW:
        raise OverflowError("a weight beyond 64 bits")
    if result == NOT_RUNNING:
        raise BugError("the snapshot ended while it was read")
    return 0


@cython.cclass
class Reads(Nodes):
    """See the module."""

    def get_many(self, keys: Keys) -> tuple[Any, ...]:
        """Return the newest values (data, bounds, validity), and the positions to look up.

        The base has the values at these positions, which are in key order.
        """
        is_open(self)
        hits: Hits = Hits()
        found: Found = Found(keys.count)
        handles: Numbers = found.handles
        i: cython.size_t
        value: ValueRef
        result: cython.int = DONE
        with cython.nogil:
            for i in range(keys.count):
                self.requests[group_of(keys.slices[i])] += 1
            seek_many(self, keys.slices, keys.count, handles, True, cython.NULL)
            for i in range(keys.count):
                if handles[i]:
                    value = newest(self.arena, node_at(self.arena, handles[i]))
                    if not is_removed(value) and not hits.add(
                        keys.order[i], bytes_of(value), size_of(value), 0
                    ):
                        result = NO_MEMORY
                        break
        check(result)
        missing: list[Any] = [
            keys.order[i]
            for i in range(keys.count)
            if handles[i] == 0 and self.where[group_of(keys.slices[i])] != RESIDENT
        ]
        return (*hits.values(keys.count), missing)

    def missing(self, keys: Keys) -> list[int]:
        """Return the positions to look up in the base, in key order; count no request."""
        is_open(self)
        found: Found = Found(keys.count)
        handles: Numbers = found.handles
        positions: Found = Found(keys.count)
        asked: Numbers = positions.handles
        count: cython.size_t = 0
        i: cython.size_t
        # Only keys of groups that are not resident are sought.
        sought: SliceRef = cython.cast(SliceRef, malloc((keys.count + 1) * cython.sizeof(Slice)))
        if not sought:
            raise MemoryError
        with cython.nogil:
            for i in range(keys.count):
                if self.where[group_of(keys.slices[i])] != RESIDENT:
                    asked[count] = keys.order[i]
                    sought[count] = keys.slices[i]
                    count += 1
            seek_many(self, sought, count, handles, True, cython.NULL)
        free(sought)
        return [asked[i] for i in range(count) if handles[i] == 0]

    def _handle(self, key: bytes) -> cython.uint:
        """Return the handle of a key's node; 0: none."""
        path = cython.declare(Path)
        batch: Batch = Batch((key,))
        self.start(cython.address(path))
        return self.seek(cython.address(path), batch.slices[0])

    # ---- prefixes ------------------------------------------------------------------------------

    def scan_many(self, keys: Keys, base: Any) -> tuple[Any, ...]:
        """Return (positions of keys, rows as data and bounds, weights), by position and row.

        A row is the rest of an entry's key.  No key is empty: its first byte is the group.
        ``base`` may be None if all groups are resident.
        """
        is_open(self)
        have_groups(keys)
        hits: Hits = Hits()
        found: Found = Found(keys.count)
        i: cython.size_t = 0
        end: cython.size_t
        while i < keys.count:
            end = i
            while end < keys.count and self.where[keys.slices[end].data[0]] == RESIDENT:
                end += 1
            if end > i:
                with cython.nogil:
                    seek_many(self, keys.slices + i, end - i, found.handles, False, cython.NULL)
                    result: cython.int = self._under(keys, i, end, found.handles, hits, False)
                check(result)
            else:
                end = i + 1
                self._scan_over(keys, i, base, hits)
            i = end
        return hits.rows(keys.count)

    def _under(
        self,
        keys: Keys,
        start: cython.size_t,
        end: cython.size_t,
        firsts: Numbers,
        hits: Hits,
        removed: cython.bint,
    ) -> cython.int:
        """Add the nodes under each key from ``start`` to before ``end`` to ``hits``.

        ``firsts``: the first nodes not before the keys.  With ``removed``, removed nodes too.
        """
        i: cython.size_t
        handle: cython.uint
        node: NodeRef
        result: cython.int
        for i in range(start, end):
            self.requests[keys.slices[i].data[0]] += 1
            handle = firsts[i - start]
            while handle:
                node = node_at(self.arena, handle)
                if not starts(node, keys.slices[i]):
                    break
                if removed or not is_removed(newest(self.arena, node)):
                    result = self._add_hit(hits, keys.order[i], node, keys.slices[i].length)
                    if result != DONE:
                        return result
                handle = links(node)[0]
        return DONE

    def _add_hit(
        self, hits: Hits, position: cython.size_t, node: NodeRef, skipped: cython.size_t
    ) -> cython.int:
        """Add a node's key without its first bytes, and its newest value as a weight."""
        value: ValueRef = newest(self.arena, node)
        weight: cython.longlong = 0
        if not is_removed(value):
            if size_of(value) != 8:
                return NO_WEIGHT
            memcpy(cython.address(weight), bytes_of(value), 8)
        if not hits.add(position, key_of(node) + skipped, node.key_length - skipped, weight):
            return NO_MEMORY
        hits.data[hits.count - 1].removed = is_removed(value)
        return DONE

    def _scan_over(self, keys: Keys, i: cython.size_t, base: Any, out: Hits) -> cython.int:
        """Scan a key of a group that is not resident: entries of the map override the base's."""
        hits: Hits = Hits()
        position: cython.size_t = keys.order[i]
        prefix: bytes = keys.prefix(position)
        length: cython.Py_ssize_t = len(prefix)
        at: cython.size_t = 0
        weight: cython.longlong
        mine: Any = None
        first = cython.declare(cython.uint)
        seek_many(self, keys.slices + i, 1, cython.address(first), False, cython.NULL)
        check(self._under(keys, i, i + 1, cython.address(first), hits, True))
        base.seek(prefix)
        while base.valid():
            key: bytes = base.key()
            if not key.startswith(prefix):
                break
            row: bytes | None = key[length:]
            while at < hits.count:
                mine = hits.data[at].data[: hits.data[at].length]
                if mine > row:
                    break
                _keep(hits, at, out)
                at += 1
                if mine == row:
                    row = None
                    break
            if row is not None:
                weight = _unpack(base.value())[0]
                out.add_object(position, row, weight)
            base.next()
        else:
            base.status()
        while at < hits.count:
            _keep(hits, at, out)
            at += 1
        return 0

    def first_many(self, keys: Keys, count: int, base: Any) -> tuple[Any, ...]:
        """Scan up to ``count`` entries of each key, from its start on; see ``scan_many``.

        The start of a key is its rest in ``keys``.
        """
        is_open(self)
        have_groups(keys)
        found: Found = Found(keys.count)
        handles: Numbers = found.handles
        hits: Hits = Hits()
        i: cython.size_t
        left: cython.longlong
        node: NodeRef
        prefix = cython.declare(Slice)
        with cython.nogil:
            seek_many(self, keys.slices, keys.count, handles, False, cython.NULL)
        for i in range(keys.count):
            prefix.data = keys.slices[i].data
            prefix.length = keys.prefixes[keys.order[i]]
            self.requests[prefix.data[0]] += 1
            left = count
            if self.where[prefix.data[0]] != RESIDENT:
                base.seek(keys.slices[i].data[: keys.slices[i].length])
                self._first_merged(handles[i], keys, keys.order[i], left, base, hits)
                continue
            node = self._first(handles[i], prefix)
            while node and left > 0:
                check(self._add_hit(hits, keys.order[i], node, prefix.length))
                left -= 1
                node = self._first(links(node)[0], prefix)
        return hits.rows(keys.count)

    def _first_merged(
        self,
        handle: cython.uint,
        keys: Keys,
        position: cython.size_t,
        left: cython.longlong,
        base: Any,
        hits: Hits,
    ) -> cython.int:
        """Append up to ``left`` merged entries, of the map from a node on and of the base."""
        prefix: bytes = keys.prefix(position)
        length: cython.Py_ssize_t = len(prefix)
        start = cython.declare(Slice)
        node: NodeRef
        start.data = keys.given[position].data
        start.length = length
        while left > 0:
            node = node_at(self.arena, handle) if handle else cython.NULL
            if node and not starts(node, start):
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
                hits.add_object(position, theirs[length:], _unpack(base.value())[0])
                base.next()
            else:
                if mine == theirs:
                    base.next()
                handle = links(node)[0]
                if is_removed(newest(self.arena, node)):
                    continue
                check(self._add_hit(hits, position, node, length))
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
@cython.exceptval(-1)
def have_groups(keys: Keys) -> cython.int:
    """Raise BugError if a key is empty and so has no group."""
    i: cython.size_t
    for i in range(keys.count):
        if keys.prefixes[i] == 0:
            raise BugError("a prefix of no bytes has no group")
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _keep(hits: Hits, i: cython.size_t, out: Hits) -> cython.int:
    """Append a hit to ``out``, unless it is removed."""
    hit: HitRef = hits.data + i
    if not hit.removed and not out.add(hit.position, hit.data, hit.length, hit.weight):
        raise MemoryError
    return 0
