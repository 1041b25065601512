"""One job at a time between the engine's thread and a sink thread of its own.

* Invariant: after a failure no job comes out until ``rewind``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace import clock
from headrace.errors import BugError
from headrace.runtime.jobs import Answer, Closed, CommitJob


class LaneJobs:
    """Jobs of what is processed beside the others; safe between the two threads."""

    def __init__(self) -> None:
        """There is no job."""
        self._changed = threading.Condition()
        # Guarded by the condition's lock.
        self._job: CommitJob | None = None
        self._answer: Answer | None = None
        self._failure: Exception | None = None
        self._begun: float | None = None
        self._writing = False
        self._closed = False

    # --- the engine's side

    def put(self, job: CommitJob) -> None:
        """Have ``job`` written.  REQUIRES: not ``busy``."""
        with self._changed:
            if self._begun is not None:
                raise BugError(f"batch {job.txid} is to be written beside another one")
            self._job, self._begun = job, clock.monotonic()
            self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come or to be taken."""
        with self._changed:
            return self._begun is not None

    def answer(self) -> Answer | None:
        """What has been committed, once; None: nothing yet.

        Raises:
            Exception: what the sink thread failed with.
        """
        with self._changed:
            if self._answer is None and self._failure is not None:
                raise self._failure
            out, self._answer = self._answer, None
            if out is not None:
                self._begun = None
            return out

    def abort(self, interrupt: Callable[[], None]) -> None:
        """Give up; returns when the sink thread does nothing any more.  ``rewind`` must follow.

        ``interrupt`` makes it fail where it waits.
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

    def rewind(self) -> None:
        """Jobs may be put again.  REQUIRES: not ``busy``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
            self._failure = None

    def close(self) -> None:
        """There will be no job any more.  REQUIRES: ``abort`` was called, or not ``busy``."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- the sink thread's side (see ``Jobs``)

    @property
    def busy_s(self) -> float:
        """See ``Jobs``."""
        with self._changed:
            return clock.monotonic() - self._begun if self._begun is not None else 0.0

    def next_job(self, timeout_s: float) -> CommitJob | None:
        """See ``Jobs``."""
        with self._changed:
            until = clock.monotonic() + timeout_s
            while not self._closed:
                if self._failure is None and self._job is not None:
                    self._writing = True
                    job, self._job = self._job, None
                    return job
                left = until - clock.monotonic()
                if left <= 0 and self._failure is None:
                    self._writing = True
                    return None
                self._changed.wait(left if left > 0 else None)
            raise Closed

    def committed(self, answer: Answer) -> None:
        """See ``Jobs``."""
        with self._changed:
            self._writing = False
            if self._begun is not None and self._failure is None:
                self._answer = answer
            self._changed.notify_all()

    def failed(self, error: Exception) -> None:
        """See ``Jobs``."""
        with self._changed:
            self._writing = False
            self._failure = self._failure or error
            self._changed.notify_all()

    def rested(self) -> None:
        """See ``Jobs``."""
        with self._changed:
            self._writing = False
            self._changed.notify_all()

    def _forget(self) -> None:
        self._job = self._answer = self._begun = None
        self._failure = None
