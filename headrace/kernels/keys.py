# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# The decorators give C types to Cython, the annotations types to mypy (which sees Any there).
"""Canonical, order-preserving keys: one byte string per row, compared as Postgres compares.

Per column a marker byte (0 value, 1 NULL, so NULL sorts last), then the value in a form that is
prefix-free and whose byte order is Postgres' ascending order.  Keys are written column by
column into one buffer, with one write position per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cython
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels import buffers, intervals
from headrace.kernels.buffers import Int64s
from headrace.types import BPCHAR, INTERVAL, JSONB, NUMERIC

_NUMERICS, _STRINGS, _FLOATS = 0, 1, 2
_DECIMALS = {
    JSONB: _STRINGS,
    **dict.fromkeys((1231, 3906, 3907, 4532), _NUMERICS),
    **dict.fromkeys((1021, 1022), _FLOATS),
}
"""Texts with numbers in them: jsonb (which has strings too); numeric[], numrange, numrange[] and
nummultirange; float4[] and float8[]."""


def encode_keys(
    columns: Sequence[pa.Array], oids: Sequence[int], *, nulls: bool
) -> list[bytes | None]:
    """Canonical key of each row: equal keys = equal in Postgres, byte order = ascending order.

    Whole keys are prefix-free.  Integers of all widths share one form, as do float4 and float8;
    numerics ignore their scale, bpchar its trailing blanks; intervals are compared as Postgres
    does (a month is 30 days, a day 24 hours); NaN is greatest and all NaN are equal; -0.0 is
    0.0.  All other types: their text, bytewise.  NULLs are equal to each other and sort last;
    with ``nulls=False`` a row with any NULL has no key (None).  Raises ValueError for
    text that is not a value of its type, and without columns.

    Arrays and ranges of numbers, and jsonb, equal each other whatever the scale of the numbers in
    them (1.0 and 1.00, in a float array -0 and 0); the order of such keys means nothing.
    """
    n = buffers.row_count(columns)
    sizes = np.full(n, len(columns), np.int64)
    parts = []
    for column, oid in zip(columns, oids, strict=True):
        content, starts = _key_content(column, oid)
        valid = buffers.validity(column)
        _size_key(buffers.view(starts), buffers.view(valid), buffers.view(sizes))
        parts.append((content, starts, valid))
    bounds = buffers.bounds(sizes)
    out = np.empty(int(bounds[n]), np.uint8)
    at = bounds[:n].copy()
    view, cursor = buffers.view(out), buffers.view(at)
    for content, starts, valid in parts:
        _put_key(view, cursor, buffers.view(content), buffers.view(starts), buffers.view(valid))
    keys: list[bytes | None] = list(buffers.cut(out.tobytes(), buffers.view(bounds)))
    if not nulls:
        for column in columns:
            if column.null_count:
                for index in np.flatnonzero(buffers.validity(column) == 0).tolist():
                    keys[index] = None
    return keys


def _key_content(column: pa.Array, oid: int) -> tuple[buffers.Bytes, Int64s]:
    """Per row the key bytes of one column, without marker: contents and n + 1 bounds."""
    n = len(column)
    if not buffers.is_text(column.type):
        return _key_fixed(buffers.values(column))
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


def _key_fixed(values: npt.NDArray[Any]) -> tuple[buffers.Bytes, Int64s]:
    n = len(values)
    sign = np.uint64(1 << 63)
    width = 8
    if values.dtype == np.uint8:  # bool
        width = 1
        content = values
    elif values.dtype.kind == "f":
        floats = values.astype(np.float64) + 0.0  # -0.0 + 0.0 = 0.0
        floats[np.isnan(floats)] = np.nan
        bits = floats.view(np.uint64)
        bits = np.where(bits & sign, ~bits, bits | sign)
        content = bits.astype(">u8").view(np.uint8)
    else:
        bits = values.astype(np.int64).view(np.uint64) ^ sign
        content = bits.astype(">u8").view(np.uint8)
    return content, np.arange(0, (n + 1) * width, width, dtype=np.int64)


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.void)
@cython.locals(
    starts=cython.const_longlong[::1],
    valid=cython.const_uchar[::1],
    sizes=cython.longlong[::1],
    i=cython.Py_ssize_t,
)
def _size_key(starts: memoryview, valid: memoryview, sizes: memoryview) -> None:
    for i in range(len(valid)):
        if valid[i]:
            sizes[i] += starts[i + 1] - starts[i]


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.void)
@cython.locals(
    out=cython.uchar[::1],
    cursor=cython.longlong[::1],
    data=cython.const_uchar[::1],
    starts=cython.const_longlong[::1],
    valid=cython.const_uchar[::1],
    i=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
    q=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
)
def _put_key(
    out: memoryview, cursor: memoryview, data: memoryview, starts: memoryview, valid: memoryview
) -> None:
    n = len(valid)
    for i in range(n):
        p = cursor[i]
        out[p] = 0 if valid[i] else 1
        p += 1
        if valid[i]:
            q = starts[i]
            end = starts[i + 1]
            while q < end:
                out[p] = data[q]
                p += 1
                q += 1
        cursor[i] = p


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.Py_ssize_t)
@cython.locals(
    data=cython.const_uchar[::1],
    offsets=cython.const_int[::1],
    valid=cython.const_uchar[::1],
    out=cython.uchar[::1],
    starts=cython.longlong[::1],
    padded=cython.bint,
    i=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
    q=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
    c=cython.uchar,
)
def _key_texts(
    data: memoryview,
    offsets: memoryview,
    valid: memoryview,
    out: memoryview,
    starts: memoryview,
    padded: bool,
) -> int:
    """Bytes and a 0x00; a 0x00 or 0x01 inside becomes 0x01 0x01 or 0x01 0x02."""
    n = len(valid)
    p = 0
    for i in range(n):
        starts[i] = p
        if not valid[i]:
            continue
        q = offsets[i]
        end = offsets[i + 1]
        if padded:
            while end > q and data[end - 1] == 32:
                end -= 1
        while q < end:
            c = data[q]
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
@cython.returns(cython.Py_ssize_t)
@cython.locals(
    data=cython.const_uchar[::1],
    offsets=cython.const_int[::1],
    valid=cython.const_uchar[::1],
    out=cython.uchar[::1],
    starts=cython.longlong[::1],
    mode=cython.int,
    i=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
    q=cython.Py_ssize_t,
    j=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
    c=cython.uchar,
    string=cython.bint,
    escaped=cython.bint,
    end_of_fraction=cython.Py_ssize_t,
)
def _key_decimals(
    data: memoryview,
    offsets: memoryview,
    valid: memoryview,
    out: memoryview,
    starts: memoryview,
    mode: int,
) -> int:
    """Texts as in ``_key_texts``, without zeros at the end of a fraction outside of strings.

    In mode 2 (floats) the sign of a zero goes instead.
    """
    n = len(valid)
    p = 0
    for i in range(n):
        starts[i] = p
        if not valid[i]:
            continue
        q = offsets[i]
        end = offsets[i + 1]
        string = False
        escaped = False
        while q < end:
            c = data[q]
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
                j = q
                while j < end and 48 <= data[j] <= 57:
                    j += 1
                if q < j:
                    end_of_fraction = j
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
@cython.returns(cython.Py_ssize_t)
@cython.locals(
    data=cython.const_uchar[::1],
    offsets=cython.const_int[::1],
    valid=cython.const_uchar[::1],
    out=cython.uchar[::1],
    starts=cython.longlong[::1],
    i=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
)
def _key_numerics(
    data: memoryview, offsets: memoryview, valid: memoryview, out: memoryview, starts: memoryview
) -> int:
    n = len(valid)
    p = 0
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
@cython.returns(cython.Py_ssize_t)
@cython.locals(
    data=cython.const_uchar[::1],
    out=cython.uchar[::1],
    q=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
    point=cython.Py_ssize_t,
    j=cython.Py_ssize_t,
    digits=cython.Py_ssize_t,
    negative=cython.bint,
)
def _key_numeric(data: memoryview, q: int, end: int, out: memoryview, p: int) -> int:
    """Write the key of one numeric at ``p``; the new position, or -1 if malformed.

    Sign class, then for numbers 0.d1d2d3... * 10**exponent (d1 > 0): the exponent, digits in
    pairs, each plus one, and a 0x00; complemented for negative numbers.
    """
    if q == end:
        return -1
    negative = data[q] == 45
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
    point = end
    digits = 0
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
@cython.returns(cython.Py_ssize_t)
@cython.locals(
    data=cython.const_uchar[::1],
    out=cython.uchar[::1],
    q=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
    point=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
    flip=cython.int,
    exponent=cython.longlong,
    pair=cython.int,
    half=cython.bint,
)
def _key_digits(
    data: memoryview, q: int, end: int, point: int, out: memoryview, p: int, flip: int
) -> int:
    """Exponent and digits of the number whose first non-zero digit is at ``q``."""
    exponent = point - q if point > q else point - q + 1
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
    pair = 0
    half = False
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
