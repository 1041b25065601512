# cython: language_level=3, cdivision=True
# mypy: disable-error-code="attr-defined,has-type,no-any-return,untyped-decorator,misc"
"""Reads of running snapshots of the state map; see ``skiplist``.

While one thread writes, several others may each read a different snapshot, in slices under the
mutex.  This module works compiled only; its types are in skipsnapshots.pxd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cython
from cython.cimports.headrace.state.map.skipreads import check, is_open
from cython.cimports.headrace.state.map.skipslices import Page
from cython.cimports.headrace.state.map.skiptypes import (
    DONE,
    NO_MEMORY,
    NOT_RUNNING,
    SLICE_KEYS,
    NodeRef,
    ValueRef,
    is_removed,
    links,
    node_at,
)
from cython.cimports.headrace.state.map.skipwrites import Writes

from headrace.errors import BugError

Chunk = tuple[list[bytes], list[bytes]]
Through = Callable[[list[bytes], list[bytes]], Chunk]


@cython.cclass
class Snapshots(Writes):
    """Reads of running snapshots."""

    def _is_running(self, snapshot: Any) -> cython.int:
        is_open(self)
        if snapshot not in self.sizes:
            raise BugError(f"snapshot {snapshot} is not running")
        return 0

    def entries(self, snapshot: int, through: Through | None = None) -> Iterator[Chunk]:
        """Yield the entries of a snapshot in key order, in chunks; prune visited nodes (F-6).

        ``through`` may drop or change entries of a chunk (F-21).  The iterator ends when the map is
        closed.
        """
        self._is_running(snapshot)
        position: int | None = 0
        while position is not None and not self.closed:
            keys, values, position = self._entries(snapshot, position)
            if keys:
                yield through(keys, values) if through else (keys, values)

    def _entries(self, snapshot: cython.longlong, position: cython.uint) -> tuple[Any, ...]:
        """Return one chunk after a node: (keys, values, next position or None)."""
        page: Page = Page()
        result: cython.int
        with cython.nogil:
            result = self._copy_entries(snapshot, cython.address(position), page)
        check(result)
        keys, values = page.lists()
        return keys, values, position or None

    def _copy_entries(
        self, snapshot: cython.longlong, position: cython.pointer[cython.uint], page: Page
    ) -> cython.int:
        node: NodeRef
        value: ValueRef
        handle: cython.uint = position[0]
        _steps: cython.size_t
        result: cython.int = DONE
        while result == DONE:
            self.mutex.acquire()
            if not self.runs(snapshot):
                result = NOT_RUNNING
            for _steps in range(SLICE_KEYS):
                if result != DONE:
                    break
                # No node is removed while a snapshot runs, so the last node is still linked.
                node = self.head
                if handle:
                    node = node_at(self.arena, handle)
                handle = links(node)[0]
                if handle == 0 or page.full():
                    break
                node = node_at(self.arena, handle)
                value = self.belonging(node, snapshot)
                if value and not is_removed(value) and not page.add(node, value):
                    result = NO_MEMORY
                self.prune_finished(node)
                position[0] = handle
            self.mutex.release()
            if handle == 0:
                position[0] = 0
                break
            if page.full():
                break
        return result
