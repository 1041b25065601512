# cython: language_level=3, boundscheck=False, wraparound=False
"""Canonical, order-preserving keys: one byte string per row, compared as Postgres compares.

Per column a marker byte (0 value, 1 NULL, so NULL sorts last), then the value in a form that is
prefix-free and whose byte order is Postgres' ascending order.  Keys are written column by
column into one buffer, with one write position per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels import buffers, intervals, structures
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Nullable, Packed
from headrace.types import BPCHAR, INTERVAL, JSONB, NUMERIC

if cython.compiled:
    from cython.cimports.headrace.kernels.buffers import size_fixed
    from cython.cimports.headrace.kernels.hashes import fnv
else:
    from headrace.kernels.buffers import size_fixed
    from headrace.kernels.hashes import fnv

_SIGN = np.int64(-(1 << 63))
_NUMERICS, _STRINGS, _FLOATS = 0, 1, 2
_DECIMALS = {
    JSONB: _STRINGS,
    **dict.fromkeys((1231, 3906, 3907, 4532), _NUMERICS),
    **dict.fromkeys((1021, 1022), _FLOATS),
}
"""Types whose text contains numbers: jsonb (with strings, too); numeric[], numrange, numrange[]
and nummultirange; float4[] and float8[]."""


def encode_keys(
    columns: Sequence[pa.Array], oids: Sequence[int], *, nulls: bool
) -> list[bytes | None]:
    """Return the canonical key of each row.

    Keys are equal if the rows are equal in Postgres; their byte order is Postgres' ascending order.
    Whole keys are prefix-free.  Integers of all widths share one form, as do float4 and float8.
    Numerics ignore their scale, bpchar its trailing blanks.  In intervals, as in Postgres, a month
    is 30 days and a day 24 hours.  NaN is greatest and all NaN are equal; -0.0 is 0.0.  All other
    types: their text, bytewise.  NULLs are equal to each other and sort last; with ``nulls=False``
    a row with any NULL has no key (None).  Raises ValueError for text that is not a value of its
    type, and without columns.

    In arrays and ranges of numbers, and jsonb, the scale of numbers is ignored (1.0 and 1.00, in a
    float array -0 and 0).  The order of such keys is arbitrary.
    """
    keys: list[bytes | None] = [*pack_keys(columns, oids).strings()]
    if not nulls:
        for index in np.flatnonzero(whole(columns) == 0).tolist():
            keys[index] = None
    return keys


def pack_keys(columns: Sequence[pa.Array], oids: Sequence[int]) -> Packed:
    """Return the keys of ``encode_keys`` packed; NULLs are equal."""
    joined, bounds = _encoded(columns, oids)
    return Packed(np.frombuffer(joined, np.uint8), bounds)


def whole(columns: Sequence[pa.Array]) -> buffers.Bytes:
    """Return one byte per row: 1 if no column is NULL there."""
    some = [buffers.validity(column) for column in columns if column.null_count]
    if not some:
        return buffers.all_valid(buffers.row_count(columns))
    return np.minimum.reduce(some) if len(some) > 1 else some[0]


@cython.cfunc
def _encoded(columns: Sequence[pa.Array], oids: Sequence[int]) -> tuple[bytearray, Int64s]:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = buffers.row_count(columns)
    parts = [_part(column, oid) for column, oid in zip(columns, oids, strict=True)]
    every: cython.const_uchar[::1] = buffers.view(buffers.all_valid(n))
    bounds = np.empty(n + 1, np.int64)
    limits: cython.longlong[::1] = buffers.view(bounds)
    # Fixed-width columns without NULLs take the same bytes in every row.
    size: cython.longlong = len(columns) + sum(
        [width for _, _, some, width in parts if some is None]
    )
    limits[0] = 0
    for i in range(n):
        limits[i + 1] = size
    for _, starts, some, width in parts:
        if some is not None:
            valid: cython.const_uchar[::1] = some
        elif starts is not None:
            valid = every
        else:
            continue
        if starts is None:
            size_fixed(valid, limits, width)
        else:
            _size_key(starts, valid, limits)
    cursor: cython.longlong[::1] = buffers.view(np.empty(n, np.int64))
    for i in range(n):
        cursor[i] = limits[i]
        limits[i + 1] += limits[i]
    joined = bytearray(limits[n])
    out: cython.uchar[::1] = joined
    for content, starts, some, width in parts:
        if some is None:
            valid = every
        else:
            valid = some
        if starts is not None:
            _put_key(out, cursor, content, starts, valid)
        elif width == 1:
            _put_bools(out, cursor, content, valid)
        else:
            _put_eights(out, cursor, content, valid)
    return joined, bounds


def divide(keys: Nullable, count: int) -> npt.NDArray[np.int32]:
    """Return one of ``count`` numbers for each key, the same in every process; -1 for None."""
    out = np.empty(len(keys), np.int32)
    _divide(
        buffers.view(keys.data),
        buffers.view(keys.bounds),
        buffers.view(keys.valid),
        count,
        buffers.view(out),
    )
    return out


@cython.cfunc
@cython.exceptval(-1, check=False)
def _divide(
    data: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    valid: cython.const_uchar[::1],
    count: cython.ulonglong,
    out: cython.int[::1],
) -> cython.int:
    """Divide by the hash of the keys, folded."""
    i: cython.Py_ssize_t
    source: cython.p_const_uchar = cython.address(data[0]) if cython.compiled else data
    for i in range(len(out)):
        if not valid[i]:
            out[i] = -1
            continue
        h: cython.ulonglong = fnv(source, bounds[i], bounds[i + 1])
        out[i] = (h ^ (h >> 15)) % count
    return 0


_Part = tuple[memoryview, memoryview | None, memoryview | None, int]
"""A column: content, bounds, validity, width.  Content is bools (width 1), numbers that sort as
their bits (width 8), or bytes, which have bounds; validity is None without NULLs."""


def _part(column: pa.Array, oid: int) -> _Part:
    some = buffers.view(buffers.validity(column)) if column.null_count else None
    if buffers.is_text(column.type):
        content, starts = _key_content(column, oid)
        return buffers.view(content), buffers.view(starts), some, 0
    values = buffers.values(column)
    if values.dtype == np.uint8:
        return buffers.view(values), None, some, 1
    if values.dtype.kind == "f":
        floats = values.astype(np.float64) + 0.0  # -0.0 + 0.0 = 0.0
        floats[np.isnan(floats)] = np.nan
        bits = floats.view(np.int64)
        values = np.where(bits < 0, ~bits ^ _SIGN, bits)
    return buffers.view(values.astype(np.int64, copy=False)), None, some, 8


def _key_content(column: pa.Array, oid: int) -> tuple[buffers.Bytes, Int64s]:
    """Return the key bytes of a text column, without markers: contents and n + 1 bounds."""
    if oid in structures.FORMS:
        return structures.contents(column, structures.FORMS[oid], encode_keys)
    n = len(column)
    data = buffers.view(buffers.data(column))
    offsets = buffers.offsets(column)
    valid = buffers.view(buffers.validity(column))
    starts = np.zeros(n + 1, np.int64)
    total = int(offsets[n]) - int(offsets[0])
    limits = buffers.view(offsets)
    if oid == NUMERIC:
        out = np.empty(total + 8 * n, np.uint8)
        used = _key_numerics(data, limits, valid, buffers.view(out), buffers.view(starts))
    elif oid in _DECIMALS:
        out = np.empty(2 * total + n, np.uint8)
        used = _key_decimals(
            data, limits, valid, buffers.view(out), buffers.view(starts), _DECIMALS[oid]
        )
    elif oid == INTERVAL:
        out = np.empty(13 * n, np.uint8)
        used = intervals.key_contents(data, limits, valid, buffers.view(out), buffers.view(starts))
    else:
        out = np.empty(2 * total + n, np.uint8)
        padded = oid == BPCHAR
        used = _key_texts(data, limits, valid, buffers.view(out), buffers.view(starts), padded)
    if used < 0:
        message = f"malformed text for a column of type OID {oid}"
        raise ValueError(message)
    return out[:used], starts


@cython.cfunc
@cython.exceptval(check=False)
def _size_key(
    starts: cython.const_longlong[::1], valid: cython.const_uchar[::1], sizes: cython.longlong[::1]
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(len(valid)):
        if valid[i]:
            sizes[i + 1] += starts[i + 1] - starts[i]


@cython.cfunc
@cython.exceptval(check=False)
def _put_bools(
    out: cython.uchar[::1],
    cursor: cython.longlong[::1],
    data: cython.const_uchar[::1],
    valid: cython.const_uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(len(cursor)):
        p: cython.Py_ssize_t = cursor[i]
        out[p] = 0 if valid[i] else 1
        p += 1
        if valid[i]:
            out[p] = data[i]
            p += 1
        cursor[i] = p


@cython.cfunc
@cython.exceptval(check=False)
def _put_eights(
    out: cython.uchar[::1],
    cursor: cython.longlong[::1],
    data: cython.const_longlong[::1],
    valid: cython.const_uchar[::1],
) -> cython.void:
    """Write numbers big-endian with inverted sign bit, so that negative ones come first."""
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    for i in range(len(cursor)):
        p: cython.Py_ssize_t = cursor[i]
        out[p] = 0 if valid[i] else 1
        p += 1
        if valid[i]:
            bits: cython.longlong = data[i]
            out[p] = ((bits >> 56) & 255) ^ 128
            for j in range(1, 8):
                out[p + j] = (bits >> (56 - 8 * j)) & 255
            p += 8
        cursor[i] = p


@cython.cfunc
@cython.exceptval(check=False)
def _put_key(
    out: cython.uchar[::1],
    cursor: cython.longlong[::1],
    data: cython.const_uchar[::1],
    starts: cython.const_longlong[::1],
    valid: cython.const_uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    for i in range(n):
        p: cython.Py_ssize_t = cursor[i]
        out[p] = 0 if valid[i] else 1
        p += 1
        if valid[i]:
            q: cython.Py_ssize_t = starts[i]
            end: cython.Py_ssize_t = starts[i + 1]
            while q < end:
                out[p] = data[q]
                p += 1
                q += 1
        cursor[i] = p


@cython.cfunc
@cython.exceptval(check=False)
def _key_texts(
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    valid: cython.const_uchar[::1],
    out: cython.uchar[::1],
    starts: cython.longlong[::1],
    padded: cython.bint,
) -> cython.Py_ssize_t:
    """Write texts, each ended by 0x00; 0x00 and 0x01 in it become 0x01 0x01 and 0x01 0x02."""
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    p: cython.Py_ssize_t = 0
    for i in range(n):
        starts[i] = p
        if not valid[i]:
            continue
        q: cython.Py_ssize_t = offsets[i]
        end: cython.Py_ssize_t = offsets[i + 1]
        if padded:
            while end > q and data[end - 1] == 32:
                end -= 1
        while q < end:
            c: cython.uchar = data[q]
            q += 1
            if c <= 1:
                out[p] = 1
                p += 1
                c += 1
            out[p] = c
            p += 1
        out[p] = 0
        p += 1
    starts[n] = p
    return p


@cython.cfunc
@cython.exceptval(check=False)
def _key_decimals(
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    valid: cython.const_uchar[::1],
    out: cython.uchar[::1],
    starts: cython.longlong[::1],
    mode: cython.int,
) -> cython.Py_ssize_t:
    """Write texts as ``_key_texts`` does, without trailing zeros of fractions outside of strings.

    In mode 2 (floats) the sign of a zero is removed instead.
    """
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    p: cython.Py_ssize_t = 0
    for i in range(n):
        starts[i] = p
        if not valid[i]:
            continue
        q: cython.Py_ssize_t = offsets[i]
        end: cython.Py_ssize_t = offsets[i + 1]
        string: cython.bint = False
        escaped: cython.bint = False
        while q < end:
            c: cython.uchar = data[q]
            q += 1
            if string:
                if escaped:
                    escaped = False
                elif c == 92:
                    escaped = True
                elif c == 34:
                    string = False
            elif c == 34 and mode == 1:
                string = True
            elif c == 46 and mode != 2:
                j: cython.Py_ssize_t = q
                while j < end and 48 <= data[j] <= 57:
                    j += 1
                if q < j:
                    end_of_fraction: cython.Py_ssize_t = j
                    while end_of_fraction > q and data[end_of_fraction - 1] == 48:
                        end_of_fraction -= 1
                    if end_of_fraction > q:
                        out[p] = 46
                        p += 1
                        while q < end_of_fraction:
                            out[p] = data[q]
                            p += 1
                            q += 1
                    q = j
                    continue
            elif (
                c == 45
                and mode == 2
                and q < end
                and data[q] == 48
                and (q + 1 == end or data[q + 1] == 44 or data[q + 1] == 125)
            ):
                continue
            if c <= 1:
                out[p] = 1
                p += 1
                c += 1
            out[p] = c
            p += 1
        out[p] = 0
        p += 1
    starts[n] = p
    return p


@cython.cfunc
@cython.exceptval(check=False)
def _key_numerics(
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    valid: cython.const_uchar[::1],
    out: cython.uchar[::1],
    starts: cython.longlong[::1],
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    p: cython.Py_ssize_t = 0
    for i in range(n):
        starts[i] = p
        if valid[i]:
            p = _key_numeric(data, offsets[i], offsets[i + 1], out, p)
            if p < 0:
                return -1
    starts[n] = p
    return p


@cython.cfunc
@cython.exceptval(check=False)
def _key_numeric(
    data: cython.const_uchar[::1],
    q: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.uchar[::1],
    p: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write the key of one numeric at ``p``; return the new position, or -1 if malformed.

    Sign class, then for numbers 0.d1d2d3... * 10**exponent (d1 > 0): the exponent, digits in
    pairs, each plus one, and a 0x00; complemented for negative numbers.
    """
    j: cython.Py_ssize_t
    if q == end:
        return -1
    negative: cython.bint = data[q] == 45
    if negative:
        q += 1
    if q < end and (data[q] == 78 or data[q] == 73):  # NaN, Infinity
        if data[q] == 78:
            if negative or end - q != 3:
                return -1
            out[p] = 5
        else:
            if end - q != 8:
                return -1
            out[p] = 0 if negative else 4
        return p + 1
    point: cython.Py_ssize_t = end
    digits: cython.Py_ssize_t = 0
    for j in range(q, end):
        if data[j] == 46 and point == end:
            point = j
        elif data[j] < 48 or data[j] > 57:
            return -1
        else:
            digits += 1
    if digits == 0:
        return -1
    while q < end and (data[q] == 48 or data[q] == 46):
        q += 1
    if q == end:
        out[p] = 2
        return p + 1
    out[p] = 1 if negative else 3
    return _key_digits(data, q, end, point, out, p + 1, 255 if negative else 0)


@cython.cfunc
@cython.exceptval(check=False)
def _key_digits(
    data: cython.const_uchar[::1],
    q: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    point: cython.Py_ssize_t,
    out: cython.uchar[::1],
    p: cython.Py_ssize_t,
    flip: cython.int,
) -> cython.Py_ssize_t:
    """Write exponent and digits of the number whose first non-zero digit is at ``q``."""
    exponent: cython.longlong = point - q if point > q else point - q + 1
    if -127 <= exponent <= 126:
        out[p] = (exponent + 128) ^ flip
        p += 1
    else:
        out[p] = (0 if exponent < 0 else 255) ^ flip
        exponent += 8388608
        out[p + 1] = ((exponent >> 16) & 255) ^ flip
        out[p + 2] = ((exponent >> 8) & 255) ^ flip
        out[p + 3] = (exponent & 255) ^ flip
        p += 4
    while end > q and (data[end - 1] == 48 or data[end - 1] == 46):
        end -= 1
    pair: cython.int = 0
    half: cython.bint = False
    while q < end:
        if data[q] != 46:
            if half:
                out[p] = (pair * 10 + data[q] - 48 + 1) ^ flip
                p += 1
                half = False
            else:
                pair = data[q] - 48
                half = True
        q += 1
    if half:
        out[p] = (pair * 10 + 1) ^ flip
        p += 1
    out[p] = flip
    return p + 1
