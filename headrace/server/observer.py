"""Keeps what the worker says of itself: for ``list_views()``, ``lag_history()`` and metrics.

It asks every few seconds.  Of views that were written, or lag, a sample is written down; while all
is idle nothing is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.postgres import connect
from headrace.process import tasks
from headrace.server.commands import CommandPeer
from headrace.sql import samples

_LATE_S: Final = 3.0 * samples.STEP_S
_log = structlog.get_logger(__name__)


class Observer:
    """Of one engine."""

    def __init__(self, settings: Settings, worker: Callable[[], Awaitable[CommandPeer]]) -> None:
        """``worker``: who is asked."""
        self._settings = settings
        self._worker = worker
        self._told: dict[str, Any] = {}
        self._at = 0.0
        self._coarsened = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def told(self) -> dict[str, Any]:
        """What the worker has said of itself; nothing, if that is long ago."""
        return self._told if clock.monotonic() - self._at < _LATE_S else {}

    def start(self) -> None:
        """Begin to ask."""
        loop = tasks.forever("samples", self._run, samples.STEP_S)
        self._task = asyncio.create_task(loop)

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def ask(self) -> dict[str, Any]:
        """What the worker says now.

        Raises:
            HeadraceError: it cannot be asked.
        """
        async with asyncio.timeout(samples.STEP_S):
            peer = await self._worker()
            self._told = dict(await peer.call("gauges", {}))
        self._at = clock.monotonic()
        return self._told

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(samples.STEP_S)
            try:
                views = (await self.ask())["views"]
            except (HeadraceError, OSError, TimeoutError):
                views = {}  # that it is away is to be seen as well
            try:
                await self._write(views)
            except (psycopg.Error, HeadraceError) as error:
                _log.warning("samples not written", reason=str(error).strip())

    async def _write(self, views: dict[str, dict[str, Any]]) -> None:
        rows = [
            {
                "id": int(view_id),
                "batches": told["recent"],
                **{
                    name: told[name]
                    for name in ("rows_per_s", "p50_ms", "p99_ms", "max_ms", "state_bytes")
                },
            }
            for view_id, told in views.items()
        ]
        name = "headrace samples"
        async with await connect.async_session(self._settings.source, name=name) as conn:
            await samples.put(conn, rows)
            if clock.monotonic() - self._coarsened > 60:
                await samples.coarsen(conn)
                self._coarsened = clock.monotonic()
