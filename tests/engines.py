"""Engines that start by forking a process which has imported their modules.

An interpreter spends most of an engine's start with imports, 0.6 s of CPU; a fork takes
milliseconds. After the fork the process runs ``main`` of its module, as ``python -m`` does:
``headrace.server.cli``, or a worker or a builder (1 s of imports). It is executed instead if the
test gives it another interpreter or a variable that may be read before the imports, and always with
``HEADRACE_TEST_EXEC=1``. Tests of the demo, of packages and of upgrades use ``EmbeddedEngine``,
which always executes it.

    test ──socket──► template ──fork──► keeper ──fork──► engine
      ▲                                   │
      └── process id, exit status ────────┘

The keeper is the engine's parent. It reaps the engine when the test has read the status, so that
nothing else can get the engine's process id before.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, Final

import setproctitle

from headrace.config import ENV_SETTINGS, Settings
from headrace.embedded.engine import EmbeddedEngine

_REQUEST_MAX: Final = 1 << 17
_RUNTIME: Final = ("HEADRACE_", "PG", "PYTEST_")
"""Prefixes of variables that an engine reads after its imports, or not at all."""
_FILES: Final = 3
"""Descriptors of a request: the keeper's socket, the log, the standard input."""
_COMMANDS: Final = tuple(f"headrace.server.{n}" for n in ("cli", "doctor", "main", "remote_worker"))


class Engine(EmbeddedEngine):
    """An ``EmbeddedEngine`` that is forked where that makes no difference."""

    def _launch(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        if self.python != sys.executable:
            return super()._launch(log)
        return launch(self._words(), os.environ | self.env, log.fileno())


def launch(
    words: list[str], env: dict[str, str], log: int, stdin: int | None = None
) -> subprocess.Popen[bytes]:
    """Start ``python words`` in a session of its own; ``words`` are ``-m``, a module, arguments.

    The module has a ``main``, which takes the arguments from ``sys.argv``. ``stdin`` is a
    descriptor that the caller closes; None: nothing to read.
    """
    if not os.environ.get("HEADRACE_TEST_EXEC") and _template().environment_fits(env):
        return _template().start(words, env, log, stdin)
    return subprocess.Popen(
        [sys.executable, *words],
        env=env,
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


class Child:
    """A process of an engine, without its commander; it ends when ``hang_up`` is called."""

    def __init__(self, module: str, settings: Settings, **env: str) -> None:
        """Run ``module`` with ``settings``; ``env`` is added to the environment."""
        theirs, self._lifeline = os.pipe()
        try:
            self.process = launch(
                ["-m", module],
                os.environ | {ENV_SETTINGS: settings.to_json()} | env,
                sys.__stderr__.fileno(),
                theirs,
            )
        finally:
            os.close(theirs)

    def wait(self, seconds: float) -> int | None:
        """Return the exit status; None: it is still running after ``seconds``."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def hang_up(self) -> None:
        """Close the standard input, as a commander that ends does."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._lifeline = -1

    def close(self) -> None:
        """Kill the process, unless it has ended."""
        self.process.kill()
        self.process.wait()
        self.hang_up()


@functools.cache
def _template() -> Template:
    return Template()


class Template:
    """The process that engines are forked from; it ends with this process."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=theirs.fileno(), start_new_session=True
            )
        atexit.register(process.wait)
        atexit.register(self._socket.close)

    def environment_fits(self, wanted: dict[str, str]) -> bool:
        """Return whether only variables differ that are read after the imports."""
        differing = {name for name, _ in wanted.items() ^ self._environment.items()}
        return all(name.startswith(_RUNTIME) for name in differing)

    def start(self, words: list[str], env: dict[str, str], log: int, stdin: int | None) -> Forked:
        """Start ``python words`` with environment ``env``."""
        ours, theirs = socket.socketpair()
        request = json.dumps({"words": words, "env": env, "cwd": str(Path.cwd())}).encode()
        with theirs, Path(os.devnull).open("rb") as null:
            files = [theirs.fileno(), log, null.fileno() if stdin is None else stdin]
            socket.send_fds(self._socket, [request], files)
        return Forked(words, ours)


class Forked(subprocess.Popen[bytes]):
    """An engine whose parent is a keeper; its interface is that of a child process."""

    def __init__(self, words: list[str], keeper: socket.socket) -> None:
        # The constructor of Popen would start a process.
        self.args, self.returncode = words, None
        self.stdin = self.stdout = self.stderr = None
        self._keeper = keeper
        self.pid = _receive(keeper)

    def poll(self) -> int | None:
        if self.returncode is None and _readable(self._keeper, 0):
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not _readable(self._keeper, timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._end()
        return int(self.returncode)

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _end(self) -> None:
        self.returncode = _receive(self._keeper)
        self._keeper.close()

    def __del__(self) -> None:
        self._keeper.close()


def _readable(line: socket.socket, seconds: float | None) -> bool:
    """Wait until there is something to read.  A test process may have more than 1024 files."""
    waiting = select.poll()
    waiting.register(line, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))


def _send(line: socket.socket, number: int) -> None:
    line.sendall(array.array("i", [number]).tobytes())


def _receive(line: socket.socket) -> int:
    data = line.recv(4, socket.MSG_WAITALL)
    if not data:
        raise ConnectionResetError("the process that engines are forked from has ended")
    return array.array("i", data)[0]


def _keep(line: socket.socket, log: int, stdin: int, request: dict[str, object]) -> None:
    """Fork the engine, send its process id and its exit status; return in the engine only."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if not pid:
        line.close()
        _become(log, stdin, request)
        return
    os.close(log)
    os.close(stdin)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _send(line, pid)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "it waits"
        killed = ended.si_code != os.CLD_EXITED
        _send(line, -ended.si_status if killed else ended.si_status)
        line.recv(1)
    os._exit(0)


def _become(log: int, stdin: int, request: dict[str, object]) -> None:
    """Give this process the session, files, environment and arguments of the engine."""
    os.setsid()
    for here, there in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(here, there)
    os.close(stdin)
    os.close(log)
    words, env = request["words"], request["env"]
    assert isinstance(words, list), "as it was sent"
    assert isinstance(env, dict), "as it was sent"
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    os.environ.update(env)
    os.chdir(str(request["cwd"]))
    sys.orig_argv[:] = [sys.executable, *words]
    sys.argv[:] = words[1:]
    setproctitle.setproctitle(" ".join(sys.orig_argv))


def _serve() -> bool:
    """Fork an engine for each request; return true in an engine, false when the tests have ended."""
    requests = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    while True:
        data, (*files,), _, _ = socket.recv_fds(requests, _REQUEST_MAX, _FILES)
        if not data:
            return False
        if os.fork():
            for file in files:
                os.close(file)
            continue
        requests.close()
        line, log, stdin = files
        _keep(socket.socket(fileno=line), log, stdin, json.loads(data))
        return True


def main() -> int:
    """Run the template process; return the exit status of this process or of an engine."""
    from headrace.process import fork_server

    setproctitle.setproctitle("template of engines")  # later it would not find the arguments
    fork_server.keep_one_thread()
    gc.disable()
    for module in (*_COMMANDS, *fork_server.CHILDREN.values()):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the keepers are not waited for
    if not _serve():
        return 0
    from headrace.process import faults

    importlib.reload(faults)  # reads its variables
    return int(importlib.import_module(sys.argv[0]).main())


if __name__ == "__main__":
    sys.exit(main())
