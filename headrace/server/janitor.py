"""Removes the leftovers of a dead builder, and expired history.

A view in status pending or populating belongs to a job, and when a builder starts there are no
jobs.  The result table of such a view cannot exist, because it appears in the same transaction as
the status ``running``.  Such a view may have left a catalog row, staged state, and published tables
that no view needs.  Views created without waiting (``block`` false) are started again.

Changes that histories hold for longer than requested are purged in ranges of txids (A-30, A-31).
"""

from __future__ import annotations

import asyncio
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
"""Rows of the history of one view per statement: at most about a megabyte."""

_log = structlog.get_logger(__name__)


def clean(settings: Settings) -> list[Unfinished]:
    """Remove abandoned populations; return the rows of those to start again."""
    with connect.session(settings.source, name="headrace janitor") as conn:
        rows = views.take_unfinished(conn)
        for row in rows:
            _log.info(
                "abandoned population removed",
                view=f"{row.schema}.{row.name}",
                again=not row.block and row.owner is not None,
            )
            remove_staging(settings.staging_dir / str(row.id))
        # Also without such rows: a builder may have died between dropping and unpublishing.
        _shrink_publication(conn, settings)
    return [row for row in rows if not row.block and row.owner is not None]


def remove_staging(path: Path) -> None:
    """Remove one view's staged state, if there is any."""
    if path.is_dir():
        shutil.rmtree(path)


def _shrink_publication(conn: psycopg.Connection[Any], settings: Settings) -> None:
    """Remove from the publication the tables that no view reads."""
    with connect.connect(settings.source, name="headrace janitor") as plain:
        published = publication.tables(plain, settings.publication_name)
        unused = reads.unused(conn, published)
        if unused:
            publication.drop_tables(plain, settings, unused)


async def purge(settings: Settings) -> None:
    """Delete changes that histories hold for longer than requested.

    Raises:
        psycopg.Error: the source cannot be reached, or the schema is gone.
    """
    async with await connect.async_session(settings.source, name="headrace janitor") as conn:
        # Each range is a transaction of its own.
        while await history.purge(conn, _PURGED_AT_ONCE):
            pass


class Purge:
    """Runs ``purge`` periodically."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the periodic purge."""
        self._main = asyncio.create_task(tasks.forever("old changes", self._serve, _PURGE_S))

    async def stop(self) -> None:
        """Stop the periodic purge."""
        await tasks.end(self._main)

    async def _serve(self) -> None:
        while True:
            try:
                await purge(self._settings)
            except psycopg.Error as error:
                _log.warning("old changes not purged", reason=str(error).strip())
            await asyncio.sleep(_PURGE_S)
