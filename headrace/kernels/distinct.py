# mypy: disable-error-code="untyped-decorator"
"""Hot loop of the distinct collection: which row of a key is shown, before and after."""

from __future__ import annotations

import cython


def shown(
    at: list[int], rows: list[bytes], weights: list[int], count: int
) -> tuple[list[bytes | None], int]:
    """Per key the least row (by length, then bytes); None where it has none.

    ``at``, ``rows`` and ``weights`` are what ``scan_many`` of ``count`` keys found.  Also returns
    the number of rows of negative weight.
    """
    i: cython.Py_ssize_t
    key: cython.Py_ssize_t
    negative: cython.Py_ssize_t = 0
    out: list[bytes | None] = [None] * count
    for i in range(len(at)):
        if weights[i] < 0:
            negative += 1
            continue
        key = at[i]
        row = rows[i]
        best = out[key]
        if (
            best is None
            or len(row) < len(best)
            or (len(row) == len(best) and row < best)
        ):
            out[key] = row
    return out, int(negative)
