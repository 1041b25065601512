# cython: language_level=3, boundscheck=False, wraparound=False
"""Positions of values in the bytes of row messages, and columns made from them."""

from __future__ import annotations

import functools

import cython
import numpy as np
import pyarrow as pa

from headrace.kernels import buffers

if cython.compiled:
    from cython.cimports.headrace.kernels.pointers import (
        bytes_of,
        ints_of,
        longs_of,
        new_bytes,
        new_ints,
    )
else:
    bytes_of = ints_of = longs_of = new_bytes = new_ints = buffers.view


class Cells:
    """Positions of the values of row messages: column after column, new values first."""

    def __init__(self, source: buffers.Bytes, lsns: buffers.Int64s, width: int, olds: bool) -> None:
        """Allocate the arrays, with room for old values only if ``olds``."""
        n = len(lsns)
        self.source = source
        self.lsns = lsns
        self.ops = np.empty(n, np.int8)
        self.olds = np.zeros(n, np.int8)
        self.places = np.empty(width * n * (2 if olds else 1), np.int64)
        self.sizes = np.full(len(self.places), -1, np.int32)
        self.there = bytearray(2 * width)
        """Flags by column: 1 if some row has a value, plus 2 if some has an unchanged one."""

    def column(self, at: int) -> pa.Array:
        """Return the texts of the column at ``at``; NULL also where absent."""
        n = len(self.lsns)
        if not self.there[at] & 1:
            return _nothing(n)
        mine = slice(at * n, (at + 1) * n)
        return _column(self.source, self.places[mine], self.sizes[mine])

    def unchanged(self, at: int) -> pa.Array:
        """Return a bool per row: the value at ``at`` is TOASTed, unchanged and so not sent."""
        n = len(self.lsns)
        return pa.array(self.sizes[at * n : (at + 1) * n] == -2)


@functools.lru_cache(maxsize=64)
def _nothing(rows: int) -> pa.Array:
    """Return a column of NULLs; most batches lack old values, and have few rows."""
    return pa.nulls(rows, pa.string())


def _column(source: buffers.Bytes, places: buffers.Int64s, sizes: buffers.Offsets) -> pa.Array:
    n: cython.Py_ssize_t = len(sizes)
    starts = np.empty(n + 1, np.int32)
    valid = np.empty(n, np.uint8)
    limits: cython.p_int = new_ints(starts)
    total = _measure(ints_of(sizes), n, limits, new_bytes(valid))
    content = np.empty(total, np.uint8)
    _gather(bytes_of(source), longs_of(places), n, limits, new_bytes(content))
    return buffers.make_text(starts, content, valid, pa.string())


@cython.cfunc
@cython.exceptval(check=False)
def _measure(
    sizes: cython.p_int, n: cython.Py_ssize_t, starts: cython.p_int, valid: cython.p_uchar
) -> cython.longlong:
    """Fill ``starts`` and ``valid`` from the sizes; return the bytes needed."""
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    for i in range(n):
        starts[i] = total
        if sizes[i] >= 0:
            valid[i] = 1
            total += sizes[i]
        else:
            valid[i] = 0
    starts[n] = total
    return total


@cython.cfunc
@cython.exceptval(check=False)
def _gather(
    data: cython.p_const_uchar,
    places: cython.p_longlong,
    n: cython.Py_ssize_t,
    starts: cython.p_int,
    content: cython.p_uchar,
) -> cython.void:
    """Copy every value to its place; slots without a value have no bytes."""
    i: cython.Py_ssize_t
    for i in range(n):
        q: cython.Py_ssize_t = starts[i]
        end: cython.Py_ssize_t = starts[i + 1]
        if q < end:
            p: cython.Py_ssize_t = places[i]
            while q < end:
                content[q] = data[p]
                p += 1
                q += 1
