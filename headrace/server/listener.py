"""The client port: who is connected, which key cancels what, and the end of all of them.

A client is a session when it has sent its startup packet: only then it counts against
``connections_max``.  Until it has logged in it stands in the doorway (``doorway.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable
from typing import Final

import structlog

from headrace.config import Settings, address
from headrace.errors import TransientError
from headrace.server import tls
from headrace.server.client import Client, Runner
from headrace.server.doorway import Doorway, Noise
from headrace.server.protocol import Rules
from headrace.server.roles import Roles
from headrace.server.upstream import Target

_CANCEL_TIMEOUT_S: Final = 10.0

_log = structlog.get_logger(__name__)


class Listener:
    """Accepts clients and relays their sessions to the source."""

    def __init__(
        self, settings: Settings, target: Target, database: str, runner: Runner
    ) -> None:
        """``runner`` carries out a call; its errors become the client's."""
        self.settings = settings
        self.target = target
        self.runner = runner
        self.roles = Roles(settings.source)
        self.tls = tls.server_context(settings)
        self.binding = tls.own_binding(settings)
        self.rules = Rules(
            database=database,
            nonce=lambda: secrets.token_hex(16),
            tls=self.tls is not None,
            tls_required=settings.tls_required,
            allow_trust=settings.allow_trust,
            full=lambda: len(self.sessions) >= settings.connections_max,
            statement_bytes_max=settings.statement_bytes_max,
        )
        self.noise = Noise()
        self.doorway = Doorway(
            settings.logins_per_address_max, settings.connections_max
        )
        self.connections: set[Client] = set()
        self.sessions: set[Client] = set()
        self.keys: dict[bytes, Client] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address (port 0 in the settings takes a free one).

        Raises:
            PrerequisiteError: what is configured for TLS cannot work.
        """
        host, port = address(self.settings.listen)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.noise.on_exception)
        self.target = await tls.checked(self.settings, self.target, self.roles)
        self._server = await loop.create_server(lambda: Client(self), host, port)
        name = self._server.sockets[0].getsockname()
        return host, int(name[1])

    async def close(self) -> None:
        """Stop listening and end all sessions; running calls are cancelled first."""
        if self._server:
            self._server.close()
        clients = list(self.connections)
        for client in clients:
            client.interrupt()
        calls = [c.call for c in clients if c.call]
        if calls:
            await asyncio.wait(calls, timeout=_CANCEL_TIMEOUT_S)
        for client in clients:
            client.end("terminating connection because headrace is shutting down")
        await self.roles.close()

    def cancel(self, key: bytes, packet: bytes) -> None:
        """A cancel request: for a call of ours if one runs, else for the source."""
        client = self.keys.get(key)
        if client and client.call:
            client.interrupt()
            return
        self.spawn(self._cancel_upstream(packet))

    def spawn(self, work: Awaitable[None]) -> None:
        """Run ``work`` in the background, and keep it referenced."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _cancel_upstream(self, packet: bytes) -> None:
        gone = asyncio.Event()
        upstream = _Silent(gone)
        try:
            transport, _ = await self.target.open(upstream)
        except TransientError as error:
            _log.warning("cancel request not delivered", reason=error.message)
            return
        transport.write(packet)
        with contextlib.suppress(TimeoutError):
            # The server closes once it has read the request.
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await gone.wait()
        transport.close()


class _Silent(asyncio.Protocol):
    """The connection of a cancel request: nothing is ever answered."""

    def __init__(self, gone: asyncio.Event) -> None:
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed it."""
        self._gone.set()
