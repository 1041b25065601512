"""Checkpoints of another worker, which the coordinator starts and lets it write.

Invariant: a checkpoint is written only after the coordinator has said that its own records of these
txids are durable. Otherwise the batches might be cut differently when they come again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from headrace.errors import TransientError
from headrace.runtime.positions import Meta, StateMark
from headrace.state.rocks import RocksCheckpoint, RocksDatabase, RocksStore


@dataclass(slots=True)
class ReportedCheckpoints:
    """One checkpoint at a time, begun on the session's thread and written on another one."""

    _db: RocksDatabase
    _writing: ThreadPoolExecutor
    _underway: tuple[int, RocksCheckpoint, dict[int, StateMark]] | None = field(
        default=None, init=False
    )
    _written: Future[None] | None = field(default=None, init=False)

    def take(
        self,
        number: int,
        stores: Sequence[tuple[RocksStore, int]],
        meta: Meta,
        marks: Mapping[int, StateMark],
    ) -> None:
        """Begin a checkpoint of ``stores`` at their txids; REQUIRES: none is under way."""
        self._underway = number, self._db.begin_checkpoint(stores, meta), dict(marks)

    def holds(self, unit_id: int) -> bool:
        """Return whether the checkpoint under way contains a unit."""
        return self._underway is not None and unit_id in self._underway[2]

    def write(self, number: int, done: Callable[[], object]) -> None:
        """Write checkpoint ``number``; call ``done`` on any thread when that has ended.

        Raises:
            TransientError: it was given up.
        """
        if self._underway is None or self._underway[0] != number:
            raise TransientError("a command has changed the states before they were written")
        self._written = self._writing.submit(self._underway[1].write, sync=True)
        self._written.add_done_callback(lambda _: done())

    def ended(
        self, *, wait: bool = False
    ) -> tuple[int, dict[int, StateMark], BaseException | None] | None:
        """Return the number, marks and error of a finished checkpoint; None: there is none yet.

        ``wait``: wait for a write that is under way. A checkpoint without permission to be written
        stays.
        """
        if self._underway is None or self._written is None:
            return None
        number, checkpoint, marks = self._underway
        checkpoint.pace.hurried |= wait
        if not wait and not self._written.done():
            return None
        error = self._written.exception()
        self._underway = self._written = None
        self._db.end_checkpoint(checkpoint)
        return number, marks, error

    def give_up(self) -> None:
        """Drop a checkpoint that is not written."""
        if self._underway is not None:
            self._db.end_checkpoint(self._underway[1])
            self._underway = None
