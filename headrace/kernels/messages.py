# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
"""Scans raw pgoutput messages without decoding them.

Source: Postgres manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

import cython


@cython.locals(
    message=bytes, kind=cython.uchar, at=cython.Py_ssize_t, size=cython.Py_ssize_t, last=bytes
)
def find_tables(
    messages: list[bytes], described: dict[bytes, bytes], needed: dict[bytes, None]
) -> None:
    """Find the tables that messages are about, by OID in network byte order.

    Adds each Relation message to ``described``, and to ``needed`` each table whose rows come before
    its description.
    """
    last = b""
    for message in messages:
        kind = message[0]
        if kind == 73 or kind == 85 or kind == 68:  # Insert, Update, Delete
            if message.startswith(last, 1) and last:
                continue
            last = message[1:5]
            if last not in described:
                needed[last] = None
        elif kind == 82:  # Relation
            described[message[1:5]] = message
        elif kind == 84:  # Truncate
            size = len(message)
            at = 6
            while at < size:
                last = message[at : at + 4]
                if last not in described:
                    needed[last] = None
                at += 4


@cython.locals(message=bytes, size=cython.Py_ssize_t, place=cython.Py_ssize_t)
def cuts(messages: list[bytes], begun: int, bytes_max: int) -> tuple[list[int], int]:
    """Return where to cut messages into pieces, each of ``bytes_max`` bytes at least.

    ``begun``: the bytes of the piece that they continue.  Also return the bytes of the last piece.
    """
    size = begun
    place = 0
    out: list[int] = []
    for message in messages:
        if size >= bytes_max:
            out.append(place)
            size = 0
        size += len(message)
        place += 1
    return out, size
