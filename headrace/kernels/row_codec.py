# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,no-any-return,untyped-decorator,misc,index"
"""The compiled loops of ``rows``: Arrow columns to rows as bytes and back.

Rows are written one after the other, each with all of its columns.  The interpreter lock is not
held for large batches; for small ones to release it would take longer than the work.

This module works compiled only; ``rows`` has the readable reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython
import numpy as np
import pyarrow as pa
from cython.cimports.headrace.kernels.arrow_memory import (
    BOOL,
    FIXED,
    FLOAT4,
    FLOAT8,
    TEXT,
    ArrowArray,
    Building,
    Column,
    Layout,
    allocate,
    allocate_batch,
    bit,
    is_null,
    load,
    load_child,
)
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memcpy, memset

from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Packed

NAN4 = cython.declare(cython.uint, 0x7FC00000)
NAN8 = cython.declare(cython.ulonglong, 0x7FF8000000000000)
TEXT_MAX = cython.declare(cython.longlong, 2147483647)
_LARGE = cython.declare(cython.Py_ssize_t, 512)
_CORRUPT = "bytes are not rows of these types"


def pack(columns: Sequence[pa.Array], rows: cython.Py_ssize_t) -> Packed:
    """See ``rows.pack_rows``; each column has ``rows`` rows."""
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(columns)
    cells: cython.pointer[Column] = _cells(count)
    try:
        for i in range(count):
            load(cells + i, columns[i])
        return _packed(cells, count, rows)
    finally:
        free(cells)


def pack_batch(batch: pa.RecordBatch, layout: Layout) -> tuple[Packed, Int64s]:
    """Return the rows of a batch of ``layout`` without its last column, and that column."""
    i: cython.Py_ssize_t
    array = cython.declare(ArrowArray)
    count: cython.Py_ssize_t = layout.count
    cells: cython.pointer[Column] = _cells(count + 1)
    try:
        batch._export_to_c(cython.cast(cython.size_t, cython.address(array)))  # noqa: SLF001
        try:
            for i in range(count):
                load_child(cells + i, array.children[i], layout.kinds[i], layout.widths[i])
            load_child(cells + count, array.children[count], FIXED, 8)
            rows: cython.Py_ssize_t = array.length
            weights = np.empty(rows, np.int64)
            if rows:
                out: cython.longlong[::1] = weights
                memcpy(cython.address(out[0]), cells[count].values, 8 * rows)
            return _packed(cells, count, rows), weights
        finally:
            if array.release != cython.NULL:
                array.release(cython.address(array))
    finally:
        free(cells)


def unpack(rows: Packed, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """See ``rows.decode_rows``."""
    i: cython.Py_ssize_t
    layout: Layout = Layout(types)
    count: cython.Py_ssize_t = layout.count
    arrays: cython.pointer[ArrowArray] = cython.cast(
        cython.pointer[ArrowArray], calloc(count + 1, cython.sizeof(ArrowArray))
    )
    if arrays == cython.NULL:
        raise MemoryError
    out = []
    try:
        places: cython.pointer[cython.pointer[ArrowArray]] = cython.cast(
            cython.pointer[cython.pointer[ArrowArray]],
            malloc((count + 1) * cython.sizeof(cython.p_void)),
        )
        if places == cython.NULL:
            raise MemoryError
        try:
            for i in range(count):
                places[i] = arrays + i
            _build(rows, layout, None, places)
        finally:
            free(places)
        for i in range(count):
            kind = layout.types[i]
            out.append(pa.Array._import_from_c(cython.cast(cython.size_t, arrays + i), kind))  # noqa: SLF001
        return out
    finally:
        for i in range(count):  # those that were not imported
            if arrays[i].release != cython.NULL:
                arrays[i].release(arrays + i)
        free(arrays)


def unpack_parts(
    parts: Sequence[tuple[Packed, Layout, Int64s | None]], schema: pa.Schema, weights: Int64s
) -> pa.RecordBatch:
    """See ``rows.unpack_parts``."""
    batch = cython.declare(ArrowArray)
    building = cython.declare(Building)
    layout: Layout
    rows: Packed
    numbers: cython.const_longlong[::1] = weights
    n: cython.Py_ssize_t = numbers.shape[0]
    count: cython.Py_ssize_t = 0
    for _, layout, _ in parts:
        count += layout.count
    allocate_batch(cython.address(batch), n, count + 1)
    try:
        count = 0
        for rows, layout, order in parts:
            if len(rows if order is None else order) != n:
                raise ValueError("rows and weights differ in number")
            _build(rows, layout, order, batch.children + count)
            count += layout.count
        building.kind, building.width, building.nulls = FIXED, 8, 0
        allocate(cython.address(building), batch.children[count], n)
        if n:
            memcpy(building.values, cython.address(numbers[0]), 8 * n)
        return pa.RecordBatch._import_from_c(  # noqa: SLF001
            cython.cast(cython.size_t, cython.address(batch)), schema
        )
    finally:
        if batch.release != cython.NULL:
            batch.release(cython.address(batch))


def relabel(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """See ``rows.relabel``."""
    array = cython.declare(ArrowArray)
    address: cython.size_t = cython.cast(cython.size_t, cython.address(array))
    batch._export_to_c(address)  # noqa: SLF001
    return pa.RecordBatch._import_from_c(address, schema)  # noqa: SLF001  releases it if it fails


@cython.cfunc
def _cells(count: cython.Py_ssize_t) -> cython.pointer[Column]:
    found: cython.pointer[Column] = cython.cast(
        cython.pointer[Column], malloc((count + 1) * cython.sizeof(Column))
    )
    if found == cython.NULL:
        raise MemoryError
    return found


@cython.cfunc
def _packed(
    cells: cython.pointer[Column], count: cython.Py_ssize_t, rows: cython.Py_ssize_t
) -> Packed:
    bounds = np.empty(rows + 1, np.int64)
    limits: cython.longlong[::1] = bounds
    starts: cython.pointer[cython.longlong] = cython.address(limits[0])
    size: cython.longlong
    if rows > _LARGE:
        with cython.nogil:
            size = _measure(cells, count, rows, starts)
    else:
        size = _measure(cells, count, rows, starts)
    data = np.empty(size, np.uint8)
    if size:
        out: cython.uchar[::1] = data
        if rows > _LARGE:
            with cython.nogil:
                _fill(cells, count, rows, starts, cython.address(out[0]))
        else:
            _fill(cells, count, rows, starts, cython.address(out[0]))
    return Packed(data, bounds)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measure(
    cells: cython.pointer[Column],
    count: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    starts: cython.pointer[cython.longlong],
) -> cython.longlong:
    """Set ``starts`` to the bounds of the rows; return the last one."""
    i: cython.Py_ssize_t
    c: cython.Py_ssize_t
    cell: cython.pointer[Column]
    total: cython.longlong = 0
    length: cython.longlong
    # Fixed-width columns without NULLs take the same bytes in every row.
    same: cython.longlong = (count + 7) >> 3
    for c in range(count):
        if cells[c].valid == cython.NULL:
            same += cells[c].width
    for i in range(rows):
        starts[i] = total
        total += same
        for c in range(count):
            cell = cells + c
            if is_null(cell, i):
                continue
            if cell.valid != cython.NULL:
                total += cell.width
            if cell.kind == TEXT:
                length = cell.offsets[i + 1] - cell.offsets[i]
                total += length + 1
                while length >= 128:
                    total += 1
                    length >>= 7
    starts[rows] = total
    return total


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(
    cells: cython.pointer[Column],
    count: cython.Py_ssize_t,
    rows: cython.Py_ssize_t,
    starts: cython.pointer[cython.longlong],
    data: cython.p_uchar,
) -> cython.void:
    """Write the rows at ``starts``."""
    i: cython.Py_ssize_t
    c: cython.Py_ssize_t
    cell: cython.pointer[Column]
    length: cython.longlong
    single = cython.declare(cython.float)
    double = cython.declare(cython.double)
    bitmap: cython.Py_ssize_t = (count + 7) >> 3
    for i in range(rows):
        head: cython.p_uchar = data + starts[i]
        memset(head, 0, bitmap)
        p: cython.p_uchar = head + bitmap
        for c in range(count):
            cell = cells + c
            if is_null(cell, i):
                head[c >> 3] |= 1 << (c & 7)
            elif cell.kind == TEXT:
                length = cell.offsets[i + 1] - cell.offsets[i]
                while length >= 128:
                    p[0] = 128 | (length & 127)
                    length >>= 7
                    p += 1
                p[0] = length
                p += 1
                length = cell.offsets[i + 1] - cell.offsets[i]
                if length:
                    memcpy(p, cell.values + cell.offsets[i], length)
                p += length
            elif cell.kind == BOOL:
                p[0] = bit(cell.values, cell.offset + i)
                p += 1
            elif cell.width == 8:
                memcpy(p, cell.values + 8 * i, 8)
                if cell.kind == FLOAT8:
                    memcpy(cython.address(double), p, 8)
                    if double != double:
                        memcpy(p, cython.address(NAN8), 8)
                p += 8
            elif cell.width == 4:
                memcpy(p, cell.values + 4 * i, 4)
                if cell.kind == FLOAT4:
                    memcpy(cython.address(single), p, 4)
                    if single != single:
                        memcpy(p, cython.address(NAN4), 4)
                p += 4
            else:
                memcpy(p, cell.values + cell.width * i, cell.width)
                p += cell.width


@cython.cfunc
@cython.exceptval(-1, check=False)
def _build(
    rows: Packed,
    layout: Layout,
    order: Int64s | None,
    arrays: cython.pointer[cython.pointer[ArrowArray]],
) -> cython.int:
    """Allocate and fill the columns of rows; of those with the numbers ``order``, if given."""
    c: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(rows)
    places: cython.pointer[cython.const_longlong] = cython.NULL
    chosen: cython.const_longlong[::1]
    if order is not None:
        chosen = order
        for c in range(chosen.shape[0]):
            if not -1 <= chosen[c] < n:
                raise IndexError("a number beyond the rows")
        n = chosen.shape[0]
        if n:
            places = cython.address(chosen[0])
    wrong: cython.int = 0
    limits: cython.const_longlong[::1] = rows.bounds
    content: cython.const_uchar[::1] = rows.data
    data: cython.p_const_uchar = cython.NULL
    if content.shape[0]:
        data = cython.address(content[0])
    ends: cython.pointer[cython.const_longlong] = cython.address(limits[0])
    count: cython.Py_ssize_t = layout.count
    building: cython.pointer[Building] = cython.cast(
        cython.pointer[Building], calloc(count + 1, cython.sizeof(Building))
    )
    if building == cython.NULL:
        raise MemoryError
    try:
        for c in range(count):
            building[c].kind, building[c].width = layout.kinds[c], layout.widths[c]
        if n > _LARGE:
            with cython.nogil:
                wrong = _check(data, ends, places, n, building, count)
        else:
            wrong = _check(data, ends, places, n, building, count)
        if wrong:
            raise ValueError(_CORRUPT)
        for c in range(count):
            if building[c].size > TEXT_MAX:
                raise ValueError("too many bytes for one text column")
            allocate(building + c, arrays[c], n)
        if n > _LARGE:
            with cython.nogil:
                _take(data, ends, places, n, building, count)
        else:
            _take(data, ends, places, n, building, count)
    finally:
        free(building)
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check(
    data: cython.p_const_uchar,
    ends: cython.pointer[cython.const_longlong],
    order: cython.pointer[cython.const_longlong],
    rows: cython.Py_ssize_t,
    building: cython.pointer[Building],
    count: cython.Py_ssize_t,
) -> cython.int:
    """Count NULLs and bytes of texts; return 1 if the bytes are not such rows.

    ``order``: numbers of the rows, -1 for a row of NULLs; NULL: all in order.
    """
    i: cython.Py_ssize_t
    at: cython.longlong
    c: cython.Py_ssize_t
    length: cython.longlong
    shift: cython.int
    byte: cython.longlong
    bitmap: cython.Py_ssize_t = (count + 7) >> 3
    for i in range(rows):
        at = i if order == cython.NULL else order[i]
        if at < 0:
            for c in range(count):
                building[c].nulls += 1
            continue
        p: cython.longlong = ends[at]
        end: cython.longlong = ends[at + 1]
        if p + bitmap > end:
            return 1
        head: cython.p_const_uchar = data + p
        p += bitmap
        for c in range(count):
            if (head[c >> 3] >> (c & 7)) & 1:
                building[c].nulls += 1
            elif building[c].kind != TEXT:
                p += building[c].width
                if p > end:
                    return 1
            else:
                length = 0
                shift = 0
                while True:
                    if p >= end or shift > 28:
                        return 1
                    byte = data[p]
                    p += 1
                    length |= (byte & 127) << shift
                    if byte < 128:
                        break
                    shift += 7
                if length > end - p:
                    return 1
                building[c].size += length
                p += length
        if p != end:
            return 1
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _take(
    data: cython.p_const_uchar,
    ends: cython.pointer[cython.const_longlong],
    order: cython.pointer[cython.const_longlong],
    rows: cython.Py_ssize_t,
    building: cython.pointer[Building],
    count: cython.Py_ssize_t,
) -> cython.void:
    """Fill the columns from rows that ``_check`` has accepted."""
    i: cython.Py_ssize_t
    at: cython.longlong
    c: cython.Py_ssize_t
    column: cython.pointer[Building]
    length: cython.longlong
    shift: cython.int
    start: cython.int
    null: cython.int
    bitmap: cython.Py_ssize_t = (count + 7) >> 3
    for c in range(count):
        if building[c].kind == TEXT:
            building[c].offsets[0] = 0
    for i in range(rows):
        at = i if order == cython.NULL else order[i]
        head: cython.p_const_uchar = data + (ends[at] if at >= 0 else 0)
        p: cython.p_const_uchar = head + bitmap
        for c in range(count):
            column = building + c
            null = at < 0 or (head[c >> 3] >> (c & 7)) & 1
            if null:
                column.valid[i >> 3] &= ~(1 << (i & 7))
            if column.kind == TEXT:
                start = column.offsets[i]
                length = 0
                if not null:
                    shift = 0
                    while True:
                        length |= cython.cast(cython.longlong, p[0] & 127) << shift
                        p += 1
                        if (p - 1)[0] < 128:
                            break
                        shift += 7
                    if length:
                        memcpy(column.values + start, p, length)
                    p += length
                column.offsets[i + 1] = start + cython.cast(cython.int, length)
            elif column.kind == BOOL:
                if not null:
                    if p[0]:
                        column.values[i >> 3] |= 1 << (i & 7)
                    p += 1
            elif null:
                memset(column.values + column.width * i, 0, column.width)
            elif column.width == 8:
                memcpy(column.values + 8 * i, p, 8)
                p += 8
            elif column.width == 4:
                memcpy(column.values + 4 * i, p, 4)
                p += 4
            else:
                memcpy(column.values + column.width * i, p, column.width)
                p += column.width
