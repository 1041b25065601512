"""One piece of the builder's work that a user waits for, and may give up on.

The work runs in a thread; ``cancel`` comes from another.  Everything that can block is told
about with ``cancelling`` before it starts, so that a cancel reaches it, and ``check`` stands
between the steps.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.errors import QueryCancelled
from headrace.postgres import reuse
from headrace.postgres.connect import Connection, for_job
from headrace.postgres.failures import as_headrace
from headrace.process import identity

Report = Callable[[dict[str, Any]], None]

_log = structlog.get_logger(__name__)
_numbers = itertools.count(1)
_REPORT_INTERVAL_S: Final = 0.2
_ETA_AFTER_S: Final = 2.0
_ETA_FROM_PERCENT: Final = 2
"""Before that much is done, a rate is a guess."""


class Job:
    """State of one request: whether it was cancelled, and how far it has come.

    ``name`` tells jobs of this process apart.  ``report`` is called from the job's thread and
    must be safe there.
    """

    def __init__(self, report: Report, name: str = "") -> None:
        self.name: Final = name or f"{identity.name()}-{next(_numbers)}"
        self.unasked = False
        """Whether the server does it by itself, without a call of a user."""
        self._report = report
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._cancels: dict[int, Callable[[], object]] = {}
        self._keys = itertools.count()
        self._phase = ""
        self._total = 0
        self._done = 0
        self._phase_started = 0.0
        self._reported = 0.0

    # --- cancelling

    def check(self) -> None:
        """Raise QueryCancelled if the user gave up."""
        if self._cancelled.is_set():
            raise cancelled()

    def wanted(self) -> bool:
        """Whether the user has not given up."""
        return not self._cancelled.is_set()

    def wait(self, seconds: float) -> None:
        """Sleep; QueryCancelled as soon as the user gives up."""
        self._cancelled.wait(seconds)
        self.check()

    def cancel(self) -> None:
        """Give up: wake what blocks.  Safe from any thread, any number of times."""
        self._cancelled.set()
        with self._lock:
            actions = list(self._cancels.values())
        for action in actions:
            try:
                action()
            except Exception as error:  # noqa: BLE001  the next one must be tried as well
                _log.warning("cancel failed", job=self.name, reason=str(error))

    @contextlib.contextmanager
    def cancelling(self, action: Callable[[], object]) -> Iterator[None]:
        """While inside, ``cancel`` also calls ``action``."""
        self.check()
        with self._lock:
            key = next(self._keys)
            self._cancels[key] = action
        try:
            # A cancel between the check and the entry above has called nothing of ours.
            self.check()
            yield
        finally:
            with self._lock:
                del self._cancels[key]

    @contextlib.contextmanager
    def connection(self, dsn: str, *, what: str, **options: Any) -> Iterator[Connection]:
        """A connection (see ``for_job``) whose running query a cancel stops."""
        with self._opened(dsn, what, options) as conn, self.cancelling(lambda: _cancel_query(conn)):
            yield conn

    def _opened(
        self, dsn: str, what: str, options: dict[str, Any]
    ) -> contextlib.AbstractContextManager[Connection]:
        if not options:
            return reuse.lent(dsn, self.wanted, what=what)
        return contextlib.closing(for_job(dsn, what=what, **options))

    @contextlib.contextmanager
    def translating(self) -> Iterator[None]:
        """Inside, Postgres' errors become those of our tree; after a cancel all mean that."""
        try:
            yield
        except psycopg.Error as error:
            self.check()
            raise as_headrace(error) from error

    # --- progress

    def phase(self, name: str, total: int = 0, **details: Any) -> None:
        """A new phase of the work begins.

        ``total`` is the expected number of rows; 0: nobody knows.
        """
        self.check()
        self._phase, self._total = name, total
        self._phase_started = clock.monotonic()
        self._send(0, details)

    def say(self, message: str) -> None:
        """Tell the user ``message``; from any thread."""
        self._report({"phase": self._phase, "message": message})

    def rows(self, done: int) -> None:
        """So many rows of the phase are done; sent on only a few times a second."""
        self.check()
        if done == self._done or clock.monotonic() - self._reported < _REPORT_INTERVAL_S:
            return
        self._send(done, {})

    def complete(self, done: int) -> None:
        """The phase has done all rows, however many were expected."""
        self._total = done
        self._send(done, {"percent": 100} if done else {})

    def _send(self, done: int, details: dict[str, Any]) -> None:
        now = clock.monotonic()
        self._reported = now
        self._done = done
        if done > self._total:
            # More than expected: it was an estimate, and a wrong one.
            self._total = 0
        message: dict[str, Any] = {"phase": self._phase}
        if self._total or done:
            message["rows"] = done
        if self._total:
            message["total"] = self._total
            # Nothing is 100 % before it is known to be done.
            percent = min(99, 100 * done // self._total)
            message["percent"] = percent
            elapsed = now - self._phase_started
            if percent >= _ETA_FROM_PERCENT and elapsed >= _ETA_AFTER_S:
                left = (self._total - done) * elapsed / done
                message["eta_s"] = round(left, 1)
        self._report(message | details)


def cancelled() -> QueryCancelled:
    """The user gave up."""
    return QueryCancelled("canceling statement due to user request")


def _cancel_query(conn: Connection) -> None:
    if not conn.closed:
        with contextlib.suppress(psycopg.OperationalError):
            conn.cancel_safe(timeout=5.0)
