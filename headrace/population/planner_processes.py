"""Calls that read a query's text or tree: here if these are small, else in a process with limits.

    job ── small ──► function(conn, …)
        └─ large ──► planner_child: function(its connection, …) ──► value, or the same error

A query of 1 MB takes up to a minute of processor time and a hundred times its size in memory.  In a
process of its own it holds up no other job, and its memory returns to the system.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Concatenate, Final, ParamSpec, TypeVar, cast

import structlog
from psycopg.pq import TransactionStatus

from headrace import clock, errors
from headrace.config import Settings
from headrace.errors import BugError, TransientError, UserError
from headrace.planner import limits
from headrace.population.planner_child import (
    HINT,
    TOO_LARGE,
    CallAnswer,
    CallRequest,
    framed,
    read_frame,
)
from headrace.postgres.connect import Connection
from headrace.process import pipes

_log = structlog.get_logger(__name__)

LARGE_CHARS: Final = 16_384
"""Length of a text from which it is read in another process."""
_TREE_CHARS: Final = 1_000_000
"""Size of all trees from which a query is read in another process, however short its text."""
_PROCESSES: Final = 2
"""Limit of processes at once."""
_POLL_S: Final = 0.1
_CANCEL_S: Final = 2.0
"""Seconds that a process has to answer a cancel."""
_PROGRAM: Final = "import sys; from headrace.population.planner_child import main; sys.exit(main())"

P = ParamSpec("P")
T = TypeVar("T")


class PlannerProcesses:
    """The processes, which are started when needed; thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._changed = threading.Condition()
        self._waiting: list[tuple[object, str | None]] = []
        """Callers that wait, in order of arrival."""
        self._served: set[str | None] = set()
        """Callers that are served: one call of each."""
        self._idle: list[_PlannerProcess] = []
        self._closed = False

    def call(
        self,
        conn: Connection,
        caller: str | None,
        text: str,
        function: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> T:
        """Return ``function(conn, *args, **named)``; it reads ``text``, and leaves nothing behind.

        ``function`` belongs to a module; its arguments and its value can be pickled.  In another
        process it gets another connection, and reads the catalog by the snapshot of the
        transaction that is open on ``conn``.

        Raises:
            UserError: 54000, it takes too much memory or time.
            HeadraceError: an error of the function.
        """
        if len(text) < LARGE_CHARS:
            with contextlib.suppress(limits.LargeTrees), limits.small_trees(_TREE_CHARS):
                return function(conn, *args, **named)
        with self._turn(caller):
            request = CallRequest(
                self._settings.source,
                _exported(conn),
                self._settings.planning_time_ms_max,
                function,
                args,
                named,
            )
            return cast("T", self._called(pickle.dumps(request)))

    def close(self) -> None:
        """End idle processes, and each other one after its call."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    @contextlib.contextmanager
    def _turn(self, caller: str | None) -> Iterator[None]:
        """Wait until there is room for a call of this caller, in order of arrival."""
        ticket = (object(), caller)

        def next_one() -> bool:
            free = len(self._served) < _PROCESSES
            ready = (one for one in self._waiting if one[1] not in self._served)
            return free and next(ready, None) is ticket

        with self._changed:
            self._waiting.append(ticket)
            try:
                while not self._changed.wait_for(next_one, _POLL_S):
                    limits.check()
                self._served.add(caller)
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._served.discard(caller)
                self._changed.notify_all()

    def _called(self, request: bytes) -> object:
        while True:
            with self._changed:
                reused = bool(self._idle)
                process = self._idle.pop() if reused else _PlannerProcess()
            answer = None
            try:
                answer = process.call(request, self._settings.planning_time_ms_max)
            except BrokenPipeError:
                if reused:
                    continue  # it had just exited by itself
                raise TransientError(
                    "the process that plans large queries ended", sqlstate="53000"
                ) from None
            finally:
                if answer is None or answer.last or not self._kept(process):
                    process.end()
            if answer.bug is not None:
                _log.error("call failed in another process", traceback=answer.bug)
                raise BugError(f"internal error: {answer.bug.rstrip().splitlines()[-1]}")
            if answer.error is not None:
                raise errors.from_wire(answer.error)
            return answer.value

    def _kept(self, process: _PlannerProcess) -> bool:
        with self._changed:
            if not self._closed:
                self._idle.append(process)
            return not self._closed


class _PlannerProcess:
    """One process; one call at a time."""

    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise TransientError(
                f"the process that plans large queries cannot be started: {error}",
                sqlstate="53000",
            ) from error
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        self._requests: Final = self._process.stdin.fileno()
        self._answers: Final = self._process.stdout.fileno()
        os.set_blocking(self._requests, False)
        self._lock = threading.Lock()
        self._asked = False
        self._until: float | None = None
        """When the process is killed, after a cancel."""

    def call(self, request: bytes, time_ms: int) -> CallAnswer:
        """Return the answer to a request.

        Raises:
            BrokenPipeError: the process has exited before it began.
            QueryCancelled: the job was cancelled.
            UserError: 54000, the process was ended by its limits.
        """
        pipes.write(self._requests, framed(request), limits.check)
        self._asked = True
        frame = None
        try:
            with limits.cancelling(self._cancel), contextlib.suppress(TimeoutError):
                if self._received() is None:
                    limits.check()
                    raise BrokenPipeError
                frame = self._received()
        finally:
            with self._lock:
                self._asked = False
        limits.check()
        if frame is None:
            raise self._exceeded(time_ms)
        answer: CallAnswer = pickle.loads(frame)  # noqa: S301  our own code wrote it
        return answer

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        with self._process, contextlib.suppress(OSError):
            self._process.wait()

    def _cancel(self) -> None:
        """Cancel the call, from another thread."""
        # A pipe that is full, or gone, takes no cancel: then the process is killed.
        with self._lock, contextlib.suppress(BrokenPipeError, BlockingIOError):
            if self._asked:
                self._until = clock.monotonic() + _CANCEL_S
                os.write(self._requests, framed(b""))

    def _received(self) -> bytes | None:
        """Return the next frame; None: the process has exited.

        Raises:
            TimeoutError: the process ignores a cancel.
        """
        pipes.await_data(self._answers, self._check_late)
        return read_frame(self._answers)

    def _check_late(self) -> None:
        if self._until is not None and clock.monotonic() >= self._until:
            raise TimeoutError

    def _exceeded(self, time_ms: int) -> UserError:
        if self._process.wait() == -signal.SIGXCPU:
            return limits.too_slow(time_ms)
        return UserError(TOO_LARGE, hint=HINT, sqlstate="54000")


def _exported(conn: Connection) -> str | None:
    """Return the snapshot of the transaction that is open on ``conn``; None: none is open."""
    if conn.info.transaction_status == TransactionStatus.IDLE:
        return None
    row = conn.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
    assert row is not None, "a function call answers one row"
    return str(row[0])
