"""A job of the builder, which a user waits for and may cancel.

The work runs in one thread; ``cancel`` is called from another.  Every operation that can block is
registered with ``cancelling`` before it starts, so that a cancel reaches it.  Between steps the
work calls ``check``.

A server ignores a cancel while it executes no statement.  So one that arrives between ``check`` and
the statement would be lost, and the statement might wait for ever.  Therefore the registered
actions are called again and again, until the operations have ended.
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
from headrace.errors import HeadraceError, QueryCancelled
from headrace.postgres import reuse
from headrace.postgres.connect import Connection, for_job
from headrace.postgres.failures import as_headrace
from headrace.process import identity
from headrace.sql.views import ViewRow

Report = Callable[[dict[str, Any]], None]

_log = structlog.get_logger(__name__)
_numbers = itertools.count(1)
_REPORT_INTERVAL_S: Final = 0.2
_AGAIN_S: Final = 0.2
_AGAIN_S_MAX: Final = 5.0
"""Pauses between the repeated actions of a cancel, which grow."""
_ETA_AFTER_S: Final = 2.0
_ETA_FROM_PERCENT: Final = 2
"""Percentage from which on the time left is estimated."""


class Job:
    """Cancellation and progress of one request.

    ``name`` is unique among the jobs of this process.  ``report`` is called from the job's thread
    and must be safe there.
    """

    def __init__(self, report: Report, name: str = "") -> None:
        self.name: Final = name or f"{identity.name()}-{next(_numbers)}"
        self.unasked = False
        """Whether the server started the job by itself, without a call of a user."""
        self.view_id = 0
        """The view that it populates; 0: none yet."""
        self.about: ViewRow | None = None
        """The view that a call concerns, as it was found."""
        self._report = report
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._acting = threading.RLock()
        """Held while the actions of a cancel are called."""
        self._repeating = False
        """Whether a thread repeats them."""
        self._cancels: dict[int, Callable[[], object]] = {}
        self._keys = itertools.count()
        self._phase = ""
        self._total = 0
        self._done = 0
        self._phase_started = 0.0
        self._reported = 0.0

    # --- cancelling

    def check(self) -> None:
        """Raise QueryCancelled if the job was cancelled."""
        if self._cancelled.is_set():
            raise cancelled()

    def wanted(self) -> bool:
        """Return whether the job was not cancelled."""
        return not self._cancelled.is_set()

    def wait(self, seconds: float) -> None:
        """Sleep; raise QueryCancelled as soon as the job is cancelled."""
        self._cancelled.wait(seconds)
        self.check()

    def cancel(self) -> None:
        """Cancel the job and wake blocked operations; from any thread, any number of times."""
        self._cancelled.set()
        self._call_actions()
        with self._lock:
            begins = bool(self._cancels) and not self._repeating
            self._repeating |= begins
        if begins:
            threading.Thread(target=self._repeat, name=f"cancel {self.name}", daemon=True).start()

    def _repeat(self) -> None:
        """Call the actions of a cancel until the operations have ended."""
        pause = _AGAIN_S
        while True:
            clock.sleep(pause)
            pause = min(2 * pause, _AGAIN_S_MAX)
            with self._lock:
                if not self._cancels:
                    self._repeating = False
                    return
            self._call_actions()

    def _call_actions(self) -> None:
        with self._acting:
            with self._lock:
                actions = list(self._cancels.values())
            for action in actions:
                try:
                    action()
                except Exception as error:  # noqa: BLE001  the next one must be tried as well
                    _log.warning("cancel failed", job=self.name, reason=str(error))

    @contextlib.contextmanager
    def cancelling(self, action: Callable[[], object]) -> Iterator[None]:
        """Have ``cancel`` also call ``action`` during the block, perhaps several times."""
        self.check()
        with self._lock:
            key = next(self._keys)
            self._cancels[key] = action
        try:
            # A cancel between the check and the registration did not call ``action``.
            self.check()
            yield
        finally:
            with self._lock:
                del self._cancels[key]
            # An action under way must not reach the next statement of its connection.
            with self._acting:
                pass

    @contextlib.contextmanager
    def connection(self, dsn: str, *, what: str, **options: Any) -> Iterator[Connection]:
        """Yield a connection (see ``for_job``) whose running query a cancel stops."""
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
        """Translate Postgres' errors into Headrace's; after a cancel, into QueryCancelled."""
        try:
            yield
        except psycopg.Error as error:
            self.check()
            raise as_headrace(error) from error
        except HeadraceError:
            self.check()
            raise

    # --- progress

    def phase(self, name: str, total: int = 0, **details: Any) -> None:
        """Begin a new phase.

        ``total``: the expected number of rows; 0 means unknown.
        """
        self.check()
        self._phase, self._total = name, total
        self._phase_started = clock.monotonic()
        self._send(0, details)

    def say(self, message: str) -> None:
        """Report ``message`` to the user; from any thread."""
        self._report({"phase": self._phase, "message": message})

    def rows(self, done: int) -> None:
        """Report the rows of the phase that are done, at most five times a second."""
        self.check()
        if done == self._done or clock.monotonic() - self._reported < _REPORT_INTERVAL_S:
            return
        self._send(done, {})

    def complete(self, done: int) -> None:
        """Report that the phase is complete with ``done`` rows, even if more were expected."""
        self._total = done
        self._send(done, {"percent": 100} if done else {})

    def _send(self, done: int, details: dict[str, Any]) -> None:
        now = clock.monotonic()
        self._reported = now
        self._done = done
        if done > self._total:
            # More rows than expected: drop the wrong estimate.
            self._total = 0
        message: dict[str, Any] = {"phase": self._phase, "view_id": self.view_id}
        if self._total or done:
            message["rows"] = done
        if self._total:
            message["total"] = self._total
            # Report 100 % only when the phase is complete.
            percent = min(99, 100 * done // self._total)
            message["percent"] = percent
            elapsed = now - self._phase_started
            if percent >= _ETA_FROM_PERCENT and elapsed >= _ETA_AFTER_S:
                left = (self._total - done) * elapsed / done
                message["eta_s"] = round(left, 1)
        self._report(message | details)


def cancelled() -> QueryCancelled:
    """Return the error of a cancelled job."""
    return QueryCancelled("canceling statement due to user request")


def _cancel_query(conn: Connection) -> None:
    if not conn.closed:
        with contextlib.suppress(psycopg.OperationalError):
            conn.cancel_safe(timeout=5.0)
