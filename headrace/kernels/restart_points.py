# cython: language_level=3, boundscheck=False, wraparound=False
"""Restart points of ``collections/running.py``, and how lines differ before and after a txid.

A *restart point* is the last line of a peer group with the values of the calls there: the lines
after it are computed from it, without the lines before it.
"""

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

LEAST = 12
"""Lines from a restart point to the next one that is kept."""
MOST = 32
"""Lines from a restart point to the next one that is made."""
_TAIL = np.dtype([("place", ">i8"), ("size", ">u4")])
_COPY = np.dtype(">u4")


@dataclass(slots=True)
class Points:
    """Lines with their values, of which some are restart points."""

    entries: Packed
    copies: Int64s
    """How many lines of the same entry are before each."""
    values: Packed
    """Values of the calls, as a row."""
    places: Int64s
    """Number of each line in its partition, from 1 on; 0 if no call depends on it."""


def stored(points: Points) -> Packed:
    """Return restart points as index rows: entry, copy, values, place, length of the values."""
    tails = np.empty(len(points.places), _TAIL)
    bounds = points.values.bounds
    tails["place"], tails["size"] = points.places, bounds[1:] - bounds[: len(bounds) - 1]
    found = packed.appended(points.entries, packed.fixed(points.copies.astype(_COPY)))
    return packed.appended(packed.appended(found, points.values), packed.fixed(tails))


def parsed(found: Packed) -> Points:
    """Return the points that ``stored`` made."""
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
    return Points(
        packed.spans(found.data, found.bounds[: len(found.bounds) - 1], middles - _COPY.itemsize),
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


# --- differences of lines


@dataclass(slots=True)
class Settled:
    """Differences between the lines of a page before and after the changes."""

    removed: Int64s
    """Lines before the changes that are no longer right."""
    added: Int64s
    """Lines after the changes that were not there like this."""
    ends: Int64s
    """Per partition the end of the lines after the changes that count: later ones are the same."""
    done: Bytes
    """Per partition 1 if no later line becomes different."""


def settle(
    page: Lines, values: Packed, numbers: Int64s, changed: Int64s, behind: Int64s, back: int
) -> Settled:
    """Compare the lines of a page before the changes with those after them.

    ``values``, ``numbers``: values and number in the partition of each line.
    ``changed``: as in ``Merged``; ``behind``: per partition how many lines after the last change
    are known, which is updated.
    ``back``: how many lines before a line its values depend on, beyond the running values.
    """
    parts = len(behind)
    removed, added = np.empty(len(page.entry), np.int64), np.empty(len(page.entry), np.int64)
    ends, done, counts = np.empty(parts, np.int64), np.zeros(parts, np.uint8), np.zeros(2, np.int64)
    _settle(
        page,
        buffers.view(values.data),
        buffers.view(values.bounds),
        buffers.view(numbers),
        buffers.view(changed),
        back,
        buffers.view(behind),
        buffers.view(removed),
        buffers.view(added),
        buffers.view(ends),
        buffers.view(done),
        buffers.view(counts),
    )
    return Settled(removed[: counts[0]], added[: counts[1]], ends, done)


@cython.cfunc
def _settle(
    page: Lines,
    values: cython.const_uchar[::1],
    limits: cython.const_longlong[::1],
    numbers: cython.const_longlong[::1],
    changed: cython.const_longlong[::1],
    back: cython.longlong,
    behind: cython.longlong[::1],
    removed: cython.longlong[::1],
    added: cython.longlong[::1],
    ends: cython.longlong[::1],
    done: cython.uchar[::1],
    counts: cython.longlong[::1],
) -> None:
    p: cython.Py_ssize_t
    order: cython.longlong
    gone: cython.Py_ssize_t = 0
    made: cython.Py_ssize_t = 0
    entry: cython.const_longlong[::1] = buffers.view(page.entry)
    copy: cython.const_longlong[::1] = buffers.view(page.copy)
    first: cython.const_longlong[::1] = buffers.view(page.first)
    last: cython.const_longlong[::1] = buffers.view(page.last)
    bounds: cython.const_longlong[::1] = buffers.view(page.bounds)
    rest: cython.const_longlong[::1] = buffers.view(page.rest)
    parts: cython.Py_ssize_t = done.shape[0]
    for p in range(parts):
        i: cython.Py_ssize_t = bounds[p]
        i_end: cython.Py_ssize_t = bounds[p + 1]
        j: cython.Py_ssize_t = bounds[parts + p]
        j_end: cython.Py_ssize_t = bounds[parts + p + 1]
        ends[p] = j_end
        done[p] = rest[p] < 0
        while i < i_end or j < j_end:
            order = 0
            if j == j_end:
                order = -1
            elif i == i_end:
                order = 1
            elif entry[i] != entry[j]:
                order = entry[i] - entry[j]
            else:
                order = copy[i] - copy[j]
            is_same: cython.bint = order == 0 and same(values, limits, i, values, limits, j)
            if order <= 0:
                if not is_same:
                    removed[gone] = i
                    gone += 1
                i += 1
            if order >= 0:
                if not is_same:
                    added[made] = j
                    made += 1
                j += 1
            if order == 0 and last[j - 1] == j - 1 and entry[first[j - 1]] > changed[p]:
                behind[p] += j - first[j - 1]
                if is_same and numbers[i - 1] == numbers[j - 1] and behind[p] > back:
                    ends[p] = j
                    done[p] = True
                    break
    counts[0] = gone
    counts[1] = made


# --- which lines are restart points


@dataclass(slots=True)
class PointChanges:
    """Differences between the restart points of a page before and after the changes."""

    removed: Int64s
    """Restart points that are no longer right."""
    added: Int64s
    """Lines that become restart points."""


def keep(
    page: Lines,
    lines: Points,
    settled: Settled,
    at: Int64s,
    points: Points,
    since: Int64s,
) -> PointChanges:
    """Return how the restart points of a page change.

    ``lines``: values and places of the lines, with the entries of the page.
    ``at``, ``points``: the restart points to the end of the page's lines at least, partition by
    partition, each ascending.
    ``since``: per partition the lines since the last restart point, which is updated.
    """
    removed, added = np.empty(len(at), np.int64), np.empty(len(page.entry), np.int64)
    counts = np.zeros(2, np.int64)
    _keep(
        page,
        lines,
        settled,
        points,
        buffers.view(np.searchsorted(at, np.arange(len(since) + 1))),
        buffers.view(since),
        buffers.view(removed),
        buffers.view(added),
        buffers.view(counts),
    )
    return PointChanges(removed[: counts[0]], added[: counts[1]])


def since_after(sizes: Int64s) -> Int64s:
    """Return the lines since the last restart point after peer groups of these ``sizes``.

    Element i is valid if there are i lines since the last restart point before these groups, and
    none of their lines is one already.
    """
    out = np.arange(MOST, dtype=np.int64)
    _since_after(buffers.view(sizes), buffers.view(out))
    return out


@cython.cfunc
@cython.exceptval(check=False)
def _since_after(sizes: cython.const_longlong[::1], out: cython.longlong[::1]) -> cython.void:
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    most: cython.longlong = MOST
    for i in range(len(out)):
        number: cython.longlong = out[i]
        for k in range(len(sizes)):
            number += sizes[k]
            if number >= most:
                number = 0
        out[i] = number


@cython.cfunc
def _keep(
    page: Lines,
    lines: Points,
    settled: Settled,
    points: Points,
    begins: cython.const_longlong[::1],
    since: cython.longlong[::1],
    removed: cython.longlong[::1],
    added: cython.longlong[::1],
    counts: cython.longlong[::1],
) -> None:
    p: cython.Py_ssize_t
    k: cython.Py_ssize_t
    least: cython.longlong = LEAST
    most: cython.longlong = MOST
    gone: cython.Py_ssize_t = 0
    made: cython.Py_ssize_t = 0
    entry: cython.const_longlong[::1] = buffers.view(page.entry)
    copy: cython.const_longlong[::1] = buffers.view(page.copy)
    last: cython.const_longlong[::1] = buffers.view(page.last)
    bounds: cython.const_longlong[::1] = buffers.view(page.bounds)
    rest: cython.const_longlong[::1] = buffers.view(page.rest)
    ends: cython.const_longlong[::1] = buffers.view(settled.ends)
    done: cython.const_uchar[::1] = buffers.view(settled.done)
    values: cython.const_uchar[::1] = buffers.view(lines.values.data)
    limits: cython.const_longlong[::1] = buffers.view(lines.values.bounds)
    places: cython.const_longlong[::1] = buffers.view(lines.places)
    rows: cython.const_uchar[::1] = buffers.view(lines.entries.data)
    row_limits: cython.const_longlong[::1] = buffers.view(lines.entries.bounds)
    olds: cython.const_uchar[::1] = buffers.view(points.entries.data)
    old_limits: cython.const_longlong[::1] = buffers.view(points.entries.bounds)
    old_values: cython.const_uchar[::1] = buffers.view(points.values.data)
    old_value_limits: cython.const_longlong[::1] = buffers.view(points.values.bounds)
    old_copies: cython.const_longlong[::1] = buffers.view(points.copies)
    old_places: cython.const_longlong[::1] = buffers.view(points.places)
    parts: cython.Py_ssize_t = since.shape[0]
    for p in range(parts):
        j: cython.Py_ssize_t = begins[p]
        end: cython.Py_ssize_t = begins[p + 1]
        line: cython.Py_ssize_t = bounds[parts + p]
        number: cython.longlong = since[p]
        while line < ends[p]:
            number += last[line] - line + 1
            line = last[line]
            e: cython.Py_ssize_t = entry[line]
            while j < end and _before(olds, old_limits, j, rows, row_limits, e):
                removed[gone] = j
                gone += 1
                j += 1
            k = j
            there: cython.Py_ssize_t = -1
            while j < end and same(olds, old_limits, j, rows, row_limits, e):
                if (
                    old_copies[j] == copy[line]
                    and old_places[j] == places[line]
                    and same(old_values, old_value_limits, j, values, limits, line)
                ):
                    there = j
                j += 1
            kept: cython.bint = number >= most or (j > k and number >= least)
            while k < j:
                if not kept or k != there:
                    removed[gone] = k
                    gone += 1
                k += 1
            if kept:
                number = 0
                if there < 0:
                    added[made] = line
                    made += 1
            line += 1
        since[p] = number
        if (done[p] and rest[p] >= 0) or ends[p] < bounds[parts + p + 1]:
            continue
        while j < end and (rest[p] < 0 or _before(olds, old_limits, j, rows, row_limits, rest[p])):
            removed[gone] = j
            gone += 1
            j += 1
    counts[0] = gone
    counts[1] = made


@cython.cfunc
@cython.exceptval(check=False)
def _before(
    left: cython.const_uchar[::1],
    left_limits: cython.const_longlong[::1],
    i: cython.Py_ssize_t,
    right: cython.const_uchar[::1],
    right_limits: cython.const_longlong[::1],
    j: cython.Py_ssize_t,
) -> cython.bint:
    """Return whether string ``i`` of ``left`` sorts before string ``j`` of ``right``."""
    return (
        compare(
            left, left_limits[i], left_limits[i + 1], right, right_limits[j], right_limits[j + 1]
        )
        < 0
    )
