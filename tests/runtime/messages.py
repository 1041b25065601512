"""Messages of the stream, written by hand: one table ``public.t1`` of ``tests.plans.COLUMNS``."""

from __future__ import annotations

import struct

from tests.plans import COLUMNS


def relation(oid: int = 1) -> bytes:
    """Describe the table; its first column is the key."""
    head = b"R" + struct.pack(">I", oid) + b"public\0t1\0d"
    body = b"".join(
        struct.pack(">B", i == 0) + name.encode() + b"\0" + struct.pack(">Ii", kind, -1)
        for i, (name, kind) in enumerate(COLUMNS)
    )
    return head + struct.pack(">H", len(COLUMNS)) + body


def insert(*values: str, oid: int = 1) -> bytes:
    row = b"".join(b"t" + struct.pack(">I", len(v)) + v.encode() for v in values)
    return b"I" + struct.pack(">I", oid) + b"N" + struct.pack(">H", len(values)) + row


def transaction(end: int, body: list[bytes]) -> list[bytes]:
    """Return the messages of a transaction that ends at ``end``."""
    begin = struct.pack("!cQqI", b"B", end - 5, 7, 1)
    return [begin, *body, struct.pack("!cBQQq", b"C", 0, end - 5, end, 7)]
