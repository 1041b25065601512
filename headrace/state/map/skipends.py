# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,has-type,no-any-return,untyped-decorator,misc"
"""First and last entries under prefixes, alone or over a base as in ``skipreads``.

This module works compiled only; its types are in skipends.pxd.
"""

from __future__ import annotations

from typing import Any

import cython
from cython.cimports.headrace.state.map.skipreads import Reads, is_open, prefixes_of
from cython.cimports.headrace.state.map.skipseek import seek_many
from cython.cimports.headrace.state.map.skipslices import Batch, Found, key_bytes
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
    links,
    newest,
    node_at,
    starts,
)


@cython.cclass
class Ends(Reads):
    """See the module."""

    def extreme_many(
        self, prefixes: list[bytes], ends: list[bytes | None], last: bool, base: Any
    ) -> list[bytes | None]:
        """Return the rest of the first (or last) key under each prefix; None if it has no key.

        With ``last``, only keys before ``ends[i]`` count.  To set no limit, pass the least string
        above all keys with the prefix, or None if there is no such string.
        """
        is_open(self)
        batch: Batch = prefixes_of(prefixes)
        bounds: Batch = Batch(ends if last else [], nones=True)
        path = cython.declare(Path)
        found: Found = Found(batch.count)
        slices: SliceRef = bounds.slices if last else batch.slices
        befores: NodeRefs = found.nodes if last else cython.NULL
        handles: Numbers = found.handles
        count: cython.size_t = batch.count
        i: cython.size_t
        prefix: Slice
        node: NodeRef
        out: list[Any] = []
        if last and bounds.count != count:
            raise ValueError("prefixes and ends differ in length")
        self.start(cython.address(path))
        with cython.nogil:
            seek_many(self, slices, count, handles, False, befores)
        for i in range(count):
            prefix = batch.slices[i]
            self.requests[prefix.data[0]] += 1
            if not last:
                node = self._first(handles[i], prefix)
            elif bounds.slices[i].data and self._is_entry(befores[i], prefix):
                node = befores[i]
            else:
                node = self._last(cython.address(path), prefix, bounds.slices[i])
            mine = key_bytes(node, prefix.length) if node else None
            if self.where[prefix.data[0]] == RESIDENT:
                out.append(mine)
            elif last:
                out.append(self._last_over(batch.items[i], bounds.items[i], mine, base))
            else:
                out.append(self._first_over(batch.items[i], mine, base))
        return out

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
