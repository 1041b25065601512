"""The process that reads large queries: calls functions with a connection of its own, under limits.

Frames on standard input and output: eight bytes of length, then a pickle.  Input: ``CallRequest``;
an empty frame cancels the call.  Output: an empty frame when a call begins, then ``CallAnswer``.
The process may be killed at any time.  It exits after a while without calls, and at once when its
parent is gone.
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

TITLE: Final = fork_server.title("planner")
"""Title of the process, as ``ps`` shows it."""
MEMORY_BYTES: Final = 2 << 30
"""Limit of the address space, of which a third is taken by libraries from the start."""
CPU_S: Final = 10
"""Processor seconds beyond ``planning_time_ms_max`` after which the kernel ends the process: code
that does not check its limits runs for that long."""
IDLE_S: Final = 30.0
"""Seconds without a call after which the process exits."""
KEPT_BYTES: Final = 192 << 20
"""Memory of a process that may serve another call; a larger one exits, which returns it."""
_LENGTH: Final = 8
_DEPTH: Final = 8_000
"""Recursion limit while an answer is pickled: planning allows 1000, pickling takes several frames
for each object."""
TOO_LARGE: Final = "planning the query takes too much memory"
HINT: Final = "Make the query shorter, or read fewer views and subqueries in it."


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
    """Whether the process exits after this answer."""


def read_frame(descriptor: int) -> bytes | None:
    """Return the next frame, waiting for it; None: the other side is gone."""
    head = _read(descriptor, _LENGTH)
    return None if head is None else _read(descriptor, int.from_bytes(head))


def framed(frame: bytes) -> bytes:
    """Return a frame with its length before it."""
    return len(frame).to_bytes(_LENGTH) + frame


def write_frame(descriptor: int, frame: bytes) -> None:
    """Write a frame.

    Raises:
        BrokenPipeError: the other side is gone.
    """
    rest = memoryview(framed(frame))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read(descriptor: int, length: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        piece = os.read(descriptor, min(length - len(parts), 1 << 20))
        if not piece:
            return None
        parts += piece
    return bytes(parts)


class _Calls:
    """The calls that the parent asks for, each with the job that a cancel ends."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Job, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> tuple[Job, bytes] | None:
        """Return the next call; None: there was none for ``IDLE_S``."""
        with contextlib.suppress(queue.Empty):
            return self._waiting.get(timeout=IDLE_S)
        return None

    def _listen(self) -> None:
        job: Job | None = None
        while (frame := read_frame(sys.stdin.fileno())) is not None:
            if frame:
                job = Job(lambda _: None)
                self._waiting.put((job, frame))
            elif job is not None:
                job.cancel()
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
            return pickle.dumps(answer)
        finally:
            sys.setrecursionlimit(depth)
    except HeadraceError as error:
        answer = CallAnswer(error=errors.to_wire(error), last=_is_large())
    except MemoryError:
        refused = UserError(TOO_LARGE, hint=HINT, sqlstate="54000")
        answer = CallAnswer(error=errors.to_wire(refused), last=True)
    except Exception:  # noqa: BLE001  the parent reports it as a bug
        answer = CallAnswer(bug=traceback.format_exc(), last=True)
    return pickle.dumps(answer)


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
    # In kB on Linux, in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit > KEPT_BYTES


def _limit_cpu(time_ms: int) -> None:
    """Limit the processor time of the next call; limits are whole seconds of all calls."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    until = int(used.ru_utime + used.ru_stime + time_ms / 1000) + 1 + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (until if time_ms else most, most))


def main() -> int:
    """Answer calls until the parent is gone, or for ``IDLE_S`` without one."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever is printed is no answer
    setproctitle.setproctitle(TITLE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    imports.keep_pandas_out()
    calls = _Calls()
    with contextlib.suppress(BrokenPipeError):
        while (call := calls.next()) is not None:
            write_frame(answers, b"")
            job, frame = call
            write_frame(answers, _answer(job, frame))
    return 0


if __name__ == "__main__":
    sys.exit(main())
