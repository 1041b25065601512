# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,no-any-return,untyped-decorator,misc"
"""A batch of packed keys in physical form, put in order once.

    packed keys (and rows) ──► key group, key, row in one buffer ──► ascending slices

The order is that of unsigned bytes; equal keys stay in the caller's order.  Keys are compared by
their group and the seven bytes after the prefix that all of them share, then byte by byte.

This module works compiled only; its types are in skipkeys.pxd.
"""

from __future__ import annotations

from typing import Any

import cython
import numpy as np
from cython.cimports.headrace.kernels.hashes import fnv, group_of
from cython.cimports.headrace.state.map.skiptypes import (
    BYTES_MAX,
    Head,
    HeadRef,
    Numbers,
    Slice,
    SliceRef,
)
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memcmp, memcpy

_RUN = cython.declare(cython.size_t, 8)  # length of runs that are sorted by insertion
_BUCKETS_MIN = cython.declare(cython.size_t, 512)  # keys from which on groups are divided first


@cython.cclass
class Keys:
    """Physical keys, ascending, and the position that the caller knows each by."""

    def __init__(
        self,
        keys: cython.const_uchar[::1],
        bounds: cython.const_longlong[::1],
        rest: cython.const_uchar[::1] = None,
        rest_bounds: cython.const_longlong[::1] = None,
        *,
        physical: bool = False,
    ) -> None:
        """Make physical keys of packed keys; each ends with its string of ``rest``, if given.

        With ``physical``, the group is the first byte of each key already.

        Raises:
            ValueError: bounds that do not fit, or a key of more than 256 MiB.
        """
        i: cython.size_t
        count: cython.size_t
        grouped: cython.size_t = 0 if physical else 1
        more: cython.bint = rest_bounds is not None
        if bounds.shape[0] == 0 or (more and rest_bounds.shape[0] != bounds.shape[0]):
            raise ValueError("packed keys and rows differ in length")
        count = self.count = bounds.shape[0] - 1
        total: cython.longlong = 0
        for i in range(count):
            size: cython.longlong = _size(bounds, i, keys.shape[0])
            if more:
                size += _size(rest_bounds, i, rest.shape[0])
            if size > BYTES_MAX:
                raise ValueError("a key or value of more than 256 MiB")
            total += size + grouped
        self.given = cython.cast(SliceRef, malloc((2 * count + 1) * cython.sizeof(Slice)))
        self.slices = self.given + count
        self.prefixes = cython.cast(
            cython.pointer[cython.size_t], malloc((count + 1) * cython.sizeof(cython.size_t))
        )
        self.order = cython.cast(Numbers, malloc((count + 1) * cython.sizeof(cython.uint)))
        self.data = cython.cast(cython.pointer[cython.uchar], malloc(total + 1))
        heads: HeadRef = cython.cast(HeadRef, malloc((2 * count + 1) * cython.sizeof(Head)))
        if not (self.given and self.prefixes and self.order and self.data and heads):
            free(heads)
            raise MemoryError
        with cython.nogil:
            at: cython.p_uchar = self.data
            for i in range(count):
                length: cython.size_t = bounds[i + 1] - bounds[i]
                source: cython.p_const_uchar = cython.address(keys[0]) + bounds[i]
                self.given[i].data = at
                self.prefixes[i] = length + grouped
                if grouped:
                    at[0] = group_of(fnv(source, 0, length))
                    at += 1
                memcpy(at, source, length)
                at += length
                if more:
                    length = rest_bounds[i + 1] - rest_bounds[i]
                    memcpy(at, cython.address(rest[0]) + rest_bounds[i], length)
                    at += length
                self.given[i].length = at - self.given[i].data
            self._sort(heads, heads + count)
            for i in range(count):
                self.order[i] = heads[i].position
                self.slices[i] = self.given[heads[i].position]
        free(heads)

    def __dealloc__(self) -> None:
        free(self.given)
        free(self.prefixes)
        free(self.order)
        free(self.data)

    def __len__(self) -> int:
        return self.count

    def positions(self) -> Any:
        """Return an array of the caller's position of each key, in order."""
        out = np.empty(self.count, np.int64)
        places: cython.longlong[::1] = out
        i: cython.size_t
        for i in range(self.count):
            places[i] = self.order[i]
        return out

    def strings(self, positions: list[int]) -> list[bytes]:
        """Return the physical keys at the caller's ``positions``."""
        i: cython.size_t
        out: list[bytes] = []
        for i in positions:
            if i >= self.count:
                raise ValueError("a position beyond the keys")
            out.append(self.given[i].data[: self.given[i].length])
        return out

    def prefix(self, position: cython.size_t) -> bytes:
        """Return group and key at the caller's ``position``."""
        return self.given[position].data[: self.prefixes[position]]

    def _sort(self, heads: HeadRef, spare: HeadRef) -> None:
        """Set ``heads`` to all keys in order."""
        i: cython.size_t
        group: cython.size_t
        ends = cython.declare(cython.size_t[257])
        count: cython.size_t = self.count
        skipped: cython.size_t = _common(self.given, count)
        for i in range(count):
            heads[i].first = _head(self.given[i], skipped)
            heads[i].position = cython.cast(cython.uint, i)
        if count < _BUCKETS_MIN:
            _merge_sort(self.given, skipped, heads, spare, 0, count)
            return
        for group in range(257):
            ends[group] = 0
        for i in range(count):
            ends[(heads[i].first >> 56) + 1] += 1
        for group in range(256):
            ends[group + 1] += ends[group]
        memcpy(spare, heads, count * cython.sizeof(Head))
        for i in range(count):
            group = spare[i].first >> 56
            heads[ends[group]] = spare[i]
            ends[group] += 1
        i = 0
        for group in range(256):
            if ends[group] > i + 1:
                _merge_sort(self.given, skipped, heads, spare, i, ends[group])
            i = ends[group]


@cython.cfunc
@cython.exceptval(-1)
def _size(
    bounds: cython.const_longlong[::1], i: cython.size_t, size: cython.Py_ssize_t
) -> cython.longlong:
    """Return the length of a packed string; ValueError if its bounds do not fit."""
    if bounds[i] < 0 or bounds[i + 1] < bounds[i] or bounds[i + 1] > size:
        raise ValueError("bounds of packed strings do not fit them")
    return bounds[i + 1] - bounds[i]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _common(given: SliceRef, count: cython.size_t) -> cython.size_t:
    """Return how many bytes all keys share after their first byte."""
    i: cython.size_t
    k: cython.size_t
    if count < 2 or given[0].length < 2:
        return 0
    size: cython.size_t = given[0].length - 1
    for i in range(1, count):
        if given[i].length < size + 1:
            size = given[i].length - 1 if given[i].length else 0
        k = 0
        while k < size and given[i].data[k + 1] == given[0].data[k + 1]:
            k += 1
        size = k
        if size == 0:
            break
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _head(key: Slice, skipped: cython.size_t) -> cython.ulonglong:
    """Return the first byte and the seven after ``skipped`` more, big-endian, padded with 0."""
    k: cython.size_t
    if key.length == 0:
        return 0
    head: cython.ulonglong = key.data[0]
    for k in range(1 + skipped, 8 + skipped):
        head = (head << 8) | (key.data[k] if k < key.length else 0)
    return head


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _below(given: SliceRef, skipped: cython.size_t, left: Head, right: Head) -> cython.bint:
    """Return whether the left key is before the right one."""
    order: cython.int
    if left.first != right.first:
        return left.first < right.first
    one: Slice = given[left.position]
    other: Slice = given[right.position]
    # The first byte and the skipped ones are equal; a key without any byte is before all others.
    begin: cython.size_t = 1 + skipped
    length: cython.size_t = one.length if one.length < other.length else other.length
    if length > begin:
        order = memcmp(one.data + begin, other.data + begin, length - begin)
        if order:
            return order < 0
    return one.length < other.length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.void)
def _merge_sort(
    given: SliceRef,
    skipped: cython.size_t,
    heads: HeadRef,
    spare: HeadRef,
    low: cython.size_t,
    high: cython.size_t,
) -> None:
    """Sort ``heads[low:high]``; the sort is stable."""
    i: cython.size_t = low
    j: cython.size_t
    k: cython.size_t
    end: cython.size_t
    width: cython.size_t = _RUN
    moved: Head
    while i < high:
        end = i + _RUN if high - i > _RUN else high
        for j in range(i + 1, end):
            moved = heads[j]
            k = j
            while k > i and _below(given, skipped, moved, heads[k - 1]):
                heads[k] = heads[k - 1]
                k -= 1
            heads[k] = moved
        i = end
    while width < high - low:
        i = low
        while i + width < high:
            end = i + 2 * width if high - i > 2 * width else high
            _merge(given, skipped, heads + i, width, end - i, spare)
            i = end
        width *= 2


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
@cython.returns(cython.void)
def _merge(
    given: SliceRef,
    skipped: cython.size_t,
    heads: HeadRef,
    middle: cython.size_t,
    end: cython.size_t,
    spare: HeadRef,
) -> None:
    """Merge two sorted neighbours, which part at ``middle``."""
    left: cython.size_t = 0
    right: cython.size_t = middle
    out: cython.size_t = 0
    if not _below(given, skipped, heads[middle], heads[middle - 1]):
        return
    memcpy(spare, heads, middle * cython.sizeof(Head))
    while left < middle:
        if right < end and _below(given, skipped, heads[right], spare[left]):
            heads[out] = heads[right]
            right += 1
        else:
            heads[out] = spare[left]
            left += 1
        out += 1
