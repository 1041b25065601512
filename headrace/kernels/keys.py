# cython: language_level=3, boundscheck=False, wraparound=False
"""Canonical, order-preserving keys: one byte string per row, compared as Postgres compares.

Per column a marker byte (0 value, 1 NULL, so NULL sorts last), then the value in a form that is
prefix-free and whose byte order is Postgres' ascending order.  Text is followed by 0x00, and 0x00
and 0x01 in it become 0x01 0x01 and 0x01 0x02.

``_pack`` is the readable reference; compiled, ``key_codec`` does the same.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import cython
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels import buffers, intervals, packed, structures
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Nullable, Packed
from headrace.types import BPCHAR, INTERVAL, JSONB, NUMERIC

if cython.compiled:
    from cython.cimports.headrace.kernels.hashes import fnv, group_of

    from headrace.kernels import key_codec
else:
    from headrace.kernels.hashes import fnv, group_of

_GROUP_BITS = cython.declare(cython.int, 8)
_GROUPS = cython.declare(cython.ulonglong, 256)
_REST_BITS = cython.declare(cython.int, 22)
_REST = cython.declare(cython.ulonglong, (1 << 22) - 1)
_SIGN, _ONES = 1 << 63, (1 << 64) - 1
_NAN = float("nan")
_NUMERICS, _STRINGS, _FLOATS = 0, 1, 2
_DECIMALS = {
    JSONB: _STRINGS,
    **dict.fromkeys((1231, 3906, 3907, 4532), _NUMERICS),
    **dict.fromkeys((1021, 1022), _FLOATS),
}
"""Types whose text contains numbers: jsonb (with strings, too); numeric[], numrange, numrange[]
and nummultirange; float4[] and float8[]."""
_WRITTEN = frozenset((NUMERIC, INTERVAL, *_DECIMALS, *structures.FORMS))
"""Types of texts whose keys are not the bytes of the texts."""


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
    rows = buffers.row_count(columns)
    contents = [
        _key_content(column, oid) if oid in _WRITTEN else None
        for column, oid in zip(columns, oids, strict=True)
    ]
    padded = [oid == BPCHAR for oid in oids]
    if not cython.compiled:
        return _pack(columns, contents, padded, rows)
    return key_codec.pack(columns, contents, padded, rows)


def whole(columns: Sequence[pa.Array]) -> buffers.Bytes:
    """Return one byte per row: 1 if no column is NULL there."""
    some = [buffers.validity(column) for column in columns if column.null_count]
    if not some:
        return buffers.all_valid(buffers.row_count(columns))
    return np.minimum.reduce(some) if len(some) > 1 else some[0]


def _pack(
    columns: Sequence[pa.Array],
    contents: Sequence[tuple[buffers.Bytes, Int64s] | None],
    padded: Sequence[bool],
    rows: int,
) -> Packed:
    """Do what ``key_codec.pack`` does, value by value."""
    out = [b""] * rows
    for column, ready, blanks in zip(columns, contents, padded, strict=True):
        for row, value in enumerate(column.to_pylist()):
            if value is None:
                out[row] += b"\1"
            elif ready is not None:
                content, starts = ready
                out[row] += b"\0" + content[starts[row] : starts[row + 1]].tobytes()
            else:
                out[row] += b"\0" + _key(value, padded=blanks)
    return packed.pack(out)


def _key(value: Any, *, padded: bool) -> bytes:
    """Return the key bytes of a bool, a number, or a text, which ends with 0x00."""
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, float):
        number = value + 0.0 if value == value else _NAN
        bits = int.from_bytes(struct.pack(">d", number), "big")
        return (bits ^ (_ONES if bits & _SIGN else _SIGN)).to_bytes(8, "big")
    if isinstance(value, int):
        return (value + _SIGN).to_bytes(8, "big")
    content = value.encode() if isinstance(value, str) else value
    if padded:
        content = content.rstrip(b" ")
    return re.sub(rb"[\0\1]", lambda found: bytes([1, found[0][0] + 1]), content) + b"\0"


def divide(keys: Nullable, count: int) -> npt.NDArray[np.int32]:
    """Return one of ``count`` numbers for each key, the same in every process; -1 for None.

    Numbers ascend with the key groups of states (``hashes.group_of``).  The keys of a group have
    one number, or a few consecutive ones if there are more numbers than groups.
    """
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
    i: cython.Py_ssize_t
    at: cython.ulonglong
    source: cython.p_const_uchar = cython.address(data[0]) if cython.compiled else data
    for i in range(len(out)):
        if not valid[i]:
            out[i] = -1
            continue
        h: cython.ulonglong = fnv(source, bounds[i], bounds[i + 1])
        at = group_of(h) << _REST_BITS
        if count > _GROUPS:
            at |= h & _REST
        out[i] = (at * count) >> (_GROUP_BITS + _REST_BITS)
    return 0


def _key_content(column: pa.Array, oid: int) -> tuple[buffers.Bytes, Int64s]:
    """Return the key bytes of a column of a ``_WRITTEN`` type: contents and n + 1 bounds."""
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
    else:
        out = np.empty(13 * n, np.uint8)
        used = intervals.key_contents(data, limits, valid, buffers.view(out), buffers.view(starts))
    if used < 0:
        message = f"malformed text for a column of type OID {oid}"
        raise ValueError(message)
    return out[:used], starts


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
    """Write texts as keys are, without trailing zeros of fractions outside of strings.

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
