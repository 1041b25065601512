# cython: language_level=3, boundscheck=False, wraparound=False
"""Moving frames of window functions: the lines from some before each line to some behind it.

A *place* is a position among all lines that the lines of a page may read (``Readable``).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import cython
import numpy as np

from headrace.kernels import buffers, decimals
from headrace.kernels.buffers import Bytes, Int64s
from headrace.kernels.packed import Packed
from headrace.kernels.running import Lines, Numbers, counted_numbers

if cython.compiled:
    from cython.cimports.headrace.kernels.packed import compare
else:
    from headrace.kernels.packed import compare

_POWERS = np.array([10**i for i in range(19)], np.int64)
_LIMIT = 2**62
"""Below it, the sum of two numbers still fits."""


@dataclass(slots=True)
class Frames:
    """The frame of each line."""

    source: Int64s
    """Row of each readable line, as in ``Readable``."""
    begins: Int64s
    """First place of each frame."""
    ends: Int64s
    """End of each frame; the first place if it is empty."""

    def firsts(self) -> Int64s:
        """Return the row of the first line of each frame, -1 if it is empty."""
        return self._rows(self.begins)

    def lasts(self) -> Int64s:
        """Return the row of the last line of each frame, -1 if it is empty."""
        return self._rows(self.ends - 1)

    def _rows(self, places: Int64s) -> Int64s:
        out = np.full(len(places), -1, np.int64)
        there = self.begins < self.ends
        out[there] = self.source[places[there]]
        return out

    def counts(self, counted: Bytes) -> Int64s:
        """Return how many lines of each frame are of rows that are ``counted``."""
        sums = buffers.bounds(counted[self.source].astype(np.int64))
        return sums[self.ends] - sums[self.begins]


@dataclass(slots=True)
class Readable:
    """All lines that the lines of a page may read, half by half in order.

    They are some lines before the page, its own, and some after its last complete peer group.
    """

    source: Int64s
    """Row of each: an entry, or behind the entries a line before the page."""
    bounds: Int64s
    """First place of each half, and the end of the last."""
    places: Int64s
    """Place of each line of the page."""
    half: Int64s
    """Half of each line of the page."""

    def at(self, distance: int, none: int) -> Int64s:
        """Return the row of the line so far behind each line, ``none`` where there is none."""
        places = self.places + distance
        there = (places >= self.bounds[self.half]) & (places < self.bounds[self.half + 1])
        out = np.full(len(places), none, np.int64)
        out[there] = self.source[places[there]]
        return out

    def frames(self, first: int, last: int) -> Frames:
        """Return the frame of each line: from ``first`` to ``last`` lines behind it."""
        low, high = self.bounds[self.half], self.bounds[self.half + 1]
        begins = np.clip(self.places + first, low, high)
        ends = np.clip(self.places + last + 1, low, high)
        return Frames(self.source, begins, ends)


def readable(page: Lines, weights: Int64s, past: Int64s) -> Readable:
    """Return the lines that those of a page may read.

    ``weights``: as in ``kernels.running.Merged``; ``past``: bounds by half of the lines before the
    page.
    """
    entries, parts = int(page.begins[len(page.begins) - 1]), len(page.rest)
    limits = buffers.bounds(weights)
    own = limits[np.concatenate((page.begins[: len(page.begins) - 1], entries + page.begins))]
    source = np.repeat(np.tile(np.arange(entries), 2), weights)
    earlier = int(past[len(past) - 1])
    if earlier:
        halves = np.arange(2 * parts)
        out = np.empty(earlier + len(source), np.int64)
        out[np.arange(len(source)) + np.repeat(past[1:], np.diff(own))] = source
        before = np.arange(earlier)
        out[before + own[np.repeat(halves, np.diff(past))]] = entries + before
        source = out
    starts = own[: len(own) - 1] + past[1:] - page.bounds[: len(page.bounds) - 1]
    places = starts[page.half] + np.arange(len(page.half))
    return Readable(source, own + past, places, page.half)


def sums(frames: Frames, values: Numbers, counted: Bytes) -> Numbers | None:
    """Return the sum of each frame, of kind ``NULL`` where no value was counted.

    ``values``, ``counted``: by row.  None: they do not fit into 64 bits.
    """
    kinds, mantissas, scales = values
    some = (counted != 0) & (kinds != 0)
    if (kinds[some] > 1).any():
        return None
    common = int(scales[some].max(initial=0))
    missing = np.where(some, common - scales, 0)
    if common > 18 or _beyond(mantissas[some], _LIMIT // _POWERS[missing[some]]):
        return None
    count = len(frames.begins)
    out = np.empty(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64)
    fits = _sums(
        buffers.view(frames.source),
        buffers.view(frames.begins),
        buffers.view(frames.ends),
        buffers.view(np.where(some, mantissas, 0) * _POWERS[missing]),
        buffers.view(scales),
        buffers.view(some.view(np.uint8)),
        buffers.view(out[0]),
        buffers.view(out[1]),
        buffers.view(out[2]),
    )
    return (out[0], out[1] // _POWERS[common - out[2]], out[2]) if fits else None


def long_sums(frames: Frames, values: list[str | None], counted: Bytes) -> list[str | None]:
    """Return what ``sums`` does, of numbers of any size as texts.

    Raises:
        OverflowError: Postgres cannot represent a sum.
    """
    numbers = counted_numbers(values, counted)
    source, out = frames.source.tolist(), []
    for begin, end in zip(frames.begins.tolist(), frames.ends.tolist(), strict=True):
        some = [n for n in (numbers[row] for row in source[begin:end]) if n is not None]
        out.append(decimals.write(functools.reduce(decimals.plus, some)) if some else None)
    return out


def _beyond(numbers: Int64s, limits: Int64s) -> bool:
    return bool(((numbers > limits) | (numbers < -limits)).any())


@cython.cfunc
@cython.exceptval(check=False)
def _sums(
    source: cython.const_longlong[::1],
    begins: cython.const_longlong[::1],
    ends: cython.const_longlong[::1],
    values: cython.const_longlong[::1],
    scales: cython.const_longlong[::1],
    some: cython.const_uchar[::1],
    out_kinds: cython.uchar[::1],
    out_sums: cython.longlong[::1],
    out_scales: cython.longlong[::1],
) -> cython.bint:
    """Sum values of one scale, of which ``scales`` are the own scales."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    limit: cython.longlong = 4611686018427387904
    for i in range(len(begins)):
        total: cython.longlong = 0
        scale: cython.longlong = 0
        there: cython.bint = False
        for k in range(begins[i], ends[i]):
            row: cython.Py_ssize_t = source[k]
            if some[row]:
                total += values[row]
                if not -limit < total < limit:
                    return False
                there = True
                if scales[row] > scale:
                    scale = scales[row]
        out_kinds[i] = there
        out_sums[i] = total
        out_scales[i] = scale
    return True


def extremes(frames: Frames, keys: Packed, counted: Bytes, want: tuple[bool, bool]) -> Int64s:
    """Return the row of MIN or MAX of each frame, -1 where no row is counted.

    ``keys``: canonical keys of the argument by row.
    ``want``: whether the least, and whether the first of equal ones.
    """
    out = np.empty(len(frames.begins), np.int64)
    _extremes(
        buffers.view(frames.source),
        buffers.view(frames.begins),
        buffers.view(frames.ends),
        buffers.view(keys.data),
        buffers.view(keys.bounds),
        buffers.view(counted),
        want[0],
        want[1],
        buffers.view(out),
    )
    return out


@cython.cfunc
@cython.exceptval(check=False)
def _extremes(
    source: cython.const_longlong[::1],
    begins: cython.const_longlong[::1],
    ends: cython.const_longlong[::1],
    keys: cython.const_uchar[::1],
    limits: cython.const_longlong[::1],
    counted: cython.const_uchar[::1],
    least: cython.bint,
    oldest: cython.bint,
    out: cython.longlong[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    for i in range(len(begins)):
        best: cython.Py_ssize_t = -1
        for k in range(begins[i], ends[i]):
            row: cython.Py_ssize_t = source[k]
            if counted[row]:
                order: cython.int = -1 if least else 1
                if best >= 0:
                    order = compare(
                        keys, limits[row], limits[row + 1], keys, limits[best], limits[best + 1]
                    )
                if (order == 0 and not oldest) or (order != 0 and (order < 0) == least):
                    best = row
        out[i] = best
