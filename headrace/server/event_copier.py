"""Copies the events of all processes on this machine into ``headrace.events``.

It follows their files (``event_files.py``), which outlive a process and a database that cannot be
reached.  While no event comes, nothing is read from the database, and nothing is written.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Final

import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.event_files import EventTail, LoggedEvent, remove_old
from headrace.postgres import connect, failures
from headrace.process import tasks
from headrace.sql import event_rows

_LOOK_S: Final = 1.0
_MOST: Final = 500
"""Limit of events that are written at once, each second."""
_FORGET_S: Final = 60.0
_OVERLAP: Final = timedelta(minutes=1)
"""Time before the newest row from which events are read again after a start: the threads of a
process may write their events in another order."""
_GIVES_WAY: Final = {"lock_timeout": "300ms"}

_log = structlog.get_logger(__name__)


class EventCopier:
    """The copier of one engine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tail = EventTail(settings.events_dir)
        self._newest: dict[str, datetime] | None = None
        """Time of the newest row of each process at the start; None: unknown.  Empty once the
        events from before the start are written."""
        self._waiting: list[LoggedEvent] = []
        """Events that were read, and are not known to be written."""
        self._forgotten = clock.monotonic()
        self._failed = False
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start copying."""
        self._main = asyncio.create_task(tasks.forever("events", self._serve, _LOOK_S))

    async def stop(self) -> None:
        """Stop; the next process copies the rest."""
        await tasks.end(self._main)
        self._tail.close()

    async def _serve(self) -> None:
        await asyncio.to_thread(remove_old, self._settings.events_dir)
        while True:
            await self._copy()
            await asyncio.sleep(_LOOK_S)

    async def _copy(self) -> None:
        if not self._waiting:
            self._waiting = await asyncio.to_thread(self._tail.read, _MOST)
        if not self._waiting:
            return
        name, source = "headrace events", self._settings.source
        try:
            async with await connect.async_session(source, name=name, settings=_GIVES_WAY) as conn:
                await self._write(conn)
        except psycopg.errors.LockNotAvailable:
            pass  # they are written in the next round
        except (psycopg.Error, HeadraceError) as error:
            lost = isinstance(error, psycopg.Error) and not failures.is_transient(error)
            # An event for each failure would be another event to write.
            if not self._failed and lost:
                _log.error("events lost", count=len(self._waiting), reason=str(error).strip())
            elif not self._failed:
                _log.warning("events not recorded", reason=str(error).strip())
            self._failed = True
            if lost:
                self._waiting = []  # events that cannot be written must not keep later ones back
        else:
            self._failed = False

    async def _write(self, conn: event_rows.AsyncConnection) -> None:
        if not await event_rows.is_ours(conn):
            return  # the server is about to end
        if self._newest is None:
            self._newest = await event_rows.newest(conn)
        known = self._newest
        await event_rows.put(
            conn,
            [
                event
                for event in self._waiting
                if event.process not in known or event.at > known[event.process] - _OVERLAP
            ],
        )
        if len(self._waiting) < _MOST:
            self._newest = {}
        self._waiting = []
        if clock.monotonic() - self._forgotten > _FORGET_S:
            await event_rows.forget(conn)
            self._forgotten = clock.monotonic()
