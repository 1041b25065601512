"""Tasks that may not end in silence.

An error that nobody foresaw ends an asyncio task, and with it for good what the task has served:
nobody waits for it, so nobody is told.  So does a cancel that comes before its first step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

_log = structlog.get_logger(__name__)


async def forever(name: str, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
    """Do ``work`` until it returns, anew and after a pause whenever it raises.

    What it is expected to meet, it handles itself.  Being cancelled ends it.
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


def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` when it has begun, so that it can tell those who wait for its outcome.

    A loop goes through its callbacks in order, and the first step of ``task`` is one of them.
    """
    task.get_loop().call_soon(task.cancel)
