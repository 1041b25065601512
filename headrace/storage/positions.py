"""Where each queue begins and ends, and what is on the disk of it: one row for each queue, mapped.

Rows outlive a kill at once, and a crash of the machine after ``sync``.

* Invariant 1: a row lies in one sector of a disk, so its words reach the disk together.
* Invariant 2: no two queues ever have the same epoch, and no queue has one twice.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace.process import durable

QUEUES_MAX: Final = 65_536
"""Maximum number of queues at a time."""

BASE: Final = 0
"""Word of a row: the queue's base."""
FRONT: Final = 1
"""Word of a row: its front."""
TXID: Final = 2
"""Word of a row: the last txid before the base."""
SINCE: Final = 3
"""Word of a row: the offset from which its frames have the last epoch; earlier ones are synced."""
EPOCH: Final = 4
"""Word of a row: its last epoch.  Row 0, which no queue has, has the last epoch of all."""
_WORDS: Final = 8
_BYTES: Final = QUEUES_MAX * _WORDS * 8
_EPOCH_MAX: Final = (1 << 32) - 1
_FORMER: Final = "fronts"
"""File of version 0.2 and earlier, whose rows have the first three words."""

Row = npt.NDArray[Any]
"""The words of a queue."""


class Positions:
    """The rows of a folder; not thread-safe: its owner holds a lock."""

    def __init__(self, folder: Path) -> None:
        """Open or create the file ``positions`` in ``folder``.

        Raises:
            OSError: the file cannot be created.
        """
        path = folder / "positions"
        if not path.exists():
            _take_over(folder / _FORMER, path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._file, 0, _BYTES)
        self._map: Final = mmap.mmap(self._file, _BYTES)
        self._rows: Final = np.frombuffer(self._map, np.uint64).reshape(QUEUES_MAX, _WORDS)
        # After a crash the row of a queue may be on the disk without row 0.
        self._rows[0][EPOCH] = self._rows[:, EPOCH].max()

    def row(self, number: int) -> Row:
        """Return the row of a queue."""
        row: Row = self._rows[number]
        return row

    def next_epoch(self) -> int:
        """Return an epoch that no queue ever had; it is durable with the next ``sync``."""
        epoch = int(self._rows[0][EPOCH]) + 1
        assert epoch <= _EPOCH_MAX, "one for each start of a process, and each queue"
        self._rows[0][EPOCH] = epoch
        return epoch

    def sync(self) -> None:
        """Write all rows to the disk."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _take_over(former: Path, path: Path) -> None:
    """Write ``path`` with the rows of an earlier version, if there are any."""
    if not former.exists():
        return
    rows = np.zeros((QUEUES_MAX, _WORDS), np.uint64)
    words = np.fromfile(former, np.uint64)
    words = words[: len(words) // 3 * 3].reshape(-1, 3)[:QUEUES_MAX]
    rows[: len(words), :3] = words
    durable.replace(path, rows.tobytes(), 0o600)
    durable.sync(path.parent)
    former.unlink()
