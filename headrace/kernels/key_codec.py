# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,no-any-return,untyped-decorator,misc,index"
"""The compiled loops of ``keys``: Arrow columns to canonical keys.

Keys are written one after the other, each with all of its columns.  The interpreter lock is not
held for large batches.

This module works compiled only; ``keys`` has the readable reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython
import numpy as np
import pyarrow as pa
from cython.cimports.headrace.kernels.arrow_memory import (
    BOOL,
    FLOAT4,
    FLOAT8,
    TEXT,
    Column,
    bit,
    is_null,
    load,
)
from cython.cimports.headrace.kernels.key_codec import KeyColumn
from cython.cimports.headrace.kernels.pointers import bytes_of, longs_of, new_bytes, new_longs
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memcpy

from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Packed

NUMBER = cython.declare(cython.int, 0)
FLAG = cython.declare(cython.int, 1)
ESCAPED = cython.declare(cython.int, 2)
PADDED = cython.declare(cython.int, 3)
READY = cython.declare(cython.int, 4)
_SIGN = cython.declare(cython.ulonglong, 0x8000000000000000)
_NAN = cython.declare(cython.ulonglong, 0x7FF8000000000000)
_LARGE = cython.declare(cython.Py_ssize_t, 512)


def pack(
    columns: Sequence[pa.Array],
    contents: Sequence[tuple[Bytes, Int64s] | None],
    padded: Sequence[bool],
    rows: cython.Py_ssize_t,
) -> Packed:
    """See ``keys.pack_keys``; each column has ``rows`` rows.

    ``contents``: the key bytes of a column and their bounds, where they are not its own values.
    ``padded``: whether blanks at the end of a text do not count.
    """
    c: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(columns)
    cells: cython.pointer[KeyColumn] = cython.cast(
        cython.pointer[KeyColumn], malloc((count + 1) * cython.sizeof(KeyColumn))
    )
    if cells == cython.NULL:
        raise MemoryError
    try:
        for c in range(count):
            load(cython.address(cells[c].column), columns[c])
            ready = contents[c]
            if ready is not None:
                cells[c].form = READY
                cells[c].content = bytes_of(ready[0])
                cells[c].starts = longs_of(ready[1])
            elif cells[c].column.kind == TEXT:
                cells[c].form = PADDED if padded[c] else ESCAPED
            else:
                cells[c].form = FLAG if cells[c].column.kind == BOOL else NUMBER
        bounds = np.empty(rows + 1, np.int64)
        limits: cython.p_longlong = new_longs(bounds)
        size: cython.longlong
        if rows > _LARGE:
            with cython.nogil:
                size = _measure(cells, count, rows, limits)
        else:
            size = _measure(cells, count, rows, limits)
        data = np.empty(size, np.uint8)
        out: cython.p_uchar = new_bytes(data)
        if rows > _LARGE:
            with cython.nogil:
                _fill(cells, count, rows, out)
        else:
            _fill(cells, count, rows, out)
        return Packed(data, bounds)
    finally:
        free(cells)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _end(cell: cython.pointer[KeyColumn], row: cython.Py_ssize_t) -> cython.int:
    """Return where a text ends, without blanks that do not count."""
    first: cython.int = cell.column.offsets[row]
    end: cython.int = cell.column.offsets[row + 1]
    if cell.form == PADDED:
        while end > first and cell.column.values[end - 1] == 32:
            end -= 1
    return end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measure(
    cells: cython.pointer[KeyColumn],
    count: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    limits: cython.p_longlong,
) -> cython.longlong:
    """Set ``limits`` to the bounds of the keys; return the last one."""
    i: cython.Py_ssize_t
    c: cython.Py_ssize_t
    k: cython.int
    total: cython.longlong = 0
    cell: cython.pointer[KeyColumn]
    for i in range(rows):
        limits[i] = total
        for c in range(count):
            cell = cells + c
            total += 1
            if is_null(cython.address(cell.column), i):
                continue
            if cell.form == NUMBER:
                total += 8
            elif cell.form == FLAG:
                total += 1
            elif cell.form == READY:
                total += cell.starts[i + 1] - cell.starts[i]
            else:
                total += 1
                for k in range(cell.column.offsets[i], _end(cell, i)):
                    total += 2 if cell.column.values[k] <= 1 else 1
    limits[rows] = total
    return total


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(
    cells: cython.pointer[KeyColumn],
    count: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    p: cython.p_uchar,
) -> cython.void:
    """Write the keys one after the other, from ``p`` on."""
    i: cython.Py_ssize_t
    c: cython.Py_ssize_t
    k: cython.int
    size: cython.longlong
    bits: cython.ulonglong
    byte: cython.uchar
    cell: cython.pointer[KeyColumn]
    for i in range(rows):
        for c in range(count):
            cell = cells + c
            if is_null(cython.address(cell.column), i):
                p[0] = 1
                p += 1
                continue
            p[0] = 0
            p += 1
            if cell.form == NUMBER:
                bits = _number(cython.address(cell.column), i)
                for k in range(8):
                    p[k] = (bits >> (56 - 8 * k)) & 255
                p += 8
            elif cell.form == FLAG:
                p[0] = bit(cell.column.values, cell.column.offset + i)
                p += 1
            elif cell.form == READY:
                size = cell.starts[i + 1] - cell.starts[i]
                memcpy(p, cell.content + cell.starts[i], size)
                p += size
            else:
                # Texts end with 0x00; 0x00 and 0x01 in them become 0x01 0x01 and 0x01 0x02.
                for k in range(cell.column.offsets[i], _end(cell, i)):
                    byte = cell.column.values[k]
                    if byte <= 1:
                        p[0] = 1
                        p += 1
                        byte += 1
                    p[0] = byte
                    p += 1
                p[0] = 0
                p += 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _number(column: cython.pointer[Column], row: cython.Py_ssize_t) -> cython.ulonglong:
    """Return a number whose order without sign is that of the values; all NaN are the greatest."""
    bits: cython.ulonglong = 0
    narrow = cython.declare(cython.float)
    wide = cython.declare(cython.double)
    half = cython.declare(cython.short)
    whole = cython.declare(cython.int)
    if column.kind == FLOAT4 or column.kind == FLOAT8:
        if column.kind == FLOAT4:
            memcpy(cython.address(narrow), column.values + 4 * row, 4)
            wide = narrow
        else:
            memcpy(cython.address(wide), column.values + 8 * row, 8)
        wide = wide + 0.0  # -0.0 + 0.0 = 0.0
        if wide != wide:
            return _NAN ^ _SIGN
        memcpy(cython.address(bits), cython.address(wide), 8)
        return ~bits if bits & _SIGN else bits ^ _SIGN
    if column.width == 8:
        memcpy(cython.address(bits), column.values + 8 * row, 8)
    elif column.width == 4:
        memcpy(cython.address(whole), column.values + 4 * row, 4)
        bits = cython.cast(cython.ulonglong, cython.cast(cython.longlong, whole))
    elif column.width == 2:
        memcpy(cython.address(half), column.values + 2 * row, 2)
        bits = cython.cast(cython.ulonglong, cython.cast(cython.longlong, half))
    else:
        bits = cython.cast(
            cython.ulonglong,
            cython.cast(cython.longlong, cython.cast(cython.schar, column.values[row])),
        )
    return bits ^ _SIGN
