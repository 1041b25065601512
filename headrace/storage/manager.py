"""All queues of a worker: their file, schemas and names (seed A's storage manager)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import msgspec

from headrace.errors import BugError, TransientError
from headrace.process import durable
from headrace.storage.blocks import BLOCK_BYTES, BlockFile
from headrace.storage.pool import BufferPool
from headrace.storage.positions import QUEUES_MAX, Positions
from headrace.storage.queue import Queue
from headrace.storage.schemas import Schemas

_SPARE: Final = 64
"""Free blocks that keep their space on the disk."""
_names = msgspec.json.Decoder(dict[str, int])


class Storage:
    """The queues in a folder, by name; the queues of an earlier process are opened again."""

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        block_bytes: int = BLOCK_BYTES,
        memory_bytes: int = 0,
    ) -> None:
        """Open the folder; all queues hold ``bytes_max``, ``memory_bytes`` in memory (0: no limit).

        Raises:
            OSError: the folder cannot be used.
        """
        durable.make_folder(folder, 0o700)
        self.folder: Final = folder
        self.lock: Final = threading.RLock()
        self.file: Final = BlockFile(
            folder / "blocks", max(bytes_max // block_bytes, 1), block_bytes
        )
        self._schemas: Final = Schemas(folder / "schemas")
        self._positions: Final = Positions(folder)
        self._queues: Final[dict[str, Queue]] = {}
        self.pool: Final = BufferPool(self.file, self.lock, self._queues, memory_bytes)
        self._leaving: list[Queue] = []
        """Dropped queues of which a reader still holds a batch."""
        self._recover()

    @property
    def queues(self) -> list[Queue]:
        """All queues, in order of number."""
        with self.lock:
            return sorted(self._queues.values(), key=lambda queue: queue.number)

    def get(self, name: str) -> Queue | None:
        """Return the queue of that name, or None."""
        with self.lock:
            return self._queues.get(name)

    def make(self, name: str) -> Queue:
        """Create a queue, with one block (A-11).

        Raises:
            BugError: a queue of that name exists.
            NoRoom: no block is available.
            OSError: it cannot be written now.
        """
        with self.lock:
            if name in self._queues:
                message = f'there is a queue "{name}" already'
                raise BugError(message)
            used = {queue.number for queue in (*self._queues.values(), *self._leaving)}
            number = next(n for n in range(1, QUEUES_MAX) if n not in used)
            queue = self._queue(number, name, None)
            try:
                # Before its name, which must not lead to a queue that had its number earlier.
                queue.begin_epoch(self._positions.next_epoch())
                self.file.sync([])
                self._positions.sync()
                queue.must_begin = False
                self._queues[name] = queue
                self._write_names()
            except OSError:
                self._queues.pop(name, None)
                queue.drop()
                raise
            return queue

    def drop(self, name: str) -> None:
        """Drop a queue if it exists."""
        with self.lock:
            queue = self._queues.pop(name, None)
            if queue is not None:
                self._write_names()
                self.pool.table.drop(name)
                self._leaving.append(queue)
                self._let_go()

    def maintain(self) -> None:
        """Release unneeded blocks, space and memory; to be called periodically."""
        with self.lock:
            for queue in self._queues.values():
                queue.check()
            self._let_go()
            self.file.trim(_SPARE)
            self.pool.maintain()

    def _let_go(self) -> None:
        self._leaving = [queue for queue in self._leaving if not queue.drop()]

    @property
    def unsynced(self) -> bool:
        """Whether a queue has frames that are not synced, which a machine crash would lose."""
        with self.lock:
            return any(queue.synced < queue.front for queue in self._queues.values())

    def sync(self) -> None:
        """Sync all frames put until now, so that they survive a crash of the machine.

        Blocks before the present bases are released after it.

        Raises:
            TransientError: they cannot be written now.
        """
        try:
            self._sync()
        except OSError as error:
            raise TransientError(
                f"the queues cannot be written now: {error}", sqlstate="58030"
            ) from error

    def release(self) -> bool:
        """Sync the bases, and release the blocks before them; return whether a base had moved.

        Raises:
            OSError: they cannot be written now.
        """
        return self._sync(frames=False)

    def _sync(self, *, frames: bool = True) -> bool:
        """Sync all frames and bases of now, or the bases; return whether there was any."""
        with self.lock:
            queues = list(self._queues.values())
            fresh = [(q, q.synced, q.front) for q in queues if frames and q.synced < q.front]
            parts = [run for q, begin, end in fresh for run in q.ring.extents(begin, end)]
            moved = [(q, q.base) for q in queues if q.synced_base < q.base]
        if parts:
            self._schemas.sync()
            self.file.sync(parts)
        if parts or moved:
            self._positions.sync()
        for queue, _, end in fresh:
            queue.synced = end
        for queue, base in moved:
            queue.note_base(base)
        return bool(parts or moved)

    def begin_epochs(self) -> None:
        """See ``queue.Syncer``."""
        with self.lock:
            self._sync()
            begun = [queue for queue in self._queues.values() if queue.must_begin]
            for queue in begun:
                queue.begin_epoch(self._positions.next_epoch())
            self._positions.sync()
            for queue in begun:
                queue.must_begin = False

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        self._schemas.close()
        self._positions.close()

    def _queue(self, number: int, name: str, found: dict[int, int] | None) -> Queue:
        row = self._positions.row(number)
        return Queue(number, name, self.pool, self._schemas, row, self, found)

    def _recover(self) -> None:
        path = self.folder / "names"
        names = _names.decode(path.read_bytes()) if path.exists() else {}
        found = self.file.owners()
        for number in set(found) - set(names.values()):
            # The queue's name was never written, or has been removed already.
            self.file.give(self.file.owned(number))
        for name, number in names.items():
            self._queues[name] = self._queue(number, name, found.get(number))

    def _write_names(self) -> None:
        names = {name: queue.number for name, queue in self._queues.items()}
        durable.replace(self.folder / "names", msgspec.json.encode(names))
        durable.sync(self.folder)
