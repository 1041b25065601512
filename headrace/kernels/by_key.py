# cython: language_level=3, boundscheck=False, wraparound=False
"""Hot loops of ``collections/by_key.py``: how the rows of keys differ, and the least of them.

Rows of keys have the form of ``IndexState.scan_many``: positions of keys, ascending; rows; weights.
"""

from __future__ import annotations

import cython
import numpy as np

from headrace.kernels import buffers, packed
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import summed
from headrace.kernels.packed import Packed

if cython.compiled:
    from cython.cimports.headrace.kernels.packed import same_at
    from cython.cimports.headrace.kernels.pointers import bytes_of, longs_of, new_longs
else:
    from headrace.kernels.packed import same_at

    bytes_of = longs_of = new_longs = buffers.view

Found = tuple[Int64s, Packed, Int64s]


def difference(before: Found, after: Found) -> Found:
    """Subtract ``before`` from ``after``: per key each row once and none with weight 0."""
    total = len(before[0]) + len(after[0])
    keys, numbers = np.empty(total, np.int64), np.empty(total, np.int64)
    weights = np.empty(total, np.int64)
    count, alone = _changed(
        longs_of(before[0]),
        len(before[0]),
        bytes_of(before[1].data),
        longs_of(before[1].bounds),
        longs_of(before[2]),
        longs_of(after[0]),
        len(after[0]),
        bytes_of(after[1].data),
        longs_of(after[1].bounds),
        longs_of(after[2]),
        new_longs(keys),
        new_longs(numbers),
        new_longs(weights),
    )
    keys, numbers, weights = keys[:count], numbers[:count], weights[:count]
    if count == 0:
        return keys, packed.empty(0), weights
    rows = packed.take_two(before[1], after[1], numbers)
    if alone:
        return keys, rows, weights
    chosen, sums = summed(packed.appended(packed.fixed(keys), rows), weights)
    return keys[chosen], rows.take(chosen), sums


def least(found: Found, wanted: Int64s) -> Found:
    """Return the first ``wanted`` rows of each key, ordered by length, then bytes.

    REQUIRES: no weight is negative.
    """
    at, rows, weights = found
    shown = np.empty(len(at), np.int64)
    count = _limited(longs_of(at), len(at), longs_of(weights), longs_of(wanted), new_longs(shown))
    if count == len(at):
        return at, rows, shown
    if count >= 0:
        there = np.flatnonzero(shown > 0)
        return at[there], rows.take(there), shown[there]
    begins = np.ones(len(at), np.bool_)
    begins[1:] = at[1:] != at[: len(at) - 1]
    firsts = np.flatnonzero(begins)
    sizes = np.diff(np.append(firsts, len(at)))
    order = _by_length(firsts, sizes, rows)
    weights = weights[order]
    ends = np.cumsum(weights)
    before = ends - weights - np.repeat((ends - weights)[firsts], sizes)
    shown = np.minimum(weights, wanted[at] - before)
    there = np.flatnonzero(shown > 0)
    return at[there], rows.take(order[there]), shown[there]


def _by_length(firsts: Int64s, sizes: Int64s, rows: Packed) -> Int64s:
    """Return the order of rows within groups by length, then bytes; a group is consecutive."""
    order = np.arange(len(rows))
    for group in np.flatnonzero(sizes > 1).tolist():
        low = int(firsts[group])
        high = low + int(sizes[group])
        strings = rows.part(low, high).strings()
        names = [(len(row), row, low + i) for i, row in enumerate(strings)]
        names.sort()
        order[low:high] = [place for _, _, place in names]
    return order


@cython.cfunc
@cython.exceptval(check=False)
def _limited(
    at: cython.p_longlong,
    total: cython.Py_ssize_t,
    weights: cython.p_longlong,
    wanted: cython.p_longlong,
    shown: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Limit weights to what is wanted; return how many are above 0, -1 if a key has two rows."""
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    for i in range(total):
        if i > 0 and at[i] == at[i - 1]:
            return -1
        shown[i] = min(weights[i], wanted[at[i]])
        if shown[i] > 0:
            count += 1
    return count


@cython.cfunc
def _changed(
    olds: cython.p_longlong,
    old_count: cython.Py_ssize_t,
    old_rows: cython.p_uchar,
    old_bounds: cython.p_longlong,
    old_weights: cython.p_longlong,
    news: cython.p_longlong,
    new_count: cython.Py_ssize_t,
    new_rows: cython.p_uchar,
    new_bounds: cython.p_longlong,
    new_weights: cython.p_longlong,
    keys: cython.p_longlong,
    numbers: cython.p_longlong,
    weights: cython.p_longlong,
) -> tuple[int, bool]:
    """List the rows after the ones that each key has in common with before.

    ``numbers`` counts the old rows, then the new ones; weights of old rows are negated.  Returns
    how many there are, and whether no key has several.
    """
    i: cython.Py_ssize_t = 0
    j: cython.Py_ssize_t = 0
    key: cython.longlong
    begin: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    alone: cython.bint = True
    while i < old_count or j < new_count:
        if j == new_count or (i < old_count and olds[i] <= news[j]):
            key = olds[i]
        else:
            key = news[j]
        # Skip the common prefix: most rows are equal.
        while (
            i < old_count
            and j < new_count
            and olds[i] == key
            and news[j] == key
            and old_weights[i] == new_weights[j]
            and same_at(old_rows, old_bounds, i, new_rows, new_bounds, j)
        ):
            i += 1
            j += 1
        begin = count
        while i < old_count and olds[i] == key:
            keys[count] = key
            numbers[count] = i
            weights[count] = -old_weights[i]
            count += 1
            i += 1
        while j < new_count and news[j] == key:
            keys[count] = key
            numbers[count] = old_count + j
            weights[count] = new_weights[j]
            count += 1
            j += 1
        if count < begin + 2:
            continue
        first: cython.Py_ssize_t = numbers[begin]
        last: cython.Py_ssize_t = numbers[begin + 1] - old_count
        if count > begin + 2 or first >= old_count or last < 0:
            alone = False
        elif same_at(old_rows, old_bounds, first, new_rows, new_bounds, last):
            # The row has another weight now, for equal ones were skipped.
            weights[begin] += weights[begin + 1]
            count -= 1
    return count, alone
