"""The lock on a data directory, which an engine holds as long as it runs."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.errors import PrerequisiteError

_FILE: Final = "lock"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock on ``folder``, which exists, inside the context.

    Raises:
        PrerequisiteError: 55006, another process holds it.
    """
    with (folder / _FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise in_use(folder) from error
        yield


def is_held(folder: Path) -> bool:
    """Return whether a process holds the lock on ``folder``, which need not exist."""
    try:
        with (folder / _FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def in_use(folder: Path) -> PrerequisiteError:
    """Return the error for a data directory that another engine uses."""
    return PrerequisiteError(f'another headrace uses data directory "{folder}"', sqlstate="55006")
