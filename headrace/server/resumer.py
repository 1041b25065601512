"""Fills views anew that a change of their tables' structure has stopped, where that was asked for.

Option ``on_change`` of create_view is ``stop`` (the view keeps its last consistent contents until
somebody resyncs it) or ``resync``: then this does what its message says, once per stop.  Whoever
adds a partition each month need not think of it.  What a resync does not mend (a column that is
gone) stays stopped, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import psycopg
import structlog
from psycopg.rows import dict_row

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError, TransientError
from headrace.server.commands import Commands
from headrace.server.context import Context
from headrace.server.procedures import Invocation

_LOOK_S: Final = 1.0
_AGAIN_S: Final = 60.0
"""Pause before another attempt where the first failed for a moment's reason."""
_STOPPED: Final = """
SELECT v.id, pg_catalog.format('%I.%I', v.schema_name, v.view_name) AS name, v.owner
  FROM headrace.views v
 WHERE v.owner IS NOT NULL AND v.status = 'error' AND v.sqlstate = '55000' AND v.options ->> 'on_change' = 'resync'
 ORDER BY v.id"""

_log = structlog.get_logger(__name__)


class Resumer:
    """Looks for stopped views, and resyncs one after the other."""

    def __init__(self, settings: Settings, commands: Commands) -> None:
        self._settings = settings
        self._commands = commands
        self._next: dict[int, float] = {}
        """Views that were tried, by id: when to try again, on the monotonic clock."""
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._main = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        """End, and cancel what is being done."""
        if self._main:
            self._main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._main

    async def _serve(self) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._settings.source, autocommit=True, row_factory=dict_row
                ) as conn:
                    while True:
                        await self._look(conn)
                        await asyncio.sleep(_LOOK_S)
            except psycopg.Error as error:
                _log.warning("stopped views not looked for", reason=str(error))
                await asyncio.sleep(_LOOK_S)

    async def _look(self, conn: psycopg.AsyncConnection[dict[str, Any]]) -> None:
        cursor = await conn.execute(_STOPPED)
        rows = await cursor.fetchall()
        stopped = {int(row["id"]) for row in rows}
        self._next = {i: due for i, due in self._next.items() if i in stopped}
        for row in rows:
            if clock.monotonic() >= self._next.get(int(row["id"]), 0.0):
                await self._resync(int(row["id"]), row["name"], row["owner"])

    async def _resync(self, view_id: int, name: str, owner: str) -> None:
        invocation = Invocation("resync_view", {"name": name})
        self._next[view_id] = float("inf")
        try:
            await self._commands.run(
                invocation,
                Context(owner, {}),
                lambda line: _log.info("resync", view=name, line=line),
            )
        except HeadraceError as error:
            if isinstance(error, TransientError):
                self._next[view_id] = clock.monotonic() + _AGAIN_S
            _log.warning("view stays stopped", view=name, reason=error.message)
