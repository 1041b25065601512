"""Crash markers: a file that says which work a process was doing when it died.

Markers are a few numbers in a file that is written but never synced: the kernel keeps them however
the process ends.  They need not survive a crash of the machine, which no view has caused.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
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
"""The ID that the work is for, and the piece of work."""
Found = TypeVar("Found")


def _mark_nothing(whom: int, piece: int) -> None:
    """Do what a closed ``Marks`` does."""


class Marks:
    """The crash markers of one process, one for each thread."""

    def __init__(self, path: Path, outlived: tuple[type[Exception], ...] = (Exception,)) -> None:
        """Open ``path``, which keeps the marks of an earlier process until ``clear``.

        An error that is not among ``outlived`` leaves its mark, because it may end the process.
        """
        self._outlived = outlived
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The file is not mapped: a store into a mapped page kills the process on a full disk.
        self._file: Final = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.left: Final = self._read()
        """The work that was under way when the previous process died."""
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._threads = 0
        self._closed = False

    def clear(self) -> None:
        """Erase all marks."""
        self._write(bytes(_BYTES), 0)

    def close(self) -> None:
        """Erase all marks and write no more, because the process ends on request."""
        self._closed = True
        self.clear()

    @contextmanager
    def during(self, whom: int, piece: int) -> Iterator[None]:
        """Mark this thread as working on ``piece`` of ``whom`` during the block."""
        with self.in_turn() as mark:
            mark(whom, piece)
            yield

    @contextmanager
    def in_turn(self) -> Iterator[Callable[[int, int], None]]:
        """Yield a function that marks this thread as working on a piece of the work given to it.

        Each call replaces the previous mark, so that pieces in turn cost one write each.
        """
        if self._closed:
            yield _mark_nothing
            return
        at = self._place()
        try:
            yield lambda whom, piece: self._write(_MARK.pack(_SET, whom, piece), at)
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
        # On a full disk the work goes on without a mark.
        with suppress(OSError):
            os.pwrite(self._file, data, at)


class DeathRecord(Generic[Found]):
    """Findings about earlier crashes, stored as JSON in a file."""

    def __init__(self, path: Path, kind: type[Found]) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)

    def read(self) -> Found | None:
        """Return the last record written, or None if there is none or it cannot be read."""
        try:
            return self._decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            # Only the suspicion against a view is lost.
            _log.warning("deaths forgotten", reason=repr(error))
            return None

    def write(self, found: Found) -> None:
        """Replace the record; on a full disk the last one stays."""
        draft = self._path.with_suffix(".draft")
        try:
            draft.write_bytes(msgspec.json.encode(found))
            draft.replace(self._path)
        except OSError as error:
            _log.warning("deaths not recorded", reason=repr(error))
