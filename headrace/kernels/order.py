# cython: language_level=3, boundscheck=False, wraparound=False
"""Sort keys of ORDER BY, and index rows in that order.

An *entry* is sort key, tiebreak and row, then the lengths of the sort key and of the row (4 bytes
each, big-endian).  Sort keys and tiebreaks are prefix-free, so entries sort by their sort keys,
then by their tiebreaks, then by their rows.
"""

from __future__ import annotations

import struct

import cython

_INVERTED = bytes(255 - i for i in range(256))
_LENGTHS = struct.Struct(">II")
_VALUE, _NULL = b"\x00", b"\x01"


def directed(keys: list[bytes], *, descending: bool, nulls_first: bool) -> list[bytes]:
    """Convert canonical keys of a column (``kernels.keys``) to sort keys of an ORDER BY item."""
    i: cython.Py_ssize_t
    value, null = (_NULL, _VALUE) if nulls_first else (_VALUE, _NULL)
    out: list[bytes] = [b""] * len(keys)
    for i in range(len(keys)):
        key: bytes = keys[i]
        if key[0] == 1:
            out[i] = null
            continue
        body: bytes = key[1:]
        if descending:
            body = body.translate(_INVERTED)
        out[i] = value + body
    return out


def joined(parts: list[list[bytes]], count: int) -> list[bytes]:
    """Concatenate the parts of each row."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    if not parts:
        return [b""] * count
    out = list(parts[0])
    for k in range(1, len(parts)):
        part = parts[k]
        for i in range(len(out)):
            out[i] = out[i] + part[i]
    return out


def entries(orders: list[bytes], rests: list[bytes], rows: list[bytes]) -> list[bytes]:
    """Return entries of sort keys, tiebreaks and rows; ValueError if they differ in number."""
    i: cython.Py_ssize_t
    if not len(orders) == len(rests) == len(rows):
        message = "sort keys, tiebreaks and rows differ in length"
        raise ValueError(message)
    pack = _LENGTHS.pack
    out: list[bytes] = [b""] * len(rows)
    for i in range(len(rows)):
        order, row = orders[i], rows[i]
        out[i] = order + rests[i] + row + pack(len(order), len(row))
    return out


def split(found: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return (sort keys, rows) of entries."""
    i: cython.Py_ssize_t
    unpack = _LENGTHS.unpack
    orders: list[bytes] = [b""] * len(found)
    rows: list[bytes] = [b""] * len(found)
    for i in range(len(found)):
        entry: bytes = found[i]
        end: cython.Py_ssize_t = len(entry) - 8
        order_bytes, row_bytes = unpack(entry[end:])
        orders[i] = entry[:order_bytes]
        rows[i] = entry[end - row_bytes : end]
    return orders, rows
