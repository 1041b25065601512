# cython: language_level=3, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# C types are annotations, which mypy sees as Any.
"""Many byte strings in one buffer: rows and keys between encoders, collections and states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cython
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels import buffers
from headrace.kernels.buffers import Bytes, Int64s

if cython.compiled:
    from cython.cimports.headrace.kernels.pointers import (
        bytes_of,
        longs_of,
        new_bytes,
        new_hashes,
        new_longs,
    )
    from cython.cimports.libc.string import memcmp, memcpy
else:
    bytes_of = longs_of = new_bytes = new_hashes = new_longs = buffers.view

_HEAD = 8
_TIES_PART = 8
_NO_BYTES = np.zeros(0, np.uint8)


@dataclass(slots=True)
class Packed:
    """Consecutive byte strings; number i is between ``bounds[i]`` and ``bounds[i + 1]``.

    Its arrays are never changed.
    """

    data: Bytes
    bounds: Int64s

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def strings(self) -> list[bytes]:
        """Return the strings one by one."""
        first, end = int(self.bounds[0]), int(self.bounds[len(self)])
        bounds = self.bounds - first if first else self.bounds
        return buffers.cut(self.data[first:end].tobytes(), buffers.view(bounds))

    def part(self, low: int, high: int) -> Packed:
        """Return the strings from ``low`` to before ``high``, without copying."""
        return Packed(self.data, self.bounds[low : high + 1])

    def take(self, order: Int64s) -> Packed:
        """Return the strings with these numbers."""
        if len(order) == 0:
            return empty(0)
        if len(order) == 1 == len(self) and order[0] == 0:
            return self
        count: cython.Py_ssize_t = len(order)
        bounds = np.empty(count + 1, np.int64)
        own: cython.p_longlong = longs_of(self.bounds)
        chosen: cython.p_longlong = longs_of(order)
        limits: cython.p_longlong = new_longs(bounds)
        data = np.empty(_sizes(own, chosen, count, limits), np.uint8)
        _copies(bytes_of(self.data), own, chosen, count, new_bytes(data), limits)
        return Packed(data, bounds)


@dataclass(slots=True)
class Nullable:
    """Byte strings as in ``Packed``, each of which counts only where ``valid`` is 1."""

    data: Bytes
    bounds: Int64s
    valid: Bytes

    def __len__(self) -> int:
        return len(self.valid)

    @property
    def packed(self) -> Packed:
        """The strings; those that do not count may have any content."""
        return Packed(self.data, self.bounds)

    def strings(self) -> list[bytes | None]:
        """Return the strings one by one, None where they do not count."""
        found: list[bytes | None] = [*self.packed.strings()]
        for place in np.flatnonzero(self.valid == 0).tolist():
            found[place] = None
        return found


def pack(strings: Sequence[bytes]) -> Packed:
    """Pack strings."""
    found = list(strings)
    return Packed(np.frombuffer(b"".join(found), np.uint8), buffers.lengths(found))


def empty(count: int) -> Packed:
    """Return ``count`` empty strings."""
    return Packed(_NO_BYTES, np.zeros(count + 1, np.int64))


def nullable(strings: Sequence[bytes | None]) -> Nullable:
    """Pack strings of which some are None."""
    found = pack([b"" if one is None else one for one in strings])
    valid = np.array([one is not None for one in strings], np.uint8)
    return Nullable(found.data, found.bounds, valid)


def all_valid(strings: Packed) -> Nullable:
    """Return the strings, of which none is None."""
    return Nullable(strings.data, strings.bounds, buffers.all_valid(len(strings)))


def take_nullable(strings: Packed, order: Int64s) -> Nullable:
    """Return the strings with these numbers; -1 stands for None."""
    found = strings.take(order)
    return Nullable(found.data, found.bounds, (order >= 0).view(np.uint8))


def joined(pieces: Sequence[Packed]) -> Packed:
    """Concatenate the strings of all pieces."""
    if len(pieces) == 1:
        return pieces[0]
    sizes = [np.diff(piece.bounds) for piece in pieces]
    data = [piece.data[piece.bounds[0] : piece.bounds[len(piece)]] for piece in pieces]
    return Packed(np.concatenate(data), buffers.bounds(np.concatenate(sizes)))


def appended(left: Packed, right: Packed) -> Packed:
    """Return each string of ``left`` with that of ``right`` after it.

    Raises:
        ValueError: they differ in length.
    """
    if len(left) != len(right):
        message = "packed strings differ in number"
        raise ValueError(message)
    count: cython.Py_ssize_t = len(left)
    bounds = np.empty(count + 1, np.int64)
    own: cython.p_longlong = longs_of(left.bounds)
    other: cython.p_longlong = longs_of(right.bounds)
    limits: cython.p_longlong = new_longs(bounds)
    data = np.empty(_sums(own, other, count, limits), np.uint8)
    _append(bytes_of(left.data), own, bytes_of(right.data), other, count, limits, new_bytes(data))
    return Packed(data, bounds)


def repeat(string: bytes, count: int) -> Packed:
    """Return ``string``, ``count`` times."""
    size = len(string)
    bounds = np.arange(count + 1, dtype=np.int64) * size
    return Packed(np.frombuffer(string * count, np.uint8), bounds)


def fixed(numbers: npt.NDArray[Any]) -> Packed:
    """Return the bytes of each number."""
    size = numbers.itemsize
    return Packed(numbers.view(np.uint8), np.arange(len(numbers) + 1, dtype=np.int64) * size)


def spans(data: Bytes, starts: Int64s, ends: Int64s) -> Packed:
    """Return the strings of ``data`` between ``starts`` and ``ends``, each inside of it."""
    if len(starts) == 1:
        return Packed(data, np.array((starts[0], ends[0])))
    count: cython.Py_ssize_t = len(starts)
    bounds = np.empty(count + 1, np.int64)
    firsts: cython.p_longlong = longs_of(starts)
    limits: cython.p_longlong = new_longs(bounds)
    out = np.empty(_lengths(firsts, longs_of(ends), count, limits), np.uint8)
    _spans(bytes_of(data), firsts, count, limits, new_bytes(out))
    return Packed(out, bounds)


def take_two(first: Packed, second: Packed, order: Int64s) -> Packed:
    """Return strings by number, where those of ``second`` follow those of ``first``."""
    count: cython.Py_ssize_t = len(order)
    middle: cython.Py_ssize_t = len(first)
    bounds = np.empty(count + 1, np.int64)
    own: cython.p_longlong = longs_of(first.bounds)
    other: cython.p_longlong = longs_of(second.bounds)
    chosen: cython.p_longlong = longs_of(order)
    limits: cython.p_longlong = new_longs(bounds)
    data = np.empty(_two_sizes(own, middle, other, chosen, count, limits), np.uint8)
    mine: cython.p_uchar = bytes_of(first.data)
    more: cython.p_uchar = bytes_of(second.data)
    _two_copies(mine, own, middle, more, other, chosen, count, new_bytes(data), limits)
    return Packed(data, bounds)


def either(first: Nullable, second: Packed) -> Packed:
    """Return the strings of ``first``, and those of ``second`` where they are None."""
    if buffers.every(first.valid):
        return first.packed
    if not buffers.some(first.valid):
        return second
    places = np.arange(len(second))
    chosen = np.where(first.valid, places, places + len(second))
    return take_two(first.packed, second, chosen)


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
        buffers.view(strings.data),
        buffers.view(strings.bounds),
        buffers.view(splitters.data),
        buffers.view(splitters.bounds),
        buffers.view(out),
    )
    return out


def sorted_order(packed: Packed) -> Int64s:
    """Return the numbers of the strings in ascending order; the sort is stable.

    REQUIRES: none is empty.  The sort is fast if strings differ soon after their first byte and the
    bytes common to all; it is faster if they ascend already apart from the first byte.
    """
    n = len(packed)
    data: cython.p_uchar = bytes_of(packed.data)
    bounds: cython.p_longlong = longs_of(packed.bounds)
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
        offsets, content = pa.py_buffer(packed.bounds), pa.py_buffer(packed.data)
        array = pa.Array.from_buffers(pa.large_binary(), n, [None, offsets, content])
        found: Int64s = pc.array_sort_indices(array).to_numpy().astype(np.int64)
        return found
    for tie in ties.tolist():
        low, high = int(starts[tie]), int(starts[tie + 1])
        numbers = order[low:high].copy()
        strings = packed.take(numbers).strings()
        order[low:high] = numbers[sorted(range(high - low), key=strings.__getitem__)]
    return order


def repeated(packed: Packed, order: Int64s) -> Bytes:
    """Return one byte per position in ``order``: 1 if the string equals the previous one."""
    out = np.zeros(len(order), np.uint8)
    _repeated(
        bytes_of(packed.data), longs_of(packed.bounds), longs_of(order), len(order), new_bytes(out)
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
@cython.exceptval(-1, check=False)
def _sizes(
    bounds: cython.p_longlong,
    order: cython.p_longlong,
    count: cython.Py_ssize_t,
    out: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Set ``out`` to the bounds of the chosen strings (-1: an empty one); return the last."""
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    out[0] = 0
    for i in range(count):
        if order[i] >= 0:
            total += bounds[order[i] + 1] - bounds[order[i]]
        out[i + 1] = total
    return total


@cython.cfunc
@cython.exceptval(check=False)
def _copies(
    data: cython.p_uchar,
    bounds: cython.p_longlong,
    order: cython.p_longlong,
    count: cython.Py_ssize_t,
    out: cython.p_uchar,
    limits: cython.p_longlong,
) -> cython.void:
    """Copy the chosen strings between ``limits``, the result of ``_sizes``."""
    i: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    for i in range(count):
        if order[i] < 0:
            continue
        begin = bounds[order[i]]
        if not cython.compiled:
            out[limits[i] : limits[i + 1]] = data[begin : bounds[order[i] + 1]]
        else:
            memcpy(
                out + limits[i],
                data + begin,
                limits[i + 1] - limits[i],
            )


@cython.cfunc
@cython.exceptval(-1, check=False)
def _sums(
    left: cython.p_longlong,
    right: cython.p_longlong,
    count: cython.Py_ssize_t,
    out: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Set ``out`` to the bounds of strings as long as two others together; return the last."""
    i: cython.Py_ssize_t
    for i in range(count + 1):
        out[i] = left[i] - left[0] + right[i] - right[0]
    return out[count]


@cython.cfunc
@cython.exceptval(check=False)
def _append(
    left: cython.p_uchar,
    left_bounds: cython.p_longlong,
    right: cython.p_uchar,
    right_bounds: cython.p_longlong,
    count: cython.Py_ssize_t,
    bounds: cython.p_longlong,
    out: cython.p_uchar,
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(count):
        at: cython.Py_ssize_t = bounds[i]
        size: cython.Py_ssize_t = left_bounds[i + 1] - left_bounds[i]
        if not cython.compiled:
            out[at : at + size] = left[left_bounds[i] : left_bounds[i + 1]]
            out[at + size : bounds[i + 1]] = right[right_bounds[i] : right_bounds[i + 1]]
        else:
            to: cython.p_uchar = out + at
            memcpy(to, left + left_bounds[i], size)
            memcpy(
                to + size,
                right + right_bounds[i],
                right_bounds[i + 1] - right_bounds[i],
            )


@cython.cfunc
@cython.exceptval(check=False)
def _spans(
    data: cython.p_uchar,
    starts: cython.p_longlong,
    count: cython.Py_ssize_t,
    bounds: cython.p_longlong,
    out: cython.p_uchar,
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(count):
        size: cython.Py_ssize_t = bounds[i + 1] - bounds[i]
        if not cython.compiled:
            out[bounds[i] : bounds[i + 1]] = data[starts[i] : starts[i] + size]
        else:
            memcpy(out + bounds[i], data + starts[i], size)


@cython.cfunc
@cython.exceptval(check=False)
def same(
    left: cython.const_uchar[::1],
    left_bounds: cython.const_longlong[::1],
    i: cython.Py_ssize_t,
    right: cython.const_uchar[::1],
    right_bounds: cython.const_longlong[::1],
    j: cython.Py_ssize_t,
) -> cython.bint:
    """Return whether string ``i`` of ``left`` and string ``j`` of ``right`` are equal."""
    if not cython.compiled:
        return same_at(left, left_bounds, i, right, right_bounds, j)
    return same_at(
        cython.address(left[0]),
        cython.address(left_bounds[0]),
        i,
        cython.address(right[0]),
        cython.address(right_bounds[0]),
        j,
    )


@cython.cfunc
@cython.exceptval(check=False)
def compare(
    left: cython.const_uchar[::1],
    left_begin: cython.Py_ssize_t,
    left_end: cython.Py_ssize_t,
    right: cython.const_uchar[::1],
    right_begin: cython.Py_ssize_t,
    right_end: cython.Py_ssize_t,
) -> cython.int:
    """Return -1, 0 or 1: the left bytes sort before the right ones, equal them, or after."""
    if not cython.compiled:
        return compare_at(left, left_begin, left_end, right, right_begin, right_end)
    one: cython.p_const_uchar = cython.address(left[0])
    other: cython.p_const_uchar = cython.address(right[0])
    return compare_at(one, left_begin, left_end, other, right_begin, right_end)


@cython.cfunc
@cython.exceptval(check=False)
def same_at(
    left: cython.p_const_uchar,
    left_bounds: cython.pointer[cython.const_longlong],
    i: cython.Py_ssize_t,
    right: cython.p_const_uchar,
    right_bounds: cython.pointer[cython.const_longlong],
    j: cython.Py_ssize_t,
) -> cython.bint:
    """Do what ``same`` does, given addresses (``pointers``)."""
    begin: cython.Py_ssize_t = left_bounds[i]
    other: cython.Py_ssize_t = right_bounds[j]
    size: cython.Py_ssize_t = left_bounds[i + 1] - begin
    if right_bounds[j + 1] - other != size:
        return False
    if not cython.compiled:
        return left[begin : begin + size] == right[other : other + size]
    return size == 0 or memcmp(left + begin, right + other, size) == 0


@cython.cfunc
@cython.exceptval(check=False)
def compare_at(
    left: cython.p_const_uchar,
    left_begin: cython.Py_ssize_t,
    left_end: cython.Py_ssize_t,
    right: cython.p_const_uchar,
    right_begin: cython.Py_ssize_t,
    right_end: cython.Py_ssize_t,
) -> cython.int:
    """Do what ``compare`` does, given addresses (``pointers``)."""
    if not cython.compiled:
        a, b = bytes(left[left_begin:left_end]), bytes(right[right_begin:right_end])
        return (a > b) - (a < b)
    size: cython.Py_ssize_t = min(left_end - left_begin, right_end - right_begin)
    order: cython.int = 0
    if size > 0:
        order = memcmp(left + left_begin, right + right_begin, size)
    if order == 0:
        return (left_end - left_begin > size) - (right_end - right_begin > size)
    return 1 if order > 0 else -1


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
    strings: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    splitters: cython.const_uchar[::1],
    limits: cython.const_longlong[::1],
    out: cython.int[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(len(out)):
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = len(limits) - 1
        while low < high:
            k: cython.Py_ssize_t = (low + high) // 2
            order: cython.int = compare(
                strings, bounds[i], bounds[i + 1], splitters, limits[k], limits[k + 1]
            )
            if order < 0:
                high = k
            else:
                low = k + 1
        out[i] = low


@cython.cfunc
@cython.exceptval(-1, check=False)
def _lengths(
    starts: cython.p_longlong,
    ends: cython.p_longlong,
    count: cython.Py_ssize_t,
    out: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Set ``out`` to the bounds of the spans put together; return the last."""
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    out[0] = 0
    for i in range(count):
        total += ends[i] - starts[i]
        out[i + 1] = total
    return total


@cython.cfunc
@cython.exceptval(-1, check=False)
def _two_sizes(
    own: cython.p_longlong,
    middle: cython.Py_ssize_t,
    other: cython.p_longlong,
    order: cython.p_longlong,
    count: cython.Py_ssize_t,
    out: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Set ``out`` to the bounds of the chosen strings; return the last."""
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    out[0] = 0
    for i in range(count):
        if order[i] < middle:
            total += own[order[i] + 1] - own[order[i]]
        else:
            total += other[order[i] - middle + 1] - other[order[i] - middle]
        out[i + 1] = total
    return total


@cython.cfunc
@cython.exceptval(check=False)
def _two_copies(
    data: cython.p_uchar,
    own: cython.p_longlong,
    middle: cython.Py_ssize_t,
    more: cython.p_uchar,
    other: cython.p_longlong,
    order: cython.p_longlong,
    count: cython.Py_ssize_t,
    out: cython.p_uchar,
    limits: cython.p_longlong,
) -> cython.void:
    """Copy the chosen strings between ``limits``, the result of ``_two_sizes``."""
    i: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    for i in range(count):
        mine: cython.bint = order[i] < middle
        begin = own[order[i]] if mine else other[order[i] - middle]
        size: cython.Py_ssize_t = limits[i + 1] - limits[i]
        if not cython.compiled:
            out[limits[i] : limits[i + 1]] = (data if mine else more)[begin : begin + size]
        elif mine:
            memcpy(out + limits[i], data + begin, size)
        else:
            memcpy(out + limits[i], more + begin, size)
