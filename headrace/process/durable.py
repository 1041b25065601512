"""Durable file writes: the data is on disk, and survives a machine crash, when the call returns."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def sync(path: Path) -> None:
    """Sync a file or folder to disk; other threads run meanwhile."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents durably.  ``mode``: as for ``Path.mkdir``.

    A parent that this user may write, but not read, is not synced.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for folder in missing:
        with contextlib.suppress(PermissionError):
            sync(folder.parent)


def replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Replace the content of a file atomically: after a crash it has the old or the new content.

    The new content is certain once the folder has been synced.  ``mode``: the permissions before
    the umask.
    """
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)  # an existing file would keep its permissions
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
