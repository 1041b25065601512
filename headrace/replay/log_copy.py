"""A copy of the intake log of a running process, made by another process.

The copy has what the log would have after a kill at that moment, and is opened in the same way: its
frames are checked, and those that were being written are not there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from headrace.forwarder.batcher import Batch
from headrace.runtime import packing
from headrace.runtime.intake_log import PREFIX, queue_name
from headrace.runtime.positions import BatchRecord, IntakeMark
from headrace.storage.frame_cache import Damaged
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue

_NAMES: Final = "names"
_READ_NAMES: Final = msgspec.json.Decoder(dict[str, int])
_FILES: Final = ("positions", "blocks.table", "schemas")
"""In this order: each has what those before it rely on."""
_ROW: Final = np.dtype([("queue", "<u8"), ("newer", "<u8"), ("older", "<u8")])


class LogCopy:
    """Batches of the intake log, by txid; empty if there is none."""

    def __init__(self, source: Path, to: Path, mark: IntakeMark | None, block_bytes: int) -> None:
        """Copy the log with ``mark`` from the folder of queues ``source`` to ``to``."""
        self._storage: Storage | None = None
        self._queue: Queue | None = None
        self._number = 0
        names = source / _NAMES
        known = _READ_NAMES.decode(names.read_bytes()) if names.exists() else {}
        name = _name(known, mark)
        if name is None:
            return
        self._number = int(name.removeprefix(PREFIX))
        to.mkdir(parents=True)
        for file in _FILES:
            shutil.copyfile(source / file, to / file)
        (to / _NAMES).write_bytes(msgspec.json.encode({name: known[name]}))
        _copy_blocks(source / "blocks", to, known[name], block_bytes)
        self._storage = Storage(to, (to / "blocks").stat().st_size, block_bytes)
        self._queue = self._storage.get(name)

    @property
    def after(self) -> int:
        """Txid after which its first batch is."""
        return self._queue.base_txid if self._queue is not None else 0

    @property
    def last(self) -> int:
        """Txid of its last batch, or ``after``."""
        return self._queue.last_txid if self._queue is not None else 0

    def read(self, txid: int) -> tuple[BatchRecord, Batch]:
        """Return a batch, with the descriptions of tables that it relies on.

        Raises:
            Damaged: it cannot be read.
        """
        assert self._queue is not None, "it has batches"
        frames = self._queue.sent(txid)
        if not frames or any(f.header.attempt != self._number for f in frames):
            message = f"the log does not hold txid {txid}"
            raise Damaged(message)
        return packing.record(txid, frames), packing.unpack(txid, frames, {})

    def close(self) -> None:
        """Close the copy."""
        if self._storage is not None:
            self._storage.close()


def _name(known: Mapping[str, int], mark: IntakeMark | None) -> str | None:
    """Return the name of the log; None: there is none.  One that is a cache has no mark."""
    if mark is not None and mark.lsn:
        name = queue_name(mark.number)
        return name if name in known else None
    found = [name for name in known if name.startswith(PREFIX)]
    return found[0] if len(found) == 1 else None


def _copy_blocks(source: Path, to: Path, queue: int, block_bytes: int) -> None:
    """Copy the blocks of one queue; the others are holes."""
    data = (to / "blocks.table").read_bytes()
    rows = np.frombuffer(data[: len(data) // _ROW.itemsize * _ROW.itemsize], _ROW)
    with source.open("rb") as blocks, (to / "blocks").open("wb") as out:
        size = os.fstat(blocks.fileno()).st_size
        out.truncate(-(-size // block_bytes) * block_bytes)
        for block in np.flatnonzero(rows["queue"] == queue).tolist():
            blocks.seek(block * block_bytes)
            out.seek(block * block_bytes)
            out.write(blocks.read(block_bytes))
