# cython: language_level=3, boundscheck=False, wraparound=False
"""Scans raw pgoutput messages without decoding them.

Source: Postgres manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

import cython

Cuts = tuple[list[int], int]


def find_tables(
    messages: list[bytes], described: dict[bytes, bytes], needed: dict[bytes, bytes]
) -> None:
    """Find the tables that messages are about, by OID in network byte order.

    Adds each Relation message to ``described``, and to ``needed``, also as the value, each table
    whose rows come before its description.
    """
    message: bytes
    last: bytes = b""
    for message in messages:
        kind: cython.uchar = message[0]
        if kind == 73 or kind == 85 or kind == 68:  # Insert, Update, Delete
            if last and message.startswith(last, 1):
                continue
            last = message[1:5]
            if last not in described:
                needed[last] = last
        elif kind == 82:  # Relation
            described[message[1:5]] = message
        elif kind == 84:  # Truncate
            size: cython.Py_ssize_t = len(message)
            at: cython.Py_ssize_t = 6
            while at < size:
                last = message[at : at + 4]
                if last not in described:
                    needed[last] = last
                at += 4


def cuts(messages: list[bytes], begun: cython.Py_ssize_t, bytes_max: cython.Py_ssize_t) -> Cuts:
    """Return where to cut messages into pieces, each of ``bytes_max`` bytes at least.

    ``begun``: the bytes of the piece that they continue.  Also return the bytes of the last piece.
    """
    place: cython.Py_ssize_t
    size: cython.Py_ssize_t = begun
    out: list[int] = []
    for place in range(len(messages)):
        if size >= bytes_max:
            out.append(place)
            size = 0
        size += len(messages[place])
    return out, size
