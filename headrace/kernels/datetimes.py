# cython: language_level=3, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# C types are annotations, which mypy sees as Any.
"""Dates, times and timestamps: Postgres text to microseconds (days, for a date) and back."""

from __future__ import annotations

from typing import Any

import cython
import numpy.typing as npt

from headrace.kernels import buffers
from headrace.types import DATE, TIME, TIMESTAMP, TIMESTAMPTZ

if cython.compiled:
    from cython.cimports.headrace.kernels.pointers import (
        bytes_of,
        ints_of,
        longs_of,
        new_bytes,
        new_ints,
        new_longs,
    )
else:
    bytes_of = ints_of = longs_of = new_bytes = new_ints = new_longs = buffers.view

# Declared, because Cython treats a literal of more than 32 bits as a Python object.
_GREATEST = cython.declare(cython.longlong, 9223372036854775807)
_LEAST = cython.declare(cython.longlong, -9223372036854775808)
_BAD = cython.declare(cython.longlong, -9223372036854775807)  # no timestamp has this value
_DATE_LEAST = cython.declare(cython.longlong, -2147483648)
_DAY = cython.declare(cython.longlong, 86400000000)

KINDS = {DATE: 0, TIMESTAMP: 1, TIMESTAMPTZ: 2, TIME: 3}


def parse(
    content: buffers.Bytes,
    limits: buffers.Offsets,
    there: buffers.Bytes,
    values: npt.NDArray[Any],
    kind: cython.int,
) -> bool:
    """Parse all rows into ``values``, of 64 bits; return whether each is well formed.

    ``kind``: as in ``KINDS``.
    """
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(values)
    data: cython.p_const_uchar = bytes_of(content)
    offsets: cython.p_int = ints_of(limits)
    valid: cython.p_const_uchar = bytes_of(there)
    out: cython.p_longlong = new_longs(values)
    for i in range(n):
        if valid[i] and not read(data, offsets[i], offsets[i + 1], kind, out, i):
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read(
    data: cython.p_const_uchar,
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    kind: cython.int,
    out: cython.p_longlong,
    i: cython.Py_ssize_t,
) -> cython.bint:
    """Set ``out[i]`` to the value between ``p`` and ``end``; return whether it is well formed."""
    if kind == 3:
        value: cython.longlong = _read_time(data, p, end)
    else:
        value = _read_timestamp(data, p, end, kind)
    if value == _BAD:
        return False
    out[i] = value
    return True


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _two(data: cython.p_const_uchar, p: cython.Py_ssize_t) -> cython.int:
    """Read the two digits at ``p``; -1 if malformed.  REQUIRES: both bytes exist."""
    a: cython.int = data[p] - 48
    b: cython.int = data[p + 1] - 48
    if a < 0 or a > 9 or b < 0 or b > 9:
        return -1
    return a * 10 + b


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_time(
    data: cython.p_const_uchar, p: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.longlong:
    """Read ``HH:MM:SS[.f{1,6}]`` as microseconds; ``_BAD`` if malformed."""
    if end - p < 8 or data[p + 2] != 58 or data[p + 5] != 58:
        return _BAD
    hour: cython.int = _two(data, p)
    minute: cython.int = _two(data, p + 3)
    second: cython.int = _two(data, p + 6)
    if hour < 0 or hour > 24 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return _BAD
    micros: cython.longlong = 0
    p += 8
    if p < end:
        if data[p] != 46 or end - p < 2 or end - p > 7:
            return _BAD
        scale: cython.longlong = 100000
        p += 1
        while p < end:
            digit: cython.int = data[p] - 48
            if digit < 0 or digit > 9:
                return _BAD
            micros += digit * scale
            scale //= 10
            p += 1
    micros += ((hour * 60 + minute) * 60 + second) * cython.cast(cython.longlong, 1000000)
    if micros > _DAY:
        return _BAD
    return micros


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_infinity(
    data: cython.p_const_uchar, p: cython.Py_ssize_t, end: cython.Py_ssize_t, kind: cython.int
) -> cython.longlong:
    """Read ``infinity`` or ``-infinity`` at ``p``; ``_BAD`` otherwise."""
    length: cython.Py_ssize_t = end - p
    if data[p] == 45:
        if length == 9 and data[p + 1] == 105 and data[end - 1] == 121:
            return _DATE_LEAST if kind == 0 else _LEAST
    elif length == 8 and data[p] == 105 and data[end - 1] == 121:
        return 2147483647 if kind == 0 else _GREATEST
    return _BAD


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_timestamp(
    data: cython.p_const_uchar, p: cython.Py_ssize_t, end: cython.Py_ssize_t, kind: cython.int
) -> cython.longlong:
    """Read a date as days or a timestamp as microseconds; ``_BAD`` if malformed."""
    if end - p < 8:
        return _BAD
    if data[p] == 105 or data[p] == 45:
        return _read_infinity(data, p, end, kind)
    bc: cython.bint = data[end - 1] == 67
    if bc:  # " BC"
        if data[end - 2] != 66 or data[end - 3] != 32:
            return _BAD
        end -= 3
    start: cython.Py_ssize_t = p
    year: cython.longlong = 0
    while p < end and data[p] != 45:
        digit: cython.int = data[p] - 48
        if digit < 0 or digit > 9 or p - start > 6:
            return _BAD
        year = year * 10 + digit
        p += 1
    if p - start < 4 or year == 0 or end - p < 6 or data[p + 3] != 45:
        return _BAD
    month: cython.int = _two(data, p + 1)
    day: cython.int = _two(data, p + 4)
    p += 6
    if bc:
        year = 1 - year
    if month < 1 or month > 12 or day < 1 or day > _month_days(year, month):
        return _BAD
    days: cython.longlong = _days(year, month, day)
    if days < -2451545 or days >= 2145031949:
        return _BAD
    if kind == 0:
        return days if p == end else _BAD
    if kind == 2:  # "+00"
        if end - p < 3 or data[end - 3] != 43 or data[end - 2] != 48 or data[end - 1] != 48:
            return _BAD
        end -= 3
    if p == end or data[p] != 32 or days >= 106751983:
        return _BAD
    micros: cython.longlong = _read_time(data, p + 1, end)
    if micros < 0:
        return micros
    return days * _DAY + micros


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _month_days(year: cython.longlong, month: cython.int) -> cython.int:
    if month == 2:
        if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
            return 29
        return 28
    if month == 4 or month == 6 or month == 9 or month == 11:
        return 30
    return 31


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _days(year: cython.longlong, month: cython.int, day: cython.int) -> cython.longlong:
    """Return the days from 2000-01-01 to a proleptic Gregorian date.

    Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms"; years start in March.
    """
    if month <= 2:
        year -= 1
    era: cython.longlong = year // 400
    of_era: cython.longlong = year - era * 400
    of_year: cython.longlong = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 730425


def render(
    values: buffers.Int64s,
    there: buffers.Bytes,
    text: buffers.Bytes,
    limits: buffers.Offsets,
    kind: cython.int,
) -> int:
    """Write all rows; return the bytes used, or -1 if a value is outside its type's range."""
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(values)
    p: cython.Py_ssize_t = 0
    numbers: cython.p_longlong = longs_of(values)
    valid: cython.p_const_uchar = bytes_of(there)
    content: cython.p_uchar = new_bytes(text)
    starts: cython.p_int = new_ints(limits)
    for i in range(n):
        starts[i] = p
        if not valid[i]:
            continue
        p = write(content, p, numbers[i], kind)
        if p < 0:
            return -1
    starts[n] = p
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def write(
    content: cython.p_uchar, p: cython.Py_ssize_t, value: cython.longlong, kind: cython.int
) -> cython.Py_ssize_t:
    """Write a value at ``p``, at most 40 bytes; return the position after it.

    Returns -1 if it is outside its type's range.
    """
    if kind == 3:
        if value < 0 or value > _DAY:
            return -1
        return _write_time(content, p, value)
    return _write_timestamp(content, p, value, kind)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _write_digits(
    content: cython.p_uchar, p: cython.Py_ssize_t, value: cython.longlong, width: cython.int
) -> cython.Py_ssize_t:
    """Write ``value`` >= 0 in exactly ``width`` digits."""
    q: cython.Py_ssize_t = p + width
    while q > p:
        q -= 1
        content[q] = 48 + value % 10
        value //= 10
    return p + width


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_time(
    content: cython.p_uchar, p: cython.Py_ssize_t, micros: cython.longlong
) -> cython.Py_ssize_t:
    seconds: cython.longlong = micros // 1000000
    fraction: cython.longlong = micros % 1000000
    p = _write_digits(content, p, seconds // 3600, 2)
    content[p] = 58
    p = _write_digits(content, p + 1, seconds // 60 % 60, 2)
    content[p] = 58
    p = _write_digits(content, p + 1, seconds % 60, 2)
    if fraction:
        content[p] = 46
        p = _write_digits(content, p + 1, fraction, 6)
        while content[p - 1] == 48:
            p -= 1
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_timestamp(
    content: cython.p_uchar, p: cython.Py_ssize_t, value: cython.longlong, kind: cython.int
) -> cython.Py_ssize_t:
    """Write a date or timestamp at ``p``; return the new position, or -1 if out of range."""
    if value == (2147483647 if kind == 0 else _GREATEST):
        return _write_word(content, p, b"infinity", 8)
    if value == (_DATE_LEAST if kind == 0 else _LEAST):
        return _write_word(content, p, b"-infinity", 9)
    days: cython.longlong = value
    micros: cython.longlong = 0
    if kind != 0:
        days = value // _DAY
        micros = value - days * _DAY
    if days < -2451545 or days >= (2145031949 if kind == 0 else 106751983):
        return -1
    return _write_civil(content, p, days, micros, kind)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_word(
    content: cython.p_uchar,
    p: cython.Py_ssize_t,
    word: cython.p_const_char,
    length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    for i in range(length):
        content[p + i] = word[i]
    return p + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_civil(
    content: cython.p_uchar,
    p: cython.Py_ssize_t,
    days: cython.longlong,
    micros: cython.longlong,
    kind: cython.int,
) -> cython.Py_ssize_t:
    """Write the date of ``days`` (the inverse of ``_days``), then time and zone."""
    days += 730425
    era: cython.longlong = days // 146097
    day: cython.longlong = days - era * 146097
    year: cython.longlong = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day = day - (365 * year + year // 4 - year // 100)
    year += era * 400
    month: cython.longlong = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    if month <= 2:
        year += 1
    bc: cython.bint = year <= 0
    if bc:
        year = 1 - year
    width: cython.int = (
        4 if year < 10000 else (5 if year < 100000 else (6 if year < 1000000 else 7))
    )
    p = _write_digits(content, p, year, width)
    content[p] = 45
    p = _write_digits(content, p + 1, month, 2)
    content[p] = 45
    p = _write_digits(content, p + 1, day, 2)
    if kind != 0:
        content[p] = 32
        p = _write_time(content, p + 1, micros)
    if kind == 2:
        content[p] = 43
        content[p + 1] = 48
        content[p + 2] = 48
        p += 3
    if bc:
        p = _write_word(content, p, b" BC", 3)
    return p
