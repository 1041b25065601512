"""Commit jobs and their answers, passed between the engine's thread and a sink thread."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

import pyarrow as pa

from headrace import clock
from headrace.errors import BugError, HeadraceError
from headrace.postgres.definitions import Definitions
from headrace.postgres.privileges import Right
from headrace.runtime.views import View
from headrace.sink.table import ResultTable
from headrace.sql.history import HistoryPosition
from headrace.sql.progress import Progress


@dataclass(frozen=True, slots=True)
class ViewPart:
    """One view's part of a txid, with everything needed to write it."""

    view_id: int
    target: ResultTable
    group: str
    progress: Progress
    """Progress as the engine knows it; its epoch proves ownership."""
    diffs: pa.RecordBatch | None
    """Changes of the view; None or without rows: it did not change."""
    known: Definitions | None = None
    """Definitions, besides tables, under which ``diffs`` were computed."""
    rights: Sequence[Right] = ()
    """Rights without which the view is not written."""
    kept: bool = False
    """Whether its changes go into its history as well."""
    latency_ms: int = 0
    """How late it may be: the most urgent commit group is written first."""

    @classmethod
    def of(
        cls,
        view: View,
        diffs: pa.RecordBatch | None,
        relied_on: Callable[[View], tuple[Definitions | None, Sequence[Right]]],
    ) -> Self:
        """Return the part of ``view``; call ``relied_on`` only if there is something to write."""
        assert view.progress is not None, "live views are owned"
        part = cls(view.id, view.target, view.commit_group, view.progress, diffs)
        if not part.changes:
            return part
        known, rights = relied_on(view)
        latency_ms = view.latency_ms
        return replace(part, known=known, rights=rights, kept=view.kept, latency_ms=latency_ms)

    @property
    def changes(self) -> bool:
        """Whether there is something to write."""
        return self.diffs is not None and self.diffs.num_rows > 0


@dataclass(frozen=True, slots=True)
class CommitJob:
    """A processed txid, to be committed."""

    txid: int
    attempt: int
    lsn: int
    """End LSN of its last transaction."""
    transactions: int
    commit_time_us: int
    parts: tuple[ViewPart, ...]
    shared: tuple[int, ...] = ()
    """IDs of the shared subplans that have processed it for their readers."""
    size: int = 0
    """Bytes of the rows to be written."""
    oldest_us: int = 0
    """Commit time of its first transaction, in the unit of ``commit_time_us``; 0: unknown."""
    first_lsn: int = 0
    """End LSN of its first transaction; 0: unknown."""
    began_s: float = 0.0
    """When it was taken, on the monotonic clock; 0: for lagging views."""
    done_s: float = 0.0
    """When its result was computed, on the monotonic clock."""
    xids: tuple[int, ...] = ()
    """XIDs of its first transactions, ``XIDS_MAX`` at most, if a history is written."""
    requests: tuple[str | None, ...] = ()
    """Request id of each of ``xids``; empty: none has one."""
    alone: bool = False
    """Whether the engine has no other view, which would wait while one waits for a lock."""

    @property
    def moment(self) -> HistoryPosition:
        """Moment of its changes, as histories record it."""
        return HistoryPosition(
            self.txid,
            self.lsn,
            clock.from_postgres(self.commit_time_us),
            clock.from_postgres(self.oldest_us or self.commit_time_us),
            self.transactions,
            self.xids,
            self.requests,
        )


@dataclass(slots=True)
class Answer:
    """A committed txid."""

    job: CommitJob
    progress: dict[int, Progress] = field(default_factory=dict)
    """Progress of the result tables now."""
    failed: dict[int, HeadraceError] = field(default_factory=dict)
    """Views that could not be written."""
    gone: set[int] = field(default_factory=set)
    """Views that are no longer in the catalog."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of writing, by commit group."""


class Closed(Exception):
    """Raised when no more jobs will come."""


class Jobs(ABC):
    """Jobs on their way from the engine's thread to a sink thread; safe for both.

    * Invariant: after a failure no job comes out until a rewind.
    """

    def __init__(self) -> None:
        self._changed: Final = threading.Condition()
        # Guarded by the condition's lock.
        self._jobs: deque[CommitJob] = deque()
        self._failure: Exception | None = None
        self._writing = False
        self._closed = False

    # --- the engine's side

    def close(self) -> None:
        """Let the sink thread end.  REQUIRES: ``abort`` was called, or nothing is in flight."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abort(self, interrupt: Callable[[], None]) -> None:
        """Give up what is in flight; return when the sink thread is idle.

        ``interrupt`` makes it fail where it waits.  Taking over the views shows whether its last
        commit was made.  A rewind must follow.
        """
        with self._changed:
            self._forget()
            self._failure = BugError("a job after it was given up")
            writing = self._writing
        if writing:
            interrupt()
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
            self._forget()

    # --- the sink thread's side

    @property
    @abstractmethod
    def busy_s(self) -> float:
        """Seconds since the oldest txid in flight was taken."""

    def next_job(self, timeout_s: float) -> CommitJob | None:
        """Return the next job to commit, or None after ``timeout_s``, for upkeep.

        ``committed``, ``failed`` or ``rested`` must follow.

        Raises:
            Closed: no more jobs will come.
        """
        with self._changed:
            until = clock.monotonic() + timeout_s
            while not self._closed:
                if self._failure is None and self._jobs:
                    self._writing = True
                    return self._jobs.popleft()
                left = until - clock.monotonic()
                if left <= 0 and self._failure is None:
                    self._writing = True
                    return None
                self._changed.wait(left if left > 0 else None)
            raise Closed

    def committed(self, answer: Answer) -> None:
        """Report that the job is in the tables."""
        with self._changed:
            self._writing = False
            self._changed.notify_all()
            if self._failure is None:  # else the next owner finds it in the progress rows
                self._answered(answer)

    def failed(self, error: Exception) -> None:
        """Report that the job or the upkeep failed; no job comes out until a rewind."""
        with self._changed:
            self._writing = False
            self._failure = self._failure or error
            self._changed.notify_all()

    def rested(self) -> None:
        """Report that the upkeep is done."""
        with self._changed:
            self._writing = False
            self._changed.notify_all()

    # --- inside, under the lock

    @abstractmethod
    def _answered(self, answer: Answer) -> None:
        """Handle a job that is committed and was not given up."""

    def _forget(self) -> None:
        """Forget everything in flight."""
        self._jobs.clear()
        self._failure = None
