"""A ``headrace start`` that runs as a child process, for the demo, the benchmarks and the tests.

It never outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

import psycopg.conninfo

from headrace import clock
from headrace.embedded.watchdog import Watchdog
from headrace.errors import PrerequisiteError, TransientError
from headrace.process import fork_server

_READY: Final = re.compile(rb"^headrace ready on \S+:(\d+)$", re.MULTILINE)
_HTTP: Final = re.compile(r'"address": ?"([^"]+)"')
_POLL_S: Final = 0.02


class EmbeddedEngine:
    """An engine on one source database and data directory.

    The first start chooses a free port and later ones reuse it, so that a DSN stays valid after
    ``restart`` and ``kill9``.
    """

    def __init__(
        self,
        source: str,
        data_dir: Path,
        *,
        env: dict[str, str] | None = None,
        args: tuple[str, ...] = (),
        ready_timeout_s: float = 60.0,
        python: str = sys.executable,
    ) -> None:
        """Add ``env`` to the environment (settings as ``HEADRACE_*``), and ``args`` to ``start``.

        ``python``: an interpreter with another version of Headrace, for example.
        """
        self.source = source
        self.data_dir = data_dir
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        # Embedded servers trust this computer and listen only on it, as the engine does.
        self.env = {"HEADRACE_ALLOW_TRUST": "true"} | dict(env or {})
        self.args = args
        self.python = python
        self.port = 0
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None

    @property
    def running(self) -> bool:
        """Whether the commander is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the commander."""
        assert self._process is not None, "the engine has been started"
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything the engine has printed and logged so far."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_text(errors="replace")

    @property
    def dsn(self) -> str:
        """Connection string to the source database through the commander's port."""
        return psycopg.conninfo.make_conninfo(
            self.source, host="127.0.0.1", port=self.port, hostaddr=None
        )

    @property
    def console(self) -> str | None:
        """URL of the console, including its token; None: started without ``--http``."""
        said = [line for line in self.log.splitlines() if '"event": "http"' in line]
        token = self.data_dir / "console.token"
        found = _HTTP.search(said[-1]) if said else None
        if found is None or not token.exists():
            return None
        return f"http://{found[1]}/#token={token.read_text().strip()}"

    def start(self) -> None:
        """Start the engine and wait for the ``ready`` line.

        Raises:
            PrerequisiteError: it exited before; the detail is the end of its log.
            TransientError: it is not ready in time.
        """
        if self.running:
            return
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            begin = log.tell()
            self._process = self._launch(log)
        self._watchdog = Watchdog(self._process.pid, signal.SIGTERM)
        self._wait_ready(begin)

    def stop(self, timeout_s: float = 30.0) -> int:
        """Send SIGTERM, wait (SIGKILL after ``timeout_s``), and return the exit status."""
        if self._process is None:
            return 0
        self._dismiss_watchdog()
        process, self._process = self._process, None
        process.terminate()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._kill_group(process)
            return process.wait()

    def kill9(self) -> None:
        """Send SIGKILL to the commander and its children at once."""
        if self._process is None:
            return
        self._dismiss_watchdog()
        process, self._process = self._process, None
        self._kill_group(process)
        process.wait()

    def restart(self) -> None:
        """Stop and start again on the same port."""
        self.stop()
        self.start()

    def child(self, module: str) -> int | None:
        """Return the process id of the child that runs ``module``, or of ``fork server``, or None.

        It reads /proc; for tests and the demo, which kill one process.
        """
        names = {module: name for name, module in fork_server.CHILDREN.items()}
        title = fork_server.title(names.get(module, module))
        # A glob would stat each entry, and fail if a process ends meanwhile.
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pid = int(process.name)
                named = (process / "cmdline").read_bytes().rstrip(b"\0").decode()
                if named == title and os.getsid(pid) == self.pid:
                    return pid
        return None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _launch(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start the process in a session of its own, with its output in ``log``."""
        return subprocess.Popen(
            [self.python, *self._words()],
            env=os.environ | self.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _words(self) -> list[str]:
        """Return the arguments of the interpreter."""
        return [
            *("-m", "headrace.server.cli", "start"),
            *("--source", self.source, "--data-dir", str(self.data_dir)),
            *("--listen", f"127.0.0.1:{self.port}", *self.args),
        ]

    def _dismiss_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.dismiss()
            self._watchdog = None

    @staticmethod
    def _kill_group(process: subprocess.Popen[bytes]) -> None:
        """Send SIGKILL to the engine's process group, which its children share."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _wait_ready(self, begin: int) -> None:
        """Wait for the ready line after byte ``begin`` of the log, and set the port."""
        assert self._process is not None, "launched just before"
        deadline = clock.monotonic() + self._ready_timeout_s
        while clock.monotonic() < deadline:
            ended = self._process.poll() is not None
            text = self.log_path.read_bytes()[begin:]
            if found := _READY.search(text):
                self.port = int(found[1])
                return
            if ended:
                status = self._process.returncode
                self._dismiss_watchdog()
                self._process = None
                raise PrerequisiteError(
                    f"headrace did not start (exit status {status})",
                    detail=text[-4000:].decode(errors="replace"),
                )
            clock.sleep(_POLL_S)
        self.kill9()
        raise TransientError("headrace is not ready in time", detail=self.log[-4000:])
