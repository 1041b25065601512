"""Logical messages in the stream: changes of another database, and request ids.

    source eu ──stream──► carrier ──pg_logical_emit_message──► WAL of main ──stream──► batcher

Our messages have a secret prefix, since any user may emit logical messages.  Each holds messages of
the other stream, which name tables that we have made for them (``sources/``).  They are part of a
transaction of main, and are processed as if written there.

    bytes of a message = (length: 4 bytes, big-endian; the message)*

A user's transaction may name the request that it belongs to, by a message with prefix ``headrace``.
Such messages stay in the stream, and the decoder reads them (``kernels/pgoutput.py``).  Foreign
messages are removed here.

Source: Postgres manual, "Logical Replication Message Formats", Message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from headrace.errors import BugError

_SIZE: Final = struct.Struct("!I")
_OID_BYTES: Final = 4
_REQUEST: Final = b"headrace\0"
_REQUEST_BYTES_MAX: Final = 1_000
"""A longer message names no request."""
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
    """Unpacks our messages in the stream of one connection, and removes foreign ones.

    Each message describes its tables again; a description that has not changed is not passed on.
    """

    def __init__(self, token: str | None) -> None:
        """Take the secret ``token`` of our messages; None: no database sends any."""
        self._head: Final = b"" if token is None else prefix(token).encode() + b"\0"
        self._start: Final = _FIXED + len(self._head)
        self._described: dict[bytes, bytes] = {}

    def opened(self, messages: list[bytes]) -> list[bytes]:
        """Return ``messages`` with ours unpacked in place, and without foreign logical ones.

        Request ids stay as they are.
        """
        if not any(m[0] == _M for m in messages):
            return messages
        out: list[bytes] = []
        for message in messages:
            if message[0] != _M:
                out.append(message)
            elif not message[1] & _TRANSACTIONAL:
                continue
            elif message.startswith(_REQUEST, _FIXED):
                if len(message) <= _REQUEST_BYTES_MAX:
                    out.append(message)
            elif self._head and message.startswith(self._head, _FIXED):
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
