"""Hot loops of the states in memory: nested dictionaries key -> row -> weight.

``entries`` is a whole state.  No inner dictionary is empty and no weight in one is 0.
"""

from __future__ import annotations

import heapq

import cython

Found = tuple[list[int], list[bytes], list[int]]


def add(
    entries: dict[bytes, dict[bytes, int]], keys: list[bytes], rows: list[bytes], weights: list[int]
) -> int:
    """Add ``weights``; return the change of the number of rows with negative weight."""
    i: cython.Py_ssize_t
    negative: cython.Py_ssize_t = 0
    n: cython.Py_ssize_t = len(keys)
    before: cython.longlong
    after: cython.longlong
    if len(rows) != n or len(weights) != n:
        raise ValueError("keys, rows and weights differ in length")
    for i in range(n):
        key = keys[i]
        row = rows[i]
        entry = entries.get(key)
        if entry is None:
            after = weights[i]
            if after != 0:
                entries[key] = {row: after}
                negative += after < 0
            continue
        before = entry.get(row, 0)
        after = before + weights[i]
        if after != 0:
            entry[row] = after
        elif before != 0:
            del entry[row]
            if not entry:
                del entries[key]
        negative += (after < 0) - (before < 0)
    return int(negative)


def flat(
    entries: dict[bytes, dict[bytes, int]], prefixes: list[bytes]
) -> tuple[list[bytes], list[int]]:
    """Return ``prefixes[i] + row`` of each row under the i-th key, and its weight."""
    keys: list[bytes] = []
    weights: list[int] = []
    for prefix, entry in zip(prefixes, entries.values(), strict=True):
        for row, weight in entry.items():
            keys.append(prefix + row)
            weights.append(weight)
    return keys, weights


def scan(entries: dict[bytes, dict[bytes, int]], keys: list[bytes]) -> Found:
    """Return (position in ``keys``, row, weight) of the rows under each key, in byte order."""
    i: cython.Py_ssize_t
    positions: list[int] = []
    rows: list[bytes] = []
    weights: list[int] = []
    for i in range(len(keys)):
        entry = entries.get(keys[i])
        if entry is None:
            continue
        found = list(entry) if len(entry) == 1 else sorted(entry)
        for row in found:
            positions.append(i)
            rows.append(row)
            weights.append(entry[row])
    return positions, rows, weights


def first(
    entries: dict[bytes, dict[bytes, int]], keys: list[bytes], starts: list[bytes], count: int
) -> Found:
    """Scan up to ``count`` rows of each key, none before ``starts[i]``; see ``scan``."""
    i: cython.Py_ssize_t
    positions: list[int] = []
    rows: list[bytes] = []
    weights: list[int] = []
    if len(starts) != len(keys):
        raise ValueError("keys and starts differ in length")
    for i in range(len(keys)):
        entry = entries.get(keys[i])
        if entry is None:
            continue
        start = starts[i]
        found = list(entry)
        if start:
            found = [row for row in found if row >= start]
        found = heapq.nsmallest(count, found) if count < len(found) else sorted(found)
        for row in found:
            positions.append(i)
            rows.append(row)
            weights.append(entry[row])
    return positions, rows, weights
