"""What a process is working on, kept where its death leaves it.

Marks are a few numbers in a file, written and never synced: the kernel has them whatever ends the
process.  They need not survive the machine, whose end is nobody's fault here.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec
import structlog

_log = structlog.get_logger(__name__)

_MARK: Final = struct.Struct("<Qqq")
_SET: Final = 1
_NOTHING: Final = bytes(_MARK.size)
_SLOTS: Final = 128
_BYTES: Final = _SLOTS * _MARK.size

Mark = tuple[int, int]
"""Whom the work is for, and which piece of it."""
Found = TypeVar("Found")


class Marks:
    """The marks of one process: each of its threads works on one thing at a time."""

    def __init__(self, path: Path, outlived: tuple[type[Exception], ...] = (Exception,)) -> None:
        """``path`` may have what an earlier process has left; it is kept until ``clear``.

        A mark stays behind an error that is not among ``outlived``: it may end the process.
        """
        self._outlived = outlived
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not mapped: a store into a mapped page ends the process where the disk is full.
        self._file: Final = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.left: Final = self._read()
        """What was being worked on when the process before this one died."""
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._threads = 0
        self._closed = False

    def clear(self) -> None:
        """Nothing is being worked on."""
        self._write(bytes(_BYTES), 0)

    def close(self) -> None:
        """The process is asked to end: however it does, it does not die of its work."""
        self._closed = True
        self.clear()

    @contextmanager
    def during(self, whom: int, piece: int) -> Iterator[None]:
        """The block works on a piece for somebody."""
        if self._closed:
            yield
            return
        at = self._place()
        self._write(_MARK.pack(_SET, whom, piece), at)
        try:
            yield
        except self._outlived:
            self._write(_NOTHING, at)
            raise
        self._write(_NOTHING, at)

    def _place(self) -> int:
        place: int | None = getattr(self._mine, "place", None)
        if place is None:
            with self._lock:
                place = (self._threads % _SLOTS) * _MARK.size
                self._threads += 1
            self._mine.place = place
        return place

    def _read(self) -> list[Mark]:
        found = os.pread(self._file, _BYTES, 0).ljust(_BYTES, b"\0")
        return [(whom, piece) for is_set, whom, piece in _MARK.iter_unpack(found) if is_set == _SET]

    def _write(self, data: bytes, at: int) -> None:
        # Without room on the disk nobody is suspected; the work goes on.
        with suppress(OSError):
            os.pwrite(self._file, data, at)


class DeathRecord(Generic[Found]):
    """What processes have found out about the deaths before them: JSON in a file."""

    def __init__(self, path: Path, kind: type[Found]) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)

    def read(self) -> Found | None:
        """What was written last; None: nothing, or it cannot be read."""
        try:
            return self._decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            # Only that somebody was under suspicion is lost.
            _log.warning("deaths forgotten", reason=repr(error))
            return None

    def write(self, found: Found) -> None:
        """Replace it; a disk without room leaves the last one."""
        draft = self._path.with_suffix(".draft")
        try:
            draft.write_bytes(msgspec.json.encode(found))
            draft.replace(self._path)
        except OSError as error:
            _log.warning("deaths not recorded", reason=repr(error))
