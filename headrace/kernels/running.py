# cython: language_level=3, boundscheck=False, wraparound=False
"""Hot loops of ``collections/running.py``: lines of a window, and their values.

A *page* is some entries (``kernels.order``) of some partitions, partition by partition, each
ascending, with their weights before the changes of a txid and after them.  A *line* is one row of
the input: an entry is as many lines as its weight.  Numbers of entries, lines and partitions are
positions in their arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import cython
import numpy as np

from headrace.kernels import buffers, decimals
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
class Changes:
    """Net changes of entries by a txid, partition by partition, each ascending."""

    entries: Packed
    weights: Int64s
    begins: Int64s
    """First change of each partition."""
    ends: Int64s
    """End of the changes of each partition."""


@dataclass(slots=True)
class Merged:
    """Entries of a page, before and after the changes of a txid."""

    source: Int64s
    """Where each entry is: among the entries read, or behind them among those of the changes."""
    weights: Int64s
    """Weight of each entry before the changes, then of each after them."""
    begins: Int64s
    """First entry of each partition, and the end of the last."""
    changed: Int64s
    """Last entry of each partition that changes; -1: none; beyond all: later pages have some."""


def merged(
    at: Int64s, entries: Packed, weights: Int64s, more: Bytes, changes: Changes, starts: Packed
) -> Merged:
    """Return the page of the entries read and of those that changes have removed.

    ``at``, ``entries``, ``weights``: partition, entry and weight after the changes of each read.
    ``more``: per partition 1 if later entries were not read; ``starts``: where its page begins.
    """
    parts = len(more)
    most = len(at) + int((changes.ends - changes.begins).sum())
    source = np.empty(most, np.int64)
    before, after = np.empty(most, np.int64), np.empty(most, np.int64)
    begins, changed = np.zeros(parts + 1, np.int64), np.empty(parts, np.int64)
    count = _merge(
        buffers.view(np.searchsorted(at, np.arange(parts + 1))),
        buffers.view(entries.data),
        buffers.view(entries.bounds),
        buffers.view(weights),
        buffers.view(more),
        changes,
        buffers.view(starts.data),
        buffers.view(starts.bounds),
        buffers.view(source),
        buffers.view(before),
        buffers.view(after),
        buffers.view(begins),
        buffers.view(changed),
    )
    weights = np.concatenate((before[:count], after[:count]))
    return Merged(source[:count], weights, begins, changed)


@cython.cfunc
@cython.exceptval(-1, check=False)
def _merge(
    read: cython.const_longlong[::1],
    data: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    weights: cython.const_longlong[::1],
    more: cython.const_uchar[::1],
    changes: Changes,
    starts: cython.const_uchar[::1],
    start_bounds: cython.const_longlong[::1],
    source: cython.longlong[::1],
    before: cython.longlong[::1],
    after: cython.longlong[::1],
    begins: cython.longlong[::1],
    changed: cython.longlong[::1],
) -> cython.Py_ssize_t:
    p: cython.Py_ssize_t
    order: cython.int
    used: cython.Py_ssize_t = 0
    others: cython.const_uchar[::1] = buffers.view(changes.entries.data)
    limits: cython.const_longlong[::1] = buffers.view(changes.entries.bounds)
    differences: cython.const_longlong[::1] = buffers.view(changes.weights)
    firsts: cython.const_longlong[::1] = buffers.view(changes.begins)
    ends: cython.const_longlong[::1] = buffers.view(changes.ends)
    for p in range(len(changed)):
        i: cython.Py_ssize_t = read[p]
        end: cython.Py_ssize_t = read[p + 1]
        c: cython.Py_ssize_t = firsts[p]
        changes_end: cython.Py_ssize_t = ends[p]
        begin: cython.Py_ssize_t = start_bounds[p]
        while c < changes_end and (
            compare(others, limits[c], limits[c + 1], starts, begin, start_bounds[p + 1]) < 0
        ):
            c += 1
        changed[p] = -1
        while i < end or (c < changes_end and not more[p]):
            order = 1
            if c == changes_end:
                order = -1
            elif i < end:
                order = compare(data, bounds[i], bounds[i + 1], others, limits[c], limits[c + 1])
            source[used] = i if order <= 0 else bounds.shape[0] - 1 + c
            after[used] = weights[i] if order <= 0 else 0
            before[used] = after[used] - (differences[c] if order >= 0 else 0)
            if order <= 0:
                i += 1
            if order >= 0:
                c += 1
                changed[p] = used
            used += 1
        if c < changes_end:
            changed[p] = len(source)
        begins[p + 1] = used
    return used


@dataclass(slots=True)
class Lines:
    """The lines of the complete peer groups of a page, before the changes and after them.

    Of ``n`` partitions, ``i`` has the lines of half ``i`` before and of half ``n + i`` after them.
    """

    entry: Int64s
    """Entry of each line."""
    copy: Int64s
    """How many lines of the same entry are before it."""
    half: Int64s
    """Half of each line."""
    first: Int64s
    """First line of its peer group."""
    last: Int64s
    """Last line of its peer group."""
    group: Int64s
    """Number of its peer group within the page and half, from 1 on."""
    bounds: Int64s
    """First line of each half, and the end of the last."""
    begins: Int64s
    """First entry of each partition, and the end of the last."""
    rest: Int64s
    """First entry of each partition that has no lines here; -1: there is none."""


def lines(begins: Int64s, orders: Packed, weights: Int64s, more: Bytes, ahead: int) -> Lines:
    """Return the lines of a page.

    ``begins``, ``weights``: as in ``Merged``; ``orders``: sort key of each entry.
    ``more``: per partition 1 if later entries were not read.  A peer group is then complete if an
    entry of another is behind it, and ``ahead`` lines both before and after the changes.
    """
    count, parts = int(weights.sum()), len(more)
    rest = np.empty(parts, np.int64)
    entry, copy = np.empty(count, np.int64), np.empty(count, np.int64)
    half, group = np.empty(count, np.int64), np.empty(count, np.int64)
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    bounds = np.zeros(2 * parts + 1, np.int64)
    _complete(
        buffers.view(orders.data),
        buffers.view(orders.bounds),
        buffers.view(weights),
        buffers.view(begins),
        buffers.view(more),
        ahead,
        buffers.view(rest),
    )
    used = _lines(
        buffers.view(orders.data),
        buffers.view(orders.bounds),
        buffers.view(weights),
        buffers.view(begins),
        buffers.view(rest),
        buffers.view(entry),
        buffers.view(copy),
        buffers.view(half),
        buffers.view(first),
        buffers.view(last),
        buffers.view(group),
        buffers.view(bounds),
    )
    return Lines(
        entry[:used],
        copy[:used],
        half[:used],
        first[:used],
        last[:used],
        group[:used],
        bounds,
        begins,
        rest,
    )


@cython.cfunc
@cython.exceptval(check=False)
def _complete(
    orders: cython.const_uchar[::1],
    limits: cython.const_longlong[::1],
    weights: cython.const_longlong[::1],
    begins: cython.const_longlong[::1],
    more: cython.const_uchar[::1],
    ahead: cython.Py_ssize_t,
    rest: cython.longlong[::1],
) -> cython.void:
    """Find the first entry of each partition whose peer group is not complete; -1: none."""
    p: cython.Py_ssize_t
    entries: cython.Py_ssize_t = limits.shape[0] - 1
    for p in range(len(rest)):
        rest[p] = -1
        if not more[p]:
            continue
        before: cython.longlong = 0
        after: cython.longlong = 0
        e: cython.Py_ssize_t = begins[p + 1]
        while e > begins[p]:
            e -= 1
            before += weights[e]
            after += weights[entries + e]
            if e == begins[p] or (
                before >= ahead
                and after >= ahead
                and not same(orders, limits, e, orders, limits, e - 1)
            ):
                break
        rest[p] = e


@cython.cfunc
@cython.exceptval(-1, check=False)
def _lines(
    orders: cython.const_uchar[::1],
    limits: cython.const_longlong[::1],
    weights: cython.const_longlong[::1],
    begins: cython.const_longlong[::1],
    rest: cython.const_longlong[::1],
    entry: cython.longlong[::1],
    copy: cython.longlong[::1],
    half: cython.longlong[::1],
    first: cython.longlong[::1],
    last: cython.longlong[::1],
    group: cython.longlong[::1],
    bounds: cython.longlong[::1],
) -> cython.Py_ssize_t:
    h: cython.Py_ssize_t
    k: cython.Py_ssize_t
    used: cython.Py_ssize_t = 0
    parts: cython.Py_ssize_t = rest.shape[0]
    for h in range(2 * parts):
        p: cython.Py_ssize_t = h % parts
        shift: cython.Py_ssize_t = limits.shape[0] - 1 if h >= parts else 0
        e: cython.Py_ssize_t = begins[p]
        end: cython.Py_ssize_t = rest[p] if rest[p] >= 0 else begins[p + 1]
        number: cython.longlong = 0
        while e < end:
            after: cython.Py_ssize_t = e
            count: cython.longlong = 0
            while after < end and (after == e or same(orders, limits, after, orders, limits, e)):
                count += weights[shift + after]
                after += 1
            number += count > 0
            begin: cython.Py_ssize_t = used
            while e < after:
                for k in range(weights[shift + e]):
                    entry[used] = e
                    copy[used] = k
                    half[used] = h
                    first[used] = begin
                    last[used] = begin + count - 1
                    group[used] = number
                    used += 1
                e += 1
        bounds[h + 1] = used
    return used


def extremes(
    page: Lines, keys: Packed, counted: Bytes, before: Packed, known: Bytes, want: tuple[bool, bool]
) -> Int64s:
    """Return the source of MIN or MAX up to each line: an entry, or a half after the entries.

    ``keys``: canonical keys of the argument, which counts in entries that are ``counted``.
    ``before``: the keys by half before the page, where ``known``.
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

    ``values`` by entry, ``before`` by half.  None: they do not fit into 64 bits.
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


def counted_numbers(values: list[str | None], counted: Bytes) -> list[decimals.Number | None]:
    """Return the numbers of texts; None: NULL, or not counted."""
    return [
        decimals.read(value) if value is not None and yes else None
        for value, yes in zip(values, counted.tolist(), strict=True)
    ]


def long_sums(
    page: Lines, values: list[str | None], counted: Bytes, before: list[str | None]
) -> list[str | None]:
    """Return what ``sums`` does, of numbers of any size as texts.

    Raises:
        OverflowError: Postgres cannot represent a sum.
    """
    numbers = counted_numbers(values, counted)
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
