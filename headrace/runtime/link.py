"""A connection over which views are written, by one thread.

``list_views()`` hears of us by what is asked there every second.  Its application name says since
when a batch is under way, where that takes long.  So nothing is written while there is nothing to
do.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any, Final

import psycopg

from headrace.config import Settings
from headrace.postgres import connect
from headrace.postgres.pipelined import Pipelined
from headrace.sink.writer import SINK_SETTINGS, SinkWriter

Connection = psycopg.Connection[Any]

_BUSY_S: Final = 1.0
"""What takes no longer is not told."""


class SinkLink:
    """The connection of one sink thread; made anew after each loss."""

    def __init__(self, settings: Settings, name: str) -> None:
        """``name``: what the server knows it by.

        Raises:
            TransientError: the server cannot be reached now.
        """
        # What it keeps prepared is the pipelines' alone.
        self.sink: Final = connected(settings, name, SINK_SETTINGS, prepare=False)
        self.writer: Final = SinkWriter(self.sink)
        self.pipelined: Final = Pipelined(self.sink)
        self.pid: Final = self.sink.info.backend_pid
        self._name: Final = name
        self._busy = False

    def look(self, busy_s: float = 0.0) -> None:
        """Fail if the connection is lost, and let others see that we are here.

        ``busy_s``: for how long a batch has been under way.  The sink thread's.
        """
        busy = busy_s >= _BUSY_S
        if busy == self._busy:
            self.sink.execute("SELECT 1")
            return
        self.sink.execute(
            "SELECT pg_catalog.set_config('application_name', %s || CASE WHEN %s THEN"
            " ', busy since ' || pg_catalog.round(extract(epoch FROM"
            " pg_catalog.clock_timestamp())::numeric - %s::numeric, 1)"
            " ELSE '' END, false)",
            (self._name, busy, busy_s),
        )
        self._busy = busy

    def ready(self) -> None:
        """A batch is there to be written: none is stuck.  The sink thread's."""
        if self._busy:
            self.look()

    def interrupt(self) -> None:
        """Let whoever waits on the connection fail at once; from another thread."""
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self.sink.fileno())) as twin,
        ):
            twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection back.  REQUIRES: the sink thread has left it."""
        self.sink.close()


def connected(
    settings: Settings, name: str, more: dict[str, str], *, prepare: bool = True
) -> Connection:
    """A connection that waits for no lock of the user's longer than it may."""
    mine = more | {"lock_timeout": str(settings.lock_timeout_ms)}
    return connect.connect(settings.source, name=name, settings=mine, prepare=prepare)
