# cython: language_level=3, boundscheck=False, wraparound=False
"""Rows and keys as bytes: the identity of a row, and a canonical key that sorts like Postgres.

*Row*: a bitmap of NULLs (one bit per column, set = NULL, rounded up to bytes), then every
non-NULL column: fixed-width values little-endian, bools one byte, text as a varint length and
its bytes.  Rows have equal bytes if a user sees the same row, display scale of numerics included.

*Key*: see ``kernels.keys``; ``encode_keys`` is exported here too, where callers look for it.

Rows are written column by column into one buffer, with one write position per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython
import numpy as np
import pyarrow as pa

from headrace.kernels import buffers
from headrace.kernels.buffers import Int64s
from headrace.kernels.keys import encode_keys, pack_keys, whole
from headrace.kernels.packed import Packed

if cython.compiled:
    from cython.cimports.headrace.kernels.buffers import size_fixed
else:
    from headrace.kernels.buffers import size_fixed

__all__ = [
    "decode_rows",
    "encode_keys",
    "pack_keys",
    "pack_rows",
    "whole",
]


def pack_rows(columns: Sequence[pa.Array]) -> Packed:
    """Encode the exact identity of each row; ``decode_rows`` is the inverse.

    A float NaN becomes the canonical NaN (Postgres has no other); -0.0 stays -0.0.
    Raises ValueError without columns (the number of rows would be unknown).
    """
    joined, bounds = _encoded(columns)
    return Packed(np.frombuffer(joined, np.uint8), bounds)


@cython.cfunc
def _encoded(columns: Sequence[pa.Array]) -> tuple[bytearray, Int64s]:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = buffers.row_count(columns)
    bitmap_bytes = (len(columns) + 7) // 8
    parts = [_content(c) for c in columns]
    every: cython.const_uchar[::1] = buffers.view(buffers.all_valid(n))
    bounds = np.empty(n + 1, np.int64)
    limits: cython.longlong[::1] = buffers.view(bounds)
    # Fixed-width columns without NULLs take the same bytes in every row.
    size: cython.longlong = bitmap_bytes + sum(
        [width for _, _, nulls, width in parts if nulls is None]
    )
    limits[0] = 0
    for i in range(n):
        limits[i + 1] = size
    for _, offsets, nulls, width in parts:
        if offsets is not None:
            if nulls is None:
                valid: cython.const_uchar[::1] = every
            else:
                valid = nulls
            _size_text(offsets, valid, limits)
        elif nulls is not None:
            size_fixed(nulls, limits, width)
    cursor: cython.longlong[::1] = buffers.view(np.empty(n, np.int64))
    for i in range(n):
        cursor[i] = limits[i] + bitmap_bytes
        limits[i + 1] += limits[i]
    joined = bytearray(limits[n])
    out: cython.uchar[::1] = joined
    for index, (content, offsets, nulls, width) in enumerate(parts):
        if nulls is None:
            valid = every
        else:
            valid = nulls
            _put_nulls(out, limits, valid, index)
        if offsets is None:
            _put_fixed(out, cursor, content, valid, width)
        else:
            _put_text(out, cursor, content, offsets, valid)
    return joined, bounds


def decode_rows(rows: Packed, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Decode rows that ``pack_rows`` made of columns of these types.

    Raises ValueError if the bytes are not such rows.
    """
    found: list[pa.Array] = _decoded(rows, types)
    return found


@cython.cfunc
def _decoded(rows: Packed, types: Sequence[pa.DataType]) -> list[pa.Array]:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(rows)
    bounds = rows.bounds
    bitmap_bytes = (len(types) + 7) // 8
    data: cython.const_uchar[::1] = buffers.view(rows.data)
    cursor: cython.longlong[::1] = buffers.view(bounds[:n].copy())
    ends: cython.const_longlong[::1] = buffers.view(bounds)
    plain: cython.int = _bitmaps(data, ends, bitmap_bytes)
    if plain < 0:
        raise ValueError(_CORRUPT)
    whole = buffers.all_valid(n)
    every: cython.const_uchar[::1] = buffers.view(whole)
    valids = [whole] * len(types)
    if not plain:
        valids = [np.empty(n, np.uint8) for _ in types]
        for index, valid in enumerate(valids):
            _take_nulls(data, cursor, buffers.view(valid), index)
    for i in range(n):
        cursor[i] += bitmap_bytes
    out = []
    for kind, valid in zip(types, valids, strict=True):
        if not plain:
            every = buffers.view(valid)
        if buffers.is_text(kind):
            out.append(_take_text(data, cursor, ends, every, valid, kind))
            continue
        dtype = _BYTE if pa.types.is_boolean(kind) else buffers.dtype(kind)
        content = np.zeros(n * dtype.itemsize, np.uint8)
        if not _take_fixed(data, cursor, ends, every, buffers.view(content), dtype.itemsize):
            raise ValueError(_CORRUPT)
        out.append(buffers.make_fixed(content.view(dtype), valid, kind))
    if not _at_end(cursor, ends):
        raise ValueError(_CORRUPT)
    return out


_CORRUPT = "bytes are not rows of these types"
_BYTE = np.dtype(np.uint8)
_Part = tuple[memoryview, memoryview | None, memoryview | None, int]
"""A column: bytes; offsets if it is a text; validity, None without NULLs; width."""


def _content(column: pa.Array) -> _Part:
    """Return the parts of a column, with canonical NaN in floats."""
    nulls = buffers.view(buffers.validity(column)) if column.null_count else None
    if buffers.is_text(column.type):
        offsets = buffers.view(buffers.offsets(column))
        return buffers.view(buffers.data(column)), offsets, nulls, 0
    values = buffers.values(column)
    if values.dtype.kind == "f":
        wrong = np.isnan(values)
        if wrong.any():
            values = values.copy()
            values[wrong] = np.nan
    return buffers.view(values.view(np.uint8)), None, nulls, values.itemsize


@cython.cfunc
@cython.exceptval(check=False)
def _put_nulls(
    out: cython.uchar[::1],
    cursor: cython.const_longlong[::1],
    valid: cython.const_uchar[::1],
    index: cython.Py_ssize_t,
) -> cython.void:
    """Set the bit of column ``index`` in the bitmaps at ``cursor``, where it is NULL."""
    i: cython.Py_ssize_t
    for i in range(len(valid)):
        if not valid[i]:
            out[cursor[i] + (index >> 3)] |= 1 << (index & 7)


@cython.cfunc
@cython.exceptval(check=False)
def _bitmaps(
    data: cython.const_uchar[::1], ends: cython.const_longlong[::1], width: cython.Py_ssize_t
) -> cython.int:
    """Return 1 if no bit of the bitmaps (``width`` bytes) is set, else 0; -1: row too short."""
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t
    found: cython.int = 0
    for i in range(len(ends) - 1):
        if ends[i] + width > ends[i + 1]:
            return -1
        for p in range(ends[i], ends[i] + width):
            found |= data[p]
    return 0 if found else 1


@cython.cfunc
@cython.exceptval(check=False)
def _take_nulls(
    data: cython.const_uchar[::1],
    cursor: cython.const_longlong[::1],
    valid: cython.uchar[::1],
    index: cython.Py_ssize_t,
) -> cython.void:
    """Fill ``valid`` from the bits of column ``index`` in the bitmaps at ``cursor``."""
    i: cython.Py_ssize_t
    for i in range(len(valid)):
        valid[i] = 1 - ((data[cursor[i] + (index >> 3)] >> (index & 7)) & 1)


@cython.cfunc
@cython.exceptval(check=False)
def _at_end(cursor: cython.const_longlong[::1], ends: cython.const_longlong[::1]) -> cython.bint:
    i: cython.Py_ssize_t
    for i in range(len(cursor)):  # noqa: SIM110  a loop of C, where all() takes a generator
        if cursor[i] != ends[i + 1]:
            return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _size_text(
    offsets: cython.const_int[::1], valid: cython.const_uchar[::1], sizes: cython.longlong[::1]
) -> cython.void:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    for i in range(n):
        if valid[i]:
            length: cython.longlong = offsets[i + 1] - offsets[i]
            sizes[i + 1] += length + 1
            while length >= 128:
                sizes[i + 1] += 1
                length >>= 7


@cython.cfunc
@cython.exceptval(check=False)
def _put_text(
    out: cython.uchar[::1],
    cursor: cython.longlong[::1],
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    valid: cython.const_uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    for i in range(n):
        if not valid[i]:
            continue
        p: cython.Py_ssize_t = cursor[i]
        q: cython.Py_ssize_t = offsets[i]
        end: cython.Py_ssize_t = offsets[i + 1]
        length: cython.longlong = end - q
        while length >= 128:
            out[p] = 128 | (length & 127)
            length >>= 7
            p += 1
        out[p] = length
        p += 1
        while q < end:
            out[p] = data[q]
            p += 1
            q += 1
        cursor[i] = p


@cython.cfunc
@cython.exceptval(check=False)
def _put_fixed(
    out: cython.uchar[::1],
    cursor: cython.longlong[::1],
    data: cython.const_uchar[::1],
    valid: cython.const_uchar[::1],
    width: cython.Py_ssize_t,
) -> cython.void:
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    for i in range(n):
        if valid[i]:
            p: cython.Py_ssize_t = cursor[i]
            for j in range(width):
                out[p + j] = data[i * width + j]
            cursor[i] = p + width


@cython.cfunc
@cython.exceptval(check=False)
def _take_fixed(
    data: cython.const_uchar[::1],
    cursor: cython.longlong[::1],
    ends: cython.const_longlong[::1],
    valid: cython.const_uchar[::1],
    out: cython.uchar[::1],
    width: cython.Py_ssize_t,
) -> cython.bint:
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    for i in range(n):
        if valid[i]:
            p: cython.Py_ssize_t = cursor[i]
            if p + width > ends[i + 1]:
                return False
            for j in range(width):
                out[i * width + j] = data[p + j]
            cursor[i] = p + width
    return True


@cython.cfunc
def _take_text(
    data: cython.const_uchar[::1],
    cursor: cython.longlong[::1],
    ends: cython.const_longlong[::1],
    there: cython.const_uchar[::1],
    valid: buffers.Bytes,
    kind: pa.DataType,
) -> pa.Array:
    """Read a text column; ``there`` is a view of ``valid``."""
    starts = np.zeros(len(there) + 1, np.int32)
    limits: cython.int[::1] = buffers.view(starts)
    total: cython.longlong = _take_lengths(data, cursor, ends, there, limits)
    if total < 0:
        raise ValueError(_CORRUPT)
    if total > buffers.TEXT_BYTES_MAX:
        message = "too many bytes for one text column"
        raise ValueError(message)
    content = np.empty(total, np.uint8)
    _take_bytes(data, cursor, limits, buffers.view(content))
    return buffers.make_text(starts, content, valid, kind)


@cython.cfunc
@cython.exceptval(check=False)
def _take_lengths(
    data: cython.const_uchar[::1],
    cursor: cython.longlong[::1],
    ends: cython.const_longlong[::1],
    valid: cython.const_uchar[::1],
    starts: cython.int[::1],
) -> cython.longlong:
    """Read the varints and fill ``starts``; return the bytes needed, or -1 if malformed."""
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    total: cython.longlong = 0
    for i in range(n):
        if valid[i]:
            p: cython.Py_ssize_t = cursor[i]
            length: cython.longlong = 0
            shift: cython.int = 0
            while True:
                if p >= ends[i + 1] or shift > 28:
                    return -1
                c: cython.longlong = data[p]
                p += 1
                length |= (c & 127) << shift
                if c < 128:
                    break
                shift += 7
            if length > ends[i + 1] - p:
                return -1
            cursor[i] = p
            total += length
            if total > 2147483647:
                return total
        starts[i + 1] = total
    return total


@cython.cfunc
@cython.exceptval(check=False)
def _take_bytes(
    data: cython.const_uchar[::1],
    cursor: cython.longlong[::1],
    starts: cython.const_int[::1],
    out: cython.uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(cursor)
    for i in range(n):
        p: cython.Py_ssize_t = cursor[i]
        q: cython.Py_ssize_t = starts[i]
        end: cython.Py_ssize_t = starts[i + 1]
        while q < end:
            out[q] = data[p]
            q += 1
            p += 1
        cursor[i] = p
