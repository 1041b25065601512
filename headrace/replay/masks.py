"""Messages of batches without the values that no captured view reads.

So a bundle has no more columns than the views need, and a masked column is one that none needs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.errors import ContinuityLost
from headrace.kernels.pgoutput import Relation, read_begin, read_relation

_COUNT: Final = struct.Struct(">H")
_SIZE: Final = struct.Struct(">I")
_OID: Final = struct.Struct(">I")
_TRUNCATED: Final = struct.Struct(">IB")
_HEAD: Final = 5
"""Bytes of a row message before its tuples: its letter, and the table's OID."""
_KINDS: Final = {ord("I"): "insert", ord("U"): "update", ord("D"): "delete"}
_B, _C, _R, _T, _N, _TEXT = b"BCRTNt"
_OTHERS: Final = frozenset(b"MYO")
"""Logical messages, types and origins: a replay does not need them."""

Numbered = Callable[[Relation, int], Mapping[str, int]]
"""Returns the column numbers of a relation by name, given a transaction under it."""


@dataclass(slots=True)
class _Table:
    name: str
    wanted: tuple[bool, ...]
    """By place: whether the column is needed."""


class MessageFilter:
    """Removes rows of tables, and values of columns, that are not needed."""

    def __init__(self, needed: Mapping[int, frozenset[int]], numbered: Numbered) -> None:
        """``needed``: the column numbers to keep, by OID of the tables to keep."""
        self._needed: Final = needed
        self._numbered: Final = numbered
        self._tables: dict[int, _Table | None] = {}
        self._xid = 0
        self.changes: dict[str, dict[str, int]] = {}
        """Number of changes by table and kind, since it was last taken."""

    def take_changes(self) -> dict[str, dict[str, int]]:
        """Return ``changes``, and count from 0 again."""
        found, self.changes = self.changes, {}
        return found

    def filtered(self, messages: Sequence[bytes]) -> list[bytes]:
        """Return the messages to keep; descriptions come before the rows that they describe.

        Raises:
            ContinuityLost: a message cannot be read.
        """
        out: list[bytes] = []
        try:
            for message in messages:
                kept = self._one(message)
                if kept is not None:
                    out.append(kept)
        except (struct.error, IndexError, ValueError) as error:
            raise ContinuityLost("a message of the log cannot be read") from error
        return out

    def _one(self, message: bytes) -> bytes | None:
        kind = message[0]
        if kind in _KINDS:
            return self._row(message, kind)
        if kind == _B:
            self._xid = read_begin(message).xid
        elif kind == _R:
            return self._described(message)
        elif kind == _T:
            return self._truncated(message)
        elif kind in _OTHERS:
            return None
        elif kind != _C:
            raise ValueError(kind)
        return message

    def _described(self, message: bytes) -> bytes | None:
        relation = read_relation(message)
        needed = self._needed.get(relation.oid)
        if needed is None:
            self._tables[relation.oid] = None
            return None
        numbers = self._numbered(relation, self._xid)
        wanted = tuple(numbers.get(column.name, -1) in needed for column in relation.columns)
        self._tables[relation.oid] = _Table(f"{relation.namespace}.{relation.name}", wanted)
        return message

    def _truncated(self, message: bytes) -> bytes | None:
        count, options = _TRUNCATED.unpack_from(message, 1)
        oids = struct.unpack_from(f">{count}I", message, 1 + _TRUNCATED.size)
        kept = [oid for oid in oids if self._tables[oid] is not None]
        for oid in kept:
            self._count(oid, "truncate")
        if not kept:
            return None
        head = message[:1] + _TRUNCATED.pack(len(kept), options)
        return head + struct.pack(f">{len(kept)}I", *kept)

    def _row(self, message: bytes, kind: int) -> bytes | None:
        (oid,) = _OID.unpack_from(message, 1)
        table = self._tables[oid]
        if table is None:
            return None
        self._count(oid, _KINDS[kind])
        out, at = [message[:_HEAD]], _HEAD
        while at < len(message):
            out.append(message[at : at + 1])
            at = _blank(message, at + 1, table.wanted, out)
        return b"".join(out)

    def _count(self, oid: int, kind: str) -> None:
        table = self._tables[oid]
        assert table is not None, "its rows are kept"
        found = self.changes.setdefault(table.name, {})
        found[kind] = found.get(kind, 0) + 1


def _blank(message: bytes, at: int, wanted: Sequence[bool], out: list[bytes]) -> int:
    """Add a tuple to ``out``, with NULL for values that are not wanted; return where it ends."""
    (count,) = _COUNT.unpack_from(message, at)
    if count != len(wanted):
        raise ValueError(count)
    out.append(message[at : at + _COUNT.size])
    at += _COUNT.size
    for keep in wanted:
        begin, kind = at, message[at]
        at += 1
        if kind == _TEXT:
            (size,) = _SIZE.unpack_from(message, at)
            at += _SIZE.size + size
            if at > len(message):
                raise ValueError(size)
        elif kind not in b"nu":
            raise ValueError(kind)
        out.append(message[begin:at] if keep or kind != _TEXT else b"n")
    return at
