"""Files of events: each process appends its events to a file, and readers follow all files.

A file holds JSON lines.  When it is full it is renamed, with ``.1`` in its name, and another one
is begun; the one before it is replaced.  So a process that is killed loses no event, and the files
of a process need twice ``BYTES_MAX`` at most.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import msgspec

from headrace import clock

BYTES_MAX: Final = 1 << 20
_TEXT_MAX: Final = 8_000
"""Limit of a field's text, in characters: a traceback may be long."""
_LINE_MAX: Final = 64_000
"""Limit of a line, in bytes; a longer one keeps only the fields of ``_MAIN``."""
_MAIN: Final = ("level", "event", "process", "pid", "view", "view_id")
_END: Final = ".jsonl"
_OLD: Final = ".1.jsonl"
_OLD_S: Final = 30 * 86_400
"""Seconds after which the files of a process that does not write any more are removed."""


class EventFile:
    """The file to which one process appends; threads may share it.  A failure never raises."""

    def __init__(self, folder: Path, process: str) -> None:
        name = quote(process, safe=" ")
        self._path, self._old = folder / f"{name}{_END}", folder / f"{name}{_OLD}"
        self._number = itertools.count()
        self._lock = threading.Lock()
        self._handle = -1

    def append(self, event: Mapping[str, Any]) -> None:
        """Append ``event``, with its time and number; drop it if the file cannot be written."""
        with self._lock, contextlib.suppress(OSError):
            line = _line({"at": clock.now(), "seq": next(self._number), **event})
            if self._handle < 0 or not self._is_current():
                self._open()
            if os.fstat(self._handle).st_size + len(line) > BYTES_MAX:
                self._path.replace(self._old)
                self._open()
            os.write(self._handle, line)  # one write, because two processes may have one name

    def close(self) -> None:
        """Close the file; ``append`` opens it again."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def _is_current(self) -> bool:
        """Return whether no other process of this name has begun the next file."""
        try:
            return os.path.samestat(os.fstat(self._handle), self._path.stat())
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        self.close()
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._handle = os.open(self._path, flags, 0o600)


def _line(event: Mapping[str, Any]) -> bytes:
    shown = {name: _short(value) for name, value in event.items()}
    line = _json(shown)
    if len(line) > _LINE_MAX:
        line = _json({name: shown[name] for name in ("at", "seq", *_MAIN) if name in shown})
    return line


def _short(value: Any) -> Any:
    """Return ``value`` with short texts that Postgres can store: JSON there has no NUL."""
    if isinstance(value, str):
        return value[:_TEXT_MAX].replace("\0", "").encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_short(str(name)): _short(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return value if isinstance(value, int | float | datetime | None) else _short(str(value))


def _json(event: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(event) + b"\n"
    except (TypeError, ValueError, OverflowError):  # an integer of more than 64 bits
        texts = {name: ascii(value)[:_TEXT_MAX] for name, value in event.items()}
        return _json(texts | {"at": event["at"], "seq": event["seq"]})


class LoggedEvent(msgspec.Struct, frozen=True):
    """One line of a file."""

    at: datetime
    seq: int
    level: str
    event: str
    process: str
    pid: int | None
    view_id: int | None
    fields: dict[str, Any]
    """All other fields."""


_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def parsed(line: bytes) -> LoggedEvent | None:
    """Return the event of a line; None: a crash of the machine has damaged the line."""
    try:
        fields = _decode(line)
        return LoggedEvent(
            at=datetime.fromisoformat(fields.pop("at")),
            seq=int(fields.pop("seq")),
            level=str(fields.pop("level")),
            event=str(fields.pop("event")),
            process=str(fields.pop("process")),
            pid=_number(fields.pop("pid", None)),
            view_id=_number(fields.pop("view_id", None)),
            fields=fields,
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, ValueError):
        return None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None


class EventTail:
    """Follows the files of all processes in a folder; call it from one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, BinaryIO] = {}
        """Open files by the path at which their process appends."""

    def read(self, most: int) -> list[LoggedEvent]:
        """Return at most ``most`` new events, those of one process in order; [] at the end.

        They come from all files in turn, so that no process waits for another that writes many.
        """
        paths = sorted(self._folder.glob(f"*{_END}"))
        unread = deque(self._lines(path) for path in paths if not path.name.endswith(_OLD))
        found: list[LoggedEvent] = []
        while unread and len(found) < most:
            lines = unread.popleft()
            line = next(lines, None)
            if line is None:
                continue
            unread.append(lines)
            event = parsed(line)
            if event is not None:
                found.append(event)
        return found

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _lines(self, path: Path) -> Iterator[bytes]:
        """Yield whole lines: of the present file, before that of the one that was renamed."""
        with contextlib.suppress(OSError):
            if path not in self._files:
                old = path.with_name(path.name.removesuffix(_END) + _OLD)
                self._files[path] = (old if old.exists() else path).open("rb")
            while True:
                file = self._files[path]
                here = file.tell()
                line = file.readline()
                if line.endswith(b"\n"):
                    yield line
                    continue
                file.seek(here)
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return
                self._files[path] = path.open("rb")
                file.close()


def remove_old(folder: Path) -> None:
    """Remove files of processes that have not written for a month."""
    before = clock.now().timestamp() - _OLD_S
    for path in folder.glob(f"*{_END}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before:
                path.unlink()
