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

from headrace.kernels import buffers
from headrace.kernels.buffers import Bytes, Int64s

if cython.compiled:
    from cython.cimports.headrace.kernels.pointers import (
        bytes_of,
        longs_of,
        new_bytes,
        new_longs,
    )
    from cython.cimports.libc.string import memcmp, memcpy
else:
    bytes_of = longs_of = new_bytes = new_longs = buffers.view

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
