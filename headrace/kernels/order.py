# cython: language_level=3, boundscheck=False, wraparound=False
"""Sort keys of ORDER BY, and index rows in that order.

An *entry* is sort key, tiebreak and row, then the lengths of the sort key and of the row (4 bytes
each, big-endian).  Sort keys, tiebreaks and rows are prefix-free, so entries sort by their sort
keys, then by their tiebreaks, then by their rows, and no entry is the beginning of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import cython
import numpy as np

from headrace.kernels import buffers, packed
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Packed

if cython.compiled:
    from cython.cimports.headrace.kernels.packed import same
else:
    from headrace.kernels.packed import same

_LENGTHS = np.dtype([("order", ">u4"), ("row", ">u4")])


def directed(keys: Packed, *, descending: bool, nulls_first: bool) -> Packed:
    """Convert canonical keys of a column (``kernels.keys``) to sort keys of an ORDER BY item."""
    first, end = int(keys.bounds[0]), int(keys.bounds[len(keys)])
    out = keys.data[first:end].copy()
    bounds = keys.bounds - first
    _direct(buffers.view(out), buffers.view(bounds), descending, nulls_first)
    return Packed(out, bounds)


@cython.cfunc
@cython.exceptval(check=False)
def _direct(
    out: cython.uchar[::1],
    bounds: cython.const_longlong[::1],
    descending: cython.bint,
    nulls_first: cython.bint,
) -> cython.void:
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    for i in range(len(bounds) - 1):
        marker: cython.Py_ssize_t = bounds[i]
        null: cython.bint = out[marker] == 1
        out[marker] = null != nulls_first
        if descending and not null:
            for k in range(marker + 1, bounds[i + 1]):
                out[k] = 255 - out[k]


def joined(parts: Sequence[Packed], count: int) -> Packed:
    """Concatenate the parts of each of ``count`` rows."""
    return reduce(packed.appended, parts) if parts else packed.empty(count)


def entries(orders: Packed, rests: Packed, rows: Packed) -> Packed:
    """Return entries of sort keys, tiebreaks and rows; ValueError if they differ in number."""
    lengths = np.empty(len(rows), _LENGTHS)
    if len(orders) != len(rows):
        message = "sort keys and rows differ in number"
        raise ValueError(message)
    lengths["order"] = orders.bounds[1:] - orders.bounds[: len(orders.bounds) - 1]
    lengths["row"] = rows.bounds[1:] - rows.bounds[: len(rows.bounds) - 1]
    return joined([orders, rests, rows, packed.fixed(lengths)], len(rows))


def split(found: Packed) -> tuple[Packed, Packed]:
    """Return (sort keys, rows) of entries."""
    starts, ends = found.bounds[: len(found.bounds) - 1], found.bounds[1:]
    order_ends, row_starts = np.empty(len(found), np.int64), np.empty(len(found), np.int64)
    _split(
        buffers.view(found.data),
        buffers.view(found.bounds),
        buffers.view(order_ends),
        buffers.view(row_starts),
    )
    return (
        packed.spans(found.data, starts, order_ends),
        packed.spans(found.data, row_starts, ends - _LENGTHS.itemsize),
    )


@cython.cfunc
@cython.exceptval(check=False)
def _split(
    data: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    order_ends: cython.longlong[::1],
    row_starts: cython.longlong[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    for i in range(len(order_ends)):
        end: cython.Py_ssize_t = bounds[i + 1] - 8
        order: cython.longlong = 0
        row: cython.longlong = 0
        for k in range(4):
            order = (order << 8) | data[end + k]
            row = (row << 8) | data[end + 4 + k]
        order_ends[i] = bounds[i] + order
        row_starts[i] = end - row


def first_rows(
    at: Int64s, orders: Packed, weights: Int64s, limits: tuple[int, int], *, ties: bool
) -> tuple[Int64s, Bytes]:
    """Return how often each entry of ordered groups counts, by its place in the group.

    Also return 1 for each group of which entries after these may count.  ``at``, ``orders``,
    ``weights``: group, sort key and weight of each entry, in order.  ``limits``: how many rows are
    before the first row that counts, and up to the last.  ``ties``: whether later rows count, too,
    whose sort key equals that of the last.
    """
    groups = int(at[len(at) - 1]) + 1 if len(at) else 0
    shown, more = np.zeros(len(at), np.int64), np.ones(groups, np.uint8)
    _first_rows(
        buffers.view(at),
        buffers.view(orders.data),
        buffers.view(orders.bounds),
        buffers.view(weights),
        limits[0],
        limits[1],
        ties,
        buffers.view(shown),
        buffers.view(more),
    )
    return shown, more


@cython.cfunc
@cython.exceptval(check=False)
def _first_rows(
    at: cython.const_longlong[::1],
    orders: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    weights: cython.const_longlong[::1],
    offset: cython.longlong,
    needed: cython.longlong,
    ties: cython.bint,
    shown: cython.longlong[::1],
    more: cython.uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    before: cython.longlong = 0
    last: cython.Py_ssize_t = -1
    for i in range(len(shown)):
        if i == 0 or at[i] != at[i - 1]:
            before = 0
            last = -1
        if not more[at[i]]:
            continue
        if before >= needed and (
            not ties or last < 0 or not same(orders, bounds, i, orders, bounds, last)
        ):
            more[at[i]] = False
            continue
        if before < needed:
            last = i
        end: cython.longlong = before + weights[i]
        if not ties and end > needed:
            end = needed
        first: cython.longlong = before if before > offset else offset
        if end > first:
            shown[i] = end - first
        before += weights[i]
