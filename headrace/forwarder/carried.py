"""Changes of another database, as logical messages in the WAL of the one whose stream we read.

    source eu ──stream──► carrier ──pg_logical_emit_message──► WAL of main ──stream──► batcher

A message of ours has a prefix that nobody else knows, for everybody may emit some, and holds
messages of the other stream, which say that they are of tables that we have made for them
(``sources/``).  They stand within a transaction of main's, and are taken as if written there.

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
    """That of messages of ours."""
    return f"headrace carrier {token}"


def packed(messages: Iterable[bytes]) -> bytes:
    """The contents of a message that holds ``messages``."""
    return b"".join(part for m in messages for part in (_SIZE.pack(len(m)), m))


class Opener:
    """Finds messages of ours in the stream of one connection, and opens them.

    Each says of its tables what they are like; who has heard the same is not told again.
    """

    def __init__(self, token: str) -> None:
        self._head: Final = prefix(token).encode() + b"\0"
        self._start: Final = _FIXED + len(self._head)
        self._described: dict[bytes, bytes] = {}

    def opened(self, messages: list[bytes]) -> list[bytes]:
        """``messages``, with what is inside of those of ours in their place."""
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
