"""The log of a process: one stream of events on standard error, as text or as JSON lines.

An event has a lower-case name and fields (``docs/manual/events.md`` has all of them); values of
rows and passwords are never among them.  What libraries say by ``logging`` or ``warnings``, and
exceptions that nobody has caught, are events as well.  A line that cannot be written (a full disk,
a closed pipe) is lost: nobody may die of it.

Call sites name a view by its id; here it gets its name.
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
from types import TracebackType
from typing import Any, ClassVar, Final, TextIO

import structlog

FORMATS: Final = ("auto", "text", "json")
"""``auto``: text for a terminal, JSON lines for all else."""
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_PLAIN: Final = re.compile(r'"([a-z_][a-z0-9_$]*)"\."([a-z_][a-z0-9_$]*)"')
_CONTROL: Final = {
    **{code: f"^{chr(code ^ 64)}" for code in (*range(32), 127)},
    **{code: f"<{code:x}>" for code in range(128, 160)},
    **{ord(blank): " " for blank in "\n\t"},
}
"""What a terminal may act on; whoever's words are in a message shall not write on ours."""
_LINES: Final = _CONTROL | {ord("\n"): "\n"}
_names: Final[dict[int, str]] = {}
_ids: Final[dict[str, int]] = {}

Fields = MutableMapping[str, Any]

_log = structlog.get_logger(__name__)


class Lossy(io.StringIO):
    """Writes to another file what can be written."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file

    def write(self, text: str) -> int:
        """Write, or lose, ``text``."""
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with contextlib.suppress(OSError):
            self._file.flush()


class _Threshold:
    """What is logged now; loggers are made once, with all their methods."""

    level: ClassVar[int] = LEVELS["info"]


def set_level(level: str) -> None:
    """Log ``level`` and above from now on."""
    _Threshold.level = LEVELS[level]


def _only_loud(_logger: Any, method: str, event: Fields) -> Fields:
    if LEVELS.get(method, LEVELS["error"]) < _Threshold.level:
        raise structlog.DropEvent
    return event


def configure(level: str = "info", shape: str = "auto", **fields: Any) -> None:
    """Log ``level`` and above in ``shape``; ``fields`` (the process, its pid) are on every line."""
    set_level(level)
    terminal = bool(sys.stderr and sys.stderr.isatty())
    text = shape == "text" or (shape == "auto" and terminal)

    def with_fields(_logger: Any, _method: str, event: Fields) -> Fields:
        # Not context variables: a thread has its own.
        for name, value in fields.items():
            event.setdefault(name, value)
        return event

    structlog.configure(
        processors=[
            _only_loud,
            structlog.contextvars.merge_contextvars,
            with_fields,
            named,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(
                fmt="%H:%M:%S" if text else "iso", utc=not text, key="timestamp"
            ),
            structlog.processors.format_exc_info,
            *(_for_people(colors=terminal) if text else _for_programs()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS["debug"]),
        logger_factory=structlog.PrintLoggerFactory(Lossy(sys.stderr)),
        cache_logger_on_first_use=True,
    )
    _bridge()
    # Who dies of a fault in compiled code says where.
    with contextlib.suppress(OSError, ValueError):  # standard error is closed, or no file
        faulthandler.enable()


def know_view(view_id: int, name: str) -> None:
    """Events about the view of that id name it so from now on."""
    plain = _plain(name)
    forget_view(view_id)
    _names[view_id] = plain
    _ids[plain] = view_id


def view_name(view_id: int) -> str | None:
    """How the view of that id is called in events; None: there is none."""
    return _names.get(view_id)


def forget_view(view_id: int) -> None:
    """There is no such view any more."""
    name = _names.pop(view_id, None)
    if name is not None and _ids.get(name) == view_id:
        del _ids[name]


def named(_logger: Any, _method: str, event: Fields) -> Fields:
    """Put names for the ids of views: ``view``, with ``view_id`` beside it, ``views``, ``unit``."""
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
    """A qualified name as ``list_views()`` has it, where it need not be quoted."""
    found = _PLAIN.fullmatch(name)
    return ".".join(found.groups()) if found else name


def _name(view_id: int) -> str:
    return _names.get(view_id) or f"number {view_id}"


def _for_programs() -> list[Any]:
    return [structlog.processors.JSONRenderer(default=str)]


def _for_people(*, colors: bool) -> list[Any]:
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
    """Makes events of what libraries log."""

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        with contextlib.suppress(Exception):  # a library's arguments that fit no format
            told = {"logger": record.name, "message": record.getMessage()}
            if record.exc_info and record.exc_info[1] is not None:
                told["exc_info"] = record.exc_info  # type: ignore[assignment]
            if record.levelno >= logging.ERROR:
                _log.error("library", **told)
            else:
                _log.warning("library", **told)


def _bridge() -> None:
    """Have all else that would be written to standard error come here."""
    # Not below: some say there what they send, secrets included.
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
