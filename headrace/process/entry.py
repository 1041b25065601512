"""How a process of ours runs, and with what exit status it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from headrace.errors import HeadraceError

_log = structlog.get_logger(__name__)


def run(serve: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run ``serve`` to its end; 0, or 1 after an error that has been told."""
    try:
        asyncio.run(serve())
    except HeadraceError as error:
        _log.error("worker ended", code=error.code, reason=error.message)
        return 1
    except OSError as error:
        _log.error("worker ended", reason=str(error))
        return 1
    return 0
