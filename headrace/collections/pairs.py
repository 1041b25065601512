"""The pairs of a join: which incoming row meets which row of the other side."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


def pairs(
    groups: Int64s, starts: Int64s, counts: Int64s, rows_max: int
) -> Iterator[tuple[Int64s, Int64s]]:
    """(incoming position, matched position) of every pair, in pieces of at most ``rows_max``.

    Incoming row ``i`` belongs to key ``groups[i]``, whose matches stand at ``starts[key]`` to
    ``starts[key] + counts[key] - 1``.  Pairs come in order of incoming rows, then of matches.
    """
    each = counts[groups]
    ends = np.cumsum(each)
    total = int(ends[-1]) if len(ends) else 0
    # A pair's number, less the number of its row's first pair, is its place among the matches.
    firsts = ends - each
    shift = starts[groups] - firsts
    for low in range(0, total, rows_max):
        high = min(low + rows_max, total)
        first = int(np.searchsorted(ends, low, side="right"))
        last = int(np.searchsorted(ends, high, side="left"))
        inside = np.minimum(ends[first : last + 1], high) - np.maximum(
            firsts[first : last + 1], low
        )
        incoming = np.repeat(np.arange(first, last + 1), inside)
        yield incoming, np.arange(low, high) + shift[incoming]
