"""All queues of a worker: their file, their schemas, and their names (seed A's storage manager)."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from headrace.errors import BugError, TransientError
from headrace.process import durable
from headrace.storage.blocks import BLOCK_BYTES, BlockFile
from headrace.storage.pool import BufferPool
from headrace.storage.queue import Queue
from headrace.storage.schemas import Schemas

QUEUES_MAX: Final = 65_536
"""Queues that there may be at a time."""

_SPARE: Final = 64
"""Blocks that nobody has and that keep their space on the disk."""
_HINTS: Final = np.dtype((np.uint64, 3))
"""What a queue's process leaves about it: its base, its front, the last txid before the base."""
_names = msgspec.json.Decoder(dict[str, int])


class Storage:
    """The queues in a folder, by name; those that an earlier process has left are found again."""

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        block_bytes: int = BLOCK_BYTES,
        memory_bytes: int = 0,
    ) -> None:
        """``bytes_max``: what all queues together may hold; ``memory_bytes``: in memory (0: any).

        Raises:
            OSError: the folder cannot be used.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder: Final = folder
        self.lock: Final = threading.RLock()
        self.file: Final = BlockFile(
            folder / "blocks", max(bytes_max // block_bytes, 1), block_bytes
        )
        self._schemas: Final = Schemas(folder / "schemas")
        self._hints_file = os.open(folder / "fronts", os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._hints_file, 0, QUEUES_MAX * _HINTS.itemsize)
        self._hints_map: Final = mmap.mmap(self._hints_file, QUEUES_MAX * _HINTS.itemsize)
        self._hints: Final = np.frombuffer(self._hints_map, np.uint64).reshape(QUEUES_MAX, 3)
        self._queues: Final[dict[str, Queue]] = {}
        self.pool: Final = BufferPool(self.file, self.lock, self._queues, memory_bytes)
        self._leaving: list[Queue] = []
        """Queues that were dropped while somebody held a batch of theirs."""
        self._recover()

    @property
    def queues(self) -> list[Queue]:
        """All of them, in order of number."""
        with self.lock:
            return sorted(self._queues.values(), key=lambda queue: queue.number)

    def get(self, name: str) -> Queue | None:
        """The queue of that name, if there is one."""
        with self.lock:
            return self._queues.get(name)

    def make(self, name: str) -> Queue:
        """A new queue, with one block (A-11).

        Raises:
            BugError: there is one of that name.
            NoRoom: no block can be had.
        """
        with self.lock:
            if name in self._queues:
                message = f'there is a queue "{name}" already'
                raise BugError(message)
            used = {queue.number for queue in (*self._queues.values(), *self._leaving)}
            number = next(n for n in range(1, QUEUES_MAX) if n not in used)
            queue = self._queues[name] = self._queue(number, name, None)
            self._write_names()
            return queue

    def drop(self, name: str) -> None:
        """A queue is needed no more, if there is one."""
        with self.lock:
            queue = self._queues.pop(name, None)
            if queue is not None:
                self._write_names()
                self.pool.table.drop(name)
                self._leaving.append(queue)
                self._let_go()

    def tend(self) -> None:
        """Give back what is not needed; to be called now and then."""
        with self.lock:
            for queue in self._queues.values():
                queue.check()
            self._let_go()
            self.file.trim(_SPARE)
            self.pool.tend()

    def _let_go(self) -> None:
        self._leaving = [queue for queue in self._leaving if not queue.drop()]

    @property
    def unsynced(self) -> bool:
        """Whether something was put that is not on the disk, as for a crash of the machine."""
        with self.lock:
            return any(queue.synced < queue.front for queue in self._queues.values())

    def sync(self) -> None:
        """Have all that was put until now on the disk, as for a crash of the machine.

        Raises:
            TransientError: it cannot be written now.
        """
        with self.lock:
            fresh = [(q, q.synced, q.front) for q in self._queues.values() if q.synced < q.front]
            parts = [run for q, begin, end in fresh for run in q.ring.extents(begin, end)]
        if not parts:
            return
        try:
            self._schemas.sync()
            self.file.sync(parts)
            os.fdatasync(self._hints_file)
        except OSError as error:
            raise TransientError(
                f"the queues cannot be written now: {error}", sqlstate="58030"
            ) from error
        for queue, _, end in fresh:
            queue.synced = end

    def close(self) -> None:
        """Let the files go."""
        self.file.close()
        self._schemas.close()
        if self._hints_file >= 0:
            os.close(self._hints_file)
        self._hints_file = -1

    def _queue(self, number: int, name: str, found: dict[int, int] | None) -> Queue:
        return Queue(*(number, name, self.pool, self._schemas, self._hints[number]), found)

    def _recover(self) -> None:
        path = self.folder / "names"
        names = _names.decode(path.read_bytes()) if path.exists() else {}
        found = self.file.owners()
        for number in set(found) - set(names.values()):
            # Its name was never written, or is gone already.
            self.file.give(self.file.owned(number))
        for name, number in names.items():
            self._queues[name] = self._queue(number, name, found.get(number))

    def _write_names(self) -> None:
        names = {name: queue.number for name, queue in self._queues.items()}
        durable.replace(self.folder / "names", msgspec.json.encode(names))
        durable.sync(self.folder)
