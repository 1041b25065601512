"""Fills views anew that a change of their tables' structure has stopped.

Option ``on_change`` of create_view is ``follow``: where the query stands as it is, only over other
values (``StructureChanged``: a wider column, a new partition), this does what the view's message
says.  So nobody need think of it.  With ``resync`` it is tried after any change, with ``stop``
after none: the view keeps its last consistent contents until somebody resyncs it.  An attempt that
fails is told in the message, and made again after a while, ever more rarely: a key that was
dropped may have come back.

A view that has exceeded a limit (``LimitExceeded``) catches up alone in this way, whatever its
options say, until it has done so too often: then somebody must see to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import psycopg
import structlog
from psycopg.rows import dict_row

from headrace import clock, pinned
from headrace.config import Settings
from headrace.errors import HeadraceError, LimitExceeded
from headrace.server.commands import Commands
from headrace.server.context import Context
from headrace.server.procedures import Invocation

_LOOK_S: Final = 1.0
_AGAIN_S_MIN: Final = 2.0
_AGAIN_S_MAX: Final = 300.0
_TRIES_MAX: Final = 3
_WINDOW_S: Final = 600.0
"""A view that exceeds a limit is filled anew, beside the others, so often in so many seconds."""
_STOPPED: Final = """
SELECT v.id, pg_catalog.format('%I.%I', v.schema_name, v.view_name) AS name, r.rolname AS owner, v.message,
       v.sqlstate, v.created_at
  FROM headrace.views v JOIN pg_catalog.pg_roles r ON r.oid = v.owner
 WHERE v.status = 'error'
   AND (v.sqlstate = '54H01' OR CASE v.options ->> 'on_change' WHEN 'stop' THEN false
         WHEN 'resync' THEN v.sqlstate IN ('55000', '55H01') ELSE v.sqlstate = '55H01' END)
 ORDER BY v.id"""
_FAILED: Final = " A resync failed: "
_TELL: Final = """
UPDATE headrace.views SET message = %(told)s
 WHERE id = %(id)s AND status = 'error' AND message = %(message)s"""

_log = structlog.get_logger(__name__)


class Resumer:
    """Looks for stopped views, and resyncs one after the other."""

    def __init__(self, settings: Settings, commands: Commands) -> None:
        self._settings = settings
        self._commands = commands
        self._next: dict[int, tuple[float, float]] = {}
        """Views that were tried, by id: when to try again, on the monotonic clock, and the
        pause after that."""
        self._limited: dict[tuple[Any, ...], list[float]] = {}
        """When views were filled anew that had exceeded a limit, by name and making."""
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
                    pinned.conninfo(self._settings.source, name="headrace resumer"),
                    autocommit=True,
                    row_factory=dict_row,
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
            due, pause = self._next.get(int(row["id"]), (0.0, _AGAIN_S_MIN))
            if clock.monotonic() < due or self._too_often(row):
                continue
            error = await self._resync(row)
            if error is not None:
                due = clock.monotonic() + pause
                self._next[int(row["id"])] = due, min(2 * pause, _AGAIN_S_MAX)
                await self._tell(conn, row, error)

    def _too_often(self, row: dict[str, Any]) -> bool:
        """Whether a view has exceeded a limit again and again; counts this time if not."""
        if row["sqlstate"] != LimitExceeded.sqlstate:
            return False
        since = clock.monotonic() - _WINDOW_S
        view = row["name"], row["created_at"]
        times = [t for t in self._limited.get(view, ()) if t > since]
        over = len(times) >= _TRIES_MAX
        self._limited[view] = times if over else [*times, clock.monotonic()]
        return over

    async def _resync(self, row: dict[str, Any]) -> HeadraceError | None:
        """Why it failed, if it did."""
        name = row["name"]
        # Somebody else may have done it while this waited for other jobs.
        invocation = Invocation("resync_view", {"name": name, "of": row["id"]})
        try:
            await self._commands.run(
                invocation,
                Context(row["owner"], {}),
                lambda line: _log.info("resync", view=name, line=line),
            )
        except HeadraceError as error:
            _log.warning("view stays stopped", view=name, reason=error.message)
            return error
        return None

    async def _tell(
        self,
        conn: psycopg.AsyncConnection[dict[str, Any]],
        row: dict[str, Any],
        error: HeadraceError,
    ) -> None:
        """Add the failure to the view's message, in the place of an earlier one."""
        message = str(row["message"])
        why = "; ".join(filter(None, (error.message, error.detail)))
        told = message.partition(_FAILED)[0] + _FAILED + why
        await conn.execute(_TELL, {"id": row["id"], "message": message, "told": told})
