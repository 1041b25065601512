# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,has-type,no-any-return,untyped-decorator,misc"
"""The skip list itself: nodes in key order, each with a chain of versions of its value.

    head ──────────────► d ──────────────► (level 1: about every fourth node)
    head ──► a ──► b ──► d ──► e ──► ...   (level 0: all, by unsigned bytes)
             │
             └► version 7 ──► version 4 ──► ...   newest first

Each method is a step on one node, without the interpreter lock and under the caller's mutex;
``skiplist`` adds batches and Python objects.  A *path* holds per level the last node before a key.
To seek a greater key continues from the path: a finger search, in which neighbours of a sorted
batch cost few steps.  To seek a lesser key starts again at the head.

This module works compiled only; its types are in skipnodes.pxd.
"""

from __future__ import annotations

import cython
from cython.cimports.headrace.state.map.arena import block
from cython.cimports.headrace.state.map.skiptypes import (
    BYTES_MAX,
    HEIGHT_MAX,
    NEGATIVE,
    REMOVED,
    RESIDENT,
    SPILLED,
    Bytes,
    HandlesRef,
    Node,
    NodeRef,
    PathRef,
    Slice,
    Value,
    ValueRef,
    bytes_of,
    compare,
    group_of,
    group_of_node,
    is_removed,
    key_of,
    links,
    newest,
    node_at,
    value_at,
)
from cython.cimports.libc.stdlib import abort, calloc, free, realloc
from cython.cimports.libc.string import memcpy

_ZONED_BYTES = cython.declare(cython.size_t, 8388608)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def reserve(handles: HandlesRef, more: cython.size_t) -> cython.bint:
    """Make room for ``more`` handles; False if out of memory."""
    capacity: cython.size_t = handles.capacity
    if handles.count + more <= capacity:
        return True
    while capacity < handles.count + more:
        capacity = capacity * 2 if capacity else 64
    data: cython.pointer[cython.uint] = cython.cast(
        cython.pointer[cython.uint], realloc(handles.data, capacity * cython.sizeof(cython.uint))
    )
    if not data:
        return False
    handles.data = data
    handles.capacity = capacity
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.void)
def push(handles: HandlesRef, handle: cython.uint) -> None:
    """Append; REQUIRES: there is room."""
    if handles.count == handles.capacity:
        abort()
    handles.data[handles.count] = handle
    handles.count += 1


@cython.cclass
class Nodes:
    """See the module."""

    def __cinit__(self, *arguments: object, **options: object) -> None:
        self.head = cython.cast(
            NodeRef, calloc(1, cython.sizeof(Node) + HEIGHT_MAX * cython.sizeof(cython.uint))
        )
        if not self.head:
            raise MemoryError
        self.head.height = HEIGHT_MAX
        self.top = 1
        self.epoch = 1
        self.random = 88172645463325252
        group: cython.int
        for group in range(256):
            self.where[group] = RESIDENT

    def __dealloc__(self) -> None:
        free(self.head)
        free(self.snapshots)
        free(self.changed.data)

    def start(self, path: PathRef) -> None:
        """Set the path before the first node."""
        level: cython.int
        for level in range(HEIGHT_MAX):
            path.at[level] = self.head

    def seek(self, path: PathRef, key: Slice) -> cython.uint:
        """Move the path to before ``key``; return the handle of its node, or 0.

        REQUIRES: no node of the path was removed since the last seek.
        """
        node: NodeRef = path.at[0]
        bases: cython.pointer[cython.p_uchar] = self.arena.bases
        shift: cython.uint = self.arena.shift
        mask: cython.uint = self.arena.mask
        following: NodeRef
        level: cython.int = 0
        last: cython.int = self.top - 1
        order: cython.int
        handle: cython.uint
        stop: cython.uint = 0  # a node known to be at or above the key …
        equal: cython.bint = False  # … and whether it is the key's
        if node != self.head and compare(node, key) >= 0:
            self.start(path)
            level = last
        else:
            # Climb to a level whose next node is not before the key; higher ones stay unchanged.
            while level < last:
                handle = links(path.at[level])[level]
                if handle == 0:
                    break
                following = cython.cast(NodeRef, block(bases, shift, mask, handle))
                order = compare(following, key)
                if order >= 0:
                    stop = handle
                    equal = order == 0
                    break
                level += 1
        node = path.at[level]
        while True:
            handle = links(node)[level]
            while handle != stop and handle != 0:
                following = cython.cast(NodeRef, block(bases, shift, mask, handle))
                order = compare(following, key)
                if order >= 0:
                    stop = handle
                    equal = order == 0
                    break
                node = following
                handle = links(node)[level]
            if level == 0:
                break
            if node == path.at[level]:
                node = path.at[level - 1]  # as far as the old path was, or farther
            else:
                path.at[level] = node
            level -= 1
        path.at[0] = node
        return stop if handle != 0 and equal else 0

    def step(self, path: PathRef, node: NodeRef) -> None:
        """Move a path from directly before ``node`` to directly after it."""
        level: cython.int
        for level in range(cython.cast(cython.int, node.height)):
            path.at[level] = node

    # ---- values ------------------------------------------------------------------------------

    def belonging(self, node: NodeRef, snapshot: cython.longlong) -> ValueRef:
        """Return the value of the greatest version below ``snapshot`` (F-9), or NULL."""
        value: ValueRef = newest(self.arena, node)
        while value.version >= snapshot:
            if value.older == 0:
                return cython.NULL
            value = value_at(self.arena, value.older)
        return value

    def _value(
        self,
        group: cython.uint,
        data: Bytes,
        length: cython.uint,
        version: cython.longlong,
        older: cython.uint,
    ) -> cython.uint:
        """Create a value complete with its link to the older one (F-18); 0 if out of memory."""
        size: cython.size_t = length & BYTES_MAX
        handle: cython.uint = self.arena.alloc(self._zone(group), size + cython.sizeof(Value))
        value: ValueRef
        if handle:
            value = value_at(self.arena, handle)
            value.version = version
            value.older = older
            value.length = length
            memcpy(bytes_of(value), data, size)
            self.bytes_per_group[group] += self.arena.block_bytes(handle)
        return handle

    def _free_value(self, group: cython.uint, handle: cython.uint) -> None:
        self.bytes_per_group[group] -= self.arena.block_bytes(handle)
        self.arena.free(handle)

    def _count(self, flags: cython.uint, by: cython.int) -> None:
        """Add a newest value with these flags to the counters (1), or subtract it (-1)."""
        if flags & REMOVED:
            self.removed_count += by
        if flags & NEGATIVE:
            self.negative_count += by

    def write(
        self, path: PathRef, handle: cython.uint, key: Slice, data: Bytes, length: cython.uint
    ) -> cython.int:
        """Add a value if a running snapshot may need the newest one, else replace it (F-13).

        A removal (``length`` is REMOVED) is physical without running snapshots, else logical (F-2,
        F-3, F-14).  Out of memory: return -1 and change nothing.  REQUIRES: ``handle`` is the
        result of ``seek``; in txid mode, room in ``writing``.
        """
        group: cython.uint = group_of(key)
        value: ValueRef
        node: NodeRef
        fresh: cython.uint
        if handle == 0:
            if length & REMOVED and self.where[group] == RESIDENT:
                return 0
            return self._create(path, key, data, length, self.stamp)
        node = node_at(self.arena, handle)
        value = newest(self.arena, node)
        if length & REMOVED:
            if self.snapshot_count == 0:
                self.remove(path, handle)
                return 0
            if is_removed(value):
                return 0
        if value.version >= self.highest:
            if self.arena.fits(node.value, (length & BYTES_MAX) + cython.sizeof(Value)):
                self._count(value.length, -1)
                memcpy(bytes_of(value), data, length & BYTES_MAX)
                value.length = length
                value.version = self.stamp
                self._count(length, 1)
                return 0
            fresh = self._value(group, data, length, self.stamp, value.older)
            if fresh == 0:
                return -1
            self._count(value.length, -1)
            self._free_value(group, node.value)
            node.value = fresh
        else:
            fresh = self._value(group, data, length, self.stamp, node.value)
            if fresh == 0:
                return -1
            self._count(value.length, -1)
            node.value = fresh
            if self.txids:
                node.listed += 1
                push(self.writing, handle)
        self._count(length, 1)
        return 0

    def _create(
        self, path: PathRef, key: Slice, data: Bytes, length: cython.uint, version: cython.longlong
    ) -> cython.int:
        """Create a node after the path; out of memory: return -1 and change nothing."""
        group: cython.uint = group_of(key)
        height: cython.uint = self._height()
        level: cython.int
        node: NodeRef
        handle: cython.uint = self.arena.alloc(
            self._zone(group),
            cython.sizeof(Node) + height * cython.sizeof(cython.uint) + key.length,
        )
        if handle == 0:
            return -1
        node = node_at(self.arena, handle)
        node.value = self._value(group, data, length, version, 0)
        if node.value == 0:
            self.arena.free(handle)
            return -1
        node.key_length = cython.cast(cython.uint, key.length)
        node.epoch = 0
        node.listed = 0
        node.marks = 0
        node.height = height
        memcpy(key_of(node), key.data, key.length)
        for level in range(cython.cast(cython.int, height)):
            links(node)[level] = links(path.at[level])[level]
        for level in range(cython.cast(cython.int, height)):
            links(path.at[level])[level] = handle
        if cython.cast(cython.int, height) > self.top:
            self.top = height
        self.bytes_per_group[group] += self.arena.block_bytes(handle)
        self.node_count += 1
        self._count(length, 1)
        if self.txids and version > 0:
            node.listed = 1
            push(self.writing, handle)
        return 0

    def load_one(
        self, path: PathRef, key: Slice, value: Slice, committed: cython.longlong
    ) -> cython.int:
        """Insert an entry of the base, below values in flight; -1 if out of memory."""
        handle: cython.uint = self.seek(path, key)
        oldest: ValueRef
        base: cython.uint
        length: cython.uint = cython.cast(cython.uint, value.length)
        if handle == 0:
            return self._create(path, key, value.data, length, 0)
        oldest = newest(self.arena, node_at(self.arena, handle))
        while oldest.older:
            oldest = value_at(self.arena, oldest.older)
        if oldest.version > committed:
            base = self._value(group_of(key), value.data, length, 0, 0)
            if base == 0:
                return -1
            oldest.older = base
        return 0

    # ---- removal -----------------------------------------------------------------------------

    def remove(self, path: PathRef, handle: cython.uint) -> None:
        """Free a node and all its values.  REQUIRES: it is in no list."""
        node: NodeRef = node_at(self.arena, handle)
        group: cython.uint = group_of_node(node)
        value: cython.uint = node.value
        older: cython.uint
        key = cython.declare(Slice)
        if node.listed:
            abort()
        key.data = key_of(node)
        key.length = node.key_length
        self.seek(path, key)
        if value:
            self._count(newest(self.arena, node).length, -1)
        self._unlink(path, handle)
        while value:
            older = value_at(self.arena, value).older
            self._free_value(group, value)
            value = older
        self.bytes_per_group[group] -= self.arena.block_bytes(handle)
        self.arena.free(handle)
        self.node_count -= 1

    def _unlink(self, path: PathRef, handle: cython.uint) -> None:
        """Unlink a node from all levels.  REQUIRES: the path is directly before it."""
        node: NodeRef = node_at(self.arena, handle)
        level: cython.int
        for level in range(cython.cast(cython.int, node.height)):
            if links(path.at[level])[level] != handle:
                abort()
            links(path.at[level])[level] = links(node)[level]
        while self.top > 1 and links(self.head)[self.top - 1] == 0:
            self.top -= 1

    def pop(self, node: NodeRef) -> cython.bint:
        """Free the newest value; return whether an older one is left."""
        value: ValueRef = newest(self.arena, node)
        handle: cython.uint = node.value
        self._count(value.length, -1)
        node.value = value.older
        self._free_value(group_of_node(node), handle)
        if node.value == 0:
            return False
        self._count(newest(self.arena, node).length, 1)
        return True

    def _cut(self, node: NodeRef, value: ValueRef) -> None:
        """Free all values older than ``value``."""
        group: cython.uint = group_of_node(node)
        handle: cython.uint = value.older
        older: cython.uint
        value.older = 0
        while handle:
            older = value_at(self.arena, handle).older
            self._free_value(group, handle)
            handle = older

    def prune_finished(self, node: NodeRef) -> None:
        """Free the values older than the newest finished version (F-10, F-11)."""
        value: ValueRef = newest(self.arena, node)
        while value.older:
            if value.version <= self.finished_version:
                self._cut(node, value)
                return
            value = value_at(self.arena, value.older)

    def prune(self, node: NodeRef) -> None:
        """Free all values but the newest and those that belong to a running snapshot.

        Stricter than F-10: a value between two snapshots is freed, too, so that the chain of a hot
        key does not grow while a checkpoint is written.
        """
        group: cython.uint = group_of_node(node)
        kept: ValueRef = newest(self.arena, node)
        value: ValueRef
        handle: cython.uint
        at_snapshot: cython.size_t = self.snapshot_count
        while kept.older:
            while at_snapshot and self.snapshots[at_snapshot - 1] > kept.version:
                at_snapshot -= 1
            if at_snapshot == 0:
                self._cut(node, kept)
                return
            while True:
                handle = kept.older
                if handle == 0:
                    return
                value = value_at(self.arena, handle)
                if value.version < self.snapshots[at_snapshot - 1]:
                    break
                kept.older = value.older
                self._free_value(group, handle)
            kept = value

    # ---- lists of nodes ------------------------------------------------------------------------

    def list_changed(self, handle: cython.uint) -> None:
        """Move one listing of the node to ``changed``, the changes of the next checkpoint.

        REQUIRES: room in ``changed``.
        """
        node: NodeRef = node_at(self.arena, handle)
        if node.epoch == self.epoch:
            node.listed -= 1
        else:
            node.epoch = self.epoch
            push(cython.address(self.changed), handle)

    def remove_useless(self, path: PathRef, handle: cython.uint) -> None:
        """Remove a node that is in no list, if without it a read has the same result.

        REQUIRES: room in ``changed``: a group being loaded keeps its removed nodes for later.
        """
        node: NodeRef = node_at(self.arena, handle)
        value: ValueRef = newest(self.arena, node)
        residency: cython.uchar = self.where[group_of_node(node)]
        if node.listed or value.version > self.base_txid:
            return
        if residency == SPILLED:
            self.remove(path, handle)
        elif is_removed(value):
            if residency == RESIDENT:
                self.remove(path, handle)
            else:
                node.listed = 1
                self.list_changed(handle)

    def runs(self, snapshot: cython.longlong) -> cython.bint:
        """Return whether the snapshot was neither released nor retired."""
        i: cython.size_t
        found: cython.bint = False
        for i in range(self.snapshot_count):
            found |= self.snapshots[i] == snapshot
        return found

    # ---- helpers -------------------------------------------------------------------------------

    def _height(self) -> cython.uint:
        """Return a random height: each next level has probability 1/4.

        The generator is xorshift64 with a fixed seed, so every run has the same heights.
        """
        height: cython.uint = 1
        bits: cython.ulonglong = self.random
        bits ^= bits << 13
        bits ^= bits >> 7
        bits ^= bits << 17
        self.random = bits
        while height < HEIGHT_MAX and bits & 3 == 0:
            height += 1
            bits >>= 2
        return height

    def _zone(self, group: cython.uint) -> cython.uint:
        """Return the group's zone of the arena: its own once the map is large enough."""
        if self.arena.zone_count == 1 and (
            self.arena.live_bytes < _ZONED_BYTES or not self.arena.split(257)
        ):
            return 0
        return group + 1
