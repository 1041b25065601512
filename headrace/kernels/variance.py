# cython: language_level=3, boundscheck=False, wraparound=False
"""Variances and standard deviations of groups, out of exact sums of values and squares."""

from __future__ import annotations

import cython

from headrace.kernels import decimals
from headrace.kernels.aggregate import Numbers, merged_scales

WIDTH = 4
"""Numbers per entry of ``merged_scales``: scale, count, sum, sum of squares."""


def variances(
    scales: list[int], sums: list[list[int]], sample: bool, root: bool
) -> list[str | None]:
    """Return the variance of each group without special values; ``sums`` by number, then group."""
    least = 2 if sample else 1
    return [
        None
        if own[0] < least
        else decimals.write(decimals.variance(own, scale, sample=sample, root=root))
        for scale, *own in zip(scales, *sums, strict=True)
    ]


def advance_variances(
    olds: list[Numbers],
    at: list[int],
    gathered: list[Numbers],
    news: list[Numbers],
    sample: bool,
    root: bool,
) -> list[str | None]:
    """Merge the numbers of ``merged_scales``; return variances, or their square roots.

    ``sample`` is as in ``decimals.variance``: over less than two values the result is NULL.
    OverflowError if Postgres cannot represent it.
    """
    i: cython.Py_ssize_t
    out: list[str | None] = []
    for i in range(len(gathered)):
        specials, scale, sums = merged_scales(olds, at, i, gathered[i], news[i], WIDTH)
        if sum(specials) + sums[0] <= (1 if sample else 0):
            out.append(None)
        elif any(specials):
            out.append("NaN")
        else:
            out.append(decimals.write(decimals.variance(sums, scale, sample=sample, root=root)))
    return out
