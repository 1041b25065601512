# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# The decorators give C types to Cython, the annotations types to mypy (which sees Any there).
"""Rows and keys as bytes: the identity of a row, and a canonical key that sorts like Postgres.

*Row*: a bitmap of NULLs (one bit per column, set = NULL, rounded up to bytes), then every
non-NULL column: fixed-width values little-endian, bools one byte, text as a varint length and
its bytes.  Equal bytes = the same row as a user sees it, display scale of numerics included.

*Key*: see ``kernels.keys``; ``encode_keys`` is offered here too, where callers look for it.

Rows are written column by column into one buffer, with one write position per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import cython
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels import buffers
from headrace.kernels.buffers import Int64s
from headrace.kernels.keys import encode_keys

__all__ = ["Consolidator", "consolidate", "decode_rows", "encode_keys", "encode_rows", "group"]


def encode_rows(columns: Sequence[pa.Array]) -> list[bytes]:
    """Exact identity of each row; ``decode_rows`` is the inverse.

    A float NaN becomes the one canonical NaN (Postgres knows no other); -0.0 stays -0.0.
    Raises ValueError without columns (the number of rows would be unknown).
    """
    n = buffers.row_count(columns)
    bitmap_bytes = (len(columns) + 7) // 8
    sizes = np.full(n, bitmap_bytes, np.int64)
    valids = [buffers.view(buffers.validity(c)) for c in columns]
    parts = [_content(c) for c in columns]
    for valid, (content, offsets) in zip(valids, parts, strict=True):
        if offsets is None:
            _size_fixed(valid, buffers.view(sizes), content.itemsize)
        else:
            _size_text(offsets, valid, buffers.view(sizes))
    bounds = buffers.bounds(sizes)
    out = np.zeros(int(bounds[n]), np.uint8)
    at = bounds[:n].copy()
    view, cursor = buffers.view(out), buffers.view(at)
    for index, valid in enumerate(valids):
        _put_nulls(view, cursor, valid, index)
    at += bitmap_bytes
    for valid, (content, offsets) in zip(valids, parts, strict=True):
        raw = buffers.view(content.view(np.uint8))
        if offsets is None:
            _put_fixed(view, cursor, raw, valid, content.itemsize)
        else:
            _put_text(view, cursor, raw, offsets, valid)
    return buffers.cut(out.tobytes(), buffers.view(bounds))


def decode_rows(rows: Sequence[bytes], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Columns of rows that ``encode_rows`` made of columns of these types.

    Raises ValueError if the bytes are not such rows.
    """
    n = len(rows)
    joined = b"".join(rows)
    bounds = buffers.lengths(list(rows))
    at = bounds[:n].copy()
    bitmap_bytes = (len(types) + 7) // 8
    data = buffers.view(np.frombuffer(joined, np.uint8))
    cursor, ends = buffers.view(at), buffers.view(bounds)
    valids = [np.empty(n, np.uint8) for _ in types]
    for index, valid in enumerate(valids):
        if not _take_nulls(data, cursor, ends, buffers.view(valid), index):
            raise ValueError(_CORRUPT)
    at += bitmap_bytes
    out = []
    for kind, valid in zip(types, valids, strict=True):
        if buffers.is_text(kind):
            out.append(_take_text(data, cursor, ends, valid, kind))
            continue
        dtype = np.dtype(np.uint8) if pa.types.is_boolean(kind) else buffers.dtype(kind)
        content = np.zeros(n * dtype.itemsize, np.uint8)
        view = buffers.view(content)
        if not _take_fixed(data, cursor, ends, buffers.view(valid), view, dtype.itemsize):
            raise ValueError(_CORRUPT)
        out.append(buffers.make_fixed(content.view(dtype), valid, kind))
    if not _at_end(cursor, ends):
        raise ValueError(_CORRUPT)
    return out


def consolidate(rows: Sequence[bytes], weights: Iterable[int]) -> tuple[list[bytes], list[int]]:
    """Sum the weights of equal rows and drop zeros; rows keep first-seen order."""
    total = Consolidator()
    total.add(rows, weights)
    return total.items()


class Consolidator:
    """``consolidate`` over many calls: rows with summed weights, in first-seen order."""

    def __init__(self) -> None:
        """Start with no rows."""
        self._weights: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Number of distinct rows seen, those of weight zero included (for bounding memory)."""
        return len(self._weights)

    @cython.locals(known=dict)
    def add(self, rows: Sequence[bytes], weights: Iterable[int]) -> None:
        """Add ``weights`` to the rows' weights; both of the same length, else ValueError."""
        known = self._weights
        for row, weight in zip(rows, _integers(weights), strict=True):
            known[row] = known.get(row, 0) + weight

    def items(self) -> tuple[list[bytes], list[int]]:
        """(rows, weights) without zero weights; the consolidator keeps its contents."""
        rows = []
        weights = []
        for row, weight in self._weights.items():
            if weight:
                rows.append(row)
                weights.append(weight)
        return rows, weights

    def clear(self) -> None:
        """Forget every row."""
        self._weights.clear()


def group(keys: Sequence[bytes]) -> tuple[list[bytes], Int64s]:
    """Distinct keys in first-seen order, and for each position the index of its key there."""
    seen: dict[bytes, int] = {}
    ids = np.empty(len(keys), np.int64)
    _number(list(keys), seen, buffers.view(ids))
    return list(seen), ids


_CORRUPT = "bytes are not rows of these types"


def _integers(weights: Iterable[int]) -> Iterable[int]:
    # numpy and Arrow integers would wrap, and would end up in the results
    if isinstance(weights, np.ndarray):
        return list(weights.tolist())
    if isinstance(weights, pa.Array):
        return list(weights.to_pylist())
    return weights


def _content(column: pa.Array) -> tuple[npt.NDArray[np.generic], memoryview | None]:
    """Bytes and offsets of a text column, or the values of another with NaN made canonical."""
    if buffers.is_text(column.type):
        return buffers.data(column), buffers.view(buffers.offsets(column))
    values = buffers.values(column)
    if values.dtype.kind == "f":
        wrong = np.isnan(values)
        if wrong.any():
            values = values.copy()
            values[wrong] = np.nan
    return values, None


@cython.cfunc
@cython.locals(
    keys=list, seen=dict, ids=cython.longlong[::1], i=cython.Py_ssize_t, n=cython.Py_ssize_t
)
def _number(keys: list[bytes], seen: dict[bytes, int], ids: memoryview) -> None:
    n = len(keys)
    for i in range(n):
        ids[i] = seen.setdefault(keys[i], len(seen))


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.void)
@cython.locals(
    out=cython.uchar[::1],
    cursor=cython.longlong[::1],
    valid=cython.const_uchar[::1],
    index=cython.Py_ssize_t,
    i=cython.Py_ssize_t,
)
def _put_nulls(out: memoryview, cursor: memoryview, valid: memoryview, index: int) -> None:
    """Set the bit of column ``index`` in the bitmaps at ``cursor``, where it is NULL."""
    for i in range(len(valid)):
        if not valid[i]:
            out[cursor[i] + (index >> 3)] |= 1 << (index & 7)


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.bint)
@cython.locals(
    data=cython.const_uchar[::1],
    cursor=cython.const_longlong[::1],
    ends=cython.const_longlong[::1],
    valid=cython.uchar[::1],
    index=cython.Py_ssize_t,
    i=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
)
def _take_nulls(
    data: memoryview, cursor: memoryview, ends: memoryview, valid: memoryview, index: int
) -> bool:
    """Whether every row has a bit for column ``index``, and where it says NULL."""
    for i in range(len(valid)):
        p = cursor[i] + (index >> 3)
        if p >= ends[i + 1]:
            return False
        valid[i] = 1 - ((data[p] >> (index & 7)) & 1)
    return True


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.bint)
@cython.locals(
    cursor=cython.const_longlong[::1], ends=cython.const_longlong[::1], i=cython.Py_ssize_t
)
def _at_end(cursor: memoryview, ends: memoryview) -> bool:
    for i in range(len(cursor)):  # noqa: SIM110  a loop of C, where all() takes a generator
        if cursor[i] != ends[i + 1]:
            return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.void)
@cython.locals(
    valid=cython.const_uchar[::1],
    sizes=cython.longlong[::1],
    width=cython.Py_ssize_t,
    i=cython.Py_ssize_t,
)
def _size_fixed(valid: memoryview, sizes: memoryview, width: int) -> None:
    for i in range(len(valid)):
        if valid[i]:
            sizes[i] += width


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.void)
@cython.locals(
    offsets=cython.const_int[::1],
    valid=cython.const_uchar[::1],
    sizes=cython.longlong[::1],
    i=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    length=cython.longlong,
)
def _size_text(offsets: memoryview, valid: memoryview, sizes: memoryview) -> None:
    n = len(valid)
    for i in range(n):
        if valid[i]:
            length = offsets[i + 1] - offsets[i]
            sizes[i] += length + 1
            while length >= 128:
                sizes[i] += 1
                length >>= 7


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.void)
@cython.locals(
    out=cython.uchar[::1],
    cursor=cython.longlong[::1],
    data=cython.const_uchar[::1],
    offsets=cython.const_int[::1],
    valid=cython.const_uchar[::1],
    i=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
    q=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
    length=cython.longlong,
)
def _put_text(
    out: memoryview, cursor: memoryview, data: memoryview, offsets: memoryview, valid: memoryview
) -> None:
    n = len(valid)
    for i in range(n):
        if not valid[i]:
            continue
        p = cursor[i]
        q = offsets[i]
        end = offsets[i + 1]
        length = end - q
        while length >= 128:
            out[p] = 128 | (length & 127)
            length >>= 7
            p += 1
        out[p] = length
        p += 1
        while q < end:
            out[p] = data[q]
            p += 1
            q += 1
        cursor[i] = p


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.void)
@cython.locals(
    out=cython.uchar[::1],
    cursor=cython.longlong[::1],
    data=cython.const_uchar[::1],
    valid=cython.const_uchar[::1],
    width=cython.Py_ssize_t,
    i=cython.Py_ssize_t,
    j=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
)
def _put_fixed(
    out: memoryview, cursor: memoryview, data: memoryview, valid: memoryview, width: int
) -> None:
    n = len(valid)
    for i in range(n):
        if valid[i]:
            p = cursor[i]
            for j in range(width):
                out[p + j] = data[i * width + j]
            cursor[i] = p + width


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.bint)
@cython.locals(
    data=cython.const_uchar[::1],
    cursor=cython.longlong[::1],
    ends=cython.const_longlong[::1],
    valid=cython.const_uchar[::1],
    out=cython.uchar[::1],
    width=cython.Py_ssize_t,
    i=cython.Py_ssize_t,
    j=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
)
def _take_fixed(
    data: memoryview,
    cursor: memoryview,
    ends: memoryview,
    valid: memoryview,
    out: memoryview,
    width: int,
) -> bool:
    n = len(valid)
    for i in range(n):
        if valid[i]:
            p = cursor[i]
            if p + width > ends[i + 1]:
                return False
            for j in range(width):
                out[i * width + j] = data[p + j]
            cursor[i] = p + width
    return True


def _take_text(
    data: memoryview, cursor: memoryview, ends: memoryview, valid: buffers.Bytes, kind: pa.DataType
) -> pa.Array:
    starts = np.zeros(len(valid) + 1, np.int32)
    total = _take_lengths(data, cursor, ends, buffers.view(valid), buffers.view(starts))
    if total < 0:
        raise ValueError(_CORRUPT)
    if total > buffers.TEXT_BYTES_MAX:
        message = "too many bytes for one text column"
        raise ValueError(message)
    content = np.empty(total, np.uint8)
    _take_bytes(data, cursor, buffers.view(starts), buffers.view(content))
    return buffers.make_text(starts, content, valid, kind)


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.longlong)
@cython.locals(
    data=cython.const_uchar[::1],
    cursor=cython.longlong[::1],
    ends=cython.const_longlong[::1],
    valid=cython.const_uchar[::1],
    starts=cython.int[::1],
    i=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
    length=cython.longlong,
    total=cython.longlong,
    shift=cython.int,
    c=cython.longlong,
)
def _take_lengths(
    data: memoryview, cursor: memoryview, ends: memoryview, valid: memoryview, starts: memoryview
) -> int:
    """Read the varints and fill ``starts``; the bytes needed, or -1 if malformed."""
    n = len(valid)
    total = 0
    for i in range(n):
        if valid[i]:
            p = cursor[i]
            length = 0
            shift = 0
            while True:
                if p >= ends[i + 1] or shift > 28:
                    return -1
                c = data[p]
                p += 1
                length |= (c & 127) << shift
                if c < 128:
                    break
                shift += 7
            if length > ends[i + 1] - p:
                return -1
            cursor[i] = p
            total += length
            if total > 2147483647:
                return total
        starts[i + 1] = total
    return total


@cython.cfunc
@cython.exceptval(check=False)
@cython.returns(cython.void)
@cython.locals(
    data=cython.const_uchar[::1],
    cursor=cython.longlong[::1],
    starts=cython.const_int[::1],
    out=cython.uchar[::1],
    i=cython.Py_ssize_t,
    n=cython.Py_ssize_t,
    p=cython.Py_ssize_t,
    q=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
)
def _take_bytes(data: memoryview, cursor: memoryview, starts: memoryview, out: memoryview) -> None:
    n = len(cursor)
    for i in range(n):
        p = cursor[i]
        q = starts[i]
        end = starts[i + 1]
        while q < end:
            out[q] = data[p]
            q += 1
            p += 1
        cursor[i] = p
