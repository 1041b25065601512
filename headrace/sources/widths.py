"""Rows of a table that has got more columns than its stand-in: without these.

Only after an ALTER TABLE … ADD COLUMN in a source, for as long as it is not added anew.

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
"""Bytes of a row's message before its tuples: its letter and its table."""
_T = b"t"[0]

Column = tuple[str, int]
"""A column's name, and its type."""


def columns(message: bytes, at: int) -> tuple[Column, ...]:
    """The columns that a description tells whose row identity is at ``at``."""
    return tuple(column for _, _, column in _fields(message, at))


def places(found: Sequence[Column], wanted: Sequence[Column]) -> frozenset[int] | None:
    """Where the ``wanted`` columns are, in their order, among ``found``; None: not all are."""
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
    """A description, from its row identity on, of the columns at ``kept`` only."""
    parts = [described[start:end] for start, end, _ in _fields(described, 0)]
    some = [part for place, part in enumerate(parts) if place in kept]
    return b"".join((described[:1], _COUNT.pack(len(some)), *some))


def narrow_row(message: bytes, kept: frozenset[int]) -> bytes:
    """A row's message with the columns at ``kept`` only."""
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
    """Begin, end and meaning of each column of a description whose row identity is at ``at``."""
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
