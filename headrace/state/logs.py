"""RocksDB's write-ahead log: on disk when we say so, and never in many files.

RocksDB begins a new file of the log whenever it flushes a column family, and keeps a file until
every family has flushed what stands in it.  It counts bytes only: a family with one unflushed
pair would keep a thousand small files, all of which each sync goes through.

* Invariant 1: a family whose unflushed pairs are older than the last sync has an entry, with a
  number of which the file that they stand in, or one soon after it, is the bearer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from headrace.state import files

LOGS_MAX: Final = 16
"""Files of the log that may be there, but for those whose pairs are being flushed."""
_LOGS_KEPT: Final = LOGS_MAX // 4
"""Families with pairs in older files are flushed, when half of that is there."""


class Logs:
    """The files of the log, and the families whose pairs stand in them; from any thread."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._lock = threading.Lock()
        self._newest = 0
        self._since: dict[str, int] = {}

    def wrote(self, families: Iterable[str]) -> None:
        """They have pairs in the newest file: called after the write.

        So a flush that begins meanwhile takes no entry along that it does not do for.
        """
        with self._lock:
            for name in families:
                self._since.setdefault(name, self._newest)

    def sync(self) -> list[str]:
        """Wait until all is on disk; returns the families to flush, of which it forgets."""
        numbers = files.sync_log(self._path)
        with self._lock:
            self._newest = max([self._newest, *numbers])
            if len(numbers) <= LOGS_MAX // 2:
                return []
            kept = numbers[-_LOGS_KEPT]
            old = [name for name, number in self._since.items() if number < kept]
            for name in old:
                del self._since[name]
            return old

    def forget(self, family: str) -> None:
        """It was dropped."""
        with self._lock:
            self._since.pop(family, None)
