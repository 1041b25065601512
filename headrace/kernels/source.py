# cython: language_level=3, boundscheck=False, wraparound=False
"""Hot loops of the source collection: replay ops in stream order to the last row of each key.

A key is a number, its *slot*; -1 stands for no key.
"""

from __future__ import annotations

from dataclasses import dataclass

import cython
import numpy as np
import numpy.typing as npt

from headrace.kernels import buffers
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Nullable, Packed

if cython.compiled:
    from cython.cimports.headrace.kernels.packed import same_at
    from cython.cimports.headrace.kernels.pointers import bytes_of, longs_of, new_longs
else:
    from headrace.kernels.packed import same_at

    bytes_of = longs_of = new_longs = buffers.view

INSERT = 0
UPDATE = 1
DELETE = 2
TRUNCATE = 3

Ops = npt.NDArray[np.int8]

_NO_FLAGS = np.zeros(0, np.uint8)

MISSING = 1
"""The row to change or delete does not exist."""
PRESENT = 2
"""The row to add exists already."""


def segments(ops: Ops, olds: Int64s, news: Int64s, unchanged: Bytes | None) -> list[int]:
    """Return where to cut the ops, so that the keys of each piece can be looked up together.

    A TRUNCATE is a separate piece.  An op with unchanged TOAST values needs its old row, so it may
    not follow an op on the same key within a piece.  The last cut is ``len(ops)``.
    """
    out: list[int] = _segments(
        bytes_of(ops),
        longs_of(olds),
        longs_of(news),
        len(ops),
        bytes_of(_NO_FLAGS if unchanged is None else unchanged),
        unchanged is not None,
    )
    return out


def keyless(ops: Ops, olds: Int64s, news: Int64s) -> bool:
    """Return whether an INSERT or UPDATE has no new key, or a DELETE no old one."""
    return bool(_keyless(bytes_of(ops), longs_of(olds), longs_of(news), len(ops)))


@dataclass(slots=True)
class Effect:
    """The effect of a replay on the stored rows, of which unchanged ones are left out."""

    went: Int64s
    """Slots of the removed rows."""
    came: Int64s | None
    """Numbers of the added rows among the new ones; None: all, in order."""
    slots: Int64s
    """Slots whose row changes."""
    stored: Int64s
    """Numbers of the rows to store for them; -1 deletes."""
    wrong: int
    """Position of the first wrong op, to which ``why`` applies; -1: none."""
    why: int
    """Error of the wrong op (``MISSING``, ``PRESENT``); 0: none."""


def replay(
    ops: Ops,
    slots: tuple[Int64s, Int64s],
    before: Nullable,
    rows: Packed,
    wanted: Bytes | None,
    partial: bool,
) -> Effect:
    """Replay ops in order.

    ``slots``: those of old and of new rows.  ``before``: the stored rows.  ``rows``: the new rows
    of the ops; only the ``wanted`` ones are stored (None: all).  With ``partial`` only some rows
    are known, so none counts as missing.
    """
    count = len(before)
    # Outputs and scratch: one part of the array for each.
    parts = np.empty(6 * count, np.int64)
    size, gone, new, in_order, wrong, why = _replay(
        bytes_of(ops),
        longs_of(slots[0]),
        longs_of(slots[1]),
        len(ops),
        bytes_of(before.data),
        longs_of(before.bounds),
        bytes_of(before.valid),
        count,
        bytes_of(rows.data),
        longs_of(rows.bounds),
        bytes_of(_NO_FLAGS if wanted is None else wanted),
        wanted is not None,
        partial,
        new_longs(parts),
    )
    came = None if in_order and new == len(rows) else parts[count : count + new]
    changed, stored = parts[2 * count : 2 * count + size], parts[3 * count : 3 * count + size]
    return Effect(parts[:gone], came, changed, stored, wrong, why)


def diffs(effect: Effect, count: int, stored: int) -> tuple[Int64s, Int64s]:
    """Return the numbers of the removed and added rows of a replay, and their weights.

    The ``count`` new rows are numbered after the ``stored`` ones.
    """
    gone: cython.Py_ssize_t = len(effect.went)
    new: cython.Py_ssize_t = count if effect.came is None else len(effect.came)
    order, weights = np.empty(gone + new, np.int64), np.empty(gone + new, np.int64)
    came = buffers.minus_ones(0) if effect.came is None else effect.came
    all_in_order: cython.bint = effect.came is None
    _diffs(
        longs_of(effect.went),
        gone,
        longs_of(came),
        new,
        all_in_order,
        stored,
        new_longs(order),
        new_longs(weights),
    )
    return order, weights


@cython.cfunc
@cython.exceptval(check=False)
def _diffs(
    went: cython.p_longlong,
    gone: cython.Py_ssize_t,
    came: cython.p_longlong,
    new: cython.Py_ssize_t,
    in_order: cython.bint,
    stored: cython.Py_ssize_t,
    order: cython.p_longlong,
    weights: cython.p_longlong,
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(gone):
        order[i] = went[i]
        weights[i] = -1
    for i in range(new):
        order[gone + i] = stored + (i if in_order else came[i])
        weights[gone + i] = 1


@cython.cfunc
@cython.exceptval(check=False)
def _keyless(
    ops: cython.p_const_uchar,
    olds: cython.p_longlong,
    news: cython.p_longlong,
    total: cython.Py_ssize_t,
) -> cython.bint:
    i: cython.Py_ssize_t
    for i in range(total):  # noqa: SIM110  a loop of C, where any() takes a generator
        if (ops[i] <= 1 and news[i] < 0) or (ops[i] == 2 and olds[i] < 0):
            return True
    return False


@cython.cfunc
def _segments(
    ops: cython.p_const_uchar,
    olds: cython.p_longlong,
    news: cython.p_longlong,
    total: cython.Py_ssize_t,
    unchanged: cython.p_const_uchar,
    some: cython.bint,
) -> list[int]:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = total
    start: cython.Py_ssize_t = 0
    old: cython.longlong
    cuts: list[int] = []
    touched: set[int] = set()
    for i in range(n):
        if ops[i] == 3:
            if i > start:
                cuts.append(i)
            cuts.append(i + 1)
            start = i + 1
            touched.clear()
            continue
        if not some:
            continue
        old = olds[i] if olds[i] >= 0 else news[i]
        if unchanged[i] and old in touched:
            cuts.append(i)
            start = i
            touched.clear()
        touched.add(old)
        touched.add(news[i])
    if start < n:
        cuts.append(n)
    return cuts


@cython.cfunc
def _replay(
    ops: cython.p_const_uchar,
    olds: cython.p_longlong,
    news: cython.p_longlong,
    total: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    bounds: cython.p_longlong,
    valid: cython.p_const_uchar,
    count: cython.Py_ssize_t,
    rows: cython.p_const_uchar,
    limits: cython.p_longlong,
    wanted: cython.p_const_uchar,
    some: cython.bint,
    partial: cython.bint,
    parts: cython.p_longlong,
) -> tuple[int, int, int, bool, int, int]:
    """Fill ``parts``: went, came, slots, stored, then per slot the last op and whether a row is."""
    i: cython.Py_ssize_t
    slot: cython.longlong
    at: cython.longlong
    last: cython.Py_ssize_t = 4 * count
    there: cython.Py_ssize_t = 5 * count
    size: cython.Py_ssize_t = 0
    gone: cython.Py_ssize_t = 0
    new: cython.Py_ssize_t = 0
    in_order: cython.bint = True
    for i in range(count):
        parts[last + i] = -2
        parts[there + i] = valid[i]
    for i in range(total):
        if ops[i] != 0:
            slot = olds[i] if olds[i] >= 0 else news[i]
            if not parts[there + slot] and not partial:
                return 0, 0, 0, False, i, MISSING
            parts[there + slot] = 0
            parts[last + slot] = -1
        if ops[i] != 2:
            slot = news[i]
            if parts[there + slot]:
                return 0, 0, 0, False, i, PRESENT
            parts[there + slot] = 1
            parts[last + slot] = i
    for i in range(count):
        at = parts[last + i]
        if at == -2:
            continue
        if at >= 0 and some and not wanted[at]:
            at = -1
        if at < 0 and not valid[i]:
            continue
        if at >= 0 and valid[i] and same_at(data, bounds, i, rows, limits, at):
            continue
        if valid[i]:
            parts[gone] = i
            gone += 1
        if at >= 0:
            in_order = in_order and at == new
            parts[count + new] = at
            new += 1
        parts[2 * count + size] = i
        parts[3 * count + size] = at
        size += 1
    return size, gone, new, in_order, -1, 0
