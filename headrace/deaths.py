"""What a process is working on, kept where its death leaves it.

Marks are a few numbers in a mapped file.  Setting one is a store into memory, yet the kernel has it
whatever ends the process.  It need not survive the machine, whose end is nobody's fault here.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MARK: Final = struct.Struct("<Qqq")
_SET: Final = 1
_SLOTS: Final = 128
_BYTES: Final = _SLOTS * _MARK.size

Mark = tuple[int, int]
"""Whom the work is for, and which piece of it."""


class Marks:
    """The marks of one process: each of its threads works on one thing at a time."""

    def __init__(
        self, path: Path, outlived: tuple[type[Exception], ...] = (Exception,)
    ) -> None:
        """``path`` may have what an earlier process has left; it is kept until ``clear``.

        A mark stays behind an error that is not among ``outlived``: it may end the process.
        """
        self._outlived = outlived
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.truncate(_BYTES)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self.left: Final = self._read()
        """What was being worked on when the process before this one died."""
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._threads = 0
        self._closed = False

    def clear(self) -> None:
        """Nothing is being worked on."""
        self._map[:] = bytes(_BYTES)

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
        _MARK.pack_into(self._map, at, _SET, whom, piece)
        try:
            yield
        except self._outlived:
            _MARK.pack_into(self._map, at, 0, 0, 0)
            raise
        _MARK.pack_into(self._map, at, 0, 0, 0)

    def _place(self) -> int:
        place: int | None = getattr(self._mine, "place", None)
        if place is None:
            with self._lock:
                place = (self._threads % _SLOTS) * _MARK.size
                self._threads += 1
            self._mine.place = place
        return place

    def _read(self) -> list[Mark]:
        return [
            (whom, piece)
            for is_set, whom, piece in _MARK.iter_unpack(self._map[:])
            if is_set == _SET
        ]
