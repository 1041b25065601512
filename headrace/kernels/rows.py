# cython: language_level=3
"""Rows and keys as bytes: the identity of a row, and a canonical key that sorts like Postgres.

*Row*: a bitmap of NULLs (one bit per column, set = NULL, rounded up to bytes), then every
non-NULL column: fixed-width values little-endian, bools one byte, text as a varint length and
its bytes.  Rows have equal bytes if a user sees the same row, display scale of numerics included.

*Key*: see ``kernels.keys``; ``encode_keys`` is exported here too, where callers look for it.

``_pack`` and ``_unpack`` are the readable reference of rows; compiled, ``row_codec`` does the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import cython
import pyarrow as pa

from headrace.kernels import buffers, packed
from headrace.kernels.buffers import Int64s
from headrace.kernels.keys import encode_keys, pack_keys, whole
from headrace.kernels.packed import Packed

if cython.compiled:
    from headrace.kernels import row_codec, value_arrays
    from headrace.kernels.arrow_memory import Layout
else:

    class Layout:  # type: ignore[no-redef]  # the same, uncompiled
        """Types of the columns of a row."""

        def __init__(self, types: Sequence[pa.DataType], schema: pa.Schema | None = None) -> None:
            """Take the types of all columns.

            ``schema``: that of record batches with these columns, followed by an int64 column.
            """
            self.types = list(types)
            self.schema = schema

        def fits(self, schema: pa.Schema) -> bool:
            """Return whether batches of ``schema`` have these columns; names do not matter."""
            return self.schema is not None and schema.types == self.schema.types


__all__ = [
    "Layout",
    "array_of",
    "decode_rows",
    "encode_keys",
    "pack_batch",
    "pack_keys",
    "pack_rows",
    "relabel",
    "unpack_batch",
    "unpack_parts",
    "whole",
]


def pack_rows(columns: Sequence[pa.Array]) -> Packed:
    """Encode the exact identity of each row; ``decode_rows`` is the inverse.

    A float NaN becomes the canonical NaN (Postgres has no other); -0.0 stays -0.0.
    Raises ValueError without columns (the number of rows would be unknown).
    """
    count = buffers.row_count(columns)
    if not cython.compiled:
        return _pack(columns)
    return row_codec.pack(columns, count)


def pack_batch(batch: pa.RecordBatch, layout: Layout) -> tuple[Packed, Int64s]:
    """Return the rows of a diff batch without its last column, and that column.

    ``layout``: of this or another batch; it is the fast way if the types are equal.
    """
    if cython.compiled and layout.fits(batch.schema):
        return row_codec.pack_batch(batch, layout)
    columns = batch.columns
    encoded = pack_rows(columns[:-1]) if len(columns) > 1 else packed.empty(batch.num_rows)
    return encoded, columns[-1].to_numpy()


def relabel(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch under ``schema``, which has the same types.

    REQUIRES: the same types, which are not checked.
    """
    if not cython.compiled:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return row_codec.relabel(batch, schema)


def decode_rows(rows: Packed, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Decode rows that ``pack_rows`` made of columns of these types.

    Raises ValueError if the bytes are not such rows.
    """
    if not cython.compiled:
        return _unpack(rows, types)
    return row_codec.unpack(rows, types)


def unpack_batch(rows: Packed, layout: Layout, weights: Int64s) -> pa.RecordBatch:
    """Return a diff batch of ``layout.schema``: the columns of rows, then ``weights``.

    Raises ValueError as ``decode_rows`` does, and if rows and weights differ in number.
    """
    return unpack_parts(((rows, layout, None),), layout.schema, weights)


def unpack_parts(
    parts: Sequence[tuple[Packed, Layout, Int64s | None]], schema: pa.Schema, weights: Int64s
) -> pa.RecordBatch:
    """Return a diff batch of ``schema``: the columns of several rows each, then ``weights``.

    A part may have an order, the numbers of its rows; -1 stands for a row of NULLs.

    Raises ValueError as ``decode_rows`` does, and if rows and weights differ in number; IndexError
    if an order has another number.
    """
    if not cython.compiled:
        return _unpack_parts(parts, schema, weights)
    return row_codec.unpack_parts(parts, schema, weights)


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of Python values, of which some may be None."""
    if not cython.compiled:
        return pa.array(values, kind)
    return value_arrays.make(values, kind)


_CORRUPT = "bytes are not rows of these types"
_FORMATS = {
    pa.bool_().id: "<?",
    pa.int8().id: "<b",
    pa.int16().id: "<h",
    pa.int32().id: "<i",
    pa.int64().id: "<q",
    pa.float32().id: "<f",
    pa.float64().id: "<d",
}
_NAN = float("nan")


def _pack(columns: Sequence[pa.Array]) -> Packed:
    """Do what ``row_codec.pack`` does, value by value."""
    count = buffers.row_count(columns)
    types = [column.type for column in columns]
    for kind in types:
        if not buffers.is_text(kind) and kind.id not in _FORMATS:
            buffers.dtype(kind)  # raises TypeError
    values = [column.to_pylist() for column in columns]
    out = []
    for place in range(count):
        row = [of[place] for of in values]
        nulls = sum(1 << at for at, value in enumerate(row) if value is None)
        parts = [nulls.to_bytes((len(row) + 7) // 8, "little")]
        parts += [
            _pack_value(value, kind)
            for value, kind in zip(row, types, strict=True)
            if value is not None
        ]
        out.append(b"".join(parts))
    return packed.pack(out)


def _pack_value(value: Any, kind: pa.DataType) -> bytes:
    if not buffers.is_text(kind):
        return struct.pack(_FORMATS[kind.id], _NAN if value != value else value)
    content = value.encode() if isinstance(value, str) else value
    length, head = len(content), []
    while length >= 128:
        head.append(128 | (length & 127))
        length >>= 7
    return bytes([*head, length]) + content


def _unpack(rows: Packed, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Do what ``row_codec.unpack`` does, value by value."""
    values: list[list[Any]] = [[] for _ in types]
    width = (len(types) + 7) // 8
    for row in rows.strings():
        at = width
        if len(row) < width:
            raise ValueError(_CORRUPT)
        nulls = int.from_bytes(row[:width], "little")
        for place, kind in enumerate(types):
            value = None
            if not nulls >> place & 1:
                value, at = _unpack_value(row, at, kind)
            values[place].append(value)
        if at != len(row):
            raise ValueError(_CORRUPT)
    return [
        pa.array(of, pa.binary()).view(kind) if buffers.is_text(kind) else pa.array(of, kind)
        for of, kind in zip(values, types, strict=True)
    ]


def _unpack_parts(
    parts: Sequence[tuple[Packed, Layout, Int64s | None]], schema: pa.Schema, weights: Int64s
) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for rows, layout, order in parts:
        count = len(rows) if order is None else len(order)
        if count != len(weights):
            message = "rows and weights differ in number"
            raise ValueError(message)
        found = _unpack(rows, layout.types)
        if order is not None:
            if any(not -1 <= place < len(rows) for place in order.tolist()):
                message = "a number beyond the rows"
                raise IndexError(message)
            places = pa.array(order, mask=order < 0)
            found = [column.take(places) for column in found]
        columns += found
    return pa.RecordBatch.from_arrays([*columns, pa.array(weights)], schema=schema)


def _unpack_value(row: bytes, at: int, kind: pa.DataType) -> tuple[Any, int]:
    """Return the value at a position, and the position after it."""
    if not buffers.is_text(kind):
        form = _FORMATS[kind.id]
        end = at + struct.calcsize(form)
        if end > len(row):
            raise ValueError(_CORRUPT)
        return struct.unpack(form, row[at:end])[0], end
    length = shift = 0
    while True:
        if at >= len(row) or shift > 28:
            raise ValueError(_CORRUPT)
        byte = row[at]
        at += 1
        length |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    if length > len(row) - at:
        raise ValueError(_CORRUPT)
    return row[at : at + length], at + length
