"""A small file system that can be filled up, and the syncs of files and folders."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def path_of(handle: int) -> Path:
    """Return the path of an open file or folder."""
    return Path(f"/proc/self/fd/{handle}").readlink()


def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the paths that are synced from now on, in order."""
    out: list[Path] = []
    fsync = os.fsync

    def sync(handle: int) -> None:
        fsync(handle)
        out.append(path_of(handle))

    monkeypatch.setattr(os, "fsync", sync)
    return out


@contextlib.contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    """Provide a file system of ``size_bytes`` at ``path``; skip the test without the right."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def free_bytes(disk: Path) -> int:
    """Return the free space of the file system."""
    at = os.statvfs(disk)
    return at.f_bavail * at.f_frsize


def fill_up(disk: Path, but_bytes: int = 0) -> Path:
    """Fill the file system up to ``but_bytes``; removing the returned file makes room again."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while free_bytes(disk) > but_bytes:
            file.write(bytes(4096))
    return filler
