# cython: language_level=3, boundscheck=False, wraparound=False
r"""COPY text format and array literals: many values through one connection at once.

Source: Postgres manual, COPY, "Text Format": rows end with a newline, columns are separated by
tabs, NULL is ``\N``, and backslash escapes stand for backslash and control characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cython
import numpy as np
import pyarrow as pa

from headrace.kernels import buffers, text
from headrace.kernels.buffers import Int64s

if cython.compiled:
    from headrace.kernels import array_literals


def split(data: bytes, ncols: int) -> list[pa.StringArray]:
    """Split whole lines of ``COPY … TO STDOUT`` into columns.

    Raises ValueError if a line is incomplete, has another number of columns, or has an escape
    that Postgres only reads and never writes (octal, hexadecimal).
    """
    lines = data.count(b"\n")
    if data and not data.endswith(b"\n"):
        message = "incomplete line in COPY data"
        raise ValueError(message)
    if ncols == 0:
        return []
    fields = np.empty(lines * ncols * 2, np.int64)
    if not _find_fields(memoryview(data), buffers.view(fields), lines, ncols):
        message = f"COPY data does not have {ncols} columns in each line"
        raise ValueError(message)
    out = []
    for column in range(ncols):
        spans = fields.reshape(lines, ncols, 2)[:, column, :]
        begin = np.ascontiguousarray(spans[:, 0])
        end = np.ascontiguousarray(spans[:, 1])
        size = int((end - begin).sum())
        if size > buffers.TEXT_BYTES_MAX:
            message = "too many bytes for one text column"
            raise ValueError(message)
        content = np.empty(size, np.uint8)
        starts = np.zeros(lines + 1, np.int32)
        valid = np.ones(lines, np.uint8)
        used = _unescape(
            memoryview(data),
            buffers.view(begin),
            buffers.view(end),
            buffers.view(content),
            buffers.view(starts),
            buffers.view(valid),
        )
        if used < 0:
            message = "unknown escape in COPY data"
            raise ValueError(message)
        out.append(buffers.make_text(starts, content[:used], valid, pa.string()))
    return out


def join(columns: Sequence[pa.StringArray]) -> bytes:
    """Join columns into rows in COPY text format, the inverse of ``split``."""
    if not columns:
        return b""
    n = len(columns[0])
    sizes = np.full(n, len(columns), np.int64)
    parts = []
    for column in columns:
        if len(column) != n or not buffers.is_text(column.type):
            message = "text columns of one length expected"
            raise ValueError(message)
        data = buffers.view(buffers.data(column))
        offsets = buffers.view(buffers.offsets(column))
        valid = buffers.view(buffers.validity(column))
        _size_escaped(data, offsets, valid, buffers.view(sizes))
        parts.append((data, offsets, valid))
    bounds = np.zeros(n + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    out = np.empty(int(bounds[n]), np.uint8)
    cursor = bounds[:n].copy()
    for index, (data, offsets, valid) in enumerate(parts):
        after = 10 if index == len(parts) - 1 else 9
        _escape(buffers.view(out), buffers.view(cursor), data, offsets, valid, after)
    return out.tobytes()


def array_literal(column: pa.StringArray) -> str:
    r"""Return a one-dimensional Postgres array literal, every value quoted: ``{"a","\"",NULL}``.

    Fits every element type whose delimiter is a comma (all built-in ones but ``box``).
    """
    if not buffers.is_text(column.type):
        message = f"text expected, got Arrow type {column.type}"
        raise TypeError(message)
    offsets = buffers.offsets(column)
    n = len(column)
    size = 2 * (int(offsets[n]) - int(offsets[0])) + 5 * n + 2
    out = np.empty(size, np.uint8)
    used = _literal(
        buffers.view(out),
        buffers.view(buffers.data(column)),
        buffers.view(offsets),
        buffers.view(buffers.validity(column)),
    )
    return out[:used].tobytes().decode()


class ArrayColumns:
    """Rows of diff batches as array literals, one for each column."""

    def __init__(self, oids: Sequence[int]) -> None:
        """``oids``: type OIDs of all columns but ``__weight``."""
        self._oids = list(oids)
        self._forms: Any = array_literals.Forms(oids) if cython.compiled else None

    def literals(self, batch: pa.RecordBatch, places: Int64s, columns: Sequence[int]) -> list[str]:
        """Return the values of some ``columns`` in the rows ``places``.

        Raises:
            IndexError: there is no such row or column.
            TypeError: the batch has other columns.
        """
        found: list[Any] = [None] * len(columns)
        if cython.compiled:
            found = list(array_literals.literals(batch, self._forms, places, columns))
            if None not in found:
                return found
        taken = batch.take(pa.array(places))
        for at, column in enumerate(columns):
            if found[at] is None:
                found[at] = _of_column(taken.column(column), self._oids[column])
        return found

    def changed(self, batch: pa.RecordBatch, old: Int64s, new: Int64s) -> tuple[int, ...]:
        """Return the columns in which some row of ``old`` is not identical to that of ``new``.

        0 and -0 are not identical, NaN and NaN are.  Raises as ``literals``.
        """
        if not cython.compiled:
            return _changed(batch, old, new, len(self._oids))
        return array_literals.changed(batch, self._forms, old, new)


def _changed(batch: pa.RecordBatch, old: Int64s, new: Int64s, count: int) -> tuple[int, ...]:
    before, after = batch.take(pa.array(old)), batch.take(pa.array(new))
    pairs = [(_bits(before.column(c)), _bits(after.column(c))) for c in range(count)]
    return tuple([c for c, (one, other) in enumerate(pairs) if not one.equals(other)])


def _of_column(column: pa.Array, oid: int) -> str:
    texts = text.for_input(column, oid)
    if text.form_of(oid) in (text.Form.BOOLEAN, text.Form.INTEGER):
        shown = ["NULL" if value is None else value for value in texts.to_pylist()]
        return f"{{{','.join(shown)}}}"
    return array_literal(texts)


def _bits(column: pa.Array) -> pa.Array:
    """Return floats as integers, which are equal only if they are identical."""
    if not pa.types.is_floating(column.type):
        return column
    return column.view(pa.int64() if column.type == pa.float64() else pa.int32())


def arrays(at: Int64s, elements: pa.StringArray, weights: Int64s, count: int) -> pa.StringArray:
    """Return Postgres' text of the array of each of ``count`` groups, NULL for a group without any.

    Element ``i``, as Postgres prints it alone, belongs to group ``at[i]``, as often as its weight
    says; ``at`` ascends.  OverflowError if the result has more bytes than an array holds.
    Source: Postgres ``arrayfuncs.c`` (``array_out``), for a comma as delimiter.
    """
    starts, valid = np.zeros(count + 1, np.int64), np.zeros(count, np.uint8)
    places, times = buffers.view(at), buffers.view(weights)
    data, offsets = buffers.view(buffers.data(elements)), buffers.view(buffers.offsets(elements))
    there = buffers.view(buffers.validity(elements))
    sizes = np.zeros(len(at), np.int64)
    size: int = _array_sizes(
        places,
        data,
        offsets,
        there,
        times,
        buffers.view(sizes),
        buffers.view(starts),
        buffers.view(valid),
    )
    if size > buffers.TEXT_BYTES_MAX:
        message = "arrays have more than 2 GB"
        raise OverflowError(message)
    content = np.empty(size, np.uint8)
    _write_arrays(
        places,
        data,
        offsets,
        there,
        times,
        buffers.view(sizes),
        buffers.view(starts),
        buffers.view(content),
    )
    return buffers.make_text(starts.astype(np.int32), content, valid, pa.string())


@cython.cfunc
@cython.exceptval(check=False)
def _array_sizes(
    at: cython.const_longlong[::1],
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    there: cython.const_uchar[::1],
    weights: cython.const_longlong[::1],
    sizes: cython.longlong[::1],
    starts: cython.longlong[::1],
    valid: cython.uchar[::1],
) -> cython.longlong:
    """Set the bounds of each group's text, and the size of each element; return the last bound.

    The size of an element that is quoted is negative.
    """
    i: cython.Py_ssize_t
    for i in range(len(at)):
        group: cython.Py_ssize_t = at[i]
        size: cython.longlong = 4  # NULL
        if there[i]:
            size = _element_size(data, offsets[i], offsets[i + 1])
        sizes[i] = size
        starts[group + 1] += ((size if size > 0 else -size) + 1) * weights[i]
        valid[group] = 1
    for i in range(len(valid)):
        # Braces, and a comma less than elements.
        starts[i + 1] += starts[i] + valid[i]
    return starts[len(valid)]


@cython.cfunc
@cython.exceptval(check=False)
def _element_size(
    data: cython.const_uchar[::1], begin: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.longlong:
    """Return the bytes that an element takes; negative if it is quoted."""
    p: cython.Py_ssize_t
    quoted: cython.bint = begin == end
    size: cython.longlong = end - begin
    for p in range(begin, end):
        c: cython.int = data[p]
        if c == 34 or c == 92:  # quote, backslash
            size += 1
            quoted = True
        elif c == 123 or c == 125 or c == 44 or c == 32 or (9 <= c <= 13):
            quoted = True
    if end - begin == 4 and not quoted:
        # NULL in any case
        quoted = (
            (data[begin] | 32) == 110
            and (data[begin + 1] | 32) == 117
            and (data[begin + 2] | 32) == 108
            and (data[begin + 3] | 32) == 108
        )
    return -(size + 2) if quoted else size


@cython.cfunc
@cython.exceptval(check=False)
def _write_arrays(
    at: cython.const_longlong[::1],
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    there: cython.const_uchar[::1],
    weights: cython.const_longlong[::1],
    sizes: cython.const_longlong[::1],
    starts: cython.const_longlong[::1],
    out: cython.uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    _k: cython.longlong
    p: cython.Py_ssize_t = 0
    for i in range(len(at)):
        for _k in range(weights[i]):
            out[p] = 123 if p == starts[at[i]] else 44
            p += 1
            if not there[i]:
                out[p] = 78
                out[p + 1] = 85
                out[p + 2] = 76
                out[p + 3] = 76
                p += 4
                continue
            if sizes[i] < 0:
                out[p] = 34
                p += 1
            for j in range(offsets[i], offsets[i + 1]):
                if data[j] == 34 or data[j] == 92:
                    out[p] = 92
                    p += 1
                out[p] = data[j]
                p += 1
            if sizes[i] < 0:
                out[p] = 34
                p += 1
        if i + 1 == len(at) or at[i + 1] != at[i]:
            out[p] = 125
            p += 1


@cython.cfunc
@cython.exceptval(check=False)
def _find_fields(
    data: cython.const_uchar[::1],
    fields: cython.longlong[::1],
    lines: cython.Py_ssize_t,
    ncols: cython.Py_ssize_t,
) -> cython.bint:
    """Find begin and end of each field; tabs and newlines inside values are always escaped."""
    line: cython.Py_ssize_t
    column: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(data)
    p: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    for line in range(lines):
        for column in range(ncols):
            fields[at] = p
            c: cython.int = data[p]
            while c != 9 and c != 10:
                p += 1
                c = data[p]  # in bounds: the data ends with a newline
            fields[at + 1] = p
            at += 2
            if c != (10 if column == ncols - 1 else 9):
                return False
            p += 1
            if p == size and (line < lines - 1 or column < ncols - 1):
                return False
    return p == size


@cython.cfunc
@cython.exceptval(check=False)
def _unescaped(c: cython.int) -> cython.int:
    """Return the byte for backslash and ``c``, or -1."""
    if c == 92:
        return 92
    if c == 98:
        return 8
    if c == 102:
        return 12
    if c == 110:
        return 10
    if c == 114:
        return 13
    if c == 116:
        return 9
    if c == 118:
        return 11
    return -1


@cython.cfunc
@cython.exceptval(check=False)
def _escaped(c: cython.int) -> cython.int:
    """Return the letter that escapes ``c`` after a backslash, or 0 if ``c`` needs no escape."""
    if c == 92:
        return 92
    if c > 13 or c < 8:
        return 0
    if c == 8:
        return 98
    if c == 9:
        return 116
    if c == 10:
        return 110
    if c == 11:
        return 118
    if c == 12:
        return 102
    return 114


@cython.cfunc
@cython.exceptval(check=False)
def _unescape(
    data: cython.const_uchar[::1],
    begin: cython.const_longlong[::1],
    end: cython.const_longlong[::1],
    content: cython.uchar[::1],
    starts: cython.int[::1],
    valid: cython.uchar[::1],
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    p: cython.Py_ssize_t = 0
    for i in range(n):
        q: cython.Py_ssize_t = begin[i]
        last: cython.Py_ssize_t = end[i]
        if last - q == 2 and data[q] == 92 and data[q + 1] == 78:
            valid[i] = 0
            q = last
        while q < last:
            c: cython.int = data[q]
            q += 1
            if c == 92:
                c = _unescaped(data[q]) if q < last else -1
                if c < 0:
                    return -1
                q += 1
            content[p] = c
            p += 1
        starts[i + 1] = p
    return p


@cython.cfunc
@cython.exceptval(check=False)
def _size_escaped(
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    valid: cython.const_uchar[::1],
    sizes: cython.longlong[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    q: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    for i in range(n):
        if not valid[i]:
            sizes[i] += 2
            continue
        size: cython.longlong = offsets[i + 1] - offsets[i]
        for q in range(offsets[i], offsets[i + 1]):
            if _escaped(data[q]):
                size += 1
        sizes[i] += size


@cython.cfunc
@cython.exceptval(check=False)
def _escape(
    out: cython.uchar[::1],
    cursor: cython.longlong[::1],
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    valid: cython.const_uchar[::1],
    after: cython.uchar,
) -> cython.void:
    i: cython.Py_ssize_t
    q: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    for i in range(n):
        p: cython.Py_ssize_t = cursor[i]
        if valid[i]:
            for q in range(offsets[i], offsets[i + 1]):
                c: cython.uchar = data[q]
                letter: cython.int = _escaped(c)
                if letter:
                    out[p] = 92
                    p += 1
                    c = letter
                out[p] = c
                p += 1
        else:
            out[p] = 92
            out[p + 1] = 78
            p += 2
        out[p] = after
        cursor[i] = p + 1


@cython.cfunc
@cython.exceptval(check=False)
def _literal(
    out: cython.uchar[::1],
    data: cython.const_uchar[::1],
    offsets: cython.const_int[::1],
    valid: cython.const_uchar[::1],
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    q: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    out[0] = 123
    p: cython.Py_ssize_t = 1
    for i in range(n):
        if i:
            out[p] = 44
            p += 1
        if not valid[i]:
            out[p] = 78
            out[p + 1] = 85
            out[p + 2] = 76
            out[p + 3] = 76
            p += 4
            continue
        out[p] = 34
        p += 1
        for q in range(offsets[i], offsets[i + 1]):
            c: cython.uchar = data[q]
            if c == 34 or c == 92:
                out[p] = 92
                p += 1
            out[p] = c
            p += 1
        out[p] = 34
        p += 1
    out[p] = 125
    return p + 1
