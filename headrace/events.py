"""The log of a process: one stream of events on standard error, as text or as JSON lines.

An event has a lower-case name and fields (``docs/manual/events.md`` lists all of them).  Fields
never contain values of rows or passwords.  Messages of libraries (``logging``, ``warnings``) and
uncaught exceptions are events as well.  A line that cannot be written (a full disk, a closed
pipe) is lost; it never fails the caller.

Call sites give a view's id; this module adds its name.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import re
import sys
import threading
from collections.abc import MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol, TextIO

import structlog

from headrace.event_files import EventFile

FORMATS: Final = ("auto", "text", "json")
"""``auto``: text for a terminal, else JSON lines."""
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_KEPT: Final = LEVELS["info"]
"""Events from this level on are kept in a file."""

_PLAIN: Final = re.compile(r'"([a-z_][a-z0-9_$]*)"\."([a-z_][a-z0-9_$]*)"')
_CONTROL: Final = {
    **{code: f"^{chr(code ^ 64)}" for code in (*range(32), 127)},
    **{code: f"<{code:x}>" for code in range(128, 160)},
    **{ord(blank): " " for blank in "\n\t"},
}
"""Control characters, escaped so that a foreign text in a message cannot control the terminal."""
_LINES: Final = _CONTROL | {ord("\n"): "\n"}
_names: Final[dict[int, str]] = {}
_ids: Final[dict[str, int]] = {}

Fields = MutableMapping[str, Any]

_log = structlog.get_logger(__name__)


class LogSettings(Protocol):
    """The settings of the log, see ``Settings``."""

    @property
    def log_level(self) -> str:
        """Lowest level."""

    @property
    def log_format(self) -> str:
        """One of ``FORMATS``."""

    @property
    def events_dir(self) -> Path:
        """Folder of the files of events."""


class Lossy(io.StringIO):
    """Writes to another file and ignores failures."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file

    def write(self, text: str) -> int:
        """Write ``text``; drop it if the file fails."""
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the file; ignore a failure."""
        with contextlib.suppress(OSError):
            self._file.flush()


class _Threshold:
    """Current log level, checked for each event because loggers are cached on first use."""

    level: ClassVar[int] = LEVELS["info"]


def set_level(level: str) -> None:
    """Log ``level`` and above from now on."""
    _Threshold.level = LEVELS[level]


def _level(method: str) -> int:
    return LEVELS.get(method, LEVELS["error"])


def _only_loud(_logger: Any, method: str, event: Fields) -> Fields:
    if _level(method) < _Threshold.level:
        raise structlog.DropEvent
    return event


def _only_worth_a_look(_logger: Any, method: str, event: Fields) -> Fields:
    """Drop events that neither the log nor the file takes."""
    if _level(method) < min(_Threshold.level, _KEPT):
        raise structlog.DropEvent
    return event


def configure(
    level: str = "info", shape: str = "auto", folder: Path | None = None, **fields: Any
) -> None:
    """Log ``level`` and above in ``shape``; ``fields`` (the process, its pid) are on every line.

    Events from ``info`` on are also appended to a file in ``folder``, with every ``level``.
    """
    set_level(level)
    file = EventFile(folder, fields["process"]) if folder else None
    terminal = bool(sys.stderr and sys.stderr.isatty())
    text = shape == "text" or (shape == "auto" and terminal)

    def with_fields(_logger: Any, _method: str, event: Fields) -> Fields:
        # Context variables would be empty in other threads.
        for name, value in fields.items():
            event.setdefault(name, value)
        return event

    def keep(_logger: Any, method: str, event: Fields) -> Fields:
        if file and _level(method) >= _KEPT:
            file.append(event)
        return event

    structlog.configure(
        processors=[
            _only_worth_a_look,
            structlog.contextvars.merge_contextvars,
            with_fields,
            named,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            keep,
            _only_loud,
            structlog.processors.TimeStamper(
                fmt="%H:%M:%S" if text else "iso", utc=not text, key="timestamp"
            ),
            *(_human_readable(colors=terminal) if text else _for_programs()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        logger_factory=structlog.PrintLoggerFactory(Lossy(sys.stderr)),
        cache_logger_on_first_use=True,
    )
    _bridge()
    # Print a traceback if compiled code crashes the process.
    with contextlib.suppress(OSError, ValueError):  # standard error is closed, or no file
        faulthandler.enable()


def start(settings: LogSettings, process: str) -> None:
    """Log the events of this process as ``settings`` say, and keep them in its file."""
    level, shape, folder = settings.log_level, settings.log_format, settings.events_dir
    configure(level, shape, folder, process=process, pid=os.getpid())


def text(event: Fields) -> str:
    """Return the line that a terminal shows for ``event``, coloured if standard output is one."""
    for process in _human_readable(colors=sys.stdout.isatty()):
        event = process(None, "", event)
    return str(event)


def know_view(view_id: int, name: str) -> None:
    """Register the view's name for later events."""
    plain = _plain(name)
    forget_view(view_id)
    _names[view_id] = plain
    _ids[plain] = view_id


def view_name(view_id: int) -> str | None:
    """Return the name that events give the view; None if it is not registered."""
    return _names.get(view_id)


def forget_view(view_id: int) -> None:
    """Remove the view's name."""
    name = _names.pop(view_id, None)
    if name is not None and _ids.get(name) == view_id:
        del _ids[name]


def named(_logger: Any, _method: str, event: Fields) -> Fields:
    """Replace view ids with names in ``view`` (adding ``view_id``), ``views`` and ``unit``."""
    unit = event.pop("unit", None)
    if unit is not None:
        event["view"] = unit
    view = event.get("view")
    if isinstance(view, int):
        del event["view"]
        if view < 0:
            event["subplan"] = view
        else:
            event["view_id"] = view
            event["view"] = _name(view)
    elif isinstance(view, str):
        event["view"] = _plain(view)
        if event["view"] in _ids:
            event.setdefault("view_id", _ids[event["view"]])
    views = event.get("views")
    if isinstance(views, list):
        event["views"] = [_name(one) if isinstance(one, int) else one for one in views]
    return event


def _plain(name: str) -> str:
    """Return a qualified name without unnecessary quotes, as ``list_views()`` does."""
    found = _PLAIN.fullmatch(name)
    return ".".join(found.groups()) if found else name


def _name(view_id: int) -> str:
    return _names.get(view_id) or f"number {view_id}"


def _for_programs() -> list[Any]:
    return [structlog.processors.JSONRenderer(default=str)]


def _human_readable(*, colors: bool) -> list[Any]:
    def harmless(_logger: Any, _method: str, event: Fields) -> Fields:
        for name, value in event.items():
            table = _LINES if name == "exception" else _CONTROL
            if isinstance(value, str):
                event[name] = value.translate(table)
            elif not isinstance(value, int | float | None):
                event[name] = str(value).translate(_CONTROL)
        return event

    plain = structlog.dev.plain_traceback
    colored = colors and not os.environ.get("NO_COLOR")
    return [
        harmless,
        structlog.dev.ConsoleRenderer(colors=colored, exception_formatter=plain, pad_event_to=24),
    ]


class _Bridge(logging.Handler):
    """Handler that turns the log records of libraries into events."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record as an event."""
        with contextlib.suppress(Exception):  # a library's arguments that fit no format
            told = {"logger": record.name, "message": record.getMessage()}
            if record.exc_info and record.exc_info[1] is not None:
                told["exc_info"] = record.exc_info  # type: ignore[assignment]
            if record.levelno >= logging.ERROR:
                _log.error("library", **told)
            else:
                _log.warning("library", **told)


def _bridge() -> None:
    """Route log records, warnings and uncaught exceptions into the event log."""
    # Not below this level: some libraries log there what they send, secrets included.
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda told: _uncaught(told.exc_type, told.exc_value, told.exc_traceback)


def _uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    if error is None or issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    thread = threading.current_thread().name
    _log.error("ended by a bug", thread=thread, exc_info=(kind, error, trace))
