"""Pairs that a population loads into a state, packed in arrival order and sorted when written.

An earlier read of any entry unpacks all of them first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from headrace.errors import BugError
from headrace.kernels import buffers, packed, packed_order
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Packed
from headrace.state import layout
from headrace.state.map import keygroups

Pieces = Iterator[tuple[list[bytes], list[bytes]]]
"""Chunks of (keys, values), in ascending order of the keys."""

_PAIRS_PER_PIECE: Final = 4096
_NO_ROWS: Final = Packed(np.zeros(0, np.uint8), np.zeros(0, np.int64))


def twice() -> BugError:
    """Return the error for a key that a population has loaded twice."""
    return BugError("a row was loaded twice")


def map_pieces(keys: Packed, values: Packed) -> Pieces:
    """Yield the sorted pairs of a ``MapState`` with these keys, which may be in any order.

    Raises:
        BugError: a key occurs twice.
    """
    found = _physical(keys, None)
    order = packed_order.sorted_order(found)
    if packed_order.repeated(found, order).any():
        raise twice()
    for part in _parts(order):
        yield found.take(part).strings(), values.take(part).strings()


def index_pieces(keys: Packed, rows: Packed, weights: Int64s) -> Pieces:
    """Yield the sorted pairs of an ``IndexState`` of these rows; sum the weights of equal rows.

    Raises:
        BugError: a sum is negative.
    """
    found = _physical(keys, rows)
    order = packed_order.sorted_order(found)
    firsts = np.flatnonzero(packed_order.repeated(found, order) == 0)
    if len(firsts) < len(order):
        weights = np.add.reduceat(weights[order], firsts)
        order = order[firsts]
    else:
        weights = weights[order]
    if len(weights) and weights.min() <= 0:
        if weights.min() < 0:
            raise BugError("a population left a row of negative weight")
        order, weights = order[weights != 0], weights[weights != 0]
    values = layout.values_of(weights).packed
    at = np.arange(len(order))
    for part, places in zip(_parts(order), _parts(at), strict=True):
        yield found.take(part).strings(), values.take(places).strings()


def pieces(keys: list[bytes], values: list[bytes]) -> Pieces:
    """Yield pairs of distinct physical keys, in order."""
    order = packed_order.sorted_order(packed.pack(keys))
    for part in _parts(order):
        numbers = part.tolist()
        yield keygroups.gather(keys, numbers), keygroups.gather(values, numbers)


def pairs(found: Pieces) -> Iterator[layout.Pair]:
    """Yield the pairs one by one."""
    for keys, values in found:
        yield from zip(keys, values, strict=True)


def _parts(order: Int64s) -> Iterator[Int64s]:
    for low in range(0, len(order), _PAIRS_PER_PIECE):
        yield order[low : low + _PAIRS_PER_PIECE]


def _physical(keys: Packed, rows: Packed | None) -> Packed:
    """Return the physical keys: key group, key, then the row if there are rows."""
    sizes = np.diff(keys.bounds) + 1
    if rows is not None:
        sizes += np.diff(rows.bounds)
    bounds = buffers.bounds(sizes)
    out = np.empty(int(bounds[-1]), np.uint8)
    behind = _NO_ROWS if rows is None else rows
    keygroups.put_physical(
        buffers.view(keys.data),
        buffers.view(keys.bounds),
        buffers.view(behind.data),
        buffers.view(behind.bounds),
        buffers.view(out),
    )
    return Packed(out, bounds)
