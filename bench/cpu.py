"""Resource use of processes and their threads, from /proc: CPU seconds, memory, bytes written."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_UTIME, _STIME, _PARENT = 11, 12, 1
_ENDED_UTIME, _ENDED_STIME = 13, 14
_RSS = 21
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_S: Final = 0.1


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


@dataclass(slots=True)
class Usage:
    """Resources that processes and their descendants have used during ``sampled``, by kind."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """Largest sum of the resident memory of the processes of a kind; shared pages count twice."""


@contextlib.contextmanager
def sampled(roots: Iterable[int], kind: Callable[[str], str]) -> Iterator[Usage]:
    """Yield a ``Usage`` that is complete after the block; it is sampled ten times a second.

    ``roots``: process ids.  ``kind``: name of a process's kind, from its command line.  The last
    tenth of a second of a process that ends is lost.
    """
    usage, over = Usage(), threading.Event()
    begun: dict[int, float] = {}
    latest: dict[int, tuple[str, float]] = {}

    def look() -> None:
        first, resident = not latest, dict[str, int]()
        for pid, fields, line in _descendants(set(roots)):
            name = kind(line)
            spent = (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS
            begun.setdefault(pid, spent if first else 0.0)
            latest[pid] = name, spent
            resident[name] = resident.get(name, 0) + int(fields[_RSS]) * _PAGE
        for name, size in resident.items():
            usage.peak_bytes[name] = max(usage.peak_bytes.get(name, 0), size)

    def watch() -> None:
        while not over.wait(_SAMPLE_S):
            look()

    look()
    watcher = threading.Thread(target=watch, name="usage", daemon=True)
    watcher.start()
    try:
        yield usage
    finally:
        over.set()
        watcher.join()
        look()
        for pid, (name, spent) in latest.items():
            usage.cpu_s[name] = usage.cpu_s.get(name, 0.0) + spent - begun[pid]


def _descendants(roots: set[int]) -> Iterator[tuple[int, list[str], str]]:
    """Yield (process id, fields of stat, command line) of ``roots`` and their descendants."""
    found: dict[int, list[str]] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = _fields(path)
    for pid, fields in found.items():
        above: int | None = pid
        while above is not None and above not in roots:
            above = int(found[above][_PARENT]) if above in found else None
        if above is not None:
            with contextlib.suppress(OSError):
                line = (_PROC / str(pid) / "cmdline").read_bytes()
                yield pid, fields, line.replace(b"\0", b" ").decode(errors="replace")
