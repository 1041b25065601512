# cython: language_level=3, boundscheck=False, wraparound=False
"""The output that ``collections/running.py`` has stored, and how it differs from new lines."""

from __future__ import annotations

from dataclasses import dataclass

import cython
import numpy as np

from headrace.kernels import buffers, packed
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Packed
from headrace.kernels.running import Lines

if cython.compiled:
    from cython.cimports.headrace.kernels.packed import compare, same
else:
    from headrace.kernels.packed import compare, same

_TAIL = np.dtype([("place", ">i8"), ("size", ">u4")])
_COPY = np.dtype(">u4")


@dataclass(slots=True)
class Stored:
    """Rows of the stored output: entry, number of the copy, values, place, length of the values."""

    entries: Packed
    copies: Int64s
    """How many rows of the same entry are before each."""
    values: Packed
    """Values of the calls, as a row."""
    places: Int64s
    """Number of each row in its partition, from 1 on; 0 if no call depends on it."""


def stored_rows(stored: Stored) -> Packed:
    """Return rows of the stored output; ``parsed`` is the inverse."""
    tails = np.empty(len(stored.places), _TAIL)
    bounds = stored.values.bounds
    tails["place"], tails["size"] = stored.places, bounds[1:] - bounds[:-1]
    found = packed.appended(stored.entries, packed.fixed(stored.copies.astype(_COPY)))
    return packed.appended(packed.appended(found, stored.values), packed.fixed(tails))


def parsed(found: Packed) -> Stored:
    """Return the parts of rows of the stored output."""
    count = len(found)
    copies, places = np.empty(count, np.int64), np.empty(count, np.int64)
    middles, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    _parsed(
        buffers.view(found.data),
        buffers.view(found.bounds),
        buffers.view(copies),
        buffers.view(places),
        buffers.view(middles),
        buffers.view(ends),
    )
    return Stored(
        packed.spans(found.data, found.bounds[:-1], middles - _COPY.itemsize),
        copies,
        packed.spans(found.data, middles, ends),
        places,
    )


@cython.cfunc
@cython.exceptval(check=False)
def _parsed(
    data: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    copies: cython.longlong[::1],
    places: cython.longlong[::1],
    middles: cython.longlong[::1],
    ends: cython.longlong[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    for i in range(len(copies)):
        end: cython.Py_ssize_t = bounds[i + 1] - 12
        place: cython.longlong = 0
        size: cython.longlong = 0
        copy: cython.longlong = 0
        for k in range(8):
            place = (place << 8) | data[end + k]
        for k in range(4):
            size = (size << 8) | data[end + 8 + k]
        middle: cython.Py_ssize_t = end - size
        for k in range(4):
            copy = (copy << 8) | data[middle - 4 + k]
        copies[i] = copy
        places[i] = place
        middles[i] = middle
        ends[i] = end


@dataclass(slots=True)
class Settled:
    """Differences between the stored output and the lines of a page."""

    removed: Int64s
    """Stored rows that are no longer right."""
    added: Int64s
    """Lines that are not stored like this."""
    done: Bytes
    """Per partition 1 if all later lines are stored rightly."""


def settle(
    page: Lines,
    entries: Packed,
    new: Stored,
    old_at: Int64s,
    old: Stored,
    touched: Packed,
    behind: Int64s,
    back: int,
) -> Settled:
    """Compare the lines of a page with the stored output of at least the same entries.

    ``entries``: those of the page.  ``new``: values and places of each line; the rest is not read.
    ``old_at``, ``old``: the stored output, partition by partition, each ascending.
    ``touched``: per partition the last entry that changed; ``behind``: how many lines after it are
    known, which is updated.
    ``back``: how many lines before a line its values depend on, beyond the running values.
    """
    count, parts = len(old_at), len(behind)
    removed, added = np.empty(count, np.int64), np.empty(len(page.entry), np.int64)
    done, counts = np.zeros(parts, np.uint8), np.zeros(2, np.int64)
    begins = np.searchsorted(old_at, np.arange(parts + 1))
    _settle(
        page,
        entries,
        new,
        old,
        touched,
        buffers.view(begins),
        back,
        buffers.view(behind),
        buffers.view(removed),
        buffers.view(added),
        buffers.view(done),
        buffers.view(counts),
    )
    return Settled(removed[: counts[0]], added[: counts[1]], done)


@cython.cfunc
def _settle(
    page: Lines,
    entries: Packed,
    new: Stored,
    old: Stored,
    touched: Packed,
    old_begins: cython.const_longlong[::1],
    back: cython.longlong,
    behind: cython.longlong[::1],
    removed: cython.longlong[::1],
    added: cython.longlong[::1],
    done: cython.uchar[::1],
    counts: cython.longlong[::1],
) -> None:
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    p: cython.Py_ssize_t
    gone: cython.Py_ssize_t = 0
    made: cython.Py_ssize_t = 0
    entry: cython.const_longlong[::1] = buffers.view(page.entry)
    copy: cython.const_longlong[::1] = buffers.view(page.copy)
    first: cython.const_longlong[::1] = buffers.view(page.first)
    last: cython.const_longlong[::1] = buffers.view(page.last)
    bounds: cython.const_longlong[::1] = buffers.view(page.bounds)
    rest: cython.const_longlong[::1] = buffers.view(page.rest)
    data: cython.const_uchar[::1] = buffers.view(entries.data)
    limits: cython.const_longlong[::1] = buffers.view(entries.bounds)
    new_values: cython.const_uchar[::1] = buffers.view(new.values.data)
    new_limits: cython.const_longlong[::1] = buffers.view(new.values.bounds)
    new_places: cython.const_longlong[::1] = buffers.view(new.places)
    ends: cython.const_uchar[::1] = buffers.view(touched.data)
    end_limits: cython.const_longlong[::1] = buffers.view(touched.bounds)
    olds: cython.const_uchar[::1] = buffers.view(old.entries.data)
    old_limits: cython.const_longlong[::1] = buffers.view(old.entries.bounds)
    old_values: cython.const_uchar[::1] = buffers.view(old.values.data)
    old_value_limits: cython.const_longlong[::1] = buffers.view(old.values.bounds)
    old_copies: cython.const_longlong[::1] = buffers.view(old.copies)
    old_places: cython.const_longlong[::1] = buffers.view(old.places)
    for p in range(len(done)):
        j = old_begins[p]
        old_end: cython.Py_ssize_t = old_begins[p + 1]
        for i in range(bounds[p], bounds[p + 1]):
            e: cython.Py_ssize_t = entry[i]
            is_same: cython.bint = False
            while j < old_end:
                order: cython.int = _order(
                    olds, old_limits, old_copies, j, data, limits, e, copy[i]
                )
                if order > 0:
                    break
                if order == 0:
                    is_same = old_places[j] == new_places[i] and same(
                        old_values, old_value_limits, j, new_values, new_limits, i
                    )
                if not is_same:
                    removed[gone] = j
                    gone += 1
                j += 1
                if order == 0:
                    break
            if not is_same:
                added[made] = i
                made += 1
            if last[i] == i and _after(data, limits, entry[first[i]], ends, end_limits, p):
                behind[p] += i - first[i] + 1
                ended: cython.bint = j == old_end or not same(olds, old_limits, j, data, limits, e)
                if is_same and ended and behind[p] > back:
                    done[p] = True
                    break
        if done[p] or (rest[p] >= 0 and bounds[p] == bounds[p + 1]):
            continue
        done[p] = rest[p] < 0
        while j < old_end and (
            done[p] or not _after(olds, old_limits, j, data, limits, entry[bounds[p + 1] - 1])
        ):
            removed[gone] = j
            gone += 1
            j += 1
    counts[0] = gone
    counts[1] = made


@cython.cfunc
@cython.exceptval(check=False)
def _order(
    olds: cython.const_uchar[::1],
    old_limits: cython.const_longlong[::1],
    old_copies: cython.const_longlong[::1],
    j: cython.Py_ssize_t,
    data: cython.const_uchar[::1],
    limits: cython.const_longlong[::1],
    e: cython.Py_ssize_t,
    copy: cython.longlong,
) -> cython.int:
    """Compare a stored row with copy ``copy`` of entry ``e``."""
    order: cython.int = compare(
        olds, old_limits[j], old_limits[j + 1], data, limits[e], limits[e + 1]
    )
    if order == 0:
        return (old_copies[j] > copy) - (old_copies[j] < copy)
    return order


@cython.cfunc
@cython.exceptval(check=False)
def _after(
    left: cython.const_uchar[::1],
    left_limits: cython.const_longlong[::1],
    i: cython.Py_ssize_t,
    right: cython.const_uchar[::1],
    right_limits: cython.const_longlong[::1],
    j: cython.Py_ssize_t,
) -> cython.bint:
    """Return whether string ``i`` of ``left`` sorts after string ``j`` of ``right``."""
    return (
        compare(
            left, left_limits[i], left_limits[i + 1], right, right_limits[j], right_limits[j + 1]
        )
        > 0
    )
