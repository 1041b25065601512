"""Opening of a state database: a damaged one is set aside, and a new one begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from headrace.errors import OtherFormat, StateDamaged
from headrace.state import files
from headrace.state.rocks import RocksDatabase

_log = structlog.get_logger(__name__)


def open_database(
    path: Path, memory_bytes: int, read: Callable[[RocksDatabase], None]
) -> tuple[RocksDatabase, StateDamaged | None]:
    """Open or create the state database at ``path`` and ``read`` it.

    ``read`` may raise StateDamaged, too.  Return the damage of the database that was set aside.

    Raises:
        OSError: as ``RocksDatabase``.
    """
    try:
        return _opened(path, memory_bytes, read), None
    except StateDamaged as error:
        aside = files.set_aside(path)
        told = {"reason": str(error), "set_aside": str(aside)}
        if isinstance(error, OtherFormat):
            _log.warning("state of another version", **told)
        else:
            _log.error("state damaged", **told)
        return _opened(path, memory_bytes, read), error


def _opened(path: Path, memory_bytes: int, read: Callable[[RocksDatabase], None]) -> RocksDatabase:
    database = RocksDatabase(path, memory_bytes=memory_bytes)
    try:
        read(database)
    except StateDamaged:
        database.close()
        raise
    return database
