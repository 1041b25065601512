# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,has-type,no-any-return,untyped-decorator,misc"
"""Conversion between Python's bytes and the map's: batches in, pages and hits out.

Data read under the mutex is copied (``Page``) or, by the writer itself, pointed at (``Found``,
``Hits``).  Python objects are made later, with the interpreter lock and without the mutex.

This module works compiled only; its types are in skipslices.pxd.
"""

from __future__ import annotations

from typing import Any

import cython
from cython.cimports.cpython.bytes import (
    PyBytes_AS_STRING,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cython.cimports.headrace.state.map.skiptypes import (
    BYTES_MAX,
    CHUNK_BYTES,
    CHUNK_ENTRIES,
    REMOVED,
    Hit,
    HitRef,
    NodeRef,
    NodeRefs,
    Numbers,
    Slice,
    SliceRef,
    ValueRef,
    bytes_of,
    is_removed,
    key_of,
    size_of,
)
from cython.cimports.libc.stdlib import free, malloc, realloc
from cython.cimports.libc.string import memcpy


@cython.cfunc
def value_bytes(value: ValueRef) -> bytes | None:
    """Return a value as an object; None for a removed one."""
    if is_removed(value):
        return None
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, bytes_of(value)), size_of(value))


@cython.cfunc
def key_bytes(node: NodeRef, skipped: cython.size_t) -> bytes:
    """Return a node's key without its first ``skipped`` bytes."""
    return PyBytes_FromStringAndSize(
        cython.cast(cython.p_char, key_of(node) + skipped), node.key_length - skipped
    )


@cython.cclass
class Batch:
    """Addresses and sizes of a list's bytes objects, which it keeps alive."""

    def __cinit__(self, items: Any, *, nones: bool = False) -> None:
        i: cython.size_t
        self.items = list(items)
        self.count = len(self.items)
        self.slices = cython.cast(SliceRef, malloc((self.count + 1) * cython.sizeof(Slice)))
        if not self.slices:
            raise MemoryError
        for i in range(self.count):
            item = self.items[i]
            if item is None and nones:
                self.slices[i].data = cython.NULL
                self.slices[i].length = 0
                continue
            if type(item) is not bytes:
                raise TypeError(f"bytes are expected, not {type(item).__name__}")
            if PyBytes_GET_SIZE(item) > BYTES_MAX:
                raise ValueError("a key or value of more than 256 MiB")
            self.slices[i].data = cython.cast(cython.p_uchar, PyBytes_AS_STRING(item))
            self.slices[i].length = PyBytes_GET_SIZE(item)

    def __dealloc__(self) -> None:
        free(self.slices)


@cython.cclass
class Run:
    """Addresses and sizes of packed strings in a buffer of the caller."""

    def __cinit__(self, data: cython.const_uchar[::1], bounds: cython.const_longlong[::1]) -> None:
        i: cython.size_t
        begin: cython.longlong
        end: cython.longlong
        size: cython.longlong = data.shape[0]
        if bounds.shape[0] == 0:
            raise ValueError("bounds of packed strings are one more than the strings")
        self.count = bounds.shape[0] - 1
        self.slices = cython.cast(SliceRef, malloc((self.count + 1) * cython.sizeof(Slice)))
        if not self.slices:
            raise MemoryError
        for i in range(self.count):
            begin = bounds[i]
            end = bounds[i + 1]
            if begin < 0 or end < begin or end > size or end - begin > BYTES_MAX:
                raise ValueError("bounds of packed strings do not fit them")
            self.slices[i].data = cython.address(data[0]) + begin
            self.slices[i].length = end - begin

    def __dealloc__(self) -> None:
        free(self.slices)


@cython.cclass
class Flight:
    """A txid in flight, and the nodes it wrote in the order of their first write."""

    def __cinit__(self, txid: int) -> None:
        self.txid = txid

    def __dealloc__(self) -> None:
        free(self.handles.data)


@cython.cclass
class Page:
    """Copies of keys and values, made under the mutex and converted to objects without it."""

    def __dealloc__(self) -> None:
        free(self.data)

    def add(self, node: NodeRef, value: ValueRef) -> cython.bint:
        """Append an entry; False if out of memory."""
        length: cython.size_t = size_of(value)
        lengths = cython.declare(cython.uint[2])
        needed: cython.size_t = self.used + 8 + node.key_length + length
        if needed > self.capacity:
            more: cython.size_t = needed * 2
            data: cython.pointer[cython.uchar] = cython.cast(
                cython.pointer[cython.uchar], realloc(self.data, more)
            )
            if not data:
                return False
            self.data = data
            self.capacity = more
        lengths[0] = node.key_length
        lengths[1] = value.length
        memcpy(self.data + self.used, cython.address(lengths[0]), 8)
        memcpy(self.data + self.used + 8, key_of(node), node.key_length)
        memcpy(self.data + self.used + 8 + node.key_length, bytes_of(value), length)
        self.used = needed
        self.count += 1
        return True

    def full(self) -> cython.bint:
        """Return whether the page is a whole chunk."""
        return self.count >= CHUNK_ENTRIES or self.used >= CHUNK_BYTES

    def lists(self) -> tuple[Any, ...]:
        """Return (keys, values or None for removed)."""
        keys: list[Any] = []
        values: list[Any] = []
        lengths = cython.declare(cython.uint[2])
        p: cython.pointer[cython.uchar] = self.data
        end: cython.pointer[cython.uchar] = self.data + self.used
        while p < end:
            memcpy(cython.address(lengths[0]), p, 8)
            keys.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, p + 8), lengths[0]))
            p += 8 + lengths[0]
            if lengths[1] & REMOVED:
                values.append(None)
                continue
            lengths[1] &= BYTES_MAX
            values.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, p), lengths[1]))
            p += lengths[1]
        return keys, values


@cython.cclass
class Found:
    """Handles of a batch's nodes, or the nodes themselves."""

    def __cinit__(self, count: cython.size_t) -> None:
        self.handles = cython.cast(Numbers, malloc((count + 1) * cython.sizeof(cython.uint)))
        self.nodes = cython.cast(NodeRefs, malloc((count + 1) * cython.sizeof(NodeRef)))
        if not self.handles or not self.nodes:
            raise MemoryError

    def __dealloc__(self) -> None:
        free(self.handles)
        free(self.nodes)


@cython.cclass
class Hits:
    """Nodes that a scan found, with the positions of their prefixes in the batch."""

    def __dealloc__(self) -> None:
        free(self.data)

    def add(self, position: cython.size_t, node: NodeRef, value: ValueRef) -> cython.bint:
        """Append; False if out of memory."""
        if self.count == self.capacity:
            capacity: cython.size_t = self.capacity * 2 if self.capacity else 256
            data: HitRef = cython.cast(HitRef, realloc(self.data, capacity * cython.sizeof(Hit)))
            if not data:
                return False
            self.data = data
            self.capacity = capacity
        self.data[self.count].position = position
        self.data[self.count].node = node
        self.data[self.count].value = value
        self.count += 1
        return True
