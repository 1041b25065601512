# cython: language_level=3, cdivision=True
# mypy: disable-error-code="attr-defined,has-type,no-any-return,untyped-decorator,misc"
"""The state map: a copy-on-write skip list of bytes, versioned, driven by batches.

*Counter mode* (Flink's, seed F): ``snapshot()`` increments the version, with which writes are
stamped.  *Txid mode*: versions are txids.  Each txid in flight holds an implicit snapshot of the
state before it, so it can be rolled back.  A checkpoint reads a committed txid while later txids
write.  The readable reference, ``tests/state/reference_map.py``, defines the exact behaviour: it
has the same methods, arguments, results and errors.

    begin(n) ─ writes ─ commit(n)                     writer's thread
                 └── snapshot(n) ─► changes ─► retire     ``changes``: the checkpoint's thread

A key's first byte is its *group*.  The map has all entries of a *resident* group.  Of a *spilled*
group it has only the entries that the base (RocksDB) does not have yet.  ``get_many`` returns the
positions to look up in the base, and scans merge with an iterator of the base.

Threads: one writer calls every method but ``changes`` and ``entries``, which may run in other
threads at the same time.  Loops run without the interpreter lock, in short slices under a mutex.
Out of memory is a MemoryError, and each key is either written or not: roll the txid back.

This module works compiled only (raw memory: ``arena``, ``skipnodes``), though it reads as Python.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import cython
from cython.cimports.headrace.state.map.arena import Arena
from cython.cimports.headrace.state.map.skipnodes import push, reserve
from cython.cimports.headrace.state.map.skipreads import check, is_open
from cython.cimports.headrace.state.map.skipslices import Flight, Page, value_bytes
from cython.cimports.headrace.state.map.skipsnapshots import Snapshots
from cython.cimports.headrace.state.map.skiptypes import (
    DONE,
    HEIGHT_MAX,
    HELD,
    NO_MEMORY,
    NOT_RUNNING,
    SLICE_KEYS,
    Handles,
    HandlesRef,
    Integers,
    NodeRef,
    Path,
    ValueRef,
    is_removed,
    links,
    newest,
    node_at,
    value_at,
)
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memcpy

from headrace.errors import BugError

Changed = tuple[Any, ...]

_LONGLONG_MAX = cython.declare(cython.longlong, 9223372036854775807)


@cython.cclass
class SkipList(Snapshots):
    """A versioned map of bytes; see the module and the reference."""

    def __init__(
        self,
        *,
        txids: bool = False,
        durable: int = 0,
        ratio: float = 0.2,
        slab_bytes: int = 65536,
        directory: str | None = None,
    ) -> None:
        """Create an empty map with all groups resident.

        ``durable``: the txid up to which the base is complete.  ``ratio``: share of removed nodes
        that a snapshot of counter mode leaves.  ``slab_bytes``, ``directory``: see ``arena``.
        """
        if self.arena is not None:
            raise BugError("a state map is made once")
        self.arena = Arena(slab_bytes, directory)
        self.txids = txids
        self.ratio = ratio
        self.stamp = self.committed_txid = self.base_txid = durable
        self.sizes: dict[int, int] = {}
        self.flights: list[Flight] = []
        self.released = threading.Condition()
        self._rerun()

    def __dealloc__(self) -> None:
        free(self.changing.data)
        free(self.held.data)
        free(self.cleaning.data)

    # ---- contents ----------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Number of nodes, removed ones included."""
        return self.node_count

    @property
    def size(self) -> int:
        """Number of entries: nodes without the logically removed ones (F-15)."""
        return self.node_count - self.removed_count

    @property
    def allocations(self) -> int:
        """Number of blocks: one for each key and each value or tombstone."""
        return self.arena.blocks

    @property
    def negatives(self) -> int:
        """Number of entries whose newest value is a negative weight (of ``add_many``)."""
        return self.negative_count

    @property
    def live_bytes(self) -> int:
        """Bytes of all nodes and values, rounded up to blocks."""
        return self.arena.live_bytes

    @property
    def mapped_bytes(self) -> int:
        """Bytes of memory in use, the free blocks in it included."""
        return self.arena.mapped_bytes

    @property
    def version(self) -> int:
        """Version of the next write."""
        return self.stamp

    @property
    def committed(self) -> int:
        """Last committed txid."""
        return self.committed_txid

    @property
    def retired(self) -> int:
        """Txid up to which the base is complete."""
        return self.base_txid

    @property
    def running(self) -> list[int]:
        """Snapshots that protect values, implicit ones included, ascending."""
        flight: Flight
        versions: set[int] = set(self.sizes)
        for flight in self.flights:
            versions.add(flight.txid)
        return sorted(versions)

    @property
    def finished(self) -> int:
        """Version up to which every snapshot is complete (F-8, F-17)."""
        return self.finished_version

    @property
    def residency(self) -> list[int]:
        """Per group: 0 spilled, 1 being loaded, 2 resident."""
        return [self.where[group] for group in range(256)]

    def chain(self, key: bytes) -> list[tuple[int, bytes | None]]:
        """Return versions and values of a key, newest first (for tests)."""
        is_open(self)
        out: list[Any] = []
        value: ValueRef
        handle: cython.uint = self._handle(key)
        self.mutex.acquire()  # a reader may prune
        if handle:
            handle = node_at(self.arena, handle).value
        while handle:
            value = value_at(self.arena, handle)
            out.append((value.version, value_bytes(value)))
            handle = value.older
        self.mutex.release()
        return out

    def group_bytes(self) -> list[int]:
        """Return bytes per group; their sum is ``live_bytes``."""
        return [self.bytes_per_group[group] for group in range(256)]

    def group_requests(self) -> list[int]:
        """Return requested keys per group, and halve the counters, so that old use fades."""
        group: cython.int
        out: list[Any] = []
        for group in range(256):
            out.append(self.requests[group])
            self.requests[group] >>= 1
        return out

    # ---- snapshots -----------------------------------------------------------------------------

    def _rerun(self) -> cython.int:
        """Update the array of running snapshots that the loops read."""
        count: cython.size_t
        i: cython.size_t
        array: Integers
        with self.released:  # a reader may release its snapshot at the same time
            versions: list[Any] = self.running
            count = len(versions)
            if count > self.snapshot_capacity:
                array = cython.cast(Integers, malloc(2 * count * cython.sizeof(cython.longlong)))
                if not array:
                    raise MemoryError
            else:
                array = cython.NULL
            self.mutex.acquire()
            if array:
                free(self.snapshots)
                self.snapshots = array
                self.snapshot_capacity = 2 * count
            for i in range(count):
                self.snapshots[i] = versions[i]
            self.snapshot_count = count
            self.highest = self.snapshots[count - 1] if count else 0
            self.finished_version = self.snapshots[0] - 1 if count else self.stamp
            self.mutex.release()
        return 0

    def snapshot(self, txid: int | None = None) -> int:
        """Return the number of a new snapshot, which sees the values of lower versions (F-9).

        Counter mode: delete excess removed nodes if no snapshot runs (F-4, F-16), then increment
        the version.  Txid mode: a snapshot of committed ``txid``, for a checkpoint; one at a time.
        """
        is_open(self)
        if self.txids:
            return self._checkpoint(txid)
        if not self.sizes:
            excess: cython.Py_ssize_t = self.removed_count - cython.cast(
                cython.Py_ssize_t, self.node_count * self.ratio
            )
            if excess > 0:
                with cython.nogil:
                    self._delete_removed(excess)
        with self.released:
            self.stamp += 1
            self.sizes[self.stamp] = self.size
            self._rerun()
        return self.stamp

    def _checkpoint(self, txid: int | None) -> int:
        if txid is None or txid < self.committed_txid or txid >= self._first_flight():
            raise BugError(f"txid {txid} is not the committed state")
        if self.sizes:
            raise BugError("a checkpoint of the state map is running")
        self.committed_txid = txid
        self.stamp = max(self.stamp, txid)
        self.sizes[txid + 1] = self.size
        _swap(cython.address(self.changing), cython.address(self.changed))
        self.epoch += 1
        self._rerun()
        return txid + 1

    def _delete_removed(self, excess: cython.Py_ssize_t) -> None:
        """Delete the first ``excess`` removed nodes in key order; REQUIRES: no running snapshot."""
        path = cython.declare(Path)
        node: NodeRef
        handle: cython.uint = links(self.head)[0]
        self.start(cython.address(path))
        self.mutex.acquire()
        while handle and excess > 0:
            node = node_at(self.arena, handle)
            if is_removed(newest(self.arena, node)):
                self.remove(cython.address(path), handle)
                excess -= 1
            else:
                self.step(cython.address(path), node)
            handle = links(path.at[0])[0]
        self.mutex.release()

    def release(self, snapshot: int) -> None:
        """End a snapshot; snapshots may end in any order (F-17).

        Txid mode: its checkpoint failed, so all its changes belong to the next checkpoint.
        """
        self._is_running(snapshot)
        count: cython.size_t = self.changing.count
        i: cython.size_t
        if self.txids:
            if not reserve(cython.address(self.changed), count):
                raise MemoryError
            self._append_cleaning(cython.address(self.held))
            self.mutex.acquire()
            for i in range(count):
                self.list_changed(self.changing.data[i])
            self.changing.count = 0
            self.mutex.release()
        self._end(snapshot)

    def _end(self, snapshot: Any) -> cython.int:
        with self.released:
            del self.sizes[snapshot]
            self._rerun()
            self.released.notify_all()
        return 0

    # ---- txids ---------------------------------------------------------------------------------

    def begin(self, txid: int) -> None:
        """Begin ``txid``, to which later writes belong; protect all lower versions."""
        is_open(self)
        if not self.txids or txid <= self.stamp:
            raise BugError(f"txid {txid} does not follow {self.stamp}")
        flight: Flight = Flight(txid)
        self.flights.append(flight)
        self.writing = cython.address(flight.handles)
        self.stamp = txid
        self._rerun()

    def _first_flight(self) -> cython.longlong:
        """Return the oldest txid in flight; the maximum if there is none."""
        flight: Flight
        for flight in self.flights:
            return flight.txid
        return _LONGLONG_MAX

    def commit(self, txid: int) -> None:
        """Commit ``txid``, the oldest in flight, and free values that no read can reach."""
        is_open(self)
        if not self.flights or self._first_flight() != txid:
            raise BugError(f"txid {txid} is not the oldest in flight")
        flight: Flight = self.flights[0]
        handles: HandlesRef = cython.address(flight.handles)
        if not reserve(cython.address(self.changed), handles.count) or not reserve(
            cython.address(self.held), handles.count
        ):
            raise MemoryError
        del self.flights[0]
        if not self.flights:
            self.writing = cython.NULL
        self.committed_txid = txid
        self._rerun()
        holding: cython.bint = len(self.sizes) > 0
        with cython.nogil:
            self._commit(handles, holding)
        self.clean(2 * handles.count + 64)  # keeps up with any rate of changes

    def _commit(self, handles: HandlesRef, holding: cython.bint) -> None:
        node: NodeRef
        i: cython.size_t = 0
        end: cython.size_t
        while i < handles.count:
            end = i + SLICE_KEYS if handles.count - i > SLICE_KEYS else handles.count
            self.mutex.acquire()
            while i < end:
                node = node_at(self.arena, handles.data[i])
                self.prune(node)
                if holding and newest(self.arena, node).older and not node.marks & HELD:
                    node.marks |= HELD
                    node.listed += 1
                    push(cython.address(self.held), handles.data[i])
                self.list_changed(handles.data[i])
                i += 1
            self.mutex.release()

    def rollback(self, txid: int) -> None:
        """Discard every value and removal of ``txid`` and later txids."""
        is_open(self)
        if not self.txids or txid <= self.committed_txid:
            raise BugError(f"txid {txid} is committed")
        flight: Flight
        handles: HandlesRef
        while self.flights:
            flight = self.flights[-1]
            if flight.txid < txid:
                break
            handles = cython.address(flight.handles)
            if not reserve(cython.address(self.changed), handles.count):
                raise MemoryError
            del self.flights[-1]
            with cython.nogil:
                self._undo(handles)
        self.writing = cython.NULL
        self.stamp = self.committed_txid
        if self.flights:
            flight = self.flights[-1]
            self.writing = cython.address(flight.handles)
            self.stamp = flight.txid
        self._rerun()

    def _undo(self, handles: HandlesRef) -> None:
        path = cython.declare(Path)
        node: NodeRef
        i: cython.size_t = 0
        end: cython.size_t
        self.start(cython.address(path))
        while i < handles.count:
            end = i + SLICE_KEYS if handles.count - i > SLICE_KEYS else handles.count
            self.mutex.acquire()
            while i < end:
                node = node_at(self.arena, handles.data[i])
                node.listed -= 1
                if self.pop(node):
                    self.remove_useless(cython.address(path), handles.data[i])
                else:
                    self.remove(cython.address(path), handles.data[i])
                i += 1
            self.mutex.release()

    def changes(self, snapshot: int) -> Iterator[Changed]:
        """Yield the snapshot's changes since the last ``retire``: packed keys and values.

        That is data and bounds of the keys; data, bounds and validity of the values.  Chunks are
        bounded and in no particular order.  After a failed checkpoint a key may come twice, with
        the same value.  May run in another thread.
        """
        self._is_running(snapshot)
        position: int | None = 0
        while position is not None:
            found, position = self._changes(snapshot, position)
            if len(found[4]):
                yield found

    def _changes(self, snapshot: cython.longlong, position: cython.size_t) -> tuple[Any, ...]:
        """Return one chunk, and the next position or None."""
        page: Page = Page()
        result: cython.int
        count: cython.size_t = self.changing.count
        with cython.nogil:
            result = self._copy_changes(snapshot, cython.address(position), page)
        check(result)
        return page.packed(), position if position < count else None

    def _copy_changes(
        self, snapshot: cython.longlong, position: cython.pointer[cython.size_t], page: Page
    ) -> cython.int:
        node: NodeRef
        value: ValueRef
        at_end: cython.bint
        _steps: cython.size_t
        result: cython.int = DONE
        while result == DONE and not page.full():
            self.mutex.acquire()
            if not self.runs(snapshot):
                result = NOT_RUNNING
            for _steps in range(SLICE_KEYS):
                if result != DONE or page.full() or position[0] >= self.changing.count:
                    break
                node = node_at(self.arena, self.changing.data[position[0]])
                value = self.belonging(node, snapshot)
                if value and value.version > self.base_txid and not page.add(node, value):
                    result = NO_MEMORY
                position[0] += 1
            at_end = position[0] >= self.changing.count
            self.mutex.release()
            if at_end:
                break
        return result

    def retire(self, snapshot: int) -> None:
        """End a snapshot whose changes are in the base, which is complete up to it.

        ``clean`` removes the nodes that are no longer needed.
        """
        self._is_running(snapshot)
        if not self.txids:
            raise BugError("only a checkpoint can be retired")
        self._append_cleaning(cython.address(self.changing))
        self._append_cleaning(cython.address(self.held))
        self.base_txid = snapshot - 1
        self._end(snapshot)

    def _append_cleaning(self, handles: HandlesRef) -> cython.int:
        """Move a list to the end of the nodes to clean."""
        if self.cleaning.count == 0:
            _swap(cython.address(self.cleaning), handles)
            return 0
        if not reserve(cython.address(self.cleaning), handles.count):
            raise MemoryError
        if handles.count:
            memcpy(
                self.cleaning.data + self.cleaning.count,
                handles.data,
                handles.count * cython.sizeof(cython.uint),
            )
        self.cleaning.count += handles.count
        handles.count = 0
        return 0

    def clean(self, limit: int) -> int:
        """Prune or remove up to ``limit`` nodes after checkpoints; return how many are left."""
        is_open(self)
        left: cython.size_t = self.cleaning.count - self.cleaned
        count: cython.size_t = min(limit, left)
        if not reserve(cython.address(self.changed), count):
            raise MemoryError
        with cython.nogil:
            self._clean(count)
        if self.cleaned == self.cleaning.count:
            self.cleaning.count = self.cleaned = 0
        return left - count

    def _clean(self, count: cython.size_t) -> None:
        path = cython.declare(Path)
        node: NodeRef
        handle: cython.uint
        end: cython.size_t
        self.start(cython.address(path))
        while count:
            end = SLICE_KEYS if count > SLICE_KEYS else count
            count -= end
            self.mutex.acquire()
            while end:
                handle = self.cleaning.data[self.cleaned]
                self.cleaned += 1
                node = node_at(self.arena, handle)
                self.prune(node)
                node.marks &= ~HELD
                node.listed -= 1
                self.remove_useless(cython.address(path), handle)
                end -= 1
            self.mutex.release()

    # ---- end -----------------------------------------------------------------------------------

    def close(self, timeout_s: float | None = None) -> None:
        """Wait until every snapshot is released or retired, then free everything (F-20).

        Afterwards every method raises BugError; properties work and iterators end.
        """
        with self.released:
            if not self.released.wait_for(lambda: not self.sizes, timeout_s):
                raise BugError("snapshots of the state map are still running")
            if self.closed:
                return
            self.closed = True
            self.mutex.acquire()
            self._forget()
            self.mutex.release()

    def _forget(self) -> cython.int:
        level: cython.int
        group: cython.int
        self.flights = []
        self.writing = cython.NULL
        for level in range(HEIGHT_MAX):
            links(self.head)[level] = 0
        for group in range(256):
            self.bytes_per_group[group] = 0
        self.top = 1
        self.node_count = self.removed_count = 0
        self.negative_count = 0
        self.changing.count = self.changed.count = 0
        self.held.count = self.cleaning.count = self.cleaned = 0
        self.arena = Arena(4096, None)
        return 0


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.void)
def _swap(left: HandlesRef, right: HandlesRef) -> None:
    keep: Handles = left[0]
    left[0] = right[0]
    right[0] = keep
