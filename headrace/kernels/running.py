# cython: language_level=3, boundscheck=False, wraparound=False
"""Hot loops of ``collections/running.py``: lines of a window, their values, and how they differ.

A *page* is some entries (``kernels.order``) of some partitions, partition by partition, each
ascending.  A *line* is one row of the input: an entry is as many lines as its weight.  Numbers of
entries, lines and partitions are positions in their arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import cython
import numpy as np

from headrace.kernels import buffers, decimals, packed
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Packed

if cython.compiled:
    from cython.cimports.headrace.kernels.packed import compare, same
else:
    from headrace.kernels.packed import compare, same

_POWERS = np.array([10**i for i in range(19)], np.int64)
Numbers = tuple[Bytes, Int64s, Int64s]
"""Kinds (``decimals``), mantissas and scales."""


@dataclass(slots=True)
class Lines:
    """The lines of the complete peer groups of a page."""

    entry: Int64s
    """Entry of each line."""
    copy: Int64s
    """How many lines of the same entry are before it."""
    part: Int64s
    """Partition of each line."""
    first: Int64s
    """First line of its peer group."""
    last: Int64s
    """Last line of its peer group."""
    group: Int64s
    """Number of its peer group within the page and partition, from 1 on."""
    bounds: Int64s
    """First line of each partition, and the end of the last."""
    begins: Int64s
    """First entry of each partition, and the end of the last."""
    rest: Int64s
    """First entry of each partition that has no lines here; -1: there is none."""

    def entry_of(self, chosen: Int64s) -> Int64s:
        """Return the entries of lines; -1 stands for none."""
        if not len(self.entry):
            return chosen
        return np.where(chosen < 0, -1, self.entry[chosen])

    def last_of(self, parts: Int64s) -> Int64s:
        """Return the entry of the last line of each of these partitions, -1 if it has none."""
        ends = self.bounds[parts + 1]
        return self.entry_of(np.where(self.bounds[parts] < ends, ends - 1, -1))

    def short_of(self, parts: Int64s, entries: Packed, stored: Packed) -> Int64s:
        """Return the numbers of those ``parts`` to whose last line the stored output is not read.

        ``entries``: of the page; ``stored``: the last entry read of each of ``parts``.
        """
        last = self.last_of(parts)
        read = packed.compared(stored, entries.take(last)) > 0
        return np.flatnonzero((self.rest[parts] < 0) | ((last >= 0) & ~read))


def lines(at: Int64s, orders: Packed, weights: Int64s, parts: int, size: int, ahead: int) -> Lines:
    """Return the lines of a page of ``parts`` partitions, read with at most ``size`` entries each.

    ``at``, ``orders``, ``weights``: partition, sort key and weight of each entry.  A peer group is
    complete if all its entries are in the page, and ``ahead`` lines after it.
    """
    count = int(weights.sum())
    entry, copy = np.empty(count, np.int64), np.empty(count, np.int64)
    part, group = np.empty(count, np.int64), np.empty(count, np.int64)
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    bounds, rest = np.zeros(parts + 1, np.int64), np.empty(parts, np.int64)
    begins = np.searchsorted(at, np.arange(parts + 1))
    used = _lines(
        buffers.view(orders.data),
        buffers.view(orders.bounds),
        buffers.view(weights),
        buffers.view(begins),
        size,
        ahead,
        buffers.view(entry),
        buffers.view(copy),
        buffers.view(part),
        buffers.view(first),
        buffers.view(last),
        buffers.view(group),
        buffers.view(bounds),
        buffers.view(rest),
    )
    return Lines(
        entry[:used],
        copy[:used],
        part[:used],
        first[:used],
        last[:used],
        group[:used],
        bounds,
        begins,
        rest,
    )


@cython.cfunc
@cython.exceptval(-1, check=False)
def _lines(
    orders: cython.const_uchar[::1],
    limits: cython.const_longlong[::1],
    weights: cython.const_longlong[::1],
    begins: cython.const_longlong[::1],
    size: cython.Py_ssize_t,
    ahead: cython.Py_ssize_t,
    entry: cython.longlong[::1],
    copy: cython.longlong[::1],
    part: cython.longlong[::1],
    first: cython.longlong[::1],
    last: cython.longlong[::1],
    group: cython.longlong[::1],
    bounds: cython.longlong[::1],
    rest: cython.longlong[::1],
) -> cython.Py_ssize_t:
    p: cython.Py_ssize_t
    k: cython.Py_ssize_t
    used: cython.Py_ssize_t = 0
    for p in range(len(rest)):
        e: cython.Py_ssize_t = begins[p]
        end: cython.Py_ssize_t = begins[p + 1]
        more: cython.bint = end - e == size
        left: cython.longlong = 0
        for k in range(e, end):
            left += weights[k]
        number: cython.longlong = 0
        rest[p] = -1
        while e < end:
            after: cython.Py_ssize_t = e
            count: cython.longlong = 0
            while after < end and same(orders, limits, after, orders, limits, e):
                count += weights[after]
                after += 1
            if more and (after == end or count + ahead > left):
                rest[p] = e
                break
            number += 1
            left -= count
            begin: cython.Py_ssize_t = used
            while e < after:
                for k in range(weights[e]):
                    entry[used] = e
                    copy[used] = k
                    part[used] = p
                    first[used] = begin
                    last[used] = begin + count - 1
                    group[used] = number
                    used += 1
                e += 1
        bounds[p + 1] = used
    return used


def neighbours(
    page: Lines, weights: Int64s, distance: int, past: Int64s, columns: tuple[int, int]
) -> Int64s:
    """Return the source of LAG (``distance`` > 0) or LEAD (< 0) of each line.

    Sources are entries, then lines before the page, of which ``past`` are the bounds by partition;
    ``columns``: the first such source, and the one of lines that have no neighbour.
    """
    out = np.empty(len(page.entry), np.int64)
    _neighbours(
        buffers.view(page.entry),
        buffers.view(page.copy),
        buffers.view(page.part),
        buffers.view(page.begins),
        buffers.view(weights),
        buffers.view(past),
        distance,
        columns[0],
        columns[1],
        buffers.view(out),
    )
    return out


@cython.cfunc
@cython.exceptval(check=False)
def _neighbours(
    entry: cython.const_longlong[::1],
    copy: cython.const_longlong[::1],
    part: cython.const_longlong[::1],
    begins: cython.const_longlong[::1],
    weights: cython.const_longlong[::1],
    past: cython.const_longlong[::1],
    distance: cython.longlong,
    earlier: cython.Py_ssize_t,
    none: cython.Py_ssize_t,
    out: cython.longlong[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(len(out)):
        e: cython.Py_ssize_t = entry[i]
        p: cython.Py_ssize_t = part[i]
        place: cython.longlong = copy[i] - distance
        while place < 0 and e > begins[p]:
            e -= 1
            place += weights[e]
        while e < begins[p + 1] and place >= weights[e]:
            place -= weights[e]
            e += 1
        if place < 0:
            out[i] = earlier + past[p + 1] + place if past[p + 1] + place >= past[p] else none
        else:
            out[i] = e if e < begins[p + 1] else none


def extremes(
    page: Lines, keys: Packed, counted: Bytes, before: Packed, known: Bytes, want: tuple[bool, bool]
) -> Int64s:
    """Return the source of MIN or MAX up to each line: an entry, or a partition after the entries.

    ``keys``: canonical keys of the argument, which counts in entries that are ``counted``.
    ``before``: the keys by partition before the page, where ``known``.
    ``want``: whether the least, and whether the first of equal ones.  -1: there is none.
    """
    out = np.empty(len(page.entry), np.int64)
    _extremes(
        buffers.view(page.entry),
        buffers.view(page.bounds),
        buffers.view(keys.data),
        buffers.view(keys.bounds),
        buffers.view(counted),
        buffers.view(before.data),
        buffers.view(before.bounds),
        buffers.view(known),
        want[0],
        want[1],
        buffers.view(out),
    )
    return out


@cython.cfunc
@cython.exceptval(check=False)
def _extremes(
    entry: cython.const_longlong[::1],
    bounds: cython.const_longlong[::1],
    keys: cython.const_uchar[::1],
    limits: cython.const_longlong[::1],
    counted: cython.const_uchar[::1],
    before: cython.const_uchar[::1],
    before_limits: cython.const_longlong[::1],
    known: cython.const_uchar[::1],
    least: cython.bint,
    oldest: cython.bint,
    out: cython.longlong[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t
    entries: cython.Py_ssize_t = len(counted)
    for p in range(len(known)):
        best: cython.Py_ssize_t = entries + p if known[p] else -1
        for i in range(bounds[p], bounds[p + 1]):
            e: cython.Py_ssize_t = entry[i]
            if counted[e]:
                order: cython.int = -1 if least else 1
                if best >= entries:
                    order = compare(
                        keys, limits[e], limits[e + 1],
                        before, before_limits[p], before_limits[p + 1],
                    )  # fmt: skip
                elif best >= 0:
                    order = compare(
                        keys, limits[e], limits[e + 1], keys, limits[best], limits[best + 1]
                    )
                if (order == 0 and not oldest) or (order != 0 and (order < 0) == least):
                    best = e
            out[i] = best


def sums(page: Lines, values: Numbers, counted: Bytes, before: Numbers) -> Numbers | None:
    """Return the sum up to each line, of kind ``NULL`` where no value was counted.

    ``values`` by entry, ``before`` by partition.  None: they do not fit into 64 bits.
    """
    count = len(page.entry)
    out = np.empty(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64)
    fits = _sums(
        buffers.view(page.entry),
        buffers.view(page.bounds),
        buffers.view(values[0]),
        buffers.view(values[1]),
        buffers.view(values[2]),
        buffers.view(counted),
        buffers.view(before[0]),
        buffers.view(before[1]),
        buffers.view(before[2]),
        buffers.view(_POWERS),
        buffers.view(out[0]),
        buffers.view(out[1]),
        buffers.view(out[2]),
    )
    return out if fits else None


@cython.cfunc
@cython.exceptval(check=False)
def _sums(
    entry: cython.const_longlong[::1],
    bounds: cython.const_longlong[::1],
    kinds: cython.const_uchar[::1],
    mantissas: cython.const_longlong[::1],
    scales: cython.const_longlong[::1],
    counted: cython.const_uchar[::1],
    before_kinds: cython.const_uchar[::1],
    before_mantissas: cython.const_longlong[::1],
    before_scales: cython.const_longlong[::1],
    powers: cython.const_longlong[::1],
    out_kinds: cython.uchar[::1],
    out_mantissas: cython.longlong[::1],
    out_scales: cython.longlong[::1],
) -> cython.bint:
    i: cython.Py_ssize_t
    p: cython.Py_ssize_t
    limit: cython.longlong = 4611686018427387903  # the sum of two of these still fits
    for p in range(len(before_kinds)):
        some: cython.bint = before_kinds[p] != 0
        if before_kinds[p] > 1:
            return False
        total: cython.longlong = before_mantissas[p] if some else 0
        scale: cython.longlong = before_scales[p] if some else 0
        for i in range(bounds[p], bounds[p + 1]):
            e: cython.Py_ssize_t = entry[i]
            if counted[e] and kinds[e] != 0:
                if kinds[e] > 1:
                    return False
                value: cython.longlong = mantissas[e]
                wide: cython.longlong = scales[e]
                if wide > scale:
                    if wide - scale > 18:
                        return False
                    power: cython.longlong = limit // powers[wide - scale]
                    if total > power or total < -power:
                        return False
                    total *= powers[wide - scale]
                    scale = wide
                elif wide < scale:
                    if scale - wide > 18:
                        return False
                    power = limit // powers[scale - wide]
                    if value > power or value < -power:
                        return False
                    value *= powers[scale - wide]
                if not -limit <= value <= limit or not -limit <= total <= limit:
                    return False
                total += value
                some = True
            out_kinds[i] = some
            out_mantissas[i] = total
            out_scales[i] = scale
    return True


def long_sums(
    page: Lines, values: list[str | None], counted: Bytes, before: list[str | None]
) -> list[str | None]:
    """Return what ``sums`` does, of numbers of any size as texts.

    Raises:
        OverflowError: Postgres cannot represent a sum.
    """
    numbers = [
        decimals.read(value) if value is not None and yes else None
        for value, yes in zip(values, counted.tolist(), strict=True)
    ]
    out: list[str | None] = []
    limits = page.bounds.tolist()
    for part, earlier in enumerate(before):
        text = earlier
        total = None if text is None else decimals.read(text)
        for entry in page.entry[limits[part] : limits[part + 1]].tolist():
            number = numbers[entry]
            if number is not None:
                total = number if total is None else decimals.plus(total, number)
                text = decimals.write(total)
            out.append(text)
    return out


def ends_of(numbers: Int64s, strings: Packed, count: int) -> tuple[Int64s, Int64s]:
    """Return which strings are the first and the last in byte order of each number's.

    REQUIRES: each number below ``count`` has one.
    """
    firsts, lasts = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    _ends_of(
        buffers.view(numbers),
        buffers.view(strings.data),
        buffers.view(strings.bounds),
        buffers.view(firsts),
        buffers.view(lasts),
    )
    return firsts, lasts


@cython.cfunc
@cython.exceptval(check=False)
def _ends_of(
    numbers: cython.const_longlong[::1],
    data: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    firsts: cython.longlong[::1],
    lasts: cython.longlong[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(len(numbers)):
        n: cython.Py_ssize_t = numbers[i]
        k: cython.Py_ssize_t = firsts[n]
        if k < 0:
            firsts[n] = lasts[n] = i
            continue
        if compare(data, bounds[i], bounds[i + 1], data, bounds[k], bounds[k + 1]) < 0:
            firsts[n] = i
        k = lasts[n]
        if compare(data, bounds[i], bounds[i + 1], data, bounds[k], bounds[k + 1]) > 0:
            lasts[n] = i
