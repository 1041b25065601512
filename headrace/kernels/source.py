# cython: language_level=3, boundscheck=False, wraparound=False
"""Hot loops of the source collection: replay ops in stream order to the last row of each key.

A key is a number, its *slot*; -1 stands for no key.
"""

from __future__ import annotations

import cython
import numpy as np
import numpy.typing as npt

from headrace.kernels import buffers
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Nullable, Packed

if cython.compiled:
    from cython.cimports.headrace.kernels.packed import same
else:
    from headrace.kernels.packed import same

INSERT = 0
UPDATE = 1
DELETE = 2
TRUNCATE = 3

Ops = npt.NDArray[np.int8]

_NO_FLAGS = np.zeros(0, np.uint8)

NO_ROW = -1
"""``after`` of a key that has no row any more."""
UNTOUCHED = -2
"""``after`` of a key whose row is unchanged."""

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
        buffers.view(ops),
        buffers.view(olds),
        buffers.view(news),
        buffers.view(_NO_FLAGS if unchanged is None else unchanged),
    )
    return out


def keyless(ops: Ops, olds: Int64s, news: Int64s) -> bool:
    """Return whether an INSERT or UPDATE has no new key, or a DELETE no old one."""
    return bool(_keyless(buffers.view(ops), buffers.view(olds), buffers.view(news)))


def replay(
    ops: Ops, olds: Int64s, news: Int64s, present: Bytes, partial: bool
) -> tuple[Int64s, int, int]:
    """Replay ops in order.

    ``present`` flags slots with a row before.  With ``partial`` only some rows are known, so none
    counts as missing.  Returns, per slot, the op whose new row the key has afterwards (or
    ``NO_ROW``, ``UNTOUCHED``).  Then follow the position of the first wrong op and its error
    (``MISSING``, ``PRESENT``); -1 and 0 if there is none.
    """
    after = np.full(len(present), UNTOUCHED, np.int64)
    there = np.array(present, np.uint8)
    wrong, why = _replay(
        buffers.view(ops),
        buffers.view(olds),
        buffers.view(news),
        buffers.view(there),
        partial,
        buffers.view(after),
    )
    return after, wrong, why


def changes(
    before: Nullable, after: Int64s, rows: Packed, wanted: Bytes | None
) -> tuple[Int64s, Int64s | None, Int64s, Int64s]:
    """Return the effect of a replay on the stored rows.

    ``rows`` are the new rows of the ops; only the ``wanted`` ones are stored (None: all).  Returns
    the slots of the removed rows, the numbers in ``rows`` of the added ones (None: all, in order),
    and the slots whose row changes with the number of the row to store (-1 deletes).
    """
    count = len(after)
    went, came = np.empty(count, np.int64), np.empty(count, np.int64)
    slots, stored = np.empty(count, np.int64), np.empty(count, np.int64)
    size, gone, new, in_order = _changes(
        buffers.view(before.data),
        buffers.view(before.bounds),
        buffers.view(before.valid),
        buffers.view(after),
        buffers.view(rows.data),
        buffers.view(rows.bounds),
        buffers.view(_NO_FLAGS if wanted is None else wanted),
        buffers.view(went),
        buffers.view(came),
        buffers.view(slots),
        buffers.view(stored),
    )
    chosen = None if in_order and new == len(rows) else came[:new]
    return went[:gone], chosen, slots[:size], stored[:size]


@cython.cfunc
@cython.exceptval(check=False)
def _keyless(
    ops: cython.const_schar[::1],
    olds: cython.const_longlong[::1],
    news: cython.const_longlong[::1],
) -> cython.bint:
    i: cython.Py_ssize_t
    for i in range(len(ops)):  # noqa: SIM110  a loop of C, where any() takes a generator
        if (ops[i] <= 1 and news[i] < 0) or (ops[i] == 2 and olds[i] < 0):
            return True
    return False


@cython.cfunc
def _segments(
    ops: cython.const_schar[::1],
    olds: cython.const_longlong[::1],
    news: cython.const_longlong[::1],
    unchanged: cython.const_uchar[::1],
) -> list[int]:
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(ops)
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
        if len(unchanged) == 0:
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
    ops: cython.const_schar[::1],
    olds: cython.const_longlong[::1],
    news: cython.const_longlong[::1],
    there: cython.uchar[::1],
    partial: cython.bint,
    after: cython.longlong[::1],
) -> tuple[int, int]:
    i: cython.Py_ssize_t
    slot: cython.longlong
    for i in range(len(ops)):
        if ops[i] != 0:
            slot = olds[i] if olds[i] >= 0 else news[i]
            if not there[slot] and not partial:
                return i, MISSING
            there[slot] = 0
            after[slot] = -1
        if ops[i] != 2:
            slot = news[i]
            if there[slot]:
                return i, PRESENT
            there[slot] = 1
            after[slot] = i
    return -1, 0


@cython.cfunc
def _changes(
    data: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    there: cython.const_uchar[::1],
    after: cython.const_longlong[::1],
    rows: cython.const_uchar[::1],
    limits: cython.const_longlong[::1],
    wanted: cython.const_uchar[::1],
    went: cython.longlong[::1],
    came: cython.longlong[::1],
    slots: cython.longlong[::1],
    stored: cython.longlong[::1],
) -> tuple[int, int, int, bool]:
    slot: cython.Py_ssize_t
    some: cython.bint = len(wanted) > 0
    size: cython.Py_ssize_t = 0
    gone: cython.Py_ssize_t = 0
    new: cython.Py_ssize_t = 0
    in_order: cython.bint = True
    for slot in range(len(after)):
        at: cython.longlong = after[slot]
        if at == -2:
            continue
        if at >= 0 and some and not wanted[at]:
            at = -1
        if at < 0 and not there[slot]:
            continue
        if at >= 0 and there[slot] and same(data, bounds, slot, rows, limits, at):
            continue
        if there[slot]:
            went[gone] = slot
            gone += 1
        if at >= 0:
            in_order = in_order and at == new
            came[new] = at
            new += 1
        slots[size] = slot
        stored[size] = at
        size += 1
    return size, gone, new, in_order
