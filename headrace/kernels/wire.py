# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False
"""Messages of the Postgres protocol by their headers alone: type, length, and on to the next."""

from __future__ import annotations

from typing import Final

import cython

HEADER_BYTES: Final = 5
MESSAGE_BYTES_MAX: Final = 0x3FFF_FFFF
"""Postgres' own limit (MaxAllocSize)."""


def kinds(letters: bytes) -> bytes:
    """A set of message types, as ``pass_by`` takes it: a byte for each type there may be."""
    return bytes(kind in letters for kind in range(256))


@cython.ccall
@cython.locals(
    data=cython.const_uchar[::1],
    passed=cython.const_uchar[::1],
    at=cython.Py_ssize_t,
    size=cython.Py_ssize_t,
    length=cython.longlong,
    header=cython.Py_ssize_t,
    most=cython.longlong,
)
def pass_by(data: bytearray, at: int, passed: bytes) -> int:
    """Where messages of other types than ``passed`` (see ``kinds``) begin, from ``at`` on.

    That may be behind the end of ``data``, if the last message is not all there.  It is also where
    a header is not all there, or its length is none.
    """
    size, header, most = len(data), HEADER_BYTES, MESSAGE_BYTES_MAX
    while size - at >= header and passed[data[at]]:
        length = (data[at + 1] << 24) | (data[at + 2] << 16) | (data[at + 3] << 8) | data[at + 4]
        if length < header - 1 or length > most:
            break
        at += length + 1
    return at
