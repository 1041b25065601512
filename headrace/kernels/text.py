# cython: language_level=3, boundscheck=False, wraparound=False
"""Postgres text to Arrow values and back, for types represented as machine values.

``parse`` accepts exactly the output of Postgres under ``settings.PINNED_SETTINGS``.  ``render``
writes text that Postgres' input function reads back to exactly the same value.  Integers, bool,
date, time and timestamps are rendered as Postgres prints them.  Floats are the shortest digits
that read back exactly; their exponent form may differ from Postgres'.
"""

from __future__ import annotations

import enum

import cython
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels import buffers, datetimes
from headrace.types import BOOL, FLOAT4, FLOAT8, INT2, INT4, INT8, OID, XML, arrow_type

if cython.compiled:
    from cython.cimports.headrace.kernels.pointers import bytes_of, ints_of, new_bytes, new_longs
else:
    bytes_of = ints_of = new_bytes = new_longs = buffers.view

# Declared, because Cython treats a literal of more than 32 bits as a Python object.
_TENTH = cython.declare(cython.longlong, -922337203685477580)

_DATE_WIDTH = 16
_STAMP_WIDTH = 40
_TIME_WIDTH = 16
RANGES = {
    INT2: (-(2**15), 2**15 - 1),
    INT4: (-(2**31), 2**31 - 1),
    INT8: (-(2**63), 2**63 - 1),
    OID: (0, 2**32 - 1),
}


class Form(enum.IntEnum):
    """How Postgres writes the values of a type: decides how they are read and written."""

    STRING = 0
    """The value is its text."""
    INTEGER = 1
    """Decimal digits within ``RANGES``."""
    BOOLEAN = 2
    """``t`` or ``f``."""
    CALENDAR = 3
    """A date or time of ``datetimes.KINDS``."""
    FLOAT = 4


def form_of(oid: int) -> Form:
    """Return how Postgres writes values of the type ``oid``."""
    if oid in RANGES:
        return Form.INTEGER
    if oid == BOOL:
        return Form.BOOLEAN
    if oid in datetimes.KINDS:
        return Form.CALENDAR
    return Form.FLOAT if oid in (FLOAT4, FLOAT8) else Form.STRING


def parse(column: pa.StringArray, oid: int) -> pa.Array:
    """Parse Postgres' output text into values of the Arrow type ``arrow_type(oid)``.

    Raises ValueError, which names the type but never the value, if Postgres would not print a text.
    Columns of types represented as text are returned unchanged.
    """
    target, form = arrow_type(oid), form_of(oid)
    if form == Form.STRING:
        return column
    if not buffers.is_text(column.type):
        message = f"text expected, got Arrow type {column.type}"
        raise TypeError(message)
    n = len(column)
    if column.null_count == n:
        return pa.nulls(n, target)
    if form == Form.FLOAT:
        return _parse_floats(column, oid)
    valid = buffers.validity(column)
    content, limits = buffers.data(column), buffers.offsets(column)
    out = np.zeros(n, np.uint8 if form == Form.BOOLEAN else np.int64)
    if form == Form.BOOLEAN:
        good = _parse_bools(bytes_of(content), ints_of(limits), bytes_of(valid), n, new_bytes(out))
    elif form == Form.INTEGER:
        low, high = RANGES[oid]
        good = _parse_ints(
            bytes_of(content), ints_of(limits), bytes_of(valid), n, new_longs(out), low, high
        )
    else:
        good = datetimes.parse(content, limits, valid, out, datetimes.KINDS[oid])
    if not good:
        raise ValueError(_malformed(oid))
    return buffers.make_fixed(out, valid, target)


def for_input(column: pa.Array, oid: int) -> pa.StringArray:
    """Render typed values as texts that Postgres reads, and then prints as ``render`` does.

    It prints a value of type xml without its first character if that is a newline.
    """
    texts = render(column, oid)
    if oid != XML or texts.null_count == len(texts):
        return texts
    begins = pc.starts_with(texts, "\n")
    longer = pc.binary_join_element_wise("\n", texts, "")
    return pc.if_else(begins, longer, texts)


def render(column: pa.Array, oid: int) -> pa.StringArray:
    """Render typed values as text, the inverse of ``parse``."""
    target, form = arrow_type(oid), form_of(oid)
    if form == Form.STRING:
        return column
    if column.type != target:
        message = f"values of type OID {oid} travel as {target}, got {column.type}"
        raise TypeError(message)
    if form == Form.BOOLEAN:
        return pc.if_else(column, "t", "f")
    if form == Form.INTEGER:
        return pc.cast(column, pa.string())
    if form == Form.FLOAT:
        return _render_floats(column)
    n = len(column)
    kind = datetimes.KINDS[oid]
    width = (_DATE_WIDTH, _STAMP_WIDTH, _STAMP_WIDTH, _TIME_WIDTH)[kind]
    if n * width > buffers.TEXT_BYTES_MAX:
        message = "too many rows for one text column"
        raise ValueError(message)
    valid = buffers.validity(column)
    values = buffers.values(column).astype(np.int64)
    content = np.empty(n * width, np.uint8)
    starts = np.zeros(n + 1, np.int32)
    used = datetimes.render(values, valid, content, starts, kind)
    if used < 0:
        message = f"value out of range for type OID {oid}"
        raise ValueError(message)
    return buffers.make_text(starts, content[:used], valid, pa.string())


def _malformed(oid: int) -> str:
    return f"malformed text for a column of type OID {oid}"


def _parse_floats(column: pa.StringArray, oid: int) -> pa.Array:
    # Arrow reads decimal text with correct rounding, NaN and Infinity included.
    try:
        return pc.cast(column, arrow_type(oid))
    except pa.ArrowInvalid:
        raise ValueError(_malformed(oid)) from None


def _render_floats(column: pa.Array) -> pa.StringArray:
    out = pc.cast(column, pa.string())
    if np.isfinite(buffers.values(column)).all():
        return out
    out = pc.if_else(pc.is_nan(column), "NaN", out)
    infinite = pc.is_inf(column)
    word = pc.if_else(pc.greater(column, 0), "Infinity", "-Infinity")
    return pc.if_else(infinite, word, out)


@cython.cfunc
@cython.exceptval(check=False)
def _parse_bools(
    data: cython.p_const_uchar,
    offsets: cython.p_int,
    valid: cython.p_const_uchar,
    n: cython.Py_ssize_t,
    out: cython.p_uchar,
) -> cython.bint:
    i: cython.Py_ssize_t
    for i in range(n):
        if not valid[i]:
            continue
        if offsets[i + 1] - offsets[i] != 1:
            return False
        c: cython.int = data[offsets[i]]
        if c == 116:  # t
            out[i] = 1
        elif c != 102:  # f
            return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _parse_ints(
    data: cython.p_const_uchar,
    offsets: cython.p_int,
    valid: cython.p_const_uchar,
    n: cython.Py_ssize_t,
    out: cython.p_longlong,
    low: cython.longlong,
    high: cython.longlong,
) -> cython.bint:
    i: cython.Py_ssize_t
    for i in range(n):
        if valid[i] and not read_int(data, offsets[i], offsets[i + 1], low, high, out, i):
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_int(
    data: cython.p_const_uchar,
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    low: cython.longlong,
    high: cython.longlong,
    out: cython.p_longlong,
    i: cython.Py_ssize_t,
) -> cython.bint:
    """Set ``out[i]`` to the integer between ``p`` and ``end``; return whether it is well formed."""
    negative: cython.bint = p < end and data[p] == 45
    if negative:
        p += 1
    if p == end or end - p > 19:
        return False
    value: cython.longlong = 0  # negated, since the least int64 has no positive counterpart
    while p < end:
        digit: cython.int = data[p] - 48
        if digit < 0 or digit > 9:
            return False
        if value < _TENTH or (value == _TENTH and digit > (8 if negative else 7)):
            return False
        value = value * 10 - digit
        p += 1
    if not negative:
        value = -value
    if value < low or value > high:
        return False
    out[i] = value
    return True
