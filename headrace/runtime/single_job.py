"""One job at a time between the engine's thread and the sink thread of lagging views."""

from __future__ import annotations

from headrace import clock
from headrace.errors import BugError
from headrace.runtime.jobs import Answer, CommitJob, Jobs


class SingleJob(Jobs):
    """The job of the views that catch up; the next one follows its answer."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: Answer | None = None
        self._begun: float | None = None

    def put(self, job: CommitJob) -> None:
        """Have ``job`` written.  REQUIRES: not ``busy``."""
        with self._changed:
            if self._begun is not None:
                raise BugError(f"batch {job.txid} is to be written beside another one")
            self._jobs.append(job)
            self._begun = clock.monotonic()
            self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come or to be taken."""
        with self._changed:
            return self._begun is not None

    def answer(self) -> Answer | None:
        """Return the finished commit once; None: there is none yet.

        Raises:
            Exception: the sink thread's error.
        """
        with self._changed:
            if self._answer is None and self._failure is not None:
                raise self._failure
            out, self._answer = self._answer, None
            if out is not None:
                self._begun = None
            return out

    def rewind(self) -> None:
        """Allow new jobs after a failure.  REQUIRES: not ``busy``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
            self._failure = None

    @property
    def busy_s(self) -> float:
        """See ``Jobs``."""
        with self._changed:
            return clock.monotonic() - self._begun if self._begun is not None else 0.0

    def _answered(self, answer: Answer) -> None:
        if self._begun is not None:
            self._answer = answer

    def _forget(self) -> None:
        super()._forget()
        self._answer = self._begun = None
