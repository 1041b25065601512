"""What the engine's thread and the sink's thread hand to each other."""

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
from headrace.sql.history import Moment
from headrace.sql.progress import Progress


@dataclass(frozen=True, slots=True)
class ViewPart:
    """What a txid means to one view; everything that writing it needs."""

    view_id: int
    target: ResultTable
    group: str
    progress: Progress
    """As the engine knows it; its epoch makes us the owner."""
    diffs: pa.RecordBatch | None
    """None, or without rows: the view did not change."""
    known: Definitions | None = None
    """What ``diffs`` were computed under, besides tables."""
    rights: Sequence[Right] = ()
    """Without which the view is not written."""
    kept: bool = False
    """Whether its changes are kept as well."""

    @classmethod
    def of(
        cls,
        view: View,
        diffs: pa.RecordBatch | None,
        relied_on: Callable[[View], tuple[Definitions | None, Sequence[Right]]],
    ) -> Self:
        """The part of ``view``; ``relied_on`` is asked only where something is written."""
        assert view.progress is not None, "live views are owned"
        part = cls(view.id, view.target, view.commit_group, view.progress, diffs)
        if not part.changes:
            return part
        known, rights = relied_on(view)
        return replace(part, known=known, rights=rights, kept=view.kept)

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
    """Where its last transaction ends."""
    transactions: int
    commit_time_us: int
    parts: tuple[ViewPart, ...]
    shared: tuple[int, ...] = ()
    """Ids of the shared subplans that have processed it for their readers."""
    size: int = 0
    """Bytes of the rows to be written."""
    oldest_us: int = 0
    """Commit time of its first transaction, as ``commit_time_us``; 0: it is not known."""
    began_s: float = 0.0
    """When it was taken, on the monotonic clock; 0: beside the others."""
    done_s: float = 0.0
    """When it was computed."""

    @property
    def moment(self) -> Moment:
        """When its changes are made, as histories have it."""
        return Moment(self.txid, self.lsn, clock.from_postgres(self.commit_time_us))


@dataclass(slots=True)
class Answer:
    """A committed txid."""

    job: CommitJob
    progress: dict[int, Progress] = field(default_factory=dict)
    """Where the result tables are now."""
    failed: dict[int, HeadraceError] = field(default_factory=dict)
    """Views that could not be written."""
    gone: set[int] = field(default_factory=set)
    """Views that the catalog does not have any more."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What writing took, by commit group."""


class Closed(Exception):
    """There will be no job any more."""


class Jobs(ABC):
    """Jobs on their way from the engine's thread to a sink thread; safe between the two.

    * Invariant: after a failure no job comes out until somebody rewinds.
    """

    def __init__(self) -> None:
        """There is none."""
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
        """Give up what is in flight; returns when the sink thread does nothing any more.

        ``interrupt`` makes it fail where it waits.  Whether its last commit was made is found
        out by taking the views over.  A rewind must follow.
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
        """For how long the oldest txid in flight has been under way."""

    def next_job(self, timeout_s: float) -> CommitJob | None:
        """The next job to commit; None: nothing for ``timeout_s``, a moment for upkeep.

        ``committed``, ``failed`` or ``rested`` must follow.

        Raises:
            Closed: there will be none any more.
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
        """The job is in the tables."""
        with self._changed:
            self._writing = False
            self._changed.notify_all()
            if self._failure is None:  # else the next owner finds it in the progress rows
                self._answered(answer)

    def failed(self, error: Exception) -> None:
        """The job, or the upkeep, failed; nothing comes out any more until somebody rewinds."""
        with self._changed:
            self._writing = False
            self._failure = self._failure or error
            self._changed.notify_all()

    def rested(self) -> None:
        """The upkeep is done."""
        with self._changed:
            self._writing = False
            self._changed.notify_all()

    # --- inside, under the lock

    @abstractmethod
    def _answered(self, answer: Answer) -> None:
        """Take note of a job that is committed, and was not given up for another reason."""

    def _forget(self) -> None:
        """Nothing is in flight any more."""
        self._jobs.clear()
        self._failure = None
