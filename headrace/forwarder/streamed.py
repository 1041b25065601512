"""Transactions that the server sends before their commit: kept until they commit or roll back.

Changes that the server decodes beyond its ``logical_decoding_work_mem`` would go to its disk one by
one.  That includes changes that no one subscribes to, since the server learns only at the end that
rows are our own.  With streaming, the server sends and forgets them, in blocks of one transaction
each.  Here they are kept in memory or on disk, and passed on as if sent at the commit.

    S 7 … E   S 8 … E   B … C   A 8   S 7 … E   c 7        ──►  B … C   B (all of 7) C

Messages within a block name their subtransaction.  A rollback of a subtransaction removes
everything since its first change, since no other subtransaction has written meanwhile.

* Invariant: the messages passed on are those of a server that does not stream.

Source: Postgres manual, "Logical Replication Message Formats"; ``worker.c``, which does the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.errors import ContinuityLost, TransientError
from headrace.forwarder.spool import Place, Spool
from headrace.kernels.pgoutput import Begin, Commit

OPTIONS: Final = "proto_version '2', streaming 'on'"
"""Options of START_REPLICATION for a stream that is read through this module."""

_START: Final = struct.Struct("!cIB")
_COMMIT: Final = struct.Struct("!cIBQQq")
_ABORT: Final = struct.Struct("!cII")
_XID: Final = struct.Struct("!xI")
_S, _E, _A, _C, _O = b"SEAcO"
_MESSAGE_BYTES: Final = 64
"""Memory overhead of a message beyond its content."""
_CHUNK_BYTES: Final = 4 * 1024 * 1024

KINDS: Final = frozenset((_S, _A, _C))
"""Letters of messages that this module handles outside a block."""


@dataclass(slots=True)
class _Transaction:
    """The messages received of a transaction that has not ended."""

    messages: list[bytes] = field(default_factory=list)
    """Messages in memory; they follow those in ``spool``."""
    size: int = 0
    """Bytes that ``messages`` take in memory."""
    spool: Spool | None = None
    count: int = 0
    """Number of all messages."""
    content: int = 0
    """Bytes of all messages."""
    firsts: dict[int, Place] = field(default_factory=dict)
    """Start of each subtransaction, in order of start; there may be a million of them."""

    def add(self, xid: int, message: bytes) -> None:
        """Append a message of a subtransaction, or of the transaction itself."""
        if xid not in self.firsts:
            self.firsts[xid] = Place(self.count, self.content)
        self.messages.append(message)
        length = len(message)
        self.size += length + _MESSAGE_BYTES
        self.count += 1
        self.content += length

    def undo(self, xid: int) -> None:
        """Remove everything since a subtransaction began; no effect if it has no messages."""
        at = self.firsts.get(xid)
        if at is None:
            return
        while self.firsts.popitem()[0] != xid:
            continue
        on_disk = self.count - len(self.messages)
        if at.messages < on_disk:
            assert self.spool is not None, "there is something on disk"
            self.spool.cut(at)
            self.messages.clear()
            self.size = 0
        else:
            kept = at.messages - on_disk
            self.size -= sum(len(m) + _MESSAGE_BYTES for m in self.messages[kept:])
            del self.messages[kept:]
        self.count, self.content = at.messages, at.size

    def spill(self, folder: Path) -> None:
        """Move the messages in memory to disk."""
        if self.spool is None:
            self.spool = Spool(folder)
        self.spool.write(self.messages)
        self.messages.clear()
        self.size = 0

    def read(self) -> Iterator[list[bytes]]:
        """Yield all messages, in chunks of bounded size if there are many."""
        if self.spool is not None:
            yield from self.spool.read(_CHUNK_BYTES)
        yield self.messages

    def close(self) -> None:
        """Free its space on disk."""
        if self.spool is not None:
            self.spool.close()


class Streams:
    """The open transactions of one connection."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        """Spill to files in ``folder`` when all transactions together exceed ``bytes_max``."""
        self._folder = folder
        self._bytes_max = bytes_max
        self._open: dict[int, _Transaction] = {}
        self._block: _Transaction | None = None
        self._top = 0
        self._size = 0

    @property
    def inside(self) -> bool:
        """Whether a block is open: every message received now belongs to it."""
        return self._block is not None

    @property
    def held(self) -> tuple[int, int]:
        """Bytes that open transactions take in memory and on disk."""
        # Called from other threads: a copy of the transactions that are open now.
        spools = [t.spool.bytes for t in list(self._open.values()) if t.spool is not None]
        return self._size, sum(spools)

    def take(self, message: bytes) -> Iterator[list[bytes]] | None:
        """Take a message, of ``KINDS`` or in a block; returns messages to pass on first.

        Raises:
            ContinuityLost: the message is out of place.
            TransientError: the disk has no room for it.
        """
        try:
            return self._take(message[0], message)
        except OSError as error:
            raise TransientError(
                "a transaction that is not committed cannot be kept", detail=str(error)
            ) from error

    def _take(self, kind: int, message: bytes) -> Iterator[list[bytes]] | None:
        if self._block is None:
            return self._between(kind, message)
        if kind == _E:
            self._block = None
        elif kind == _O:  # the origin is not used
            return None
        elif kind in KINDS:
            raise ContinuityLost("the stream has a block within a block")
        else:
            (xid,) = _XID.unpack_from(message)
            before = self._block.size
            self._block.add(xid, message[:1] + message[_XID.size :])
            self._size += self._block.size - before
            if self._size > self._bytes_max:
                self._spill()
        return None

    def _between(self, kind: int, message: bytes) -> Iterator[list[bytes]] | None:
        if kind == _S:
            _, self._top, first = _START.unpack(message)
            if (self._top in self._open) == bool(first):
                raise ContinuityLost(
                    f"the stream has {'another' if first else 'no'} first block of transaction"
                    f" {self._top}"
                )
            self._block = self._open.setdefault(self._top, _Transaction())
        elif kind == _A:
            # Later protocol versions add fields.
            _, top, xid = _ABORT.unpack_from(message)
            self._undo(top, xid)
        else:
            _, top, _, commit_lsn, end_lsn, time_us = _COMMIT.unpack(message)
            whole = self._open.pop(top, None)
            if whole is None:
                raise ContinuityLost(f"the stream has a commit of transaction {top}, but no block")
            self._size -= whole.size
            if whole.count:
                return _whole(
                    Begin(commit_lsn, time_us, top).encode(),
                    whole,
                    Commit(commit_lsn, end_lsn, time_us).encode(),
                )
            whole.close()
        return None

    def _undo(self, top: int, xid: int) -> None:
        found = self._open.get(top)
        if found is None:
            return
        self._size -= found.size
        if xid == top:
            self._open.pop(top).close()
            return
        found.undo(xid)
        self._size += found.size

    def _spill(self) -> None:
        largest = max(self._open.values(), key=lambda t: t.size)
        self._size -= largest.size
        largest.spill(self._folder)

    def close(self) -> None:
        """Forget all: the server resends transactions that have not ended."""
        for found in self._open.values():
            found.close()
        self._open.clear()
        self._block = None
        self._size = 0


def _whole(begin: bytes, found: _Transaction, end: bytes) -> Iterator[list[bytes]]:
    """Yield the messages of a transaction as a server without streaming sends them."""
    try:
        yield [begin]
        yield from found.read()
        yield [end]
    finally:
        found.close()
