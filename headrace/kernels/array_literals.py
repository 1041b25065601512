# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,no-any-return,untyped-decorator,misc,index"
"""The compiled loops of ``copytext.ArrayColumns``: rows of a diff batch as array literals.

Values are written where the batch has them, without a copy of the rows and without a call for
each column and value.

This module works compiled only; ``copytext`` has the readable reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython
import pyarrow as pa
from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
from cython.cimports.headrace.kernels.array_literals import Written
from cython.cimports.headrace.kernels.arrow_memory import (
    BOOL,
    TEXT,
    ArrowArray,
    Column,
    Layout,
    bit,
    is_null,
    load_child,
)
from cython.cimports.headrace.kernels.datetimes import write
from cython.cimports.headrace.kernels.pointers import longs_of
from cython.cimports.headrace.kernels.text import BOOLEAN, CALENDAR, FLOAT, INTEGER, STRING
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcmp, memcpy

from headrace.kernels import datetimes, text
from headrace.kernels.buffers import Int64s
from headrace.types import XML, arrow_type

_WIDTH_MAX = cython.declare(cython.Py_ssize_t, 48)
"""Bytes of a number, a date or NULL, with its quotes and comma."""


@cython.cclass
class Forms:
    """How the values of columns become text."""

    def __init__(self, oids: Sequence[int]) -> None:
        """``oids``: type OIDs of all columns of a batch but the last one."""
        c: cython.Py_ssize_t
        self.oids = list(oids)
        self.count = len(self.oids)
        types = [arrow_type(oid) for oid in oids]
        weighted = [*types, pa.int64()]
        self.layout = Layout(types, pa.schema([(f"c{n}", t) for n, t in enumerate(weighted)]))
        self.written = cython.cast(
            cython.pointer[Written], calloc(self.count + 1, cython.sizeof(Written))
        )
        if self.written == cython.NULL:
            raise MemoryError
        for c in range(self.count):
            oid = self.oids[c]
            written: cython.pointer[Written] = self.written + c
            written.form = text.form_of(oid)
            if written.form == CALENDAR:
                written.calendar = datetimes.KINDS[oid]

    def __dealloc__(self) -> None:
        free(self.written)


@cython.cclass
class Exported:
    """A batch's memory, as long as the object lives."""

    array = cython.declare(ArrowArray)
    columns = cython.declare(cython.pointer[Column])

    def __cinit__(self) -> None:
        self.array.release = cython.NULL
        self.columns = cython.NULL

    def __init__(self, batch: pa.RecordBatch, forms: Forms) -> None:
        """Take the memory of a batch with columns of ``forms``, and weights.

        Raises:
            TypeError: its columns are others.
        """
        c: cython.Py_ssize_t
        layout: Layout = forms.layout
        if not layout.fits(batch.schema):
            raise TypeError(f"columns of other types: {batch.schema.types}")
        self.columns = cython.cast(
            cython.pointer[Column], malloc((forms.count + 1) * cython.sizeof(Column))
        )
        if self.columns == cython.NULL:
            raise MemoryError
        batch._export_to_c(cython.cast(cython.size_t, cython.address(self.array)))  # noqa: SLF001
        for c in range(forms.count):
            load_child(self.columns + c, self.array.children[c], layout.kinds[c], layout.widths[c])

    def __dealloc__(self) -> None:
        free(self.columns)
        if self.array.release != cython.NULL:
            self.array.release(cython.address(self.array))


def literals(
    batch: pa.RecordBatch, forms: Forms, places: Int64s, columns: Sequence[int]
) -> list[str | None]:
    """See ``copytext.ArrayColumns.literals``; None for each column of floats or XML."""
    held: Exported = Exported(batch, forms)
    rows: cython.pointer[cython.const_longlong] = _checked(places, batch.num_rows)
    return [_literal(held, forms, rows, len(places), c) for c in columns]


def changed(batch: pa.RecordBatch, forms: Forms, old: Int64s, new: Int64s) -> tuple[int, ...]:
    """See ``copytext.ArrayColumns.changed``."""
    held: Exported = Exported(batch, forms)
    rows: cython.Py_ssize_t = batch.num_rows
    before: cython.pointer[cython.const_longlong] = _checked(old, rows)
    after: cython.pointer[cython.const_longlong] = _checked(new, rows)
    count: cython.Py_ssize_t = len(old)
    if len(new) != count:
        raise ValueError("rows of two numbers")
    return tuple(
        [c for c in range(forms.count) if _differs(held.columns + c, before, after, count)]
    )


@cython.cfunc
def _checked(places: Int64s, rows: cython.Py_ssize_t) -> cython.pointer[cython.const_longlong]:
    """Return the address of numbers of rows.

    Raises:
        IndexError: there is no such row.
    """
    i: cython.Py_ssize_t
    found: cython.pointer[cython.const_longlong] = longs_of(places)
    for i in range(len(places)):
        if not 0 <= found[i] < rows:
            raise IndexError("a number beyond the rows")
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _differs(
    column: cython.pointer[Column],
    old: cython.pointer[cython.const_longlong],
    new: cython.pointer[cython.const_longlong],
    count: cython.Py_ssize_t,
) -> cython.bint:
    """Return whether some value is not identical, as 0 and -0."""
    i: cython.Py_ssize_t
    one: cython.longlong
    other: cython.longlong
    null: cython.bint
    length: cython.int
    for i in range(count):
        one, other = old[i], new[i]
        null = is_null(column, one)
        if null != is_null(column, other):
            return True
        if null:
            continue
        if column.kind == TEXT:
            length = column.offsets[one + 1] - column.offsets[one]
            if length != column.offsets[other + 1] - column.offsets[other]:
                return True
            if length and memcmp(
                column.values + column.offsets[one], column.values + column.offsets[other], length
            ):
                return True
        elif column.kind == BOOL:
            if bit(column.values, column.offset + one) != bit(column.values, column.offset + other):
                return True
        elif memcmp(
            column.values + one * column.width, column.values + other * column.width, column.width
        ):
            return True
    return False


@cython.cfunc
def _literal(
    held: Exported,
    forms: Forms,
    rows: cython.pointer[cython.const_longlong],
    count: cython.Py_ssize_t,
    c: cython.Py_ssize_t,
) -> str | None:
    if not 0 <= c < forms.count:
        raise IndexError("a number beyond the columns")
    written: cython.pointer[Written] = forms.written + c
    column: cython.pointer[Column] = held.columns + c
    if written.form == FLOAT or forms.oids[c] == XML:
        return None
    i: cython.Py_ssize_t
    size: cython.Py_ssize_t = count * _WIDTH_MAX + 2
    if written.form == STRING:
        for i in range(count):
            if not is_null(column, rows[i]):
                size += 2 * (column.offsets[rows[i] + 1] - column.offsets[rows[i]])
    out: cython.p_uchar = cython.cast(cython.p_uchar, malloc(size))
    if out == cython.NULL:
        raise MemoryError
    try:
        size = _write(out, column, written, rows, count)
        if size < 0:
            raise ValueError(f"value out of range for type OID {forms.oids[c]}")
        return PyUnicode_DecodeUTF8(cython.cast(cython.p_const_char, out), size, cython.NULL)
    finally:
        free(out)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write(
    out: cython.p_uchar,
    column: cython.pointer[Column],
    written: cython.pointer[Written],
    rows: cython.pointer[cython.const_longlong],
    count: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write the literal; return its bytes, or -1 if a value is outside its type's range."""
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    row: cython.longlong
    p: cython.Py_ssize_t = 1
    out[0] = 123
    for i in range(count):
        row = rows[i]
        if i:
            out[p] = 44
            p += 1
        if is_null(column, row):
            memcpy(out + p, b"NULL", 4)
            p += 4
        elif written.form == INTEGER:
            p = _write_integer(out, p, _integer(column, row))
        elif written.form == BOOLEAN:
            out[p] = 116 if bit(column.values, column.offset + row) else 102
            p += 1
        elif written.form == CALENDAR:
            out[p] = 34
            p = write(out, p + 1, _integer(column, row), written.calendar)
            if p < 0:
                return -1
            out[p] = 34
            p += 1
        else:
            out[p] = 34
            p += 1
            for j in range(column.offsets[row], column.offsets[row + 1]):
                if column.values[j] == 34 or column.values[j] == 92:
                    out[p] = 92
                    p += 1
                out[p] = column.values[j]
                p += 1
            out[p] = 34
            p += 1
    out[p] = 125
    return p + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _integer(column: cython.pointer[Column], row: cython.longlong) -> cython.longlong:
    """Return a value of 2, 4 or 8 bytes."""
    short = cython.declare(cython.short)
    middle = cython.declare(cython.int)
    long = cython.declare(cython.longlong)
    place: cython.p_const_uchar = column.values + row * column.width
    if column.width == 8:
        memcpy(cython.address(long), place, 8)
        return long
    if column.width == 4:
        memcpy(cython.address(middle), place, 4)
        return middle
    memcpy(cython.address(short), place, 2)
    return short


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_integer(
    out: cython.p_uchar, p: cython.Py_ssize_t, value: cython.longlong
) -> cython.Py_ssize_t:
    digits = cython.declare(cython.uchar[24])
    at: cython.int = 24
    rest: cython.ulonglong = cython.cast(cython.ulonglong, value)
    if value < 0:
        out[p] = 45
        p += 1
        rest = 0 - rest
    while True:
        at -= 1
        digits[at] = 48 + rest % 10
        rest //= 10
        if rest == 0:
            break
    memcpy(out + p, cython.address(digits[at]), 24 - at)
    return p + 24 - at
