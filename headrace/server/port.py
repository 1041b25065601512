"""What all clients share: who is connected, which key cancels what, what they are relayed to.

A client is a session when it has sent its startup packet: only then it counts against
``connections_max``.  Until it has logged in it stands in the doorway (``doorway.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from headrace.config import Settings
from headrace.errors import TransientError
from headrace.server import tls
from headrace.server.context import CallContext
from headrace.server.doorway import Doorway, Noise
from headrace.server.flow import Rules
from headrace.server.messages import ResultSet
from headrace.server.procedures import Invocation
from headrace.server.roles import Roles
from headrace.server.upstream import SourceAddress

_CANCEL_TIMEOUT_S: Final = 10.0

_log = structlog.get_logger(__name__)


Report = Callable[[str], None]
Runner = Callable[[Invocation, CallContext, Report], Awaitable[ResultSet | None]]


class Guest(Protocol):
    """A client, as the others see it."""

    @property
    def call(self) -> asyncio.Task[None] | None:
        """The call of ours that it waits for."""

    def interrupt(self) -> None:
        """Cancel that call."""

    def end(self, message: str) -> None:
        """Tell it why, and close."""


class Port:
    """What the clients of one port have in common."""

    def __init__(
        self, settings: Settings, target: SourceAddress, database: str, runner: Runner
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
        self.doorway = Doorway(settings.logins_per_address_max, settings.connections_max)
        self.connections: set[Guest] = set()
        self.sessions: set[Guest] = set()
        self.keys: dict[bytes, Guest] = {}
        self._tasks: set[asyncio.Task[None]] = set()

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
