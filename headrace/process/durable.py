"""Files that are on the disk when a call returns, so that not even the machine's end takes them."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk; other threads go on meanwhile."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Give a file new content: after a crash it has the old or the new one.

    Which of them, is for certain when its folder has been synced.  ``mode``: its permissions, less
    those that the umask takes.
    """
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)  # the permissions of a file that is there would stay
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
