"""Removes columns from replicated rows that the shadow table does not have.

Needed only after ALTER TABLE … ADD COLUMN in a source, until the source is added again.

Source: Postgres manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

_COUNT: Final = struct.Struct("!H")
_OID: Final = struct.Struct("!I")
_SIZE: Final = struct.Struct("!I")
_ROW: Final = 5
"""Bytes of a row message before its tuples: message type and table OID."""
_T = b"t"[0]

Column = tuple[str, int]
"""A column's name and type OID."""


def columns(message: bytes, at: int) -> tuple[Column, ...]:
    """Return the columns of a description whose replica identity is at offset ``at``."""
    return tuple(column for _, _, column in _fields(message, at))


def places(found: Sequence[Column], wanted: Sequence[Column]) -> frozenset[int] | None:
    """Return the positions of ``wanted`` in ``found``, or None if not all are there in order."""
    out, at = [], 0
    for column in wanted:
        while at < len(found) and found[at] != column:
            at += 1
        if at == len(found):
            return None
        out.append(at)
        at += 1
    return frozenset(out)


def narrowed(described: bytes, kept: frozenset[int]) -> bytes:
    """Return a description, from its replica identity on, with the columns at ``kept`` only."""
    parts = [described[start:end] for start, end, _ in _fields(described, 0)]
    some = [part for place, part in enumerate(parts) if place in kept]
    return b"".join((described[:1], _COUNT.pack(len(some)), *some))


def narrow_row(message: bytes, kept: frozenset[int]) -> bytes:
    """Return a row message with the columns at ``kept`` only."""
    out, at = [message[:_ROW]], _ROW
    while at < len(message):
        (count,) = _COUNT.unpack_from(message, at + 1)
        out.append(message[at : at + 1] + _COUNT.pack(len(kept)))
        at += 1 + _COUNT.size
        for place in range(count):
            end = at + 1
            if message[at] == _T:
                end += _SIZE.size + _SIZE.unpack_from(message, end)[0]
            if place in kept:
                out.append(message[at:end])
            at = end
    return b"".join(out)


def _fields(message: bytes, at: int) -> list[tuple[int, int, Column]]:
    """Return (begin, end, column) for a description whose replica identity is at ``at``."""
    (count,) = _COUNT.unpack_from(message, at + 1)
    at += 1 + _COUNT.size
    out = []
    for _ in range(count):
        name = message.index(0, at + 1)
        end = name + 1 + 2 * _OID.size
        (oid,) = _OID.unpack_from(message, name + 1)
        out.append((at, end, (message[at + 1 : name].decode(), oid)))
        at = end
    return out
