"""The process that reads large queries: calls functions with a connection of its own, under limits.

Requests are pickled ``CallRequest``, answers pickled ``CallAnswer``; an empty request cancels the
call before it.  The process may be killed at any time.  It exits at once when its parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import resource
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import setproctitle
from psycopg import sql

from headrace import errors
from headrace.errors import HeadraceError, UserError
from headrace.planner import limits
from headrace.planner.limits import PlanLimits
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.process import fork_server, imports
from headrace.process.subprocess_pool import read_frame, write_frame

TITLE: Final = fork_server.title("planner")
"""Title of the process, as ``ps`` shows it."""
MEMORY_BYTES: Final = 2 << 30
"""Limit of the address space, of which a third is taken by libraries from the start."""
CPU_S: Final = 10
"""Processor seconds beyond ``planning_time_ms_max`` after which the kernel ends the process: code
that does not check its limits runs for that long."""
KEPT_BYTES: Final = 192 << 20
"""Memory of a process that may serve another call; a larger one is ended, which returns it."""
ANSWER_BYTES: Final = 64 << 20
"""Limit of an answer, which the parent holds in its own memory."""
_DEPTH: Final = 8_000
"""Recursion limit while an answer is pickled: planning allows 1000, pickling takes several frames
for each object."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call of ``function(conn, *args, **named)``."""

    dsn: str
    snapshot: str | None
    """Exported snapshot to read the catalog by; None: no transaction is begun."""
    time_ms: int
    """As in ``PlanLimits``."""
    function: Callable[..., Any]
    """A function of a module, which is pickled as its name."""
    args: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The value of a call, or its error."""

    value: Any = None
    error: dict[str, str] | None = None
    """As ``errors.to_wire``."""
    bug: str | None = None
    """Traceback of any other exception."""
    last: bool = False
    """Whether the process is not to be asked again."""


class _Calls:
    """The calls that the parent asks for, each with the job that a cancel ends."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Job, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> tuple[Job, bytes]:
        """Wait for the next call, and return it."""
        return self._waiting.get()

    def _listen(self) -> None:
        job: Job | None = None
        try:
            while (frame := read_frame(sys.stdin.fileno())) is not None:
                if frame:
                    job = Job(lambda _: None)
                    self._waiting.put((job, frame))
                elif job is not None:
                    job.cancel()
        finally:
            os._exit(0)


def _answer(job: Job, frame: bytes) -> bytes:
    """Return the pickled answer of a call."""
    try:
        asked: CallRequest = pickle.loads(frame)  # noqa: S301  the parent wrote it
        _limit_cpu(asked.time_ms)
        value = _called(job, asked)
        answer = CallAnswer(value, last=_is_large())
        depth = sys.getrecursionlimit()
        sys.setrecursionlimit(_DEPTH)
        try:
            pickled = pickle.dumps(answer)
        finally:
            sys.setrecursionlimit(depth)
        if len(pickled) <= ANSWER_BYTES:
            return pickled
        answer = _TOO_LARGE_ANSWER
    except HeadraceError as error:
        answer = CallAnswer(error=errors.to_wire(error), last=_is_large())
    except MemoryError:
        answer = _TOO_LARGE_ANSWER
    except Exception:  # noqa: BLE001  the parent reports it as a bug
        answer = CallAnswer(bug=traceback.format_exc(), last=True)
    return pickle.dumps(answer)


def too_large() -> UserError:
    """Return the error of a query whose planning takes too much memory."""
    return UserError(
        "planning the query takes too much memory",
        hint="Make the query shorter, or read fewer views and subqueries in it.",
        sqlstate="54000",
    )


_TOO_LARGE_ANSWER: Final = CallAnswer(error=errors.to_wire(too_large()), last=True)


def _called(job: Job, asked: CallRequest) -> Any:
    with (
        limits.interruptible(job.check, job.cancelling),
        job.connection(asked.dsn, what="builder") as conn,
        job.translating(),
        limits.applied(PlanLimits(asked.time_ms)),
        _reading(conn, asked.snapshot),
    ):
        return asked.function(conn, *asked.args, **asked.named)


@contextlib.contextmanager
def _reading(conn: Connection, snapshot: str | None) -> Iterator[None]:
    """Read by an exported snapshot during the block."""
    if snapshot is None:
        yield
        return
    with conn.transaction(force_rollback=True):
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        yield


def _is_large() -> bool:
    """Return whether this process has ever taken more than ``KEPT_BYTES``."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > KEPT_BYTES
    # On Linux, ru_maxrss begins with the memory of the parent.
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) << 10 > KEPT_BYTES


def _limit_cpu(time_ms: int) -> None:
    """Limit the processor time of the next call; limits are whole seconds of all calls."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    until = int(used.ru_utime + used.ru_stime + time_ms / 1000) + 1 + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (until if time_ms else most, most))


def main() -> None:
    """Answer calls until the parent is gone."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a printed line is no answer
    setproctitle.setproctitle(TITLE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    imports.keep_pandas_out()
    calls = _Calls()
    with contextlib.suppress(BrokenPipeError):
        while True:
            write_frame(answers, _answer(*calls.next()))
