# cython: language_level=3, boundscheck=False, wraparound=False
"""Numbers of many groups at once, in 64-bit integers.

Most groups are *plain*: each aggregate has a fixed count of numbers, and none is large.  A group
that is not is left to ``aggregate``, whose loops take Python integers of any size; both have the
same encoding.  ``numbers[k][i]`` is number k of group i, the row count first.
"""

from __future__ import annotations

from typing import Final

import cython
import numpy as np
import numpy.typing as npt

from headrace.kernels import buffers, packed
from headrace.kernels.packed import Nullable, Packed

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LIMIT: Final = 10**18
"""The numbers of plain groups are below it, and above its negative."""
LEAST_SUM: Final = 1 - LIMIT
WIDTH_MAX: Final = 250
"""Numbers of a plain group; more are encoded with a longer head."""
_VERSION: Final = 1


class Groups:
    """Numbers of groups, merged with a txid's changes aggregate by aggregate."""

    def __init__(self, values: Nullable, width: int) -> None:
        """Decode state values of groups with ``width`` numbers; None: a group without rows."""
        count = len(values)
        self.numbers = np.zeros((width, count), np.int64)
        self.plain = np.ones(count, np.uint8)
        begins, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        _decode(
            buffers.view(values.data),
            buffers.view(values.bounds),
            buffers.view(values.valid),
            width,
            buffers.view(self.numbers.reshape(-1)),
            buffers.view(self.plain),
            buffers.view(begins),
            buffers.view(ends),
        )
        keys = packed.spans(values.data, begins, ends)
        results = packed.spans(values.data, ends, values.bounds[1:])
        self.keys: Final = Nullable(keys.data, keys.bounds, values.valid)
        """Key rows; those of groups that are not plain are unknown."""
        self.results: Final = Nullable(results.data, results.bounds, values.valid)
        """Result rows, likewise."""

    def add(self, place: int, change: Int64s, fits: Bytes, least: int = 0) -> None:
        """Add to the counts at ``place``; ``fits``: which changes are known.

        A group whose number is below ``least`` afterwards is not plain; of sums, ``LEAST_SUM``.
        """
        _add(
            buffers.view(self.numbers[place]),
            buffers.view(change),
            buffers.view(fits),
            least,
            buffers.view(self.plain),
        )

    def demand(self, place: int, other: int) -> None:
        """Leave groups to ``aggregate`` whose count at ``place`` is 0, and ``other`` is not."""
        self.plain &= ((self.numbers[place] != 0) | (self.numbers[other] == 0)).view(np.uint8)

    def at_scale(self, place: int, scale: int, counts: Int64s) -> None:
        """Make values of one scale known to the numbers of ``merged_scales`` at ``place``.

        To be called before the counts change.  A group with values of another scale is not plain.
        """
        _at_scale(
            buffers.view(self.numbers[place]),
            buffers.view(self.numbers[place + 4]),
            buffers.view(self.numbers[place + 5]),
            buffers.view(counts),
            scale,
            buffers.view(self.plain),
        )

    def encode(self, key_rows: Packed) -> Packed:
        """Return the state values up to the key rows; empty for groups that are not plain."""
        width, count = self.numbers.shape
        sizes = np.diff(key_rows.bounds)
        # A version, a count, and up to nine bytes per number.
        out = np.empty(count * (2 + 9 * (width + 1)), np.uint8)
        bounds = np.zeros(count + 1, np.int64)
        used = _encode(
            buffers.view(self.numbers.reshape(-1)),
            width,
            buffers.view(self.plain),
            buffers.view(sizes),
            buffers.view(out),
            buffers.view(bounds),
        )
        return Packed(out[:used], bounds)


@cython.cfunc
@cython.exceptval(check=False)
def _decode(
    data: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    valid: cython.const_uchar[::1],
    width: cython.Py_ssize_t,
    numbers: cython.longlong[::1],
    plain: cython.uchar[::1],
    begins: cython.longlong[::1],
    ends: cython.longlong[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    j: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(plain)
    for i in range(count):
        at: cython.Py_ssize_t = bounds[i]
        begins[i] = ends[i] = at
        if not valid[i]:
            continue
        plain[i] = 0
        if data[at] != _VERSION or data[at + 1] != width + 1:
            continue
        at += 2
        k = 0
        while k <= width:
            size: cython.Py_ssize_t = data[at]
            at += 1
            if size > 8:
                break
            value: cython.longlong = 0
            for j in range(size):
                byte: cython.longlong = data[at + j]
                if j == size - 1 and byte >= 128:
                    byte -= 256
                value += byte << (8 * j)
            at += size
            if value >= 1000000000000000000 or value <= -1000000000000000000:
                break
            if k < width:
                numbers[k * count + i] = value
            else:
                begins[i] = at
                ends[i] = at + value
                plain[i] = 1
            k += 1


@cython.cfunc
@cython.exceptval(check=False)
def _add(
    numbers: cython.longlong[::1],
    change: cython.const_longlong[::1],
    fits: cython.const_uchar[::1],
    least: cython.longlong,
    plain: cython.uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(len(plain)):
        if not fits[i]:
            plain[i] = 0
            continue
        value: cython.longlong = numbers[i] + change[i]
        numbers[i] = value
        if value < least or value >= 1000000000000000000:
            plain[i] = 0


@cython.cfunc
@cython.exceptval(check=False)
def _at_scale(
    entries: cython.longlong[::1],
    scales: cython.longlong[::1],
    held: cython.const_longlong[::1],
    counts: cython.const_longlong[::1],
    scale: cython.longlong,
    plain: cython.uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(len(plain)):
        if held[i] == 0:
            entries[i] = 1
            scales[i] = scale
        elif scales[i] != scale and counts[i] != 0:
            plain[i] = 0


@cython.cfunc
@cython.exceptval(check=False)
def _encode(
    numbers: cython.const_longlong[::1],
    width: cython.Py_ssize_t,
    plain: cython.const_uchar[::1],
    key_sizes: cython.const_longlong[::1],
    out: cython.uchar[::1],
    bounds: cython.longlong[::1],
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    j: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(plain)
    at: cython.Py_ssize_t = 0
    for i in range(count):
        if plain[i]:
            out[at] = _VERSION
            out[at + 1] = width + 1
            at += 2
            for k in range(width + 1):
                value: cython.longlong = key_sizes[i] if k == width else numbers[k * count + i]
                magnitude: cython.longlong = -value if value < 0 else value
                size: cython.Py_ssize_t = 0
                if magnitude >= 36028797018963968:  # 2**55
                    size = 8
                elif magnitude != 0:
                    limit: cython.longlong = 128
                    size = 1
                    while magnitude >= limit:
                        size += 1
                        limit <<= 8
                out[at] = size
                at += 1
                for j in range(size):
                    out[at + j] = (value >> (8 * j)) & 255
                at += size
        bounds[i + 1] = at
    return at
