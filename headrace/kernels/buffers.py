# cython: language_level=3, boundscheck=False, wraparound=False
"""Arrow arrays to flat numpy buffers and back, for the inputs and results of all kernels.

No function runs Python code per row.  This module handles slices (a non-zero offset), absent
validity bitmaps and empty arrays, so that kernels see plain contiguous memory.  Kernels get
``memoryview`` objects, not numpy arrays: uncompiled code then reads Python integers, which
neither wrap nor warn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import cython
import numpy as np
import numpy.typing as npt
import pyarrow as pa

if cython.compiled:
    from cython.cimports.headrace.kernels.pointers import bytes_of, longs_of, new_longs

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

TEXT_BYTES_MAX: Final = 2**31 - 1
"""Maximum bytes of a ``pa.string()`` array (32-bit offsets)."""

_NUMPY: Final[dict[int, np.dtype[Any]]] = {
    kind.id: np.dtype(found)
    for kind, found in (
        (pa.int8(), np.int8),
        (pa.int16(), np.int16),
        (pa.int32(), np.int32),
        (pa.int64(), np.int64),
        (pa.float32(), np.float32),
        (pa.float64(), np.float64),
    )
}
"""Numpy types by ``DataType.id``: to hash a type takes as long as a small kernel."""
_TEXTS: Final = frozenset((pa.string().id, pa.binary().id))
_BOOL: Final = pa.bool_().id
_ONES: Final = np.ones(1024, np.uint8)
_ONES.flags.writeable = False
_NONE: Final = np.full(1024, -1, np.int64)
_NONE.flags.writeable = False


def view(array: npt.NDArray[Any]) -> memoryview:
    """Return the array's memory as kernels take it, to read as Python or C integers."""
    return memoryview(array)  # type: ignore[arg-type]  # numpy says so only for Python 3.12


if not cython.compiled:
    bytes_of = longs_of = new_longs = view


def is_text(kind: pa.DataType) -> bool:
    """Return whether arrays of ``kind`` have 32-bit offsets and bytes."""
    return kind.id in _TEXTS


def dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return the numpy type of a fixed-width ``kind`` but bool; TypeError for any other type."""
    found = _NUMPY.get(kind.id)
    if found is None:
        message = f"no kernel for Arrow type {kind}"
        raise TypeError(message)
    return found


def all_valid(n: int) -> Bytes:
    """Return the ``validity`` of ``n`` rows without NULLs."""
    return _ONES[:n] if n <= len(_ONES) else np.ones(n, np.uint8)


def every(flags: Bytes) -> bool:
    """Return whether no byte is 0; much faster than ``all`` for a few."""
    return bool(_find(bytes_of(flags), len(flags), True) < 0)


def some(flags: Bytes) -> bool:
    """Return whether a byte is not 0; much faster than ``any`` for a few."""
    return bool(_find(bytes_of(flags), len(flags), False) >= 0)


def nonzero(numbers: Int64s) -> bool:
    """Return whether no number is 0; much faster than ``all`` for a few."""
    return bool(_multiplicity(longs_of(numbers), len(numbers)) >= 0)


def negative(numbers: Int64s) -> bool:
    """Return whether a number is below 0; much faster than ``any`` for a few."""
    return bool(_negative(longs_of(numbers), len(numbers)))


def least(numbers: Int64s) -> int:
    """Return the least of one or more numbers; much faster than ``min`` for a few."""
    return int(_least(longs_of(numbers), len(numbers)))


def multiplicity(weights: Int64s) -> int:
    """Return the sum of absolute weights; -1 if one is 0."""
    return int(_multiplicity(longs_of(weights), len(weights)))


def minus_ones(n: int) -> Int64s:
    """Return ``n`` times -1, read-only."""
    return _NONE[:n] if n <= len(_NONE) else np.full(n, -1, np.int64)


def validity(array: pa.Array) -> Bytes:
    """Return one byte per row, read-only: 1 if the row has a value, 0 if it is NULL."""
    n = len(array)
    if array.null_count == 0 or n == 0:
        return all_valid(n)
    bitmap = array.buffers()[0]
    if bitmap is None:  # an array of type null has no bitmap
        return np.zeros(n, np.uint8)
    return _unpack(bitmap, array.offset, n)


def offsets(array: pa.Array) -> Offsets:
    """Return the ``n + 1`` offsets of a text array."""
    n = len(array)
    if n == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, n + 1, array.offset * 4)


def data(array: pa.Array) -> Bytes:
    """Return the bytes that the offsets of a text array point into."""
    buffer = array.buffers()[2]
    if buffer is None or buffer.size == 0:
        return np.zeros(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)


def values(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a fixed-width array, bools as bytes; NULL slots are undefined."""
    n = len(array)
    if array.type.id == _BOOL:
        if n == 0:
            return np.zeros(0, np.uint8)
        return _unpack(array.buffers()[1], array.offset, n)
    kind = dtype(array.type)
    if n == 0:
        return np.zeros(0, kind)
    return np.frombuffer(array.buffers()[1], kind, n, array.offset * kind.itemsize)


def make_text(starts: Offsets, content: Bytes, valid: Bytes, kind: pa.DataType) -> pa.Array:
    """Build a text array of ``len(starts) - 1`` rows; the buffers are not copied."""
    n = len(starts) - 1
    bitmap, nulls = _pack(valid)
    buffers = [bitmap, pa.py_buffer(starts), pa.py_buffer(content)]
    return pa.Array.from_buffers(kind, n, buffers, nulls)


def make_fixed(content: npt.NDArray[Any], valid: Bytes, kind: pa.DataType) -> pa.Array:
    """Build a fixed-width array; ``content`` has one byte for each bool."""
    bitmap, nulls = _pack(valid)
    if kind.id == _BOOL:
        body = pa.py_buffer(np.packbits(content, bitorder="little"))
    else:
        body = pa.py_buffer(np.ascontiguousarray(content, dtype(kind)))
    return pa.Array.from_buffers(kind, len(content), [bitmap, body], nulls)


def row_count(columns: Sequence[pa.Array]) -> int:
    """Return the common length of ``columns``; ValueError if there is none."""
    if not columns:
        message = "rows without columns have no encoding"
        raise ValueError(message)
    n = len(columns[0])
    for column in columns:
        if len(column) != n:
            message = "columns of different length"
            raise ValueError(message)
    return n


def lengths(pieces: list[bytes]) -> Int64s:
    """Return the bounds of consecutive ``pieces``; see ``bounds``."""
    i: cython.Py_ssize_t
    limits = np.zeros(len(pieces) + 1, np.int64)
    out: cython.longlong[::1] = view(limits)
    total: cython.longlong = 0
    for i in range(len(pieces)):
        total += len(pieces[i])
        out[i + 1] = total
    return limits


def bounds(sizes: Int64s) -> Int64s:
    """Return where consecutive pieces of these sizes begin, and where the last one ends."""
    out = np.zeros(len(sizes) + 1, np.int64)
    _sum(longs_of(sizes), len(sizes), new_longs(out))
    return out


@cython.cfunc
@cython.exceptval(check=False)
def _sum(sizes: cython.p_longlong, count: cython.Py_ssize_t, out: cython.p_longlong) -> cython.void:
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    for i in range(count):
        total += sizes[i]
        out[i + 1] = total


def cut(joined: bytes, limits: cython.const_longlong[::1]) -> list[bytes]:
    """Return the consecutive pieces of ``joined`` between ``limits``, the result of ``bounds``."""
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(limits) - 1
    out = []
    # Compiled, ``source`` is a pointer, whose slice is new bytes without a slice object.
    source: cython.p_const_char = joined
    begin: cython.Py_ssize_t = limits[0]
    for i in range(n):
        end: cython.Py_ssize_t = limits[i + 1]
        out.append(source[begin:end])
        begin = end
    return out


@cython.cfunc
@cython.exceptval(-2, check=False)
def _find(flags: cython.p_uchar, count: cython.Py_ssize_t, zero: cython.bint) -> cython.Py_ssize_t:
    """Return the first place of a byte that is 0, or is not; -1: none."""
    i: cython.Py_ssize_t
    for i in range(count):
        if (flags[i] == 0) == zero:
            return i
    return -1


@cython.cfunc
@cython.exceptval(check=False)
def _multiplicity(weights: cython.p_longlong, count: cython.Py_ssize_t) -> cython.longlong:
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    for i in range(count):
        weight: cython.longlong = weights[i]
        if weight == 0:
            return -1
        total += weight if weight > 0 else -weight
    return total


@cython.cfunc
@cython.exceptval(check=False)
def _negative(numbers: cython.p_longlong, count: cython.Py_ssize_t) -> cython.bint:
    i: cython.Py_ssize_t
    for i in range(count):  # noqa: SIM110  a loop of C, where any() takes a generator
        if numbers[i] < 0:
            return True
    return False


@cython.cfunc
@cython.exceptval(check=False)
def _least(numbers: cython.p_longlong, count: cython.Py_ssize_t) -> cython.longlong:
    i: cython.Py_ssize_t
    found: cython.longlong = numbers[0]
    for i in range(1, count):
        if numbers[i] < found:
            found = numbers[i]
    return found


def _unpack(bitmap: pa.Buffer, offset: int, n: int) -> Bytes:
    first = offset >> 3
    used = np.frombuffer(bitmap, np.uint8, ((offset + n + 7) >> 3) - first, first)
    return np.unpackbits(used, count=(offset & 7) + n, bitorder="little")[offset & 7 :]


def _pack(valid: Bytes) -> tuple[pa.Buffer | None, int]:
    nulls = 0 if valid.base is _ONES else len(valid) - int(np.count_nonzero(valid))
    if nulls == 0:
        return None, 0
    return pa.py_buffer(np.packbits(valid, bitorder="little")), nulls
