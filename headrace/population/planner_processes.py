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
import threading
from collections.abc import Callable, Iterator
from typing import Concatenate, Final, ParamSpec, TypeVar, cast

import structlog
from psycopg.pq import TransactionStatus

from headrace import clock, errors
from headrace.config import Settings
from headrace.errors import BugError, HeadraceError, TransientError
from headrace.planner import limits
from headrace.population.planner_child import CallAnswer, CallRequest, too_large
from headrace.postgres.connect import Connection
from headrace.process.subprocess_pool import Subprocess, SubprocessPool

_log = structlog.get_logger(__name__)

_PROCESSES: Final = 2
"""Limit of processes at once."""
_POLL_S: Final = 0.1
_CANCEL_S: Final = 2.0
"""Seconds that a process has to answer a cancel."""
_WAIT_S: Final = 120.0
"""Seconds beyond ``planning_time_ms_max`` after which a call is cancelled, because it waits for
Postgres, or hangs; other calls need the process."""
_PROGRAM: Final = "from headrace.population.planner_child import main; main()"

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
        self._pool: Final = SubprocessPool(_start)

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
            TransientError: 53000, no process can be started; 55000, it waits for too long.
            HeadraceError: an error of the function.
        """
        with contextlib.suppress(limits.LargeQuery), limits.small():
            limits.check_text(len(text))
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
        self._pool.close()

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
        process, answer = self._pool.take(), None
        try:
            answer = _Call(process, self._settings.planning_time_ms_max).answer(request)
        except _KilledWhileIdle:
            return self._called(request)
        finally:
            if answer is None or answer.last:
                process.end()
            else:
                self._pool.give_back(process)
        if answer.bug is not None:
            _log.error("call failed in another process", traceback=answer.bug)
            raise BugError(f"internal error: {answer.bug.rstrip().splitlines()[-1]}")
        if answer.error is not None:
            raise errors.from_wire(answer.error)
        return answer.value


class _KilledWhileIdle(Exception):
    """Raised if a process that has answered a call before may never have begun this one."""


class _Call:
    """A call in a process."""

    def __init__(self, process: Subprocess, time_ms: int) -> None:
        self._process = process
        self._time_ms = time_ms
        self._wait_s: Final = time_ms / 1000 + _WAIT_S
        self._until = clock.monotonic() + self._wait_s if time_ms else float("inf")
        """When the call is cancelled, or, if it has been, when it is given up."""
        self._lock = threading.Lock()
        self._is_running = False
        self._is_cancelled = False

    def answer(self, request: bytes) -> CallAnswer:
        """Return the answer to a request.

        Raises:
            QueryCancelled: the job was cancelled.
            UserError: 54000, the process was ended by its limits.
            TransientError: 55000, it waits for too long; 53000, the process has failed.
            _KilledWhileIdle: another process is to be asked.
        """
        frame = None
        try:
            with contextlib.suppress(TimeoutError):
                self._process.send(request, self._check_sending)
                self._is_running = True
                with limits.cancelling(self.cancel):
                    frame = self._process.receive(self._check)
        finally:
            with self._lock:
                self._is_running = False
        limits.check()
        if self._is_cancelled or (frame is None and clock.monotonic() >= self._until):
            raise self._late()
        if frame is None:
            raise self._exceeded()
        answer: CallAnswer = pickle.loads(frame)  # noqa: S301  our own code wrote it
        return answer

    def cancel(self) -> None:
        """Cancel the call; from any thread.  If the process does not react, it is given up."""
        with self._lock:
            if self._is_running and not self._is_cancelled:
                self._is_cancelled = True
                self._until = clock.monotonic() + _CANCEL_S
                self._process.send_at_once(b"")

    def _check_sending(self) -> None:
        limits.check()
        if clock.monotonic() >= self._until:
            raise TimeoutError

    def _check(self) -> None:
        if clock.monotonic() < self._until:
            return
        if self._is_cancelled:
            raise TimeoutError
        self.cancel()

    def _late(self) -> HeadraceError:
        return TransientError(
            f"planning the query has not ended within {self._wait_s:.0f} s",
            detail="It waits for Postgres, perhaps for a lock, or the machine is busy.",
            hint="Call again when no other transaction locks what the query reads.",
            sqlstate="55000",
        )

    def _exceeded(self) -> HeadraceError:
        status = self._process.end()
        if status == -signal.SIGXCPU:
            return limits.too_slow(self._time_ms)
        if status == -signal.SIGKILL and self._process.has_answered:
            raise _KilledWhileIdle
        _log.warning("planner process ended", status=status)
        if status < 0:
            return too_large()
        return TransientError("the process that plans large queries has failed", sqlstate="53000")


def _start() -> Subprocess:
    # A process reads the source by the DSN of its calls, and needs none of Headrace's secrets.
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return Subprocess(("-c", _PROGRAM), env)


def _exported(conn: Connection) -> str | None:
    """Return the snapshot of the transaction that is open on ``conn``; None: none is open."""
    if conn.info.transaction_status == TransactionStatus.IDLE:
        return None
    row = conn.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
    assert row is not None, "a function call answers one row"
    return str(row[0])
