"""A copy of the state database of a running process, made by another process.

Sorted files never change, so the copy links them.  The manifest lists the sorted files and says
which logs count; as long as it stays as it is, RocksDB removes none of them.  So if it is the same
before and after, the copy is the database as of one moment in between, with every write that had
returned before.  Otherwise the copy is begun again.  The running process takes no part.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.errors import StateDamaged, TransientError
from headrace.state import files
from headrace.state.checkpoint import FOLDER
from headrace.state.rocks import RocksDatabase

_ATTEMPTS: Final = 50
_OPENED_MAX: Final = 10
_LEFT_OUT: Final = frozenset(("LOCK", "LOG", "IDENTITY"))
_SORTED: Final = ".sst"
_LOG: Final = ".log"


def open_copy(
    source: Path, to: Path, memory_bytes: int, pause: Callable[[float], None]
) -> RocksDatabase:
    """Copy the database at ``source`` to the directory ``to``, and open the copy.

    Sorted files are linked if both are in one file system.  ``pause`` sleeps, and may raise.

    Raises:
        TransientError: the database changed during every attempt.
        OSError: the files cannot be read, or the copy cannot be written.
    """
    for _ in range(_OPENED_MAX):
        copy_database(source, to, pause)
        with contextlib.suppress(StateDamaged):
            return RocksDatabase(to, memory_bytes=memory_bytes)
    raise _too_fast()


def copy_database(source: Path, to: Path, pause: Callable[[float], None]) -> None:
    """Copy the database at ``source`` to the directory ``to``; see ``open_copy``.

    Rarely the copy of a checkpoint that was about to be ingested lacks a file: then it cannot be
    opened (StateDamaged), and must be made again.

    Raises:
        TransientError: the database changed during every attempt.
        OSError: the files cannot be read, or the copy cannot be written.
    """
    for attempt in range(_ATTEMPTS):
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        if _copied(source, to):
            return
        pause(min(0.01 * (attempt + 1), 0.2))
    raise _too_fast()


def _too_fast() -> TransientError:
    return TransientError("the states change too fast to be copied", sqlstate="55006")


def _copied(source: Path, to: Path) -> bool:
    """Copy all files; return whether they belong together."""
    name, length = files.manifest(source)
    logs = []
    for path in source.iterdir():
        if path.name in _LEFT_OUT or path.name.startswith(("MANIFEST", "CURRENT")):
            continue
        if path.suffix == _LOG:
            logs.append(path)
        elif path.is_file():
            _take(path, to / path.name, link=path.suffix == _SORTED)
    (to / name).write_bytes(_beginning(source / name, length))
    (to / "CURRENT").write_text(f"{name}\n")
    # After the manifest: a log has at least what the manifest's files lack.
    for path in logs:
        _take(path, to / path.name, link=False)
    # After the logs, which list its files: these were complete before.
    folder = source / FOLDER
    if folder.is_dir():
        (to / FOLDER).mkdir()
        with contextlib.suppress(FileNotFoundError):
            for path in folder.iterdir():
                _take(path, to / FOLDER / path.name, link=True)
    return files.manifest(source) == (name, length)


def _take(path: Path, to: Path, *, link: bool) -> None:
    """Link or copy a file; one that is gone did not count any more, or the manifest has changed."""
    with contextlib.suppress(FileNotFoundError):
        if link:
            try:
                os.link(path, to)
            except FileNotFoundError:
                raise
            except OSError:
                pass  # another file system, or too many links
            else:
                return
        shutil.copyfile(path, to)


def _beginning(path: Path, length: int) -> bytes:
    with path.open("rb") as file:
        return file.read(length)
