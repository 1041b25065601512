"""Semaphore with several permits per job, for work that takes memory and CPU, in FIFO order."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Final

from headrace.population.job import Job

_POLL_S: Final = 0.2


class Places:
    """A FIFO semaphore with ``count`` permits; for any thread."""

    def __init__(self, count: int) -> None:
        self.count: Final = max(count, 1)
        self._free = self.count
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, job: Job, wanted: int = 1) -> Iterator[None]:
        """Hold ``wanted`` permits (all, if there are fewer) during the block.

        A later job waits even if permits are free; otherwise a job that wants many could starve.

        Raises:
            QueryCancelled: the job was cancelled while it waited.
        """
        wanted = min(wanted, self.count)
        self._wait(job, wanted)
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()

    def _wait(self, job: Job, wanted: int) -> None:
        ticket = object()
        told = False
        with self._changed:
            self._queue.append(ticket)
        try:
            while True:
                job.check()
                with self._changed:
                    if self._changed.wait_for(
                        lambda: self._queue[0] is ticket and self._free >= wanted,
                        _POLL_S if told else 0.0,
                    ):
                        self._free -= wanted
                        return
                if not told:
                    told = True
                    job.phase("pending")
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()


class RolePlaces:
    """A FIFO semaphore of which each role holds one permit at most; for any thread."""

    def __init__(self, count: int) -> None:
        self._all = Places(count)
        self._own: dict[str | None, Places] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def take(self, job: Job, role: str | None) -> Iterator[None]:
        """Hold a permit during the block.

        Raises:
            QueryCancelled: the job was cancelled while it waited.
        """
        with self._lock:
            own = self._own.setdefault(role, Places(1))
        with own.take(job), self._all.take(job):
            yield
