# mypy: disable-error-code="untyped-decorator"
"""Hot loops of the states: nested dictionaries key -> row -> weight, alone or over a base.

``entries`` is a whole state in memory; ``overlay`` holds what was added since the last checkpoint
over a sorted base, which is read through an iterator with ``seek``, ``seek_for_prev``, ``valid``,
``key``, ``value``, ``next`` and ``prev``.  An iterator that met a damaged block looks as if it were
at the end: only ``status`` raises, so every end is asked.  No inner dictionary is empty and no
weight in one is 0.
"""

from __future__ import annotations

import struct
from typing import Any

import cython

_unpack = struct.Struct("<q").unpack

Found = tuple[list[int], list[bytes], list[int]]


def add(
    entries: dict[bytes, dict[bytes, int]],
    keys: list[bytes],
    rows: list[bytes],
    weights: list[int],
) -> int:
    """Add ``weights``; returns by how many the rows of negative weight became more."""
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


def scan(entries: dict[bytes, dict[bytes, int]], keys: list[bytes]) -> Found:
    """Rows under each key: (position in ``keys``, row, weight), rows in byte order."""
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


def scan_over(
    base: Any, overlay: dict[bytes, dict[bytes, int]], keys: list[bytes]
) -> Found:
    """Like ``scan``, of the sum of the base and the overlay.

    Keys are read in byte order, which is the order of the blocks on disk.
    """
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(keys)
    results: list[Any] = [None] * n
    order = sorted(range(n), key=keys.__getitem__)
    for i in order:
        results[i] = _scan_key(base, overlay.get(keys[i]), keys[i])
    positions: list[int] = []
    rows: list[bytes] = []
    weights: list[int] = []
    for i in range(n):
        found = results[i]
        if found is not None:
            positions.extend([i] * len(found[0]))
            rows.extend(found[0])
            weights.extend(found[1])
    return positions, rows, weights


def _scan_key(
    base: Any, entry: dict[bytes, int] | None, key: bytes
) -> tuple[list[bytes], list[int]] | None:
    length: cython.Py_ssize_t = len(key)
    rows: list[bytes] = []
    weights: list[int] = []
    base.seek(key)
    while base.valid():
        physical = base.key()
        if not physical.startswith(key):
            break
        rows.append(physical[length:])
        weights.append(_unpack(base.value())[0])
        base.next()
    else:
        base.status()
    if entry is None:
        return (rows, weights) if rows else None
    total: dict[bytes, int] = dict(zip(rows, weights))  # noqa: B905  same length above
    for row, delta in entry.items():
        weight = total.get(row, 0) + delta
        if weight:
            total[row] = weight
        else:
            del total[row]
    rows = sorted(total)
    return rows, [total[row] for row in rows]


def extreme_over(
    base: Any,
    overlay: dict[bytes, dict[bytes, int]],
    keys: list[bytes],
    ends: list[bytes | None],
    last: bool,
) -> list[bytes | None]:
    """First (or last) row in byte order under each key in the sum of base and overlay.

    ``ends`` are the least strings above everything that starts with the key (None: no such).
    """
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(keys)
    out: list[bytes | None] = [None] * n
    for i in range(n):
        entry = overlay.get(keys[i])
        if last:
            out[i] = _last(base, entry, keys[i], ends[i])
        else:
            out[i] = _first(base, entry, keys[i])
    return out


def _first(base: Any, entry: dict[bytes, int] | None, key: bytes) -> bytes | None:
    length: cython.Py_ssize_t = len(key)
    passed: set[bytes] = set()
    best: bytes | None = None
    base.seek(key)
    while base.valid():
        physical = base.key()
        if not physical.startswith(key):
            break
        row: bytes = physical[length:]
        if entry is None:
            return row
        delta = entry.get(row)
        if delta is None or _unpack(base.value())[0] + delta != 0:
            best = row
            break
        passed.add(row)
        base.next()
    else:
        base.status()
    if entry is not None:
        # A row of the overlay below ``best`` that the walk did not pass is not in the base.
        for row in entry:
            if (best is None or row < best) and row not in passed:
                best = row
    return best


def _last(
    base: Any, entry: dict[bytes, int] | None, key: bytes, end: bytes | None
) -> bytes | None:
    length: cython.Py_ssize_t = len(key)
    passed: set[bytes] = set()
    best: bytes | None = None
    if end is None:
        base.seek_to_last()
    else:
        base.seek_for_prev(end)
        if base.valid() and base.key() == end:
            base.prev()
    while base.valid():
        physical = base.key()
        if not physical.startswith(key):
            break
        row: bytes = physical[length:]
        if entry is None:
            return row
        delta = entry.get(row)
        if delta is None or _unpack(base.value())[0] + delta != 0:
            best = row
            break
        passed.add(row)
        base.prev()
    else:
        base.status()
    if entry is not None:
        for row in entry:
            if (best is None or row > best) and row not in passed:
                best = row
    return best


def look_up(
    overlay: dict[bytes, bytes | None], keys: list[bytes]
) -> tuple[list[bytes | None], list[int]]:
    """Values of ``keys`` in the overlay, and the positions of those it does not know."""
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(keys)
    values: list[bytes | None] = [None] * n
    missing: list[int] = []
    if not overlay:
        return values, list(range(n))
    for i in range(n):
        key = keys[i]
        value = overlay.get(key)
        if value is not None:
            values[i] = value
        elif key not in overlay:
            missing.append(i)
    return values, missing
