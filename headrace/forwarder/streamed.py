"""Transactions that the server sends before they are committed: kept until they are, or are not.

What the server decodes beyond its ``logical_decoding_work_mem`` it would write to its disk, change
by change, also what nobody has asked for: our own rows, of which it is known only at the end.  It
sends that instead, in blocks of one transaction each, and forgets it; here it is kept, in memory
or on disk, and handed on as if it had been sent at its end.

    S 7 … E   S 8 … E   B … C   A 8   S 7 … E   c 7        ──►  B … C   B (all of 7) C

Messages within a block tell which subtransaction they are of.  When one is rolled back all that
came since its first change goes: nobody else has written meanwhile.

* Invariant: what is handed on is what a server gives that streams nothing.

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

OPTIONS: Final = "proto_version '2', streaming 'on'"
"""Of START_REPLICATION, for a stream that is read through here."""

_START: Final = struct.Struct("!cIB")
_COMMIT: Final = struct.Struct("!cIBQQq")
_ABORT: Final = struct.Struct("!cII")
_XID: Final = struct.Struct("!xI")
_BEGIN: Final = struct.Struct("!cQqI")
_END: Final = struct.Struct("!cBQQq")
_S, _E, _A, _C, _O = b"SEAcO"
_MESSAGE_BYTES: Final = 64
"""What a message in memory costs beyond its content."""
_CHUNK_BYTES: Final = 4 * 1024 * 1024

KINDS: Final = frozenset((_S, _A, _C))
"""Letters of messages that are for here where no block is open."""


@dataclass(slots=True)
class _Transaction:
    """What has come of one that has not ended."""

    messages: list[bytes] = field(default_factory=list)
    """After those in ``spool``."""
    size: int = 0
    """Bytes of these in memory."""
    spool: Spool | None = None
    count: int = 0
    """Of all of them."""
    content: int = 0
    """Bytes in all of them."""
    firsts: dict[int, Place] = field(default_factory=dict)
    """By subtransaction: where it begins; in that order, for there may be a million of them."""

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
        """Forget all from where a subtransaction begins, if it does."""
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
        """Move what is in memory to disk."""
        if self.spool is None:
            self.spool = Spool(folder)
        self.spool.write(self.messages)
        self.messages.clear()
        self.size = 0

    def read(self) -> Iterator[list[bytes]]:
        """All of it, in pieces of bounded size if it is large."""
        if self.spool is not None:
            yield from self.spool.read(_CHUNK_BYTES)
        yield self.messages

    def close(self) -> None:
        """Give its space back."""
        if self.spool is not None:
            self.spool.close()


class Streams:
    """The open transactions of one connection."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        """What is more than ``bytes_max`` of all together goes to a file in ``folder``."""
        self._folder = folder
        self._bytes_max = bytes_max
        self._open: dict[int, _Transaction] = {}
        self._block: _Transaction | None = None
        self._top = 0
        self._size = 0

    @property
    def inside(self) -> bool:
        """Whether a block is open: all that comes is of it."""
        return self._block is not None

    @property
    def held(self) -> tuple[int, int]:
        """What open transactions take in memory and on disk."""
        # Asked by other threads: those that are open now.
        spools = [t.spool.bytes for t in list(self._open.values()) if t.spool is not None]
        return self._size, sum(spools)

    def take(self, message: bytes) -> Iterator[list[bytes]] | None:
        """Take a message, of ``KINDS`` or ``inside``; what is to be handed on before all others.

        Raises:
            ContinuityLost: it makes no sense here.
            TransientError: there is no room for it on disk.
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
        elif kind == _O:  # nobody asks where it was written first
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
            # Later versions of the protocol say more.
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
                    _BEGIN.pack(b"B", commit_lsn, time_us, top),
                    whole,
                    _END.pack(b"C", 0, commit_lsn, end_lsn, time_us),
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
        """Forget all: the server sends again what has not ended."""
        for found in self._open.values():
            found.close()
        self._open.clear()
        self._block = None
        self._size = 0


def _whole(begin: bytes, found: _Transaction, end: bytes) -> Iterator[list[bytes]]:
    """A transaction as it is sent at its end."""
    try:
        yield [begin]
        yield from found.read()
        yield [end]
    finally:
        found.close()
