# cython: language_level=3, boundscheck=False, wraparound=False
"""Columns of Postgres numerics as text: exact arithmetic, with Postgres' display scale.

A value is mantissa x 10**-scale.  Values of up to 18 digits are computed in 64-bit integers.
Rows whose operands or result do not fit are computed one by one in Python (``decimals``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cython
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels import buffers, decimals, quotient

if cython.compiled:
    from cython.cimports.headrace.kernels.pointers import (
        bytes_of,
        ints_of,
        new_bytes,
        new_ints,
        new_longs,
    )
else:
    bytes_of = ints_of = new_bytes = new_ints = new_longs = buffers.view

_POWERS = np.array([10**i for i in range(19)], np.int64)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A numeric column as machine integers.

    ``kinds`` per row, as in ``decimals``: ``NULL``, ``SMALL`` (in ``mantissas`` and ``scales``),
    ``BIG`` (only in ``column``), ``NAN``, ``PLUS_INF``, ``MINUS_INF``.
    """

    column: pa.StringArray
    kinds: npt.NDArray[np.uint8]
    mantissas: npt.NDArray[np.int64]
    scales: npt.NDArray[np.int32]


def parse(column: pa.StringArray) -> Parsed:
    """Parse a column of Postgres' numeric texts; ValueError if one is malformed."""
    n = len(column)
    kinds = np.zeros(n, np.uint8)
    mantissas = np.zeros(n, np.int64)
    scales = np.zeros(n, np.int32)
    good = _parse(
        bytes_of(buffers.data(column)),
        ints_of(buffers.offsets(column)),
        bytes_of(buffers.validity(column)),
        n,
        new_bytes(kinds),
        new_longs(mantissas),
        new_ints(scales),
    )
    if not good:
        raise ValueError("malformed text for a column of type numeric")
    return Parsed(column, kinds, mantissas, scales)


@cython.cfunc
@cython.exceptval(check=False)
def _parse(
    data: cython.p_const_uchar,
    offsets: cython.p_int,
    valid: cython.p_const_uchar,
    n: cython.Py_ssize_t,
    kinds: cython.p_uchar,
    mantissas: cython.p_longlong,
    scales: cython.p_int,
) -> cython.bint:
    i: cython.Py_ssize_t
    for i in range(n):
        if not valid[i]:
            continue
        p: cython.Py_ssize_t = offsets[i]
        end: cython.Py_ssize_t = offsets[i + 1]
        if p == end:
            return False
        c: cython.int = data[p]
        if c == 78 or c == 73:  # N, I
            if end - p != (3 if c == 78 else 8):
                return False
            kinds[i] = 3 if c == 78 else 4
            continue
        negative: cython.bint = c == 45
        if negative:
            p += 1
            if p < end and data[p] == 73:
                if end - p != 8:
                    return False
                kinds[i] = 5
                continue
        value: cython.longlong = 0
        point: cython.Py_ssize_t = -1
        digits: cython.Py_ssize_t = 0
        while p < end:
            c = data[p]
            p += 1
            if c == 46 and point < 0:
                point = p
                continue
            if c < 48 or c > 57:
                return False
            if value != 0 or c != 48:
                digits += 1
            if digits <= 18:
                value = value * 10 + (c - 48)
        if end - offsets[i] <= (1 if negative else 0) or point == end:
            return False
        scales[i] = end - point if point >= 0 else 0
        if digits > 18 or scales[i] > 18:
            kinds[i] = 2
        else:
            kinds[i] = 1
            mantissas[i] = -value if negative else value
    return True


def common_scale(parsed: Parsed) -> int | None:
    """Return the scale of a column without NULLs whose values are all ``SMALL`` and of one scale.

    None: it has other values, or none.
    """
    scale: int = _common_scale(buffers.view(parsed.kinds), buffers.view(parsed.scales))
    return None if scale < 0 else scale


@cython.cfunc
@cython.exceptval(check=False)
def _common_scale(kinds: cython.const_uchar[::1], scales: cython.const_int[::1]) -> cython.int:
    i: cython.Py_ssize_t
    for i in range(len(kinds)):
        if kinds[i] != 1 or scales[i] != scales[0]:
            return -1
    return scales[0] if len(kinds) else -1


def render(
    kinds: npt.NDArray[np.uint8], mantissas: npt.NDArray[np.int64], scales: npt.NDArray[np.int32]
) -> pa.StringArray:
    """Return the texts of the ``SMALL`` rows; every other row is NULL."""
    n = len(kinds)
    valid = (kinds == decimals.SMALL).astype(np.uint8)
    # Room for 19 digits, sign, point and a leading zero; or for zeros up to the scale.
    content = np.empty(int((22 + scales[valid == 1]).sum(dtype=np.int64)), np.uint8)
    starts = np.zeros(n + 1, np.int32)
    used = _render(
        buffers.view(valid),
        buffers.view(np.ascontiguousarray(mantissas)),
        buffers.view(np.ascontiguousarray(scales)),
        buffers.view(content),
        buffers.view(starts),
    )
    return buffers.make_text(starts, content[:used], valid, pa.string())


@cython.cfunc
@cython.exceptval(check=False)
def _render(
    valid: cython.const_uchar[::1],
    mantissas: cython.const_longlong[::1],
    scales: cython.const_int[::1],
    content: cython.uchar[::1],
    starts: cython.int[::1],
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    k: cython.int
    n: cython.Py_ssize_t = len(valid)
    p: cython.Py_ssize_t = 0
    for i in range(n):
        starts[i] = p
        if not valid[i]:
            continue
        value: cython.longlong = mantissas[i]
        scale: cython.int = scales[i]
        if value < 0:
            content[p] = 45
            p += 1
            value = -value
        digits: cython.int = 1
        rest: cython.longlong = value // 10
        while rest > 0:
            digits += 1
            rest //= 10
        if digits <= scale:
            digits = scale + 1
        end: cython.Py_ssize_t = p + digits + (1 if scale > 0 else 0)
        q: cython.Py_ssize_t = end
        for k in range(digits):
            if k == scale and scale > 0:
                q -= 1
                content[q] = 46
            q -= 1
            content[q] = 48 + value % 10
            value //= 10
        p = end
    starts[n] = p
    return p


def add(a: pa.StringArray, b: pa.StringArray) -> pa.StringArray:
    """Return ``a + b`` of numeric columns."""
    return _binary(a, b, 0, decimals.plus)


def sub(a: pa.StringArray, b: pa.StringArray) -> pa.StringArray:
    """Return ``a - b`` of numeric columns."""
    return _binary(a, b, 1, decimals.minus)


def mul(a: pa.StringArray, b: pa.StringArray) -> pa.StringArray:
    """Return ``a * b`` of numeric columns."""
    return _binary(a, b, 2, decimals.times)


def div(a: pa.StringArray, b: pa.StringArray) -> pa.StringArray:
    """Return ``a / b`` of numeric columns; ZeroDivisionError."""
    left, right = parse(a), parse(b)
    kinds, out = quotient.divide(
        (left.kinds, left.mantissas, left.scales), (right.kinds, right.mantissas, right.scales)
    )
    slow = bool((kinds == decimals.SLOW).any())
    return _completed(out, kinds, a, b, decimals.divided) if slow else out


def neg(a: pa.StringArray) -> pa.StringArray:
    """Return ``-a`` of a numeric column."""
    parsed = parse(a)
    if _plain(parsed):
        return render(parsed.kinds, -parsed.mantissas, parsed.scales)
    return _each(a, lambda text: decimals.write(decimals.negative(decimals.read(text))))


def absolute(a: pa.StringArray) -> pa.StringArray:
    """Return ``abs(a)`` of a numeric column."""
    return pc.utf8_ltrim(a, characters="-")


def compare(a: pa.StringArray, b: pa.StringArray) -> npt.NDArray[np.int8]:
    """Compare two numeric columns: -1, 0 or 1 per row (0 if a value is NULL)."""
    left, right = parse(a), parse(b)
    out = np.zeros(len(a), np.int8)
    slow = np.zeros(len(a), np.uint8)
    count = _compare(
        buffers.view(left.kinds),
        buffers.view(left.mantissas),
        buffers.view(left.scales),
        buffers.view(right.kinds),
        buffers.view(right.mantissas),
        buffers.view(right.scales),
        buffers.view(_POWERS),
        buffers.view(out),
        buffers.view(slow),
    )
    if count:
        for i in np.flatnonzero(slow).tolist():
            out[i] = decimals.order(*(decimals.read(x[i].as_py()) for x in (a, b)))
    return out


def _plain(parsed: Parsed) -> bool:
    return bool((parsed.kinds <= decimals.SMALL).all())


def _each(a: pa.StringArray, function: Callable[[str], str]) -> pa.StringArray:
    texts = [None if t is None else function(t) for t in a.to_pylist()]
    return pa.array(texts, pa.string())


def _binary(
    a: pa.StringArray,
    b: pa.StringArray,
    op: int,
    slow: Callable[[decimals.Number, decimals.Number], decimals.Number],
) -> pa.StringArray:
    left, right = parse(a), parse(b)
    n = len(a)
    kinds = np.zeros(n, np.uint8)
    mantissas = np.zeros(n, np.int64)
    scales = np.zeros(n, np.int32)
    count = _compute(
        buffers.view(left.kinds),
        buffers.view(left.mantissas),
        buffers.view(left.scales),
        buffers.view(right.kinds),
        buffers.view(right.mantissas),
        buffers.view(right.scales),
        buffers.view(_POWERS),
        op,
        buffers.view(kinds),
        buffers.view(mantissas),
        buffers.view(scales),
    )
    out = render(kinds, mantissas, scales)
    return _completed(out, kinds, a, b, slow) if count else out


def _completed(
    out: pa.StringArray,
    kinds: npt.NDArray[np.uint8],
    a: pa.StringArray,
    b: pa.StringArray,
    slow: Callable[[decimals.Number, decimals.Number], decimals.Number],
) -> pa.StringArray:
    """Return ``out`` with the rows of kind ``SLOW`` computed one by one."""
    mask = kinds == decimals.SLOW
    texts = [
        decimals.write(slow(*(decimals.read(x[i].as_py()) for x in (a, b))))
        for i in np.flatnonzero(mask).tolist()
    ]
    return pc.replace_with_mask(out, pa.array(mask), pa.array(texts, pa.string()))


@cython.cfunc
@cython.exceptval(check=False)
def _compute(
    ka: cython.const_uchar[::1],
    ma: cython.const_longlong[::1],
    sa: cython.const_int[::1],
    kb: cython.const_uchar[::1],
    mb: cython.const_longlong[::1],
    sb: cython.const_int[::1],
    powers: cython.const_longlong[::1],
    op: cython.int,
    kinds: cython.uchar[::1],
    mantissas: cython.longlong[::1],
    scales: cython.int[::1],
) -> cython.Py_ssize_t:
    """Compute the rows that fit into 64 bits; mark the others ``SLOW`` and return their number."""
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(kinds)
    slow: cython.Py_ssize_t = 0
    limit: cython.longlong = 4611686018427387903  # the sum of two of these still fits
    for i in range(n):
        if ka[i] == 0 or kb[i] == 0:
            continue
        kinds[i] = 6
        slow += 1
        if ka[i] != 1 or kb[i] != 1:
            continue
        x: cython.longlong = ma[i]
        y: cython.longlong = mb[i]
        if op == 2:
            if x != 0 and y != 0:
                power: cython.longlong = limit // (x if x > 0 else -x)
                if y > power or y < -power:
                    continue
            mantissas[i] = x * y
            scales[i] = sa[i] + sb[i]
        else:
            if sa[i] < sb[i]:
                power = powers[sb[i] - sa[i]]
                if x > limit // power or x < -(limit // power):
                    continue
                x *= power
                scales[i] = sb[i]
            else:
                power = powers[sa[i] - sb[i]]
                if y > limit // power or y < -(limit // power):
                    continue
                y *= power
                scales[i] = sa[i]
            mantissas[i] = x - y if op == 1 else x + y
        kinds[i] = 1
        slow -= 1
    return slow


@cython.cfunc
@cython.exceptval(check=False)
def _compare(
    ka: cython.const_uchar[::1],
    ma: cython.const_longlong[::1],
    sa: cython.const_int[::1],
    kb: cython.const_uchar[::1],
    mb: cython.const_longlong[::1],
    sb: cython.const_int[::1],
    powers: cython.const_longlong[::1],
    out: cython.char[::1],
    marked: cython.uchar[::1],
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(out)
    slow: cython.Py_ssize_t = 0
    limit: cython.longlong = 4611686018427387903
    for i in range(n):
        if ka[i] == 0 or kb[i] == 0:
            continue
        marked[i] = 1
        slow += 1
        if ka[i] != 1 or kb[i] != 1:
            continue
        x: cython.longlong = ma[i]
        y: cython.longlong = mb[i]
        if sa[i] < sb[i]:
            power: cython.longlong = powers[sb[i] - sa[i]]
            if x > limit // power or x < -(limit // power):
                continue
            x *= power
        else:
            power = powers[sa[i] - sb[i]]
            if y > limit // power or y < -(limit // power):
                continue
            y *= power
        out[i] = 1 if x > y else (-1 if x < y else 0)
        marked[i] = 0
        slow -= 1
    return slow
