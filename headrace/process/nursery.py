"""The nursery imports once what the children of the commander are made of, and forks them.

    commander ──socket──► nursery ──fork──► worker
        ▲                    │ └────fork──► builder
        └── began, ended ────┘

Importing everything takes an interpreter a second or two of CPU, a fork milliseconds: a child that
died is back at once, and what both are made of is in memory once.  What has imported is never
used: the nursery waits for a word, forks, and tells how its children end.  It ends with the
commander, and its children with it (``parent``).

The first nursery is a fork of the commander, made when that has imported what both need and has
done nothing else: most of the imports happen once.  A nursery that died is replaced by a new
process, because a commander at work cannot be forked.

Nothing that tells one process from another may be made by an import (see ``identity``).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol, Self

import msgspec
import setproctitle

from headrace.config import ENV_SETTINGS, Settings
from headrace.errors import TransientError

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_LINE_MAX: Final = 1 << 20
_PIECE: Final = 1 << 16
_FORKS: Final = sys.platform == "linux"
"""Elsewhere system libraries may have threads, and do not survive: there a child imports anew."""


class _Begin(msgspec.Struct, tag=True):
    number: int
    name: str
    settings: str


class _Signal(msgspec.Struct, tag=True):
    pid: int
    number: int


class _Began(msgspec.Struct, tag=True):
    number: int
    pid: int


class _Refused(msgspec.Struct, tag=True):
    number: int
    reason: str


class _Ended(msgspec.Struct, tag=True):
    pid: int
    status: int


_ORDERS: Final = msgspec.json.Decoder(_Begin | _Signal)
_NEWS: Final = msgspec.json.Decoder(_Began | _Refused | _Ended)


CHILDREN: Final = {
    "worker": "headrace.runtime.worker",
    "builder": "headrace.views.builder",
    "host": "headrace.runtime.host",
    "carrier": "headrace.sources.process",
}
"""The modules whose ``main()`` they run."""
_ONE_THREAD: Final = ("OPENBLAS_NUM_THREADS", "1")
"""A thread of it, which would do nothing, need not be lost by the forks."""
_SHARED: Final = "headrace.runtime.views"
"""A module that imports most of what the commander and its children have in common."""


def keep_one_thread() -> None:
    """Have numpy start no thread; to be called before it is imported where a fork is to come."""
    os.environ.setdefault(*_ONE_THREAD)


def title(name: str) -> str:
    """What ``ps`` shows of a child."""
    return f"headrace: {name}"


class Born:
    """A child, as the commander sees it; ``returncode`` as ``subprocess`` has it."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._ended = asyncio.Event()

    async def wait(self) -> None:
        """Wait until it has ended."""
        await self._ended.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it lives."""
        if self.returncode is None:
            self._nursery.order(_Signal(self.pid, number))

    def end(self, status: int) -> None:
        """It has ended."""
        if self.returncode is None:
            self.returncode = status
            self._ended.set()


class Nursery:
    """The commander's end; started at once, and anew when a child is wanted and it has died."""

    def __init__(self, *, fork: bool = False) -> None:
        """``fork``: this process has one thread (``keep_one_thread``), and nothing open."""
        self._process, self._socket = _fork() if fork and _FORKS else _start()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Born]] = {}
        self._born: dict[int, Born] = {}

    def __enter__(self) -> Self:
        """Nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and with it whatever it has begun and still lives."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Process id of the nursery."""
        return self._process.pid

    async def begin(self, name: str, settings: Settings) -> Born:
        """A new child, one of ``CHILDREN``.

        Raises:
            TransientError: it cannot be started now.
        """
        async with self._turn:
            if self._writer is None:
                await self._connect()
        number = next(self._numbers)
        answer: asyncio.Future[Born] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self.order(_Begin(number, name, settings.to_json()))
        return await answer

    def order(self, order: _Begin | _Signal) -> None:
        """Tell the nursery; nobody hears it when it has just died."""
        if self._writer is not None:
            self._writer.write(msgspec.json.encode(order) + b"\n")

    async def _connect(self) -> None:
        if self._reading is not None:
            await self._reading
            self._process, self._socket = _start()
        reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=_LINE_MAX)
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError), _at_end(self._process.pid, self._hang_up):
            while line := await reader.readline():
                self._hear(_NEWS.decode(line))
        self._process.kill()
        status = await asyncio.to_thread(self._process.wait)
        self._lost(f"the nursery ended with status {status}")

    def _hang_up(self) -> None:
        """It is dead; a child that has not come to close its end yet may have kept the line."""
        if self._writer is not None:
            self._writer.transport.abort()

    def _hear(self, news: _Began | _Refused | _Ended) -> None:
        match news:
            case _Began(number, pid):
                born = self._born[pid] = Born(pid, self)
                answer = self._asked.pop(number)
                if answer.cancelled():
                    born.signal(signal.SIGKILL)
                else:
                    answer.set_result(born)
            case _Refused(number, reason):
                self._refuse(self._asked.pop(number), reason)
            case _Ended(pid, status):
                self._born.pop(pid).end(status)

    def _lost(self, reason: str) -> None:
        """Its children end with it, without anybody to tell how; not later than this."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        for pid, born in self._born.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            born.end(-signal.SIGKILL)
        self._born.clear()
        for answer in self._asked.values():
            self._refuse(answer, reason)
        self._asked.clear()

    def _refuse(self, answer: asyncio.Future[Born], reason: str) -> None:
        if not answer.cancelled():
            answer.set_exception(TransientError(reason))


@contextlib.contextmanager
def _at_end(pid: int, call: Callable[[], None]) -> Iterator[None]:
    """``call`` when a process that was not waited for ends, where the system tells so."""
    try:
        end = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield
        return
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(end)
        call()

    loop.add_reader(end, ended)
    try:
        yield
    finally:
        loop.remove_reader(end)
        os.close(end)


class _Process(Protocol):
    """A nursery's process, as ``subprocess.Popen`` has it."""

    pid: int

    def kill(self) -> None:
        """Send SIGKILL, unless the process was waited for."""

    def wait(self) -> int:
        """Wait for the end; the exit status, negative after a signal."""


class _Forked:
    """A process made by ``os.fork``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None
        self._lock = threading.Lock()

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        with self._lock:
            if self._status is None:
                _, status = os.waitpid(self.pid, 0)
                self._status = os.waitstatus_to_exitcode(status)
            return self._status


def _fork() -> tuple[_Process, socket.socket]:
    importlib.import_module(_SHARED)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return _Forked(pid), ours
    ours.close()
    os.dup2(theirs.fileno(), 0)
    theirs.close()
    sys.exit(main())


def _start() -> tuple[_Process, socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=theirs.fileno(),
            env=dict((_ONE_THREAD,)) | os.environ,
        )
    return process, ours


class _Forker:
    """The nursery's own end, in a process without threads; ``run`` returns in each child."""

    def __init__(self) -> None:
        self._commander = socket.socket(fileno=os.dup(0))
        self._woken, self._wakes = socket.socketpair()
        self._lifelines: dict[int, int] = {}
        """Of each child the end of a pipe that nobody writes to: it hears that we are gone."""

    def run(self) -> str | None:
        """The child that this process shall be; None: the commander is gone."""
        self._wakes.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        heard = b""
        while True:
            ready, _, _ = select.select((self._commander, self._woken), (), ())
            if self._woken in ready:
                self._woken.recv(_PIECE)
                self._reap()
            if self._commander not in ready:
                continue
            piece = self._commander.recv(_PIECE)
            if not piece:
                return None
            *lines, heard = (heard + piece).split(b"\n")
            for line in lines:
                match _ORDERS.decode(line):
                    case _Begin(number, name, settings):
                        if self._fork(number):
                            os.environ[ENV_SETTINGS] = settings
                            return name
                    case _Signal(pid, number) if pid in self._lifelines:
                        os.kill(pid, number)

    def _reap(self) -> None:
        for pid in list(self._lifelines):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                os.close(self._lifelines.pop(pid))
                self._tell(_Ended(pid, os.waitstatus_to_exitcode(status)))

    def _tell(self, news: _Began | _Refused | _Ended) -> None:
        self._commander.sendall(msgspec.json.encode(news) + b"\n")

    def _fork(self, number: int) -> bool:
        """Whether we are the child."""
        theirs, ours = os.pipe()
        # What is sent to a child before it has handlers of its own waits for them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
        except OSError as error:
            os.close(theirs)
            os.close(ours)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._tell(_Refused(number, f"could not fork: {error.strerror}"))
            return False
        if not pid:
            self._leave(theirs, ours)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if not pid:
            return True
        os.close(theirs)
        self._lifelines[pid] = ours
        self._tell(_Began(number, pid))
        return False

    def _leave(self, theirs: int, ours: int) -> None:
        """In the child: keep nothing of the nursery's."""
        os.dup2(theirs, 0)
        for lifeline in (theirs, ours, *self._lifelines.values()):
            os.close(lifeline)
        signal.set_wakeup_fd(-1)
        for end in (self._commander, self._woken, self._wakes):
            end.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> int:
    """Entry point."""
    setproctitle.setproctitle(title("nursery"))
    for number in _SIGNALS:
        # Ctrl-C reaches the whole group, also amid the imports: the commander ends us in its order.
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # what is imported stays: collecting amid it costs a sixth of the time
    modules = {n: importlib.import_module(m) for n, m in CHILDREN.items()} if _FORKS else {}
    # What is there now stays where it is: the pages of the children are those of ours.
    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        name = _Forker().run()
    except (BrokenPipeError, ConnectionResetError):
        name = None
    if name is None:
        return 0
    if not _FORKS:
        os.execv(sys.executable, [sys.executable, "-m", CHILDREN[name]])  # noqa: S606  no shell
    setproctitle.setproctitle(title(name))
    return int(modules[name].main())


if __name__ == "__main__":
    sys.exit(main())
