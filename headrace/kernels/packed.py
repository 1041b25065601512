# cython: language_level=3, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# C types are annotations, which mypy sees as Any.
"""Many byte strings in one buffer, which a population collects and writes in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cython
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels import buffers
from headrace.kernels.buffers import Bytes, Int64s

_HEAD = 8
_TIES_PART = 8


@dataclass(frozen=True)
class Packed:
    """Consecutive byte strings; number i is between ``bounds[i]`` and ``bounds[i + 1]``."""

    data: Bytes
    bounds: Int64s

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def strings(self) -> list[bytes]:
        """Return the strings one by one."""
        return buffers.cut(self.data.tobytes(), buffers.view(self.bounds))

    def taken(self, order: Int64s) -> list[bytes]:
        """Return the strings with these numbers."""
        return _taken(buffers.view(self.data), buffers.view(self.bounds), buffers.view(order))


def pack(strings: Sequence[bytes]) -> Packed:
    """Pack strings."""
    found = list(strings)
    return Packed(np.frombuffer(b"".join(found), np.uint8), buffers.lengths(found))


def joined(pieces: Sequence[Packed]) -> Packed:
    """Concatenate the strings of all pieces."""
    if len(pieces) == 1:
        return pieces[0]
    sizes = [np.diff(piece.bounds) for piece in pieces]
    data = [piece.data[piece.bounds[0] : piece.bounds[len(piece)]] for piece in pieces]
    return Packed(np.concatenate(data), buffers.bounds(np.concatenate(sizes)))


def sorted_order(packed: Packed) -> Int64s:
    """Return the numbers of the strings in ascending order; the sort is stable.

    REQUIRES: none is empty.  The sort is fast if strings differ soon after their first byte and the
    bytes common to all; it is faster if they ascend already apart from the first byte.
    """
    n = len(packed)
    data, bounds = buffers.view(packed.data), buffers.view(packed.bounds)
    heads = np.zeros(n, np.uint64)
    groups = np.zeros(n, np.uint8)
    _heads(data, bounds, _common(data, bounds), buffers.view(heads), buffers.view(groups))
    order = np.argsort(heads, kind="stable")
    order = order[np.argsort(groups[order], kind="stable")]
    begins = np.ones(n + 1, bool)
    begins[1:n] = (heads[order[1:]] != heads[order[: n - 1]]) | (
        groups[order[1:]] != groups[order[: n - 1]]
    )
    starts = np.flatnonzero(begins)
    ties = np.flatnonzero(np.diff(starts) > 1)
    if int((starts[ties + 1] - starts[ties]).sum()) > n // _TIES_PART:
        offsets, content = pa.py_buffer(packed.bounds), pa.py_buffer(packed.data)
        array = pa.Array.from_buffers(pa.large_binary(), n, [None, offsets, content])
        found: Int64s = pc.array_sort_indices(array).to_numpy().astype(np.int64)
        return found
    for tie in ties.tolist():
        low, high = int(starts[tie]), int(starts[tie + 1])
        numbers = order[low:high].copy()
        strings = packed.taken(numbers)
        order[low:high] = numbers[sorted(range(high - low), key=strings.__getitem__)]
    return order


def repeated(packed: Packed, order: Int64s) -> Bytes:
    """Return one byte per position in ``order``: 1 if the string equals the previous one."""
    out = np.zeros(len(order), np.uint8)
    _repeated(
        buffers.view(packed.data),
        buffers.view(packed.bounds),
        buffers.view(order),
        buffers.view(out),
    )
    return out


@cython.cfunc
@cython.exceptval(check=False)
def _common(data: cython.const_uchar[::1], bounds: cython.const_longlong[::1]) -> cython.Py_ssize_t:
    """Return how many bytes all strings have in common after their first byte."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(bounds) - 1
    if n == 0:
        return 0
    first: cython.Py_ssize_t = bounds[0] + 1
    size: cython.Py_ssize_t = bounds[1] - first
    for i in range(1, n):
        begin: cython.Py_ssize_t = bounds[i] + 1
        size = min(size, bounds[i + 1] - begin)
        for k in range(size):
            if data[begin + k] != data[first + k]:
                size = k
                break
        if size <= 0:
            return 0
    return size


@cython.cfunc
@cython.exceptval(check=False)
def _heads(
    data: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    skipped: cython.Py_ssize_t,
    heads: cython.ulonglong[::1],
    groups: cython.uchar[::1],
) -> cython.void:
    """Set ``groups`` to first bytes, ``heads`` to the number after ``skipped`` more bytes."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    for i in range(len(bounds) - 1):
        p: cython.Py_ssize_t = bounds[i]
        groups[i] = data[p]
        p += 1 + skipped
        head: cython.ulonglong = 0
        for k in range(p, p + _HEAD):
            head = (head << 8) | (data[k] if k < bounds[i + 1] else 0)
        heads[i] = head


@cython.cfunc
@cython.exceptval(check=False)
def _repeated(
    data: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    order: cython.const_longlong[::1],
    out: cython.uchar[::1],
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(1, len(order)):
        a: cython.Py_ssize_t = bounds[order[i - 1]]
        b: cython.Py_ssize_t = bounds[order[i]]
        size: cython.Py_ssize_t = bounds[order[i] + 1] - b
        if bounds[order[i - 1] + 1] - a != size:
            continue
        # Compare from the end: sorted neighbours differ there first.
        k: cython.Py_ssize_t = size - 1
        while k >= 0 and data[a + k] == data[b + k]:
            k -= 1
        out[i] = k < 0


@cython.cfunc
def _taken(
    data: cython.const_uchar[::1],
    bounds: cython.const_longlong[::1],
    order: cython.const_longlong[::1],
) -> list[bytes]:
    i: cython.Py_ssize_t
    out = []
    if not cython.compiled:
        return [bytes(data[bounds[i] : bounds[i + 1]]) for i in order]
    if len(data) == 0:
        return [b""] * len(order)
    source: cython.p_const_char = cython.cast(cython.p_const_char, cython.address(data[0]))
    for i in range(len(order)):
        low: cython.Py_ssize_t = bounds[order[i]]
        high: cython.Py_ssize_t = bounds[order[i] + 1]
        out.append(source[low:high])
    return out
