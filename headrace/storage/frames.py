"""Frames: what stands in a queue, one message each.

    | 64 bytes of header | body | zeros up to a multiple of 64 |

The body is an Arrow IPC record batch message, uncompressed, so that a mapped frame is read as a
record batch without copying; its schema stands beside the queues once (``schemas.py``).  A TimeEnd
has no body.  The checksum is over the header before it and all that follows.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import crc32c
import msgspec

ALIGN: Final = 64
_HEADER: Final = struct.Struct("<2sBBIIIQQQQqI")
_SUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _SUM.size
_MAGIC: Final = b"HQ"
_PADDING: Final = bytes(ALIGN)


Place = tuple[int, int, int]
"""Offset, gap and schema of a frame: what its queue says of it."""


class Kind(IntEnum):
    """What a frame tells."""

    DIFFS = 1
    TABLE_DIFFS = 2
    TIME_END = 3


class Header(msgspec.Struct, frozen=True, gc=False):
    """What is said of a frame before its body."""

    kind: Kind
    txid: int
    attempt: int
    rows: int
    """Rows of the body; of a TimeEnd: those sent since the one before."""
    commit_us: int = 0
    """When the oldest of its changes was committed, microseconds since 2000-01-01 UTC (A-42)."""
    table_oid: int = 0
    schema: int = 0
    """Number of the body's schema."""
    gap: int = 0
    """Bytes between the end of the frame before it and this one: no frame can be left out."""
    offset: int = 0
    """Where in the queue it stands."""
    body_bytes: int = 0

    @property
    def size(self) -> int:
        """Bytes it takes in a queue."""
        return size(self.body_bytes)


def size(body_bytes: int) -> int:
    """Bytes that a frame with such a body takes in a queue."""
    return HEADER_BYTES + -(-body_bytes // ALIGN) * ALIGN


def made(
    header: Header, place: Place, body: memoryview | None
) -> tuple[bytes, memoryview | None, bytes]:
    """A frame as it is written: its header, its body, and what fills it up."""
    body_bytes = 0 if body is None else len(body)
    offset, gap, schema = place
    head = _HEADER.pack(
        *(_MAGIC, header.kind, 0, header.attempt, schema, gap, offset, header.txid),
        *(body_bytes, header.rows, header.commit_us, header.table_oid),
    )
    filling = _PADDING[: -body_bytes % ALIGN]
    found = crc32c.crc32c(head)
    if body is not None:
        found = crc32c.crc32c(filling, crc32c.crc32c(body, found))
    return head + _SUM.pack(found), body, filling


def read(memory: memoryview) -> Header | None:
    """The header at the start of ``memory``; None if there is none."""
    if len(memory) < HEADER_BYTES:
        return None
    magic, kind, _, attempt, schema, gap, offset, txid, body, rows, commit, oid = (
        _HEADER.unpack_from(memory)
    )
    known = _KINDS.get(kind)
    if magic != _MAGIC or known is None:
        return None
    return Header(known, txid, attempt, rows, commit, oid, schema, gap, offset, body)


def whole(memory: memoryview) -> bool:
    """Whether the frame in ``memory``, which is of its size, is as it was written."""
    (told,) = _SUM.unpack_from(memory, _HEADER.size)
    found = crc32c.crc32c(memory[HEADER_BYTES:], crc32c.crc32c(memory[: _HEADER.size]))
    return bool(told == found)


_KINDS: Final = {int(kind): kind for kind in Kind}
