# cython: language_level=3, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# C types are annotations, which mypy sees as Any.
"""Fast passes over messages of the Postgres protocol, mostly by their headers: type and length."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import cython

HEADER_BYTES: Final = 5
MESSAGE_BYTES_MAX: Final = 0x3FFF_FFFF
"""Postgres' own limit (MaxAllocSize)."""


def kinds(letters: bytes) -> bytes:
    """Return a set of message types as ``pass_by`` takes it: one flag byte per possible type."""
    return bytes(kind in letters for kind in range(256))


@cython.ccall
def pass_by(
    data: cython.const_uchar[::1], at: cython.Py_ssize_t, passed: cython.const_uchar[::1]
) -> int:
    """Skip messages of the types ``passed`` (see ``kinds``); return the first other position.

    It may be beyond the end of ``data``, if the last message is incomplete.  Skipping also ends at
    an incomplete header or an invalid length.
    """
    size: cython.Py_ssize_t = len(data)
    header: cython.Py_ssize_t = HEADER_BYTES
    most: cython.longlong = MESSAGE_BYTES_MAX
    while size - at >= header and passed[data[at]]:
        length: cython.longlong = (
            (data[at + 1] << 24) | (data[at + 2] << 16) | (data[at + 3] << 8) | data[at + 4]
        )
        if length < header - 1 or length > most:
            break
        at += length + 1
    return at


@cython.ccall
def asks(messages: bytes, most: tuple[int, ...], dull: Callable[[bytes], bool]) -> bytes | None:
    """Return the types of a client's messages; None: some are not plain, or incomplete.

    ``most`` has the maximum length of a plain message by type, 0 for types that are never plain.
    ``dull`` returns whether a lower-case query text is plain (of a Query: with its header).
    """
    data: cython.p_const_uchar = messages
    size: cython.Py_ssize_t = len(messages)
    header: cython.Py_ssize_t = HEADER_BYTES
    at: cython.Py_ssize_t = 0
    out = bytearray()
    while at < size:
        if size - at < header:
            return None
        kind: cython.int = data[at]
        length: cython.longlong = (
            (data[at + 1] << 24) | (data[at + 2] << 16) | (data[at + 3] << 8) | data[at + 4]
        )
        if length < header - 1 or length > most[kind] or length >= size - at:
            return None
        end: cython.Py_ssize_t = at + length + 1
        if kind == 81:  # Q
            if not dull(messages[at:end].lower()):
                return None
        elif kind == 80:  # P: name, text, number of declared types, types
            query: cython.Py_ssize_t = _behind_zero(data, at + header, end)
            at = _behind_zero(data, query, end)
            if end - at < 2 or end - at - 2 < 4 * ((data[at] << 8) | data[at + 1]):
                return None
            if not dull(messages[query : at - 1].lower()):
                return None
        out.append(kind)
        at = end
    return bytes(out)


@cython.cfunc
@cython.exceptval(check=False)
def _behind_zero(
    data: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the position after the next zero byte, or ``end`` if there is none."""
    while at < end:
        at += 1
        if data[at - 1] == 0:
            break
    return at


@cython.ccall
def answers(
    messages: bytes, owed: deque[int], last: cython.p_const_uchar, whole: cython.p_const_uchar
) -> int:
    """Remove from ``owed`` the requests that messages of the source complete.

    ``last`` has, by type of message: the type of request that it completes; Z for ReadyForQuery,
    which completes S and the requests in ``whole`` (Q, F); d if it completes no request; 0 if it is
    not plain.  Returns the status in the last ReadyForQuery, or 0 without one.  If the messages are
    not plain, returns -1 and removes nothing.
    """
    data: cython.p_const_uchar = messages
    size: cython.Py_ssize_t = len(messages)
    header: cython.Py_ssize_t = HEADER_BYTES
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    given: cython.Py_ssize_t = len(owed)
    status: cython.int = 0
    while at < size:
        if size - at < header:
            return -1
        length: cython.longlong = (
            (data[at + 1] << 24) | (data[at + 2] << 16) | (data[at + 3] << 8) | data[at + 4]
        )
        if length < header - 1 or length >= size - at or not last[data[at]]:
            return -1
        if last[data[at]] != 100:  # d
            head: cython.int = owed[count] if count < given else 0
            if last[data[at]] == 90:  # Z
                status = data[at + header] if length == header else 0
                if not status or not (whole[head] or head == 83):  # S
                    return -1
                count += 1
            elif last[data[at]] == head:
                count += 1
            elif not whole[head]:
                return -1
        at += length + 1
    for _ in range(count):
        owed.popleft()
    return status
