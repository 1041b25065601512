# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# mypy: disable-error-code="attr-defined,no-any-return,untyped-decorator,misc"
"""The memory of Arrow arrays, read and made without an object for each buffer.

    array or record batch ──► Column: addresses of its values ──► compiled loops
    compiled loops ──► Building: allocated buffers ──► ArrowArray ──► array or record batch

A batch of one row costs as much as its calls, and Arrow's own calls take microseconds each.
New arrays are passed to Arrow by its C data interface, whole record batches in one call.
Arrow frees a column's buffers, which are one block, by the ``release`` of its ``ArrowArray``.

This module works compiled only; its types are in arrow_memory.pxd.

Source: Arrow columnar format, "The Arrow C data interface".
"""

from __future__ import annotations

from collections.abc import Sequence

import cython
import pyarrow as pa
from cython.cimports.headrace.kernels.arrow_memory import BOOL, TEXT, ArrowArray, Building, Column
from cython.cimports.libc.stdlib import calloc, free, malloc
from cython.cimports.libc.string import memset

KINDS: dict[int, tuple[int, int]] = {
    pa.bool_().id: (2, 1),
    pa.int8().id: (0, 1),
    pa.int16().id: (0, 2),
    pa.int32().id: (0, 4),
    pa.int64().id: (0, 8),
    pa.float32().id: (3, 4),
    pa.float64().id: (4, 8),
    pa.string().id: (1, 0),
    pa.binary().id: (1, 0),
}
"""Kind of storage and bytes of a value, by ``DataType.id``: 0 fixed-width, 1 text, 2 bool (one bit
in Arrow, one byte in a row), 3 and 4 floats, whose NaN is made canonical."""


def kind_of(kind: pa.DataType) -> tuple[int, int]:
    """Return kind of storage and bytes of a value.

    Raises:
        TypeError: kernels do not support the type.
    """
    found = KINDS.get(kind.id)
    if found is None:
        message = f"no kernel for Arrow type {kind}"
        raise TypeError(message)
    return found


@cython.cclass
class Layout:
    """Types of the columns of a row, as compiled loops need them."""

    def __init__(self, types: Sequence[pa.DataType], schema: pa.Schema = None) -> None:
        """Take the types of all columns.

        ``schema``: that of record batches with these columns, followed by an int64 column.
        """
        i: cython.Py_ssize_t
        self.types = list(types)
        self.schema = self.alike = schema
        self.count = len(self.types)
        self.kinds = cython.cast(
            cython.pointer[cython.int], malloc((2 * self.count + 1) * cython.sizeof(cython.int))
        )
        if self.kinds == cython.NULL:
            raise MemoryError
        self.widths = self.kinds + self.count
        for i in range(self.count):
            kind, width = kind_of(self.types[i])
            self.kinds[i], self.widths[i] = kind, width

    def __dealloc__(self) -> None:
        free(self.kinds)

    def fits(self, schema: pa.Schema) -> bool:
        """Return whether batches of ``schema`` have these columns; their names do not matter."""
        if self.schema is None:
            return False
        if schema.equals(self.schema) or schema.equals(self.alike):
            return True
        if schema.types != self.schema.types:
            return False
        self.alike = schema
        return True


@cython.cfunc
@cython.inline
def _address(buffer: pa.Buffer) -> cython.p_const_uchar:
    if buffer is None:
        return cython.NULL
    return cython.cast(cython.p_const_uchar, cython.cast(cython.size_t, buffer.address))


@cython.cfunc
@cython.exceptval(-1, check=False)
def load(to: cython.pointer[Column], array: pa.Array) -> cython.int:
    """Set ``to`` to the addresses of an array, which the caller keeps."""
    kind, width = kind_of(array.type)
    held = array.buffers()
    to.kind, to.width = kind, width
    to.offset = array.offset
    to.offsets = cython.NULL
    to.valid = _address(held[0]) if array.null_count else cython.NULL
    if to.kind == TEXT:
        starts: cython.p_const_uchar = _address(held[1])
        if starts != cython.NULL:
            to.offsets = cython.cast(cython.pointer[cython.const_int], starts) + to.offset
        to.values = _address(held[2])
    else:
        to.values = _address(held[1])
        if to.kind != BOOL and to.values != cython.NULL:
            to.values += to.offset * to.width
    return 0


@cython.cfunc
@cython.exceptval(-1, check=False)
def load_child(
    to: cython.pointer[Column],
    array: cython.pointer[ArrowArray],
    kind: cython.int,
    width: cython.int,
) -> cython.int:
    """Set ``to`` to the addresses of a column of an exported record batch."""
    to.kind, to.width = kind, width
    to.offset = array.offset
    to.offsets = cython.NULL
    to.valid = cython.NULL
    if array.null_count != 0:  # -1: not counted yet
        to.valid = cython.cast(cython.p_const_uchar, array.buffers[0])
    if kind == TEXT:
        if array.buffers[1] != cython.NULL:
            to.offsets = cython.cast(cython.pointer[cython.const_int], array.buffers[1]) + to.offset
        to.values = cython.cast(cython.p_const_uchar, array.buffers[2])
    else:
        to.values = cython.cast(cython.p_const_uchar, array.buffers[1])
        if kind != BOOL and to.values != cython.NULL:
            to.values += to.offset * width
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _padded(size: cython.size_t) -> cython.size_t:
    """Return the next multiple of 8."""
    return (size + 7) & ~cython.cast(cython.size_t, 7)


@cython.cfunc
@cython.exceptval(-1, check=False)
def allocate(
    to: cython.pointer[Building], array: cython.pointer[ArrowArray], rows: cython.Py_ssize_t
) -> cython.int:
    """Allocate the buffers of a column of which ``to`` has the kind, NULLs and bytes.

    Sets the bits of bools to 0, all rows to valid, and ``array`` to the owner of the memory.
    """
    bits: cython.size_t = _padded((rows + 7) >> 3)
    head: cython.size_t = 3 * cython.sizeof(cython.p_void)
    valid: cython.size_t = bits if to.nulls else 0
    starts: cython.size_t = 0
    size: cython.size_t
    if to.kind == TEXT:
        starts = _padded((rows + 1) * cython.sizeof(cython.int))
        size = to.size
    elif to.kind == BOOL:
        size = bits
    else:
        size = rows * to.width
    block: cython.p_uchar = cython.cast(cython.p_uchar, malloc(head + valid + starts + size + 8))
    if block == cython.NULL:
        raise MemoryError
    to.valid = block + head if valid else cython.NULL
    to.offsets = cython.NULL
    to.values = block + head + valid + starts
    array.buffers = cython.cast(cython.pointer[cython.p_const_void], block)
    array.buffers[0] = to.valid
    if valid:
        memset(to.valid, 255, valid)
    if to.kind == TEXT:
        to.offsets = cython.cast(cython.pointer[cython.int], block + head + valid)
        array.buffers[1] = to.offsets
        array.buffers[2] = to.values
        array.n_buffers = 3
    else:
        array.buffers[1] = to.values
        array.n_buffers = 2
        if to.kind == BOOL:
            memset(to.values, 0, size)
    array.length = rows
    array.null_count = to.nulls
    array.offset = array.n_children = 0
    array.children = cython.NULL
    array.dictionary = cython.NULL
    array.private_data = block
    array.release = _release
    return 0


@cython.cfunc
@cython.exceptval(-1, check=False)
def allocate_batch(
    batch: cython.pointer[ArrowArray], rows: cython.Py_ssize_t, columns: cython.Py_ssize_t
) -> cython.int:
    """Set ``batch`` to a struct array of children that are not allocated yet."""
    i: cython.Py_ssize_t
    count: cython.size_t = columns + 1
    # A null validity bitmap, pointers to the children, and the children.
    pointers: cython.size_t = count * cython.sizeof(cython.p_void)
    block: cython.p_uchar = cython.cast(
        cython.p_uchar, calloc(1, pointers + count * cython.sizeof(ArrowArray))
    )
    if block == cython.NULL:
        raise MemoryError
    batch.buffers = cython.cast(cython.pointer[cython.p_const_void], block)
    batch.children = cython.cast(
        cython.pointer[cython.pointer[ArrowArray]], block + cython.sizeof(cython.p_void)
    )
    for i in range(columns):
        batch.children[i] = cython.cast(cython.pointer[ArrowArray], block + pointers) + i
    batch.length = rows
    batch.null_count = batch.offset = 0
    batch.n_buffers = 1
    batch.n_children = columns
    batch.dictionary = cython.NULL
    batch.private_data = block
    batch.release = _release_batch
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _release(array: cython.pointer[ArrowArray]) -> cython.void:
    free(array.private_data)
    array.release = cython.NULL


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _release_batch(array: cython.pointer[ArrowArray]) -> cython.void:
    i: cython.longlong
    for i in range(array.n_children):
        if array.children[i].release != cython.NULL:
            array.children[i].release(array.children[i])
    free(array.private_data)
    array.release = cython.NULL
