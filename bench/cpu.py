"""Resource use of processes and their threads, from /proc: CPU seconds, memory, bytes written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_UTIME, _STIME, _PARENT = 11, 12, 1
_ENDED_UTIME, _ENDED_STIME = 13, 14


def _fields(path: Path) -> list[str]:
    """Return the fields after the name, which may contain any character."""
    return path.read_text().rpartition(")")[2].split()


def of_process(pid: int) -> float:
    """Return the CPU seconds of all threads of a process, also of those that have ended."""
    fields = _fields(_PROC / str(pid) / "stat")
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS


def of_children(pid: int) -> float:
    """Return the CPU seconds of the living children of a process."""
    total = 0.0
    for path in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            fields = _fields(path)
            if int(fields[_PARENT]) == pid:
                total += (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS
    return total


def of_ended_children(pid: int) -> float:
    """Return the CPU seconds of the ended children of a process, and of their descendants."""
    fields = _fields(_PROC / str(pid) / "stat")
    return (int(fields[_ENDED_UTIME]) + int(fields[_ENDED_STIME])) / _TICKS


def of_threads(pid: int) -> dict[str, float]:
    """Return the CPU seconds of the living threads by name."""
    out: dict[str, float] = {}
    for path in (_PROC / str(pid) / "task").glob("*/stat"):
        with contextlib.suppress(OSError):
            name = (path.parent / "comm").read_text().strip()
            fields = _fields(path)
            spent = (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS
            out[name] = out.get(name, 0.0) + spent
    return out


def status(pid: int, field: str) -> int:
    """Return a number of /proc/PID/status in its own unit: ``PPid``, ``VmRSS`` (kB)."""
    text = (_PROC / str(pid) / "status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{field}:"))


def written_bytes(pid: int) -> int:
    """Return the bytes that the process has passed to write(2) and similar calls."""
    text = (_PROC / str(pid) / "io").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("wchar:"))
