"""Unpublishes tables that have lost their replica identity.

Postgres refuses UPDATE and DELETE of a published table without replica identity, so the table
leaves the publication as soon as the loss is seen.  The commander looks, because it also runs
while the worker is busy, blocked or being restarted.

The worker is told before the table leaves.  It reads the catalog before it processes another
batch, sees the loss, and stops the views of the table.  So no view skips a row and goes on.
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
from headrace.postgres import connect, identity
from headrace.postgres.identity import Published
from headrace.process import tasks
from headrace.server.commands import CommandPeer

_LOOK_S_MIN: Final = 0.25
"""Seconds between two looks; bounds how long the owner's statements can fail."""
_LOOK_S_MAX: Final = 1.0
_SHARE: Final = 0.01
"""Share of a backend's time that looks may take (some thousand published tables)."""
_TELL_S: Final = 0.25
"""Longest wait for the worker: the owner's statements matter more."""
_LOCK_TIMEOUT_MS: Final = 500
"""Less than the usual deadlock_timeout (1 s), so it is never the owner's session that fails."""
_RETRY_S: Final = 1.0

_log = structlog.get_logger(__name__)


class PublicationGuard:
    """The guard of one engine's publication."""

    def __init__(self, settings: Settings, worker: Callable[[], Awaitable[CommandPeer]]) -> None:
        """Take ``worker``, which returns the connection to the worker once it is up."""
        self._settings = settings
        self._worker = worker
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start looking."""
        loop = tasks.forever("publication guard", self._serve, _RETRY_S)
        self._main = asyncio.create_task(loop)

    async def stop(self) -> None:
        """Stop looking."""
        await tasks.end(self._main)

    async def _serve(self) -> None:
        reason = ""
        while True:
            try:
                conn = await asyncio.to_thread(
                    connect.session, self._settings.source, name="headrace publication guard"
                )
                try:
                    await self._watch(conn)
                finally:
                    conn.close()
            except psycopg.Error as error:
                if str(error) != reason:
                    reason = str(error)
                    _log.warning("replica identities not looked at", reason=reason.strip())
            await asyncio.sleep(_RETRY_S)

    async def _watch(self, conn: psycopg.Connection[Any]) -> None:
        name = self._settings.publication_name
        kept: list[Published] = []
        while True:
            began = clock.monotonic()
            found = await asyncio.to_thread(identity.find_unidentified, conn, name)
            pause = (clock.monotonic() - began) / _SHARE
            if found:
                await self._tell_worker([entry for entry, *_ in found])
                before = kept
                kept = await asyncio.to_thread(
                    identity.withdraw, conn, name, found, _LOCK_TIMEOUT_MS
                )
                for table in kept:
                    if table not in before:
                        shown = ".".join(table[1:])
                        _log.warning("table without replica identity still published", table=shown)
            await asyncio.sleep(min(max(pause, _LOOK_S_MIN), _LOOK_S_MAX))

    async def _tell_worker(self, entries: list[int]) -> None:
        # A worker that starts reads the catalog before the first batch.
        with contextlib.suppress(HeadraceError, OSError, TimeoutError):
            async with asyncio.timeout(_TELL_S):
                peer = await self._worker()
                await peer.call("unpublishing", {"entries": entries})
