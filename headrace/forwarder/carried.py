"""Changes of another database, as logical messages in the WAL of the database that we stream.

    source eu ──stream──► carrier ──pg_logical_emit_message──► WAL of main ──stream──► batcher

Our messages have a secret prefix, since any user may emit logical messages.  Each holds messages of
the other stream, which name tables that we have made for them (``sources/``).  They are part of a
transaction of main, and are processed as if written there.

    bytes of a message = (length: 4 bytes, big-endian; the message)*

Source: Postgres manual, "Logical Replication Message Formats", Message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from headrace.errors import BugError

_SIZE: Final = struct.Struct("!I")
_OID_BYTES: Final = 4
_FIXED: Final = 10
"""Bytes of a Message before its prefix: its letter, flags, and LSN."""
_TRANSACTIONAL: Final = 1
_M, _R = b"MR"


def prefix(token: str) -> str:
    """Return the prefix of our messages."""
    return f"headrace carrier {token}"


def packed(messages: Iterable[bytes]) -> bytes:
    """Pack ``messages`` into the content of one message."""
    return b"".join(part for m in messages for part in (_SIZE.pack(len(m)), m))


class Opener:
    """Unpacks our messages in the stream of one connection.

    Each message describes its tables again; a description that has not changed is not passed on.
    """

    def __init__(self, token: str) -> None:
        self._head: Final = prefix(token).encode() + b"\0"
        self._start: Final = _FIXED + len(self._head)
        self._described: dict[bytes, bytes] = {}

    def opened(self, messages: list[bytes]) -> list[bytes]:
        """Return ``messages`` with ours unpacked in place, and without foreign logical ones."""
        if not any(m[0] == _M for m in messages):
            return messages
        out: list[bytes] = []
        for message in messages:
            if message[0] != _M:
                out.append(message)
            elif message.startswith(self._head, _FIXED) and message[1] & _TRANSACTIONAL:
                out.extend(self._inside(message))
        return out

    def _inside(self, message: bytes) -> Iterable[bytes]:
        (size,) = _SIZE.unpack_from(message, self._start)
        at = self._start + _SIZE.size
        if at + size != len(message):
            raise BugError("a carried message has another length than it says")
        while at < len(message):
            (size,) = _SIZE.unpack_from(message, at)
            at += _SIZE.size
            inner = message[at : at + size]
            at += size
            if inner[0] == _R:
                oid = inner[1 : 1 + _OID_BYTES]
                if self._described.get(oid) == inner:
                    continue
                self._described[oid] = inner
            yield inner
