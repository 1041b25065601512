# cython: language_level=3, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# C types are annotations, which mypy sees as Any.
"""Keys of intervals, in the order of Postgres' interval_cmp: a month is 30 days, a day 24 hours."""

from __future__ import annotations

import cython

# Declared, because Cython treats a literal of more than 32 bits as a Python object.
_GREATEST = cython.declare(cython.longlong, 9223372036854775807)
_DAY = cython.declare(cython.longlong, 86400000000)
_HOUR = cython.declare(cython.longlong, 3600000000)
_HOURS_MAX = cython.declare(cython.longlong, 2562047788)


def key_contents(
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    valid: cython.const_uchar[::1],
    out: cython.uchar[::1],
    starts: cython.longlong[::1],
) -> int:
    """Write a column's keys, 13 bytes each; return the bytes used, or -1 if a text is malformed."""
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    p: cython.Py_ssize_t = 0
    for i in range(n):
        starts[i] = p
        if valid[i]:
            if not _key_interval(data, offsets[i], offsets[i + 1], out, p):
                return -1
            p += 13
    starts[n] = p
    return p


@cython.cfunc
@cython.exceptval(check=False)
def _key_interval(
    data: cython.const_uchar[::1],
    q: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: cython.uchar[::1],
    p: cython.Py_ssize_t,
) -> cython.bint:
    """Write the key of one interval (IntervalStyle postgres) at ``p``; False if malformed.

    Eight bytes of whole days and five of the remaining microseconds, as in Postgres' interval_cmp.
    """
    days: cython.longlong = 0
    micros: cython.longlong = 0
    if q == end:
        return False
    if data[end - 1] == 121 and _infinite(data, q, end):
        _put_interval(out, p, -_GREATEST if data[q] == 45 else _GREATEST, 0)
        return True
    while q < end:
        negative: cython.bint = data[q] == 45
        if negative or data[q] == 43:
            q += 1
        start: cython.Py_ssize_t = q
        value: cython.longlong = 0
        while q < end and 48 <= data[q] <= 57:
            if q - start > 9:
                return False
            value = value * 10 + data[q] - 48
            q += 1
        if q in (start, end):
            return False
        if data[q] == 58:
            if not _clock_good(data, q, end) or value > _HOURS_MAX:
                return False
            micros = _clock(data, q, end, value)  # negated, for the least int64
            if not negative:
                micros = -micros
            break
        unit: cython.int = data[q + 1] if data[q] == 32 and q + 1 < end else 0
        if unit == 121:
            value *= 360
        elif unit == 109:
            value *= 30
        elif unit != 100:
            return False
        days += -value if negative else value
        q += 1
        while q < end and data[q] != 32:
            q += 1
        q += 1
    days += micros // _DAY
    _put_interval(out, p, days, micros % _DAY)
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _infinite(
    data: cython.const_uchar[::1], q: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Return whether the text is ``infinity`` or ``-infinity`` (Postgres 17 and later).

    Finite intervals end in ``y`` too: ``1 mon 1 day``.
    """
    word: cython.const_uchar[::1] = b"infinity"
    if data[q] == 45:
        q += 1
    if end - q != 8:
        return False
    j: cython.Py_ssize_t = 0
    while j < 8 and data[q + j] == word[j]:
        j += 1
    return j == 8


@cython.cfunc
@cython.exceptval(check=False)
def _clock_good(
    data: cython.const_uchar[::1], q: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Return whether the text from ``q`` to the end is ``:MM:SS[.f{1,6}]``."""
    j: cython.Py_ssize_t
    if end - q != 6 and (end - q < 8 or end - q > 13):
        return False
    for j in range(q, end):
        if j - q == 0 or j - q == 3:
            if data[j] != 58:
                return False
        elif j - q == 6:
            if data[j] != 46:
                return False
        elif data[j] < 48 or data[j] > 57:
            return False
    return data[q + 1] < 54 and data[q + 4] < 54


@cython.cfunc
@cython.exceptval(check=False)
def _clock(
    data: cython.const_uchar[::1],
    q: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    hours: cython.longlong,
) -> cython.longlong:
    """Return the negated microseconds of ``hours`` and the valid clock text at ``q``."""
    total: cython.longlong = -_HOUR * hours
    # NB: use a 64-bit variable; bytes times a constant would be a 32-bit product.
    part: cython.longlong = (data[q + 1] - 48) * 10 + data[q + 2] - 48
    total -= 60000000 * part
    part = (data[q + 4] - 48) * 10 + data[q + 5] - 48
    total -= 1000000 * part
    scale: cython.longlong = 100000
    q += 7
    while q < end:
        total -= scale * (data[q] - 48)
        scale //= 10
        q += 1
    return total


@cython.cfunc
@cython.exceptval(check=False)
def _put_interval(
    out: cython.uchar[::1], p: cython.Py_ssize_t, days: cython.longlong, micros: cython.longlong
) -> cython.void:
    j: cython.int
    for j in range(8):
        out[p + j] = (days >> (56 - 8 * j)) & 255
    out[p] ^= 128
    for j in range(5):
        out[p + 8 + j] = (micros >> (32 - 8 * j)) & 255
