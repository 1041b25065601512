"""One engine for all modules whose tests share one and need no settings of their own.

An engine takes seconds to start, and most tests only need one that runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import sql

from headrace.embedded.engine import EmbeddedEngine

USES_MAX: Final = 20
"""Modules after which the engine is replaced: by then its catalogs are full of dead rows."""
IDLE_S: Final = 60.0
"""Seconds without a use after which the engine is stopped: idle, it takes as much processor time in
a minute as a start."""
_RECORDS: Final = (*("commands", "covered", "events", "facts", "history", "samples", "progress"),)
"""Tables that an engine writes by itself."""

Opened = contextlib.AbstractContextManager[EmbeddedEngine]


class CommonEngine:
    """The engine that modules use one after the other; replaced when a module left traces."""

    def __init__(self, start: Callable[[], Opened]) -> None:
        """Take the function ``start``, which opens an engine on a new database."""
        self._start = start
        self._open = contextlib.ExitStack()
        self._engine: EmbeddedEngine | None = None
        self._fresh: dict[str, int] = {}
        self._uses = 0
        self._idle_since: float | None = None
        """Time of the end of the last use, on the monotonic clock; None: in use, or never used."""

    def take(self) -> EmbeddedEngine:
        """Return a running engine without traces of the previous module."""
        self._idle_since = None
        if self._engine is not None and self._reusable(self._engine):
            self._uses += 1
            return self._engine
        self.close()
        self._engine = self._open.enter_context(self._start())
        self._fresh = _counts(self._engine)
        self._uses = 1
        return self._engine

    def release(self) -> None:
        """Note that the module that took the engine has ended."""
        self._idle_since = time.monotonic()

    def close_if_idle(self) -> None:
        """Stop the engine if it was not used for ``IDLE_S``."""
        if self._idle_since is not None and time.monotonic() >= self._idle_since + IDLE_S:
            self._idle_since = None
            self.close()

    def close(self) -> None:
        """Stop the engine."""
        self._engine = None
        self._open.close()

    def _reusable(self, engine: EmbeddedEngine) -> bool:
        if self._uses >= USES_MAX or not engine.running:
            return False
        try:
            return _counts(engine) == self._fresh
        except psycopg.Error:
            return False


def _counts(engine: EmbeddedEngine) -> dict[str, int]:
    """Count the rows of each table of schema ``headrace`` outside ``_RECORDS``."""
    counts = {}
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        names = conn.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'headrace'::regnamespace"
            " AND relkind = 'r' AND relname <> ALL (%s)",
            (list(_RECORDS),),
        ).fetchall()
        for (name,) in names:
            query = sql.SQL("SELECT count(*) FROM headrace.{}")
            row = conn.execute(query.format(sql.Identifier(name))).fetchone()
            assert row is not None
            counts[name] = row[0]
    return counts
