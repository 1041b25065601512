"""Removes what a dead builder left half done.

A view in status pending or populating belongs to a job; when a builder starts there is
none.  Its result table cannot exist, for that appears in the same transaction as the status
``running``: what there is are the catalog row, perhaps staged state, and tables that the
publication need not carry.  Views created without waiting (``block`` false) start again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psycopg
import structlog

from headrace.config import Settings
from headrace.postgres import connect, publication
from headrace.sql import reads, views
from headrace.sql.views import Unfinished

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
