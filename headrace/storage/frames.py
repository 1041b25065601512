"""Frames: the units of a queue, one message each.

    | 64 bytes of header | body | zeros up to a multiple of 64 |

The body is an Arrow IPC record batch message, uncompressed, so that a mapped frame is read as a
record batch without copying.  The schema is stored once, outside the queue (``schemas.py``).  A
TimeEnd has no body.  The checksum covers the rest of the header and all that follows it.
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


Place = tuple[int, int, int, int]
"""Offset, gap, schema and epoch of a frame, which its queue assigns."""


class Kind(IntEnum):
    """The kind of message in a frame."""

    DIFFS = 1
    TABLE_DIFFS = 2
    TIME_END = 3


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of a frame."""

    kind: Kind
    txid: int
    attempt: int
    rows: int
    """Rows of the body; for a TimeEnd: the rows sent since the previous one."""
    commit_us: int = 0
    """Commit time of its oldest change, in microseconds since 2000-01-01 UTC (A-42)."""
    epoch: int = 0
    """The epoch of its queue in which it was put."""
    schema: int = 0
    """Number of the body's schema."""
    gap: int = 0
    """Bytes between the previous frame's end and this one, so that a missing frame is noticed."""
    offset: int = 0
    """Its offset in the queue."""
    body_bytes: int = 0
    log2_txids: int = 0
    """For a TimeEnd: the binary logarithm of the number of txids, up to ``txid``, that it ends."""

    @property
    def size(self) -> int:
        """Bytes that the frame takes in a queue."""
        return size(self.body_bytes)


def size(body_bytes: int) -> int:
    """Return the bytes that a frame with a body of that size takes in a queue."""
    return HEADER_BYTES + -(-body_bytes // ALIGN) * ALIGN


def made(
    header: Header, place: Place, body: memoryview | None
) -> tuple[bytes, memoryview | None, bytes]:
    """Return a frame as it is written: its header, its body, and its padding."""
    body_bytes = 0 if body is None else len(body)
    offset, gap, schema, epoch = place
    head = _HEADER.pack(
        _MAGIC,
        header.kind,
        header.log2_txids,
        header.attempt,
        schema,
        gap,
        offset,
        header.txid,
        body_bytes,
        header.rows,
        header.commit_us,
        epoch,
    )
    filling = _PADDING[: -body_bytes % ALIGN]
    found = crc32c.crc32c(head)
    if body is not None:
        found = crc32c.crc32c(filling, crc32c.crc32c(body, found))
    return head + _SUM.pack(found), body, filling


def read(memory: memoryview) -> Header | None:
    """Return the header at the start of ``memory``; None if there is none."""
    if len(memory) < HEADER_BYTES:
        return None
    magic, kind, log2_txids, attempt, schema, gap, offset, txid, body, rows, commit, epoch = (
        _HEADER.unpack_from(memory)
    )
    known = _KINDS.get(kind)
    if magic != _MAGIC or known is None:
        return None
    place = epoch, schema, gap, offset, body
    return Header(known, txid, attempt, rows, commit, *place, log2_txids)


def whole(memory: memoryview) -> bool:
    """Return whether the checksum of the frame in ``memory``, which has its size, is right."""
    (told,) = _SUM.unpack_from(memory, _HEADER.size)
    found = crc32c.crc32c(memory[HEADER_BYTES:], crc32c.crc32c(memory[: _HEADER.size]))
    return bool(told == found)


_KINDS: Final = {int(kind): kind for kind in Kind}
