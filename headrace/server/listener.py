"""Accepts clients, and ends all of them at shutdown."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from headrace.config import Settings, address
from headrace.server import tls
from headrace.server.client import Client
from headrace.server.port import Port, Runner
from headrace.server.upstream import SourceAddress

_CALLS_TIMEOUT_S: Final = 10.0

_log = structlog.get_logger(__name__)


class Listener:
    """Accepts clients and relays their sessions to the source."""

    def __init__(
        self, settings: Settings, target: SourceAddress, database: str, runner: Runner
    ) -> None:
        """Take ``runner``, which runs a call; its errors are sent to the client."""
        self.port = Port(settings, target, database, runner)
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; return host and port (port 0 in the settings takes a free one).

        Raises:
            PrerequisiteError: the TLS configuration cannot work.
        """
        host, port = address(self.port.settings.listen)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.port.noise.on_exception)
        self.port.target = await tls.checked(self.port.settings, self.port.target, self.port.roles)
        self._server = await loop.create_server(lambda: Client(self.port), host, port)
        name = self._server.sockets[0].getsockname()
        return host, int(name[1])

    async def close(self) -> None:
        """Stop listening and end all sessions; running calls are cancelled first."""
        if self._server:
            self._server.close()
        clients = list(self.port.connections)
        for client in clients:
            client.interrupt()
        calls = [c.call for c in clients if c.call]
        if calls:
            await asyncio.wait(calls, timeout=_CALLS_TIMEOUT_S)
        for client in clients:
            client.end("terminating connection because headrace is shutting down")
        await self.port.roles.close()
