"""Set-up of the log: one JSON line per event on standard error.

Events are lower-case names with fields; rows' values and passwords are never among them.  A line
that cannot be written (a full disk, a closed pipe) is lost: nobody may die of it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import sys
from collections.abc import MutableMapping
from typing import Any, ClassVar, Final, TextIO

import structlog

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


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

    level: ClassVar[int] = _LEVELS["info"]


def set_level(level: str) -> None:
    """Log ``level`` and above from now on."""
    _Threshold.level = _LEVELS[level]


def _only_loud(_logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
    if _LEVELS.get(method, _LEVELS["error"]) < _Threshold.level:
        raise structlog.DropEvent
    return event


def configure(level: str = "info", **fields: Any) -> None:
    """Log ``level`` and above; ``fields`` (the process, its pid) are on every line."""
    set_level(level)
    structlog.configure(
        processors=[
            _only_loud,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS["debug"]),
        logger_factory=structlog.PrintLoggerFactory(Lossy(sys.stderr)),
        cache_logger_on_first_use=True,
    )
    if fields:
        structlog.contextvars.bind_contextvars(**fields)
    # Who dies of a fault in compiled code says where.
    with contextlib.suppress(OSError, ValueError):  # standard error is closed, or no file
        faulthandler.enable()
