# cython: language_level=3, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# C types are annotations, which mypy sees as Any.
"""Distinct packed strings: their numbers in the order of first occurrence, and sums of weights.

A hash table with open addressing over one buffer.  Its hash is of this process only.
"""

from __future__ import annotations

import cython
import numpy as np

from headrace.kernels import buffers
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Packed

if cython.compiled:
    from cython.cimports.headrace.kernels.packed import same_at
    from cython.cimports.headrace.kernels.pointers import (
        bytes_of,
        hashes_of,
        longs_of,
        new_bytes,
        new_hashes,
        new_longs,
    )
    from cython.cimports.libc.string import memcpy
else:
    from headrace.kernels.packed import same_at

    bytes_of = hashes_of = longs_of = new_bytes = new_hashes = new_longs = buffers.view

_SEED = cython.declare(cython.ulonglong, hash(b"numbering") & 0x7FFFFFFFFFFFFFFF)
_FACTOR = cython.declare(cython.ulonglong, 0x9FB21C651E98DF25)
_TABLE_MIN = 16
_FEW = 8
_MAX = cython.declare(cython.longlong, 9223372036854775807)
_FIRST = np.zeros(1, np.int64)
_FIRST.flags.writeable = False
_NONE = np.zeros(0, np.int64)


class Numbering:
    """Distinct byte strings, numbered from 0 on in the order of their first occurrence."""

    def __init__(self) -> None:
        self._held: Packed | None = None
        """The strings of the first call if they are few, which are not in the table yet."""
        self._count = 0
        self._data = np.zeros(0, np.uint8)
        self._bounds = np.zeros(1, np.int64)
        self._hashes = np.zeros(0, np.uint64)
        self._table = np.zeros(0, np.int64)
        """Per place of the hash table a number plus one; 0: free."""

    def __len__(self) -> int:
        return self._count if self._held is None else len(self._held)

    def add(self, some: Packed) -> tuple[Int64s, Int64s]:
        """Return the number of each string, and the positions of those that are new, in order."""
        count = len(some)
        if self._held is not None:
            held, self._held = self._held, None
            self._add(held)
        elif count <= _FEW and self._count == 0:
            return self._hold(some)
        return self._add(some)

    def _hold(self, some: Packed) -> tuple[Int64s, Int64s]:
        """Assign numbers to a few strings without a table: most batches have one row or two."""
        count = len(some)
        if count <= 1:
            self._held = some if count else None
            return _FIRST[:count], _FIRST[:count]
        ids, firsts = np.empty(count, np.int64), np.empty(count, np.int64)
        new = _number_few(
            bytes_of(some.data), longs_of(some.bounds), count, new_longs(ids), new_longs(firsts)
        )
        firsts = firsts[:new]
        self._held = some if new == count else some.take(firsts)
        return ids, firsts

    def strings(self) -> Packed:
        """Return the distinct strings in the order of their numbers."""
        if self._held is not None:
            return self._held
        return Packed(self._data, self._bounds[: self._count + 1])

    def _add(self, some: Packed) -> tuple[Int64s, Int64s]:
        count = len(some)
        if count == 0:
            return _NONE, _NONE
        self._reserve(count, int(some.bounds[count]) - int(some.bounds[0]))
        ids, firsts = np.empty(count, np.int64), np.empty(count, np.int64)
        new = _number(
            bytes_of(some.data),
            longs_of(some.bounds),
            count,
            self._count,
            new_bytes(self._data),
            new_longs(self._bounds),
            new_hashes(self._hashes),
            new_longs(self._table),
            len(self._table),
            new_longs(ids),
            new_longs(firsts),
        )
        self._count += new
        return ids, firsts[:new]

    def _reserve(self, count: int, size: int) -> None:
        """Make room for ``count`` more strings of ``size`` bytes in all."""
        used = int(self._bounds[self._count])
        if used + size > len(self._data):
            data = np.empty(used + max(used, size), np.uint8)
            data[:used] = self._data[:used]
            self._data = data
        total = self._count + count
        if total > len(self._hashes):
            bounds = np.zeros(self._count + max(self._count, count) + 1, np.int64)
            bounds[: self._count + 1] = self._bounds[: self._count + 1]
            hashes = np.empty(len(bounds) - 1, np.uint64)
            hashes[: self._count] = self._hashes[: self._count]
            self._bounds, self._hashes = bounds, hashes
        if 2 * total > len(self._table):
            size = max(_TABLE_MIN, 1 << (2 * total - 1).bit_length())
            self._table = np.zeros(size, np.int64)
            _fill(hashes_of(self._hashes), self._count, new_longs(self._table), size)


class Consolidator:
    """Rows with the sums of their weights, in first-seen order."""

    def __init__(self) -> None:
        self._rows = Numbering()
        self._weights = _NONE

    def __len__(self) -> int:
        """Return the number of distinct rows seen, also of weight zero (to limit memory)."""
        return len(self._rows)

    def add(self, some: Packed, weights: Int64s) -> None:
        """Add ``weights`` to the rows' weights.

        Raises:
            ValueError: rows and weights differ in length.
            OverflowError: a sum is beyond 64 bits.
        """
        if len(some) != len(weights):
            message = "rows and weights differ in length"
            raise ValueError(message)
        ids, firsts = self._rows.add(some)
        count = len(self._rows)
        if len(firsts) == len(weights) == count:
            self._weights = np.array(weights, np.int64)
            return
        if count > len(self._weights):
            grown = np.zeros(max(count, 2 * len(self._weights)), np.int64)
            grown[: len(self._weights)] = self._weights
            self._weights = grown
        add_up(ids, weights, self._weights)

    def items(self) -> tuple[Packed, Int64s]:
        """Return (rows, weights) without zero weights; the consolidator keeps its contents."""
        weights, found = self._weights[: len(self._rows)], self._rows.strings()
        if buffers.nonzero(weights):
            return found, weights
        there = np.flatnonzero(weights)
        return found.take(there), weights[there]


def add_up(numbers: Int64s, weights: Int64s, totals: Int64s) -> None:
    """Add each weight to the total of its number, in place.

    Raises:
        OverflowError: a total is beyond 64 bits.
    """
    if not _sum(longs_of(numbers), longs_of(weights), len(numbers), new_longs(totals)):
        raise OverflowError("a weight beyond 64 bits")


def summed(some: Packed, weights: Int64s) -> tuple[Int64s, Int64s]:
    """Return where each string first occurs, and its sum of weights; none with sum 0.

    Raises:
        OverflowError: a sum is beyond 64 bits.
    """
    numbers, firsts = Numbering().add(some)
    sums = np.zeros(len(firsts), np.int64)
    add_up(numbers, weights, sums)
    there = np.flatnonzero(sums)
    return firsts[there], sums[there]


def consolidate(some: Packed, weights: Int64s) -> tuple[Packed, Int64s]:
    """Sum the weights of equal rows and drop zeros; rows keep first-seen order."""
    total = Consolidator()
    total.add(some, weights)
    return total.items()


def group(keys: Packed) -> tuple[Packed, Int64s]:
    """Return distinct keys in first-seen order, and for each position the index of its key."""
    seen = Numbering()
    ids, _ = seen.add(keys)
    return seen.strings(), ids


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hash(
    data: cython.p_const_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.ulonglong:
    """Return the hash of ``data[begin:end]``, eight bytes at a time."""
    if not cython.compiled:
        return hash(bytes(data[begin:end])) & 0xFFFFFFFFFFFFFFFF
    word: cython.ulonglong = 0
    h: cython.ulonglong = _SEED ^ cython.cast(cython.ulonglong, end - begin)
    p: cython.p_const_uchar = data + begin
    left: cython.Py_ssize_t = end - begin
    while left >= 8:
        memcpy(cython.address(word), p, 8)
        h = (h ^ word) * _FACTOR
        h ^= h >> 29
        p += 8
        left -= 8
    if left:
        word = 0
        memcpy(cython.address(word), p, left)
        h = (h ^ word) * _FACTOR
        h ^= h >> 29
    h *= _FACTOR
    return h ^ (h >> 32)


@cython.cfunc
@cython.exceptval(check=False)
def _number_few(
    data: cython.p_const_uchar,
    bounds: cython.p_longlong,
    total: cython.Py_ssize_t,
    ids: cython.p_longlong,
    firsts: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Compare each string with all before it; return how many are distinct."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    new: cython.Py_ssize_t = 0
    for i in range(total):
        for k in range(new):
            if same_at(data, bounds, firsts[k], data, bounds, i):
                ids[i] = k
                break
        else:
            ids[i] = new
            firsts[new] = i
            new += 1
    return new


@cython.cfunc
@cython.exceptval(check=False)
def _number(
    data: cython.p_const_uchar,
    bounds: cython.p_longlong,
    total: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    own: cython.p_uchar,
    limits: cython.p_longlong,
    hashes: cython.p_ulonglong,
    table: cython.p_longlong,
    places: cython.Py_ssize_t,
    ids: cython.p_longlong,
    firsts: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Assign numbers to strings, after ``count`` known ones; return how many are new.

    REQUIRES: there is room for all of them, and half of the table stays free.
    """
    i: cython.Py_ssize_t
    new: cython.Py_ssize_t = 0
    mask: cython.ulonglong = places - 1
    for i in range(total):
        begin: cython.Py_ssize_t = bounds[i]
        size: cython.Py_ssize_t = bounds[i + 1] - begin
        h: cython.ulonglong = _hash(data, begin, begin + size)
        place: cython.ulonglong = h & mask
        while table[place]:
            known: cython.Py_ssize_t = table[place] - 1
            if hashes[known] == h and same_at(data, bounds, i, own, limits, known):
                ids[i] = known
                break
            place = (place + 1) & mask
        else:
            at: cython.Py_ssize_t = count + new
            to: cython.Py_ssize_t = limits[at]
            if not cython.compiled:
                own[to : to + size] = data[begin : begin + size]
            elif size:
                memcpy(own + to, data + begin, size)
            limits[at + 1] = to + size
            hashes[at] = h
            table[place] = at + 1
            ids[i] = at
            firsts[new] = i
            new += 1
    return new


@cython.cfunc
@cython.exceptval(check=False)
def _fill(
    hashes: cython.p_ulonglong,
    count: cython.Py_ssize_t,
    table: cython.p_longlong,
    places: cython.Py_ssize_t,
) -> cython.void:
    """Put the numbers of known strings into an empty table."""
    i: cython.Py_ssize_t
    mask: cython.ulonglong = places - 1
    for i in range(count):
        place: cython.ulonglong = hashes[i] & mask
        while table[place]:
            place = (place + 1) & mask
        table[place] = i + 1


@cython.cfunc
@cython.exceptval(check=False)
def _sum(
    ids: cython.p_longlong,
    weights: cython.p_longlong,
    count: cython.Py_ssize_t,
    totals: cython.p_longlong,
) -> cython.bint:
    """Add each weight to the total of its number; False: a total is beyond 64 bits."""
    i: cython.Py_ssize_t
    limit: cython.longlong = _MAX
    for i in range(count):
        total: cython.longlong = totals[ids[i]]
        weight: cython.longlong = weights[i]
        if weight > 0 and total > limit - weight:
            return False
        if weight < 0 and total < -limit - weight:
            return False
        totals[ids[i]] = total + weight
    return True
