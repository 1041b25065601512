"""Statuses that wait to be written to the catalog.

The transaction of a call may have the row of its view for long: it waits for a lock that a user
holds on the result table, or builds an index.  The engine's thread serves all views, so it does not
wait for such a row: it writes the status once the row is free.

* Invariant: statuses are written in their order.  A view may stop because another one does, and is
  told first.  So after a crash in between, the cause is met again, and both stop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.errors import HeadraceError
from headrace.sql import states
from headrace.sql.status import Status

Connection = psycopg.Connection[Any]

_log = structlog.get_logger(__name__)
_RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class _Wanted:
    to: Status
    error: HeadraceError | None
    also: Callable[[Connection, int], None] | None


class Statuses:
    """The last status of each view whose row was locked; for the engine's thread."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Wanted] = {}
        self._due = math.inf

    @property
    def due(self) -> float:
        """When to call ``retry``, on the monotonic clock."""
        return self._due

    def write(
        self,
        conn: Connection,
        view_id: int,
        to: Status,
        error: HeadraceError | None = None,
        also: Callable[[Connection, int], None] | None = None,
    ) -> None:
        """Give a view another status, now or when its row is free.

        ``also`` is called with the view in the same transaction.
        """
        self._waiting.pop(view_id, None)
        self._waiting[view_id] = _Wanted(to, error, also)
        self._write(conn)

    def stops(self, view_id: int) -> bool:
        """Return whether a view has stopped that runs according to the catalog."""
        wanted = self._waiting.get(view_id)
        return wanted is not None and wanted.to is Status.ERROR

    def settle(self, conn: Connection) -> None:
        """Write which views have stopped, before anything else is made durable.

        It waits for locked rows.

        Raises:
            psycopg.Error: a row is locked for longer than ``lock_timeout_ms``.
        """
        for view_id in [view_id for view_id in self._waiting if self.stops(view_id)]:
            with conn.transaction():
                self._become(conn, view_id, self._waiting[view_id])
            del self._waiting[view_id]
        self._schedule()

    def run(self, conn: Connection, views: Collection[int]) -> None:
        """Set views to ``running``, with a number of statements that does not grow with them."""
        if not views:
            return
        with conn.transaction():
            locked = states.locked(conn, views)
            states.run(conn, [view_id for view_id in views if view_id not in locked])
        for view_id in views:
            self._waiting.pop(view_id, None)
        self._waiting |= dict.fromkeys(locked, _Wanted(Status.RUNNING, None, None))
        self._schedule()

    def written(self, view_id: int) -> None:
        """Forget what waits for a view, whose status was written otherwise."""
        self._waiting.pop(view_id, None)

    def retry(self, conn: Connection) -> None:
        """Write what waits, as far as the rows are free, if it is time to."""
        if clock.monotonic() >= self._due:
            self._write(conn)

    def _write(self, conn: Connection) -> None:
        with conn.transaction():
            locked = states.locked(conn, self._waiting)
            # Up to the first one that is locked.
            free = list(itertools.takewhile(lambda at: at not in locked, self._waiting))
            for view_id in free:
                self._become(conn, view_id, self._waiting[view_id])
        for view_id in free:
            del self._waiting[view_id]
        if locked:
            _log.info("status waits for a row that is locked", views=sorted(locked))
        self._schedule()

    def _become(self, conn: Connection, view_id: int, wanted: _Wanted) -> None:
        states.become(conn, view_id, wanted.to, wanted.error)
        if wanted.also is not None:
            wanted.also(conn, view_id)

    def _schedule(self) -> None:
        self._due = clock.monotonic() + _RETRY_S if self._waiting else math.inf
