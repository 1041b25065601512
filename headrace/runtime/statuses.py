"""Statuses that wait to be written to the catalog.

The transaction of a call may have the row of its view for long: it waits for a lock that a user
holds on the result table, or builds an index.  The engine's thread serves all views, so it does not
wait for such a row: it writes the status once the row is free.

* Invariant: a view that stops because of another one is written before that one.  So after a crash
  in between, the cause is met again, and both stop.
"""

from __future__ import annotations

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
    error: HeadraceError | None = None
    also: Callable[[Connection, int], None] | None = None
    after: Collection[int] = ()
    """Views whose statuses come first."""


class Statuses:
    """The last status of each view whose row was locked; for the engine's thread."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Wanted] = {}
        self._told: set[int] = set()
        """Views that were logged as waiting."""
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
        *,
        after: Collection[int] = (),
    ) -> None:
        """Give a view another status, now or when its row is free.

        ``also`` is called with the view in the same transaction.  ``after``: views that stop
        because of this one.
        """
        self._waiting[view_id] = _Wanted(to, error, also, after)
        self._write(conn)

    def stops(self, view_id: int) -> bool:
        """Return whether a view has stopped that runs according to the catalog."""
        wanted = self._waiting.get(view_id)
        return wanted is not None and wanted.to is Status.ERROR

    def settle(self, conn: Connection, views: Collection[int]) -> None:
        """Write what waits for views, before anything else is made durable.

        It waits for locked rows.

        Raises:
            psycopg.Error: a row is locked for longer than ``lock_timeout_ms``.
        """
        for view_id in views:
            wanted = self._waiting.get(view_id)
            if wanted is None:
                continue
            self.settle(conn, wanted.after)
            with conn.transaction():
                self._become(conn, view_id, wanted)
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
        self._waiting |= dict.fromkeys(locked, _Wanted(Status.RUNNING))
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
            free = self._free(locked)
            for view_id in free:
                self._become(conn, view_id, self._waiting[view_id])
        for view_id in free:
            del self._waiting[view_id]
        if new := locked - self._told:
            _log.info("status waits for a row that is locked", views=sorted(new))
        self._told = locked
        self._schedule()

    def _free(self, locked: Collection[int]) -> list[int]:
        """Return the views that wait for no row, each after those that it comes after."""
        left = {i: wanted for i, wanted in self._waiting.items() if i not in locked}
        pending, found = set(self._waiting), list[int]()
        while ready := [i for i, wanted in left.items() if pending.isdisjoint(wanted.after)]:
            found += ready
            pending -= set(ready)
            for view_id in ready:
                del left[view_id]
        return found

    def _become(self, conn: Connection, view_id: int, wanted: _Wanted) -> None:
        states.become(conn, view_id, wanted.to, wanted.error)
        if wanted.also is not None:
            wanted.also(conn, view_id)

    def _schedule(self) -> None:
        self._due = clock.monotonic() + _RETRY_S if self._waiting else math.inf
