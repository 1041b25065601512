"""The connection over which one thread writes views.

``list_views()`` reads the connection's entry in pg_stat_activity, which each look renews, every
second.  The application name carries the watermark (``watermark.py``) and, if a batch takes long,
the time when it began.  So an idle engine writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from typing import Any, Final, Protocol

import psycopg

from headrace import clock
from headrace.config import Settings
from headrace.postgres import connect
from headrace.postgres.pipelined import Pipelined
from headrace.sink.writer import SINK_SETTINGS, SinkWriter
from headrace.sql import covered

Connection = psycopg.Connection[Any]

LOOK_S: Final = 1.0
"""Seconds between checks of the connection; if it is lost, so may be the advisory lock."""
_BUSY_S: Final = 1.0
"""Seconds; a shorter batch is not published."""
# At most 63 bytes, or the server cuts it: both times have one decimal.
_LOOK: Final = """
SELECT pg_catalog.set_config('application_name', %s || CASE WHEN %s THEN ' busy ' ||
           pg_catalog.round(extract(epoch FROM pg_catalog.clock_timestamp())::numeric - %s::numeric, 1)
           ELSE '' END, false),
       extract(epoch FROM pg_catalog.clock_timestamp())::float8,
       pg_catalog.pg_current_wal_lsn() - '0/0'::pg_lsn,
       ARRAY(SELECT l.objid::bigint FROM pg_catalog.pg_locks l
              WHERE l.locktype = 'advisory' AND l.classid = %s AND l.objsubid = 2 AND l.granted
                AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d
                                   WHERE d.datname = pg_catalog.current_database()))"""


@dataclass(frozen=True, slots=True)
class Look:
    """Result of a look at the connection."""

    at: float
    """Server time, in seconds since 1970."""
    wal: int
    """End of the server's WAL."""
    asked: frozenset[int]
    """Views whose coverage a session asks for (``covered.asked_as``)."""


class Published(Protocol):
    """Position of the result tables, for a look at the connection (``watermark.py``)."""

    def text(self) -> str:
        """Return the position as the application name carries it; '' while it is not known."""

    def sample(self, at: float, wal: int) -> None:
        """Note the end ``wal`` of the server's WAL at time ``at`` on its clock."""


class CoverageWriter(Protocol):
    """Coverage of views for the sessions that ask for it (``coverage.py``)."""

    def restart(self) -> None:
        """Forget what was read over the earlier connection."""

    def look(self, conn: Connection, at: float, asked: frozenset[int]) -> None:
        """Store how far the views in ``asked`` are; ``at``: the server's time now."""


class SinkLink:
    """The connection of one sink thread; created anew after each loss."""

    def __init__(self, settings: Settings, name: str) -> None:
        """Connect; ``name`` is the application name.

        Raises:
            TransientError: the server cannot be reached now.
        """
        # Only the pipelines use prepared statements.
        self.sink: Final = connected(settings, name, SINK_SETTINGS, prepare=False)
        self.writer: Final = SinkWriter(self.sink)
        self.pipelined: Final = Pipelined(self.sink)
        self.pid: Final = self.sink.info.backend_pid
        self.lock_timeout_ms: Final = settings.lock_timeout_ms
        self._name: Final = name
        self._busy = False
        self._looked_at = 0.0

    def look(self, busy_s: float = 0.0, watermark: str = "") -> Look:
        """Publish the watermark and renew the entry; fail if the connection is lost.

        ``busy_s``: seconds since the batch in flight began.  For the sink thread.
        """
        busy = busy_s >= _BUSY_S
        row = self.sink.execute(
            _LOOK,
            (" ".join(filter(None, (self._name, watermark))), busy, busy_s, covered.ASK),
        ).fetchone()
        assert row is not None, "it has no FROM"
        self._busy = busy
        self._looked_at = clock.monotonic()
        return Look(float(row[1]), int(row[2]), frozenset(row[3]))

    @property
    def due(self) -> bool:
        """Whether to look before the next batch is written: the last look is old, or says busy."""
        return self._busy or clock.monotonic() - self._looked_at >= LOOK_S

    def interrupt(self) -> None:
        """Have the thread that waits on the connection fail at once; for another thread."""
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.sink.fileno())) as twin,
        ):
            twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection.  REQUIRES: the sink thread no longer uses it."""
        self.sink.close()


def connected(
    settings: Settings, name: str, more: dict[str, str], *, prepare: bool = True
) -> Connection:
    """Return a connection whose waits for users' locks are limited by ``lock_timeout_ms``."""
    mine = more | {"lock_timeout": str(settings.lock_timeout_ms)}
    return connect.connect(settings.source, name=name, settings=mine, prepare=prepare)
