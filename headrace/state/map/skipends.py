# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,has-type,no-any-return,untyped-decorator,misc"
"""First and last entries under prefixes, alone or over a base as in ``skipreads``.

This module works compiled only; its types are in skipends.pxd.
"""

from __future__ import annotations

from typing import Any

import cython
from cython.cimports.headrace.state.map.skipkeys import Keys
from cython.cimports.headrace.state.map.skipreads import Reads, have_groups, is_open
from cython.cimports.headrace.state.map.skipseek import seek_many
from cython.cimports.headrace.state.map.skipslices import Found, Hits, key_bytes
from cython.cimports.headrace.state.map.skiptypes import (
    HEIGHT_MAX,
    RESIDENT,
    NodeRef,
    NodeRefs,
    Numbers,
    Path,
    PathRef,
    Slice,
    SliceRef,
    is_removed,
    key_of,
    links,
    newest,
    node_at,
    starts,
)
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memcpy


@cython.cclass
class Ends(Reads):
    """See the module."""

    def extreme_many(self, keys: Keys, last: bool, bounded: bool, base: Any) -> tuple[Any, ...]:
        """Return (data, bounds, validity): the first (or last) row under each key, if any.

        ``bounded``: only rows before a key's rest in ``keys`` count; REQUIRES: ``last``.
        """
        is_open(self)
        have_groups(keys)
        path = cython.declare(Path)
        found: Found = Found(keys.count)
        slices: SliceRef = keys.slices
        befores: NodeRefs = found.nodes if last else cython.NULL
        handles: Numbers = found.handles
        ends: PrefixEnds
        hits: Hits = Hits()
        i: cython.size_t
        prefix = cython.declare(Slice)
        node: NodeRef
        if last and not bounded:
            ends = PrefixEnds(keys)  # type: ignore[call-arg]  # for __cinit__
            slices = ends.slices
        self.start(cython.address(path))
        with cython.nogil:
            seek_many(self, slices, keys.count, handles, False, befores)
        for i in range(keys.count):
            prefix.data = keys.slices[i].data
            prefix.length = keys.prefixes[keys.order[i]]
            self.requests[prefix.data[0]] += 1
            if not last:
                node = self._first(handles[i], prefix)
            elif slices[i].data and self._is_entry(befores[i], prefix):
                node = befores[i]
            else:
                node = self._last(cython.address(path), prefix, slices[i])
            if self.where[prefix.data[0]] == RESIDENT:
                if node and not hits.add(
                    keys.order[i], key_of(node) + prefix.length, node.key_length - prefix.length, 0
                ):
                    raise MemoryError
                continue
            whole: bytes = keys.prefix(keys.order[i])
            best: Any = key_bytes(node, prefix.length) if node else None
            if last:
                end: Any = None
                if slices[i].data:
                    end = slices[i].data[: slices[i].length]
                best = self._last_over(whole, end, best, base)
            else:
                best = self._first_over(whole, best, base)
            if best is not None:
                hits.add_object(keys.order[i], best, 0)
        return hits.values(keys.count)

    def _is_entry(self, node: NodeRef, prefix: Slice) -> cython.bint:
        """Return whether the node is under the prefix and not removed."""
        return (
            node != self.head and starts(node, prefix) and not is_removed(newest(self.arena, node))
        )

    def _last(self, path: PathRef, prefix: Slice, end: Slice) -> NodeRef:
        """Return the map's last entry under a prefix; NULL: none.

        Level 0 is linked forward only.  So while only removed nodes are found, the search starts
        again at the path's node of the next higher level, each time about four times as far back.
        """
        best: NodeRef = cython.NULL
        node: NodeRef
        first: NodeRef
        stop: NodeRef = cython.NULL  # from here on, nodes were searched already
        level: cython.int = 0
        if end.data:
            self.seek(path, end)
        else:
            self._seek_end(path)
        while True:
            first = path.at[level] if level < HEIGHT_MAX else self.head
            node = first
            while node != stop:
                if self._is_entry(node, prefix):
                    best = node
                if stop == cython.NULL:
                    break
                node = node_at(self.arena, links(node)[0])
            if best or first == self.head:
                return best
            if not starts(first, prefix):  # it is before the prefix
                return cython.NULL
            stop = first
            level += 1

    def _seek_end(self, path: PathRef) -> None:
        """Move the path to after the last node."""
        level: cython.int
        node: NodeRef = self.head
        self.start(path)
        for level in range(self.top - 1, -1, -1):
            while links(node)[level]:
                node = node_at(self.arena, links(node)[level])
            path.at[level] = node

    def _first_over(self, prefix: bytes, mine: Any, base: Any) -> Any:
        """Return the first of ``mine`` and the base's entries that the map has not removed."""
        length: cython.Py_ssize_t = len(prefix)
        base.seek(prefix)
        while base.valid():
            key: bytes = base.key()
            if not key.startswith(prefix):
                return mine
            if mine is not None and mine <= key[length:]:
                return mine
            if not self._is_removed(key):
                return key[length:]
            base.next()
        base.status()
        return mine

    def _last_over(self, prefix: bytes, end: Any, mine: Any, base: Any) -> Any:
        """Return the last of ``mine`` and the base's entries that the map has not removed."""
        length: cython.Py_ssize_t = len(prefix)
        if end is None:
            base.seek_to_last()
        else:
            base.seek_for_prev(end)
            if base.valid() and base.key() == end:
                base.prev()
        while base.valid():
            key: bytes = base.key()
            if not key.startswith(prefix):
                return mine
            if mine is not None and mine >= key[length:]:
                return mine
            if not self._is_removed(key):
                return key[length:]
            base.prev()
        base.status()
        return mine

    def _is_removed(self, key: bytes) -> cython.bint:
        """Return whether the key's newest value in the map is a removal."""
        handle: cython.uint = self._handle(key)
        node: NodeRef
        if handle == 0:
            return False
        node = node_at(self.arena, handle)
        return is_removed(newest(self.arena, node))


@cython.cclass
class PrefixEnds:
    """Per key, the least string above all strings that begin with it; NULL: there is none."""

    def __cinit__(self, keys: Keys) -> None:
        i: cython.size_t
        length: cython.size_t
        total: cython.size_t = 0
        for i in range(keys.count):
            total += keys.slices[i].length
        self.slices = cython.cast(SliceRef, malloc((keys.count + 1) * cython.sizeof(Slice)))
        self.data = cython.cast(cython.pointer[cython.uchar], malloc(total + 1))
        if not self.slices or not self.data:
            raise MemoryError
        at: cython.p_uchar = self.data
        for i in range(keys.count):
            length = keys.slices[i].length
            while length and keys.slices[i].data[length - 1] == 255:
                length -= 1
            self.slices[i].data = at if length else cython.NULL
            self.slices[i].length = length
            if length:
                memcpy(at, keys.slices[i].data, length)
                at += length
                (at - 1)[0] += 1

    def __dealloc__(self) -> None:
        free(self.slices)
        free(self.data)
