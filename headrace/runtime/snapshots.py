"""The checkpoints of another worker: taken when it is told, written when it is told.

Invariant: one is written only after the coordinator has said that its own records of these txids
are durable: else they might be cut otherwise when they come again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from headrace.errors import BugError
from headrace.runtime.positions import Meta, StateMark
from headrace.state.rocks import RocksCheckpoint, RocksDatabase, RocksStore


@dataclass(slots=True)
class ToldCheckpoints:
    """One at a time, on the session's thread; it is written on another one."""

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
        """Begin one of ``stores`` at txids; REQUIRES: none is under way."""
        self._underway = number, self._db.begin_checkpoint(stores, meta), dict(marks)

    def write(self, number: int, done: Callable[[], object]) -> None:
        """Make it durable; ``done`` is called, on any thread, when it is, or has failed."""
        if self._underway is None or self._underway[0] != number:
            raise BugError(f"snapshot {number} is not under way")
        self._written = self._writing.submit(self._underway[1].write, sync=True)
        self._written.add_done_callback(lambda _: done())

    def ended(
        self, *, wait: bool = False
    ) -> tuple[int, dict[int, StateMark], BaseException | None] | None:
        """One that was written: its number, marks and error; None: there is none, or not yet.

        One that is not to be written yet goes on.
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
        """Forget one that was not to be written yet."""
        if self._underway is not None:
            self._db.end_checkpoint(self._underway[1])
            self._underway = None
