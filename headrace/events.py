"""Set-up of the log: one JSON line per event on standard error (reliability.md 5.8).

Events are lower-case names with fields; rows' values and passwords are never among them.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import structlog

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(level: str = "info", **fields: Any) -> None:
    """Log ``level`` and above; ``fields`` (the process, its pid) are on every line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    if fields:
        structlog.contextvars.bind_contextvars(**fields)
