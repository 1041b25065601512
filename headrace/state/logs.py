"""RocksDB's write-ahead log: synced on request, and limited to few files.

RocksDB begins a new log file whenever it flushes a column family, and keeps a file until every
family has flushed its pairs in it.  RocksDB limits only the bytes of the log.  So a family with one
unflushed pair would keep a thousand small files, and each sync goes through all of them.

* Invariant 1: a family whose unflushed pairs are older than the last sync has an entry.  Its
  number is that of the file with these pairs, or of one soon after it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from headrace.state import files

LOGS_MAX: Final = 16
"""Maximum number of log files, apart from those whose pairs are being flushed."""
_LOGS_KEPT: Final = LOGS_MAX // 4
"""Files kept once half of the maximum exists; families with pairs in older ones are flushed."""


class Logs:
    """The log files, and the families that have pairs in them; from any thread."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._lock = threading.Lock()
        self._newest = 0
        self._since: dict[str, int] = {}

    def wrote(self, families: Iterable[str]) -> None:
        """Record that ``families`` have pairs in the newest file; called after the write.

        So a flush that begins during the write does not remove an entry whose pairs it misses.
        """
        with self._lock:
            for name in families:
                self._since.setdefault(name, self._newest)

    def sync(self) -> list[str]:
        """Sync the log; return the families to flush, and remove their entries."""
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
        """Remove the entry of a dropped family."""
        with self._lock:
            self._since.pop(family, None)
