# cython: language_level=3, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# C types are annotations, which mypy sees as Any.
"""The order of packed strings: comparing, sorting, dividing at splitters, finding repetitions."""

from __future__ import annotations

import cython
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels import buffers
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Packed

if cython.compiled:
    from cython.cimports.headrace.kernels.packed import compare_at
    from cython.cimports.headrace.kernels.pointers import (
        bytes_of,
        longs_of,
        new_bytes,
        new_hashes,
        new_ints,
        new_longs,
    )
else:
    from headrace.kernels.packed import compare_at

    bytes_of = longs_of = new_bytes = new_hashes = new_ints = new_longs = buffers.view

_HEAD = 8
_TIES_PART = 8


def compared(left: Packed, right: Packed) -> Int64s:
    """Return -1, 0 or 1 per pair: whether the left one sorts before the right one, and so on."""
    out = np.empty(len(left), np.int64)
    _compared(
        bytes_of(left.data),
        longs_of(left.bounds),
        bytes_of(right.data),
        longs_of(right.bounds),
        len(left),
        new_longs(out),
    )
    return out


def bisected(strings: Packed, splitters: Packed) -> npt.NDArray[np.int32]:
    """Return for each string how many of the ascending ``splitters`` do not sort after it."""
    out = np.empty(len(strings), np.int32)
    _bisect(
        bytes_of(strings.data),
        longs_of(strings.bounds),
        len(strings),
        bytes_of(splitters.data),
        longs_of(splitters.bounds),
        len(splitters),
        new_ints(out),
    )
    return out


def sorted_order(some: Packed) -> Int64s:
    """Return the numbers of the strings in ascending order; the sort is stable.

    REQUIRES: none is empty.  The sort is fast if strings differ soon after their first byte and the
    bytes common to all; it is faster if they ascend already apart from the first byte.
    """
    n = len(some)
    data: cython.p_uchar = bytes_of(some.data)
    bounds: cython.p_longlong = longs_of(some.bounds)
    heads = np.zeros(n, np.uint64)
    groups = np.zeros(n, np.uint8)
    _heads(data, bounds, n, _common(data, bounds, n), new_hashes(heads), new_bytes(groups))
    order = np.argsort(heads, kind="stable")
    order = order[np.argsort(groups[order], kind="stable")]
    begins = np.ones(n + 1, bool)
    begins[1:n] = (heads[order[1:]] != heads[order[: n - 1]]) | (
        groups[order[1:]] != groups[order[: n - 1]]
    )
    starts = np.flatnonzero(begins)
    ties = np.flatnonzero(np.diff(starts) > 1)
    if int((starts[ties + 1] - starts[ties]).sum()) > n // _TIES_PART:
        offsets, content = pa.py_buffer(some.bounds), pa.py_buffer(some.data)
        array = pa.Array.from_buffers(pa.large_binary(), n, [None, offsets, content])
        found: Int64s = pc.array_sort_indices(array).to_numpy().astype(np.int64)
        return found
    for tie in ties.tolist():
        low, high = int(starts[tie]), int(starts[tie + 1])
        numbers = order[low:high].copy()
        strings = some.take(numbers).strings()
        order[low:high] = numbers[sorted(range(high - low), key=strings.__getitem__)]
    return order


def repeated(some: Packed, order: Int64s) -> Bytes:
    """Return one byte per position in ``order``: 1 if the string equals the previous one."""
    out = np.zeros(len(order), np.uint8)
    _repeated(
        bytes_of(some.data), longs_of(some.bounds), longs_of(order), len(order), new_bytes(out)
    )
    return out


@cython.cfunc
@cython.exceptval(check=False)
def _common(
    data: cython.p_uchar, bounds: cython.p_longlong, n: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return how many bytes all strings have in common after their first byte."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    if n == 0:
        return 0
    first: cython.Py_ssize_t = bounds[0] + 1
    size: cython.Py_ssize_t = bounds[1] - first
    for i in range(1, n):
        begin: cython.Py_ssize_t = bounds[i] + 1
        size = min(size, bounds[i + 1] - begin)
        for k in range(size):
            if data[begin + k] != data[first + k]:
                size = k
                break
        if size <= 0:
            return 0
    return size


@cython.cfunc
@cython.exceptval(check=False)
def _heads(
    data: cython.p_uchar,
    bounds: cython.p_longlong,
    count: cython.Py_ssize_t,
    skipped: cython.Py_ssize_t,
    heads: cython.p_ulonglong,
    groups: cython.p_uchar,
) -> cython.void:
    """Set ``groups`` to first bytes, ``heads`` to the number after ``skipped`` more bytes."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    for i in range(count):
        p: cython.Py_ssize_t = bounds[i]
        groups[i] = data[p]
        p += 1 + skipped
        head: cython.ulonglong = 0
        for k in range(p, p + _HEAD):
            head = (head << 8) | (data[k] if k < bounds[i + 1] else 0)
        heads[i] = head


@cython.cfunc
@cython.exceptval(check=False)
def _repeated(
    data: cython.p_uchar,
    bounds: cython.p_longlong,
    order: cython.p_longlong,
    count: cython.Py_ssize_t,
    out: cython.p_uchar,
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(1, count):
        a: cython.Py_ssize_t = bounds[order[i - 1]]
        b: cython.Py_ssize_t = bounds[order[i]]
        size: cython.Py_ssize_t = bounds[order[i] + 1] - b
        if bounds[order[i - 1] + 1] - a != size:
            continue
        # Compare from the end: sorted neighbours differ there first.
        k: cython.Py_ssize_t = size - 1
        while k >= 0 and data[a + k] == data[b + k]:
            k -= 1
        out[i] = k < 0


@cython.cfunc
@cython.exceptval(check=False)
def _compared(
    left: cython.p_uchar,
    left_bounds: cython.p_longlong,
    right: cython.p_uchar,
    right_bounds: cython.p_longlong,
    count: cython.Py_ssize_t,
    out: cython.p_longlong,
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(count):
        out[i] = compare_at(
            left,
            left_bounds[i],
            left_bounds[i + 1],
            right,
            right_bounds[i],
            right_bounds[i + 1],
        )


@cython.cfunc
@cython.exceptval(check=False)
def _bisect(
    strings: cython.p_uchar,
    bounds: cython.p_longlong,
    count: cython.Py_ssize_t,
    splitters: cython.p_uchar,
    limits: cython.p_longlong,
    splits: cython.Py_ssize_t,
    out: cython.p_int,
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(count):
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = splits
        while low < high:
            k: cython.Py_ssize_t = (low + high) // 2
            order: cython.int = compare_at(
                strings, bounds[i], bounds[i + 1], splitters, limits[k], limits[k + 1]
            )
            if order < 0:
                high = k
            else:
                low = k + 1
        out[i] = low
