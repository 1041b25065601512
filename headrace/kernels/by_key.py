"""Hot loops of ``collections/by_key.py``: which keys are new, and how their rows differ.

Rows of keys have the form of ``IndexState.scan_many``: positions of keys, ascending; rows; weights.
"""

from __future__ import annotations

import cython

Found = tuple[list[int], list[bytes], list[int]]


def touch(known: dict[bytes, int], keys: list[bytes]) -> list[bytes]:
    """Assign numbers to the ``keys`` that are not ``known``; return them, in order."""
    new: list[bytes] = []
    for key in keys:
        if key not in known:
            known[key] = len(known)
            new.append(key)
    return new


def difference(before: Found, after: Found) -> Found:
    """Subtract ``before`` from ``after``: per key each row once and none with weight 0."""
    olds: list[int] = before[0]
    old_rows: list[bytes] = before[1]
    old_weights: list[int] = before[2]
    news: list[int] = after[0]
    new_rows: list[bytes] = after[1]
    new_weights: list[int] = after[2]
    at: list[int] = []
    rows: list[bytes] = []
    weights: list[int] = []
    i: cython.Py_ssize_t = 0
    j: cython.Py_ssize_t = 0
    while i < len(olds) or j < len(news):
        if j == len(news) or (i < len(olds) and olds[i] <= news[j]):
            key: cython.Py_ssize_t = olds[i]
        else:
            key = news[j]
        low: cython.Py_ssize_t = i
        high: cython.Py_ssize_t = j
        while low < len(olds) and olds[low] == key:
            low += 1
        while high < len(news) and news[high] == key:
            high += 1
        # Skip the common prefix: most rows are equal.
        while (
            i < low and j < high and old_weights[i] == new_weights[j] and old_rows[i] == new_rows[j]
        ):
            i += 1
            j += 1
        if low - i + high - j == 1:
            at.append(key)
            rows.append(old_rows[i] if i < low else new_rows[j])
            weights.append(-old_weights[i] if i < low else new_weights[j])
            i, j = low, high
            continue
        if i == low and j == high:
            continue
        sums: dict[bytes, int] = {}
        while i < low:
            sums[old_rows[i]] = sums.get(old_rows[i], 0) - old_weights[i]
            i += 1
        while j < high:
            sums[new_rows[j]] = sums.get(new_rows[j], 0) + new_weights[j]
            j += 1
        for row, weight in sums.items():
            if weight:
                at.append(key)
                rows.append(row)
                weights.append(weight)
    return at, rows, weights


def least(found: Found, wanted: list[int]) -> Found:
    """Return the first ``wanted`` rows of each key, ordered by length, then bytes.

    Sorts ``found`` in place.  REQUIRES: no weight is negative.
    """
    at: list[int] = found[0]
    rows: list[bytes] = found[1]
    weights: list[int] = found[2]
    out_at: list[int] = []
    out_rows: list[bytes] = []
    out_weights: list[int] = []
    i: cython.Py_ssize_t = 0
    while i < len(at):
        key = at[i]
        end: cython.Py_ssize_t = i + 1
        while end < len(at) and at[end] == key:
            end += 1
        if end - i > 1:
            ordered = [(len(rows[p]), rows[p], weights[p]) for p in range(i, end)]
            ordered.sort()
            rows[i:end] = [row for _, row, _ in ordered]
            weights[i:end] = [weight for _, _, weight in ordered]
        left = wanted[key]
        while i < end and left > 0:
            out_at.append(key)
            out_rows.append(rows[i])
            out_weights.append(min(weights[i], left))
            left -= weights[i]
            i += 1
        i = end
    return out_at, out_rows, out_weights
