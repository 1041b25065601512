# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,has-type,no-any-return,untyped-decorator,misc"
"""Conversion between Python's bytes and the map's: batches in, pages and hits out.

Data read under the mutex is copied (``Page``) or, by the writer itself, pointed at (``Found``,
``Hits``).  Python objects and arrays are made later, with the interpreter lock and without the
mutex.

This module works compiled only; its types are in skipslices.pxd.
"""

from __future__ import annotations

from typing import Any

import cython
import numpy as np
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

    def __cinit__(
        self,
        data: cython.const_uchar[::1],
        bounds: cython.const_longlong[::1],
        valid: cython.const_uchar[::1] = None,
    ) -> None:
        i: cython.size_t
        begin: cython.longlong
        end: cython.longlong
        size: cython.longlong = data.shape[0]
        some: cython.bint = valid is not None
        if bounds.shape[0] == 0 or (some and valid.shape[0] + 1 != bounds.shape[0]):
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
            if some and not valid[i]:
                self.slices[i].data = cython.NULL

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

    def packed(self) -> tuple[Any, ...]:
        """Return keys as data and bounds, and values as data, bounds and validity."""
        key_bounds = np.zeros(self.count + 1, np.int64)
        bounds = np.zeros(self.count + 1, np.int64)
        valid = np.ones(self.count, np.uint8)
        key_limits: cython.longlong[::1] = key_bounds
        limits: cython.longlong[::1] = bounds
        there: cython.uchar[::1] = valid
        lengths = cython.declare(cython.uint[2])
        i: cython.size_t
        p: cython.pointer[cython.uchar] = self.data
        for i in range(self.count):
            memcpy(cython.address(lengths[0]), p, 8)
            if lengths[1] & REMOVED:
                there[i] = 0
            lengths[1] &= BYTES_MAX
            key_limits[i + 1] = key_limits[i] + lengths[0]
            limits[i + 1] = limits[i] + lengths[1]
            p += 8 + lengths[0] + lengths[1]
        keys = np.empty(key_limits[self.count], np.uint8)
        values = np.empty(limits[self.count], np.uint8)
        key_out: cython.uchar[::1] = keys
        out: cython.uchar[::1] = values
        p = self.data
        for i in range(self.count):
            lengths[0] = key_limits[i + 1] - key_limits[i]
            lengths[1] = limits[i + 1] - limits[i]
            memcpy(cython.address(key_out[0]) + key_limits[i], p + 8, lengths[0])
            memcpy(cython.address(out[0]) + limits[i], p + 8 + lengths[0], lengths[1])
            p += 8 + lengths[0] + lengths[1]
        return keys, key_bounds, values, bounds, valid

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
    """Entries that a read found, by the caller's positions of their keys.

    Those of one position are consecutive.  Nothing is freed or written until they are copied.
    """

    def __dealloc__(self) -> None:
        free(self.data)

    def add(
        self,
        position: cython.size_t,
        data: cython.p_const_uchar,
        length: cython.size_t,
        weight: cython.longlong,
    ) -> cython.bint:
        """Append; False if out of memory."""
        if self.count == self.capacity:
            capacity: cython.size_t = self.capacity * 2 if self.capacity else 256
            grown: HitRef = cython.cast(HitRef, realloc(self.data, capacity * cython.sizeof(Hit)))
            if not grown:
                return False
            self.data = grown
            self.capacity = capacity
        self.data[self.count].position = position
        self.data[self.count].data = data
        self.data[self.count].length = length
        self.data[self.count].weight = weight
        self.data[self.count].removed = False
        self.count += 1
        return True

    def add_object(
        self, position: cython.size_t, data: bytes, weight: cython.longlong
    ) -> cython.int:
        """Append a string of the base, which is kept alive."""
        if self.objects is None:
            self.objects = []
        self.objects.append(data)
        source: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(data))
        if not self.add(position, source, PyBytes_GET_SIZE(data), weight):
            raise MemoryError
        return 0

    def values(self, count: cython.size_t) -> tuple[Any, ...]:
        """Return (data, bounds, validity) of ``count`` keys, of which each has a hit or none."""
        bounds = np.zeros(count + 1, np.int64)
        valid = np.zeros(count, np.uint8)
        limits: cython.longlong[::1] = bounds
        there: cython.uchar[::1] = valid
        i: cython.size_t
        hit: HitRef
        with cython.nogil:
            for i in range(self.count):
                hit = self.data + i
                limits[hit.position + 1] = hit.length
                there[hit.position] = 1
            for i in range(count):
                limits[i + 1] += limits[i]
        data = np.empty(limits[count], np.uint8)
        out: cython.uchar[::1] = data
        with cython.nogil:
            for i in range(self.count):
                hit = self.data + i
                memcpy(cython.address(out[0]) + limits[hit.position], hit.data, hit.length)
        return data, bounds, valid

    def rows(self, count: cython.size_t) -> tuple[Any, ...]:
        """Return (positions, data, bounds, weights) of the hits of ``count`` keys, by position."""
        starts = np.zeros(count + 1, np.int64)
        positions = np.empty(self.count, np.int64)
        bounds = np.zeros(self.count + 1, np.int64)
        weights = np.empty(self.count, np.int64)
        next_of: cython.longlong[::1] = starts
        places: cython.longlong[::1] = positions
        limits: cython.longlong[::1] = bounds
        numbers: cython.longlong[::1] = weights
        i: cython.size_t
        at: cython.size_t
        hit: HitRef
        with cython.nogil:
            for i in range(self.count):
                next_of[self.data[i].position + 1] += 1
            for i in range(count):
                next_of[i + 1] += next_of[i]
            for i in range(self.count):
                hit = self.data + i
                at = next_of[hit.position]
                next_of[hit.position] += 1
                places[at] = hit.position
                limits[at + 1] = hit.length
                numbers[at] = hit.weight
                # Its place from here on, for the copy below.
                hit.position = at
            for i in range(self.count):
                limits[i + 1] += limits[i]
        data = np.empty(limits[self.count], np.uint8)
        out: cython.uchar[::1] = data
        with cython.nogil:
            for i in range(self.count):
                hit = self.data + i
                memcpy(cython.address(out[0]) + limits[hit.position], hit.data, hit.length)
        return positions, data, bounds, weights
