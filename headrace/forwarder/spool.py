"""A file for the messages of one transaction that is too large for memory.

The file holds the raw messages, each after its length.  These are smaller than decoded columns, and
decoding them later in chunks costs the same.  The file has no name, so its space is freed when the
batch is done or the process ends in any way.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from headrace.errors import BugError

_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Place:
    """A position between two messages of a spool: the messages and bytes before it."""

    messages: int = 0
    size: int = 0


class Spool:
    """Messages on disk, written once and read any number of times."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115  closed by close()
            buffering=1 << 20, prefix="tx-", suffix=".spool", dir=folder
        )
        self.messages = 0
        self.bytes = 0

    def write(self, messages: Sequence[bytes]) -> None:
        """Append messages."""
        pack = _LENGTH.pack
        self._file.write(b"".join(x for m in messages for x in (pack(len(m)), m)))
        self.messages += len(messages)
        self.bytes += sum(map(len, messages))

    def cut(self, place: Place) -> None:
        """Forget the messages from ``place`` on."""
        self._file.truncate(place.size + place.messages * _LENGTH.size)
        self._file.seek(0, os.SEEK_END)
        self.messages, self.bytes = place.messages, place.size

    def read(self, bytes_max: int) -> Iterator[list[bytes]]:
        """Yield all messages in order, in chunks of about ``bytes_max``."""
        self._file.flush()
        self._file.seek(0)
        chunk: list[bytes] = []
        size = count = 0
        while head := self._file.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(head)
            message = self._file.read(length)
            if len(message) != length:
                raise BugError("a spool file ends within a message")
            chunk.append(message)
            size += length
            count += 1
            if size >= bytes_max:
                yield chunk
                chunk, size = [], 0
        if count != self.messages:
            raise BugError(f"a spool file has {count} messages, not {self.messages}")
        if chunk:
            yield chunk

    def close(self) -> None:
        """Close the file, which frees its space."""
        self._file.close()
