"""Workers on other machines, simulated here: ``headrace worker`` behind a network."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import psycopg

from tests.engines import launch
from tests.proxy import Line
from tests.waiting import wait_until


class FarWorker:
    """``headrace worker`` as a child process, behind its own network."""

    def __init__(self, source: str, folder: Path, token: str, host: str = "127.0.0.1") -> None:
        folder.mkdir()
        self.folder, self.log = folder, folder / "log"
        self.token = folder / "token"
        self.write(token)
        with socket.create_server((host, 0)) as free:
            self.port = free.getsockname()[1]
        self.host = host
        self.network = Line(host, self.port, host)
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address that the engine is given: the network in front of the worker."""
        return f"{self.host}:{self.network.port}"

    def write(self, token: str) -> None:
        self.token.touch(mode=0o600)
        self.token.write_text(token)

    def start(self, **environment: str) -> None:
        with self.log.open("ab") as log:
            self._process = launch(
                [
                    *("-m", "headrace.server.cli", "worker"),
                    *("--join", self._source, "--token-file", str(self.token)),
                    *("--listen", f"{self.host}:{self.port}"),
                    *("--address", self.address),
                    *("--data-dir", str(self.folder / "data")),
                ],
                os.environ | environment,
                log.fileno(),
            )

    def said(self, text: str) -> bool:
        return text in self.log.read_text()

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def child(self) -> int:
        """Return the pid of the child process that has the states."""

        def found() -> int | None:
            told = [
                json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"
            ]
            begun = [line["pid"] for line in told if line["event"] == "child started"]
            return begun[-1] if begun and Path(f"/proc/{begun[-1]}").exists() else None

        return wait_until(found, "it runs")

    def ready(self) -> None:
        wait_until(lambda: self.said("ready on"), "it has joined")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None, "it was started"
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        return self._process.wait(30)

    def die(self) -> None:
        """Kill all its processes at once."""
        child = self.child()
        self.end(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{child}").exists(), "it is dead")

    def close(self) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)
        self.network.close()


def token(conn: psycopg.Connection, name: str) -> str:
    [(text,)] = conn.execute("CALL headrace.create_worker_token(%s)", (name,)).fetchall()
    return str(text)
