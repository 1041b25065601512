"""Which of the source's addresses is the one that ``target_session_attrs`` asks for.

A name may have several addresses too, such as that of a group of servers.

A relayed session logs in as its client, so only the source's answer to that login would say whether
the server is a primary.  The engine asks beforehand, with a connection of its own.

Source: Postgres manual, "Database Connection Control Functions".
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import psycopg

from headrace import clock
from headrace.errors import TransientError
from headrace.postgres import connect

_FRESH_S: Final = 1.0
"""Seconds for which an answer counts: servers change their roles rarely, but at any time."""


@dataclass(frozen=True, slots=True)
class SourceServer:
    """One server of the source."""

    host: str
    """Its name, by which its certificate is checked; or the directory of its socket."""
    port: int
    address: str = ""
    """The address that the name stands for here; "": that of the name."""


class Route:
    """The address of the server that libpq would choose; for one event loop."""

    def __init__(self, dsn: str) -> None:
        """Create it for a DSN with several addresses, or a name."""
        self._dsn: Final = dsn
        self._asking: Final = asyncio.Lock()
        self._found: SourceServer | TransientError | None = None
        """The last answer; None: it must be asked again."""
        self._until = 0.0

    async def find(self) -> SourceServer:
        """Return the server.

        Raises:
            TransientError: no server is as asked for now.
        """
        # Callers that wait meanwhile share the answer, also that there is none.
        async with self._asking:
            if self._found is None or clock.monotonic() >= self._until:
                try:
                    self._found = await self._ask()
                except TransientError as error:
                    self._found = error
                self._until = clock.monotonic() + _FRESH_S
            if isinstance(self._found, TransientError):
                raise self._found
            return self._found

    def forget(self) -> None:
        """Ask again next time: the address does not answer."""
        self._found = None

    async def _ask(self) -> SourceServer:
        try:
            conn = await connect.async_session(self._dsn, name="headrace route")
        except psycopg.Error as error:
            raise TransientError(
                "could not connect to the source database", detail=f"{str(error).strip()}."
            ) from error
        async with conn:
            return SourceServer(conn.info.host, conn.info.port, conn.info.hostaddr)
