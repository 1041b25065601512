# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False
"""Messages of the Postgres protocol by their headers alone: type, length, and on to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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


@cython.ccall
@cython.locals(
    data=cython.p_const_uchar,
    most=tuple,
    at=cython.Py_ssize_t,
    size=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
    query=cython.Py_ssize_t,
    length=cython.longlong,
    header=cython.Py_ssize_t,
    kind=cython.int,
)
def asks(messages: bytes, most: tuple[int, ...], dull: Callable[[bytes], bool]) -> bytes | None:
    """The types of a client's messages; None: some are not plain, or not all there.

    ``most`` has the length that a plain message of each type may have, 0 where none is plain, and
    ``dull`` judges a text (of a Query: with its header) in small letters.
    """
    data, size, header, at = messages, len(messages), HEADER_BYTES, 0
    out = bytearray()
    while at < size:
        if size - at < header:
            return None
        kind = data[at]
        length = (data[at + 1] << 24) | (data[at + 2] << 16) | (data[at + 3] << 8) | data[at + 4]
        if length < header - 1 or length > most[kind] or length >= size - at:
            return None
        end = at + length + 1
        if kind == 81:  # Q
            if not dull(messages[at:end].lower()):
                return None
        elif kind == 80:  # P: name, text, how many types are declared, these
            query = _behind_zero(data, at + header, end)
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
@cython.returns(cython.Py_ssize_t)
@cython.locals(data=cython.p_const_uchar, at=cython.Py_ssize_t, end=cython.Py_ssize_t)
def _behind_zero(data: bytes, at: int, end: int) -> int:
    """Where what comes behind the next zero begins; ``end``: there is none."""
    while at < end:
        at += 1
        if data[at - 1] == 0:
            break
    return at


@cython.ccall
@cython.locals(
    data=cython.p_const_uchar,
    last=cython.p_const_uchar,
    whole=cython.p_const_uchar,
    at=cython.Py_ssize_t,
    size=cython.Py_ssize_t,
    length=cython.longlong,
    header=cython.Py_ssize_t,
    count=cython.Py_ssize_t,
    given=cython.Py_ssize_t,
    head=cython.int,
    status=cython.int,
)
def answers(messages: bytes, owed: deque[int], last: bytes, whole: bytes) -> int:
    """Takes from ``owed`` what messages of the source answer; nothing if that is not plain (-1).

    ``last`` has the type of what each is the last answer of, Z for those that answer Q, F or S
    (``whole``) with everything in it, d for those that answer nothing, 0 where none is plain.
    Returns the status that the last ReadyForQuery tells, 0 if there is none.
    """
    data, size, header, at, count = messages, len(messages), HEADER_BYTES, 0, 0
    given, status = len(owed), 0
    while at < size:
        if size - at < header:
            return -1
        length = (data[at + 1] << 24) | (data[at + 2] << 16) | (data[at + 3] << 8) | data[at + 4]
        if length < header - 1 or length >= size - at or not last[data[at]]:
            return -1
        if last[data[at]] != 100:  # d
            head = owed[count] if count < given else 0
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
