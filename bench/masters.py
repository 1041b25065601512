"""Masters of Spark on this machine, each started from pyspark's own scripts."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark

from bench.scenario import wait_for
from headrace.process.java import java_home

HOME = Path(pyspark.__file__).parent
CLASSES = {
    "master": "org.apache.spark.deploy.master.Master",
    "worker": "org.apache.spark.deploy.worker.Worker",
    "submit": "org.apache.spark.deploy.SparkSubmit",
}
_START_S = 90.0
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


def free_port() -> int:
    """Return a free TCP port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(port: int) -> bool:
    """Return whether a server listens on the port."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def running(
    folder: Path,
    name: str,
    *words: str,
    python: str = sys.executable,
    hidden: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of Spark; its output is in ``folder``.

    ``hidden``: a directory that is empty for it, as on another machine (``can_hide``).
    """
    env = os.environ | {
        "SPARK_HOME": str(HOME),
        "JAVA_HOME": java_home(),
        "PYSPARK_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *_hiding(hidden),
                HOME / "bin" / "spark-class",
                CLASSES[name.partition(".")[0]],
                *words,
            ],
            stdout=log,
            stderr=log,
            env=env,
            cwd=folder,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def can_hide() -> bool:
    """Return whether this user may hide a directory from a process."""
    found = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    return found.returncode == 0


def _hiding(hidden: Path | None) -> list[str]:
    if hidden is None:
        return []
    hidden.mkdir(mode=0o700, parents=True, exist_ok=True)
    mount = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh", str(hidden)]


@contextlib.contextmanager
def connect_server(
    folder: Path, python: str = sys.executable, hidden: Path | None = None
) -> Iterator[str]:
    """Yield the URL of a server of Spark Connect with two cores, whose workers run ``python``."""
    port = free_port()
    given = (
        "spark.ui.enabled=false",
        "spark.connect.grpc.binding.address=127.0.0.1",
        f"spark.connect.grpc.binding.port={port}",
    )
    words = [word for option in given for word in ("--conf", option)]
    words = ["--class", CONNECT, "--master", "local[2]", *words, "spark-internal"]
    with running(folder, "submit", *words, python=python, hidden=hidden):
        wait_for("the server of Spark Connect answers", lambda: answers(port), _START_S)
        yield f"sc://127.0.0.1:{port}"


@contextlib.contextmanager
def standalone(
    folder: Path, workers: int = 2, hidden: Path | None = None
) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Yield the URL of a standalone master, and its worker processes of one core each."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        master = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        stack.enter_context(running(folder, "master", *master))
        wait_for("the master answers", lambda: answers(port), _START_S)
        found = [
            stack.enter_context(
                running(
                    folder,
                    f"worker.{number}",
                    *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g"),
                    *("--webui-port", "0", url),
                    hidden=hidden,
                )
            )
            for number in range(workers)
        ]
        log = folder / "master.log"
        wait_for(
            "workers register",
            lambda: log.read_text().count("Registering worker") == workers,
            _START_S,
        )
        yield url, found
