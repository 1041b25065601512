"""The fork server: imports the modules of the commander's child processes once, and forks them.

    commander ──socket──► fork server ──fork──► worker
        ▲                    │ └────fork──► builder
        └── began, ended ────┘

Importing everything takes an interpreter a second or two of CPU, a fork takes milliseconds.  So a
child that died is replaced at once, and all children share the memory of the modules.  The fork
server never runs the modules: it waits for requests, forks, and reports how its children end.  It
ends with the commander, and its children end with it (``parent``).

The first fork server is a fork of the commander, made when the commander has imported the common
modules and has done nothing else, so that most imports happen once.  A fork server that died is
replaced by a new process, because a commander at work cannot be forked.

An import must not create anything that distinguishes one process from another (see ``identity``).
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
"""Elsewhere system libraries may have threads, which a fork loses: there a child imports anew."""


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
    "host": "headrace.runtime.worker_process",
    "carrier": "headrace.sources.process",
}
"""Names of the child processes, and the modules whose ``main()`` they run."""
_ONE_THREAD: Final = ("OPENBLAS_NUM_THREADS", "1")
"""Keeps numpy's OpenBLAS from starting idle threads, which a fork would lose."""
_SHARED: Final = "headrace.runtime.views"
"""A module that imports most modules that the commander and its children share."""


def keep_one_thread() -> None:
    """Keep numpy from starting threads; call it before numpy is imported if a fork will follow."""
    os.environ.setdefault(*_ONE_THREAD)


def title(name: str) -> str:
    """Return the process title of a child, as ``ps`` shows it."""
    return f"headrace: {name}"


class Born:
    """The commander's handle of a child process; ``returncode`` is as in ``subprocess``."""

    def __init__(self, pid: int, fork_server: ForkServer) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._fork_server = fork_server
        self._ended = asyncio.Event()

    async def wait(self) -> None:
        """Wait until the child has ended."""
        await self._ended.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send the child a signal, if it lives."""
        if self.returncode is None:
            self._fork_server.order(_Signal(self.pid, number))

    def end(self, status: int) -> None:
        """Record that the child has ended."""
        if self.returncode is None:
            self.returncode = status
            self._ended.set()


class ForkServer:
    """The commander's client of the fork server, which it starts at once and restarts on demand."""

    def __init__(self, *, fork: bool = False) -> None:
        """``fork``: this process has one thread (``keep_one_thread``) and nothing open."""
        self._process, self._socket = _fork() if fork and _FORKS else _start()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Born]] = {}
        self._born: dict[int, Born] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the fork server, and with it its living children."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Process ID of the fork server."""
        return self._process.pid

    async def begin(self, name: str, settings: Settings) -> Born:
        """Start the child process ``name``, one of ``CHILDREN``.

        Raises:
            TransientError: the process cannot be started now.
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
        """Send a request to the fork server; it is lost if the fork server has just died."""
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
        self._lost(f"the fork server ended with status {status}")

    def _hang_up(self) -> None:
        """Close the connection to a dead fork server, which a child's copy may keep open."""
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
        """Kill the children of a fork server that has ended, whose exit statuses are lost."""
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
    """Call ``call`` when an unreaped process ends during the block, where pidfds are supported."""
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
    """A fork server's process, with the interface of ``subprocess.Popen``."""

    pid: int

    def kill(self) -> None:
        """Send SIGKILL, unless the process was reaped."""

    def wait(self) -> int:
        """Wait for the end; return the exit status, negative after a signal."""


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
    """The server side, in a process without threads; ``run`` also returns in each child."""

    def __init__(self) -> None:
        self._commander = socket.socket(fileno=os.dup(0))
        self._woken, self._wakes = socket.socketpair()
        self._lifelines: dict[int, int] = {}
        """By child PID: write end of a pipe, whose closing tells the child to end."""

    def run(self) -> str | None:
        """Serve requests; return a name in a forked child, None when the commander is gone."""
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
        """Fork; return whether this process is the child."""
        theirs, ours = os.pipe()
        # Signals sent to a child wait until it has its own handlers.
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
        """Release the fork server's files and handlers, in the child."""
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
    """Run the fork server; return the exit status of this process or of the forked child."""
    setproctitle.setproctitle(title("fork server"))
    # Only the commander reads the settings again.  Forked processes inherit this.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in _SIGNALS:
        # Ctrl-C reaches the whole group, even during the imports: the commander ends this process.
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # modules stay: collecting during the imports costs a sixth of the time
    modules = {n: importlib.import_module(m) for n, m in CHILDREN.items()} if _FORKS else {}
    # Freeze the objects, so that the children keep sharing their pages with this process.
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
