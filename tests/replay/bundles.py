"""Captures of an engine, and replays, by the commands as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from headrace.embedded.engine import EmbeddedEngine

HEADRACE = (sys.executable, "-m", "headrace.server.cli")


def ran(*words: str, expected: int = 0, env: dict[str, str] | None = None) -> str:
    """Run a command; return its output, errors included."""
    done = subprocess.run(
        (*HEADRACE, *words),
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("PG")} | (env or {}),
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == expected, said
    return said


def captured(engine: EmbeddedEngine, out: Path, *flags: str, expected: int = 0) -> str:
    """Capture the engine into ``out``."""
    where = ("--source", engine.source, "--data-dir", str(engine.data_dir))
    return ran("capture", *where, "--out", str(out), *flags, expected=expected, env=engine.env)


def replayed(bundle: Path, expected: int = 0, *flags: str) -> str:
    """Replay a bundle."""
    return ran("replay", str(bundle), *flags, expected=expected)


@contextmanager
def writing(dsn: str, statement: str) -> Iterator[None]:
    """Execute ``statement`` again and again, with a rising number, meanwhile."""
    stop = threading.Event()
    problems: list[BaseException] = []

    def write() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                number = 1_000
                while not stop.is_set():
                    number += 1
                    conn.execute(statement.encode(), {"n": number})
        except BaseException as error:  # noqa: BLE001  shown by the test
            problems.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert problems == []


def everything(bundle: Path) -> bytes:
    """Return all bytes of the entries of a bundle, and of the file."""
    with zipfile.ZipFile(bundle) as archive:
        return b"\n".join([bundle.read_bytes(), *(archive.read(n) for n in archive.namelist())])


def rewritten(bundle: Path, to: Path, changes: dict[str, bytes | None]) -> Path:
    """Copy a bundle with other entries; None: without the entry."""
    with zipfile.ZipFile(bundle) as source, zipfile.ZipFile(to, "w") as target:
        for name in source.namelist():
            data = changes.get(name, source.read(name))
            if data is not None:
                target.writestr(name, data)
    return to


def batches(said: str) -> int:
    """Return the number of batches that a replay reports."""
    found = re.search(r"(\d+) batch(?:es)? replayed", said)
    assert found, said
    return int(found[1])
