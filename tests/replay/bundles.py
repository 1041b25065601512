"""Captures of an engine, and replays, by the commands as a user runs them."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from headrace.embedded.engine import EmbeddedEngine
from headrace.replay.bundle import Bundle, FramesWriter, StatesWriter

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


@contextmanager
def recording(engine: EmbeddedEngine, last: str) -> Iterator[None]:
    """Run ``headrace record`` meanwhile, from its first base on."""
    where = ("--source", engine.source, "--data-dir", str(engine.data_dir), "--last", last)
    with subprocess.Popen(
        (*HEADRACE, "record", *where),
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | engine.env,
    ) as process:
        try:
            assert process.stderr is not None
            assert "recording" in process.stderr.readline()
            yield
        finally:
            process.terminate()


def entries(bundle: Path) -> set[str]:
    """Return the names of a bundle's entries."""
    with zipfile.ZipFile(bundle) as archive:
        return set(archive.namelist())


def entry(bundle: Path, name: str) -> bytes:
    """Return the content of an entry."""
    with zipfile.ZipFile(bundle) as archive:
        return archive.read(name)


def keys_of(found: Iterator[tuple[str, Any]]) -> set[tuple[str, bytes]]:
    """Return the keys of states."""
    return {(name, key) for name, pieces in found for keys, _ in pieces for key in keys}


def with_other_value(
    found: Iterator[tuple[str, Any]], among: Container[tuple[str, bytes]] | None = None
) -> bytes:
    """Return the states with one value changed; ``among``: that of one of these keys."""
    out = io.BytesIO()
    writer = StatesWriter(out)
    changed = False
    for name, pieces in found:
        writer.state(name)
        for keys, values in pieces:
            for place, (key, value) in enumerate(zip(keys, values, strict=True)):
                if not changed and value and (among is None or (name, key) in among):
                    values[place] = value[:-1] + bytes((value[-1] ^ 1,))
                    changed = True
            writer.put(keys, values)
    writer.end()
    assert changed
    return out.getvalue()


def without_inserts(bundle: Bundle) -> bytes:
    """Return the messages of a bundle's batches, without the inserts of the last that has any."""
    out = io.BytesIO()
    writer = FramesWriter(out)
    found = list(bundle.frames())
    last = max(txid for txid, messages in found if any(m[:1] == b"I" for m in messages))
    for txid, messages in found:
        writer.put(txid, [m for m in messages if txid != last or m[:1] != b"I"])
    return out.getvalue()


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
