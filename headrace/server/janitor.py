"""Removes what a dead builder left half done.

A view in status pending or populating belongs to a job; when a builder starts there is
none.  Its result table cannot exist, for that appears in the same transaction as the status
``running``: what there is are the catalog row, perhaps staged state, and tables that the
publication need not carry.  Views created without waiting (``block`` false) start again.

And what histories have longer than it was asked for, in ranges of txids (A-30, A-31).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Any, Final

import psycopg
import structlog

from headrace.config import Settings
from headrace.postgres import connect, publication
from headrace.process import tasks
from headrace.sql import history, reads, views
from headrace.sql.views import Unfinished

_PURGE_S: Final = 60.0
_PURGED_AT_ONCE: Final = 2_000
"""Rows of the history of one view in one statement: of a megabyte at most."""

_log = structlog.get_logger(__name__)


def clean(settings: Settings) -> list[Unfinished]:
    """Remove abandoned populations; returns the rows of those to start again."""
    with connect.session(settings.source, name="headrace janitor") as conn:
        rows = views.take_unfinished(conn)
        for row in rows:
            _log.info(
                "abandoned population removed",
                view=f"{row.schema}.{row.name}",
                again=not row.block and row.owner is not None,
            )
            remove_staging(settings.staging_dir / str(row.id))
        # Also without them: a builder may have died between dropping and unpublishing.
        _shrink_publication(conn, settings)
    return [row for row in rows if not row.block and row.owner is not None]


def remove_staging(path: Path) -> None:
    """Remove one view's staged state, if there is any."""
    if path.is_dir():
        shutil.rmtree(path)


def _shrink_publication(conn: psycopg.Connection[Any], settings: Settings) -> None:
    """Take tables that no view reads any longer out of the publication."""
    with connect.connect(settings.source, name="headrace janitor") as plain:
        published = publication.tables(plain, settings.publication_name)
        unused = reads.unused(conn, published)
        if unused:
            publication.drop_tables(plain, settings, unused)


async def purge(settings: Settings) -> None:
    """Forget what histories have longer than it was asked for.

    Raises:
        psycopg.Error: the source cannot be reached, or the schema is gone.
    """
    async with await connect.async_session(settings.source, name="headrace janitor") as conn:
        # One range after the other: each is a transaction of its own.
        while await history.purge(conn, _PURGED_AT_ONCE):
            pass


class Purge:
    """``purge``, now and then."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look now and then."""
        self._main = asyncio.create_task(tasks.forever("old changes", self._serve, _PURGE_S))

    async def stop(self) -> None:
        """End."""
        if self._main is not None:
            self._main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._main

    async def _serve(self) -> None:
        while True:
            try:
                await purge(self._settings)
            except psycopg.Error as error:
                _log.warning("old changes not purged", reason=str(error).strip())
            await asyncio.sleep(_PURGE_S)
