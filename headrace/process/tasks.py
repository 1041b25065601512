"""Asyncio tasks that must not end silently.

An unexpected error ends an asyncio task, and with it the service that the task provided, for good:
no caller awaits the task, so the error is not seen.  A cancel before its first step does the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

_log = structlog.get_logger(__name__)


async def forever(name: str, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
    """Run ``work`` until it returns; run it again, after a pause, whenever it raises.

    ``work`` handles its expected errors itself.  Cancellation ends the loop.
    """
    told = ""
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  a bug in one round must not end all others
            if told != repr(error):
                _log.exception("begun anew after a bug", loop=name)
            told = repr(error)
        else:
            return
        await asyncio.sleep(pause_s)


async def end(task: asyncio.Task[Any] | None) -> None:
    """Cancel ``task``, if there is one, and wait until it has ended."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` once it has begun, so that it can report its outcome to its callers.

    The loop runs callbacks in order, and the first step of ``task`` is one of them.
    """
    task.get_loop().call_soon(task.cancel)
