"""State shared by all clients of the port: connections, cancel keys, rules and the source.

A client counts as a session, and against ``connections_max``, once it has sent its startup packet.
Until it has logged in ``process/admission.py`` counts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from headrace.config import Settings
from headrace.errors import TransientError
from headrace.process.admission import Admission, Noise
from headrace.server import tls
from headrace.server.context import CallContext
from headrace.server.facts import ClientCounts, Facts
from headrace.server.flow import Rules
from headrace.server.messages import ResultSet, cancel_request
from headrace.server.procedures import Invocation
from headrace.server.roles import Roles
from headrace.server.upstream import SourceAddress

_CANCEL_TIMEOUT_S: Final = 10.0

_log = structlog.get_logger(__name__)


Report = Callable[[str], None]
Runner = Callable[[Invocation, CallContext, Report], Awaitable[ResultSet | None]]


class Guest(Protocol):
    """A client, as the rest of the server sees it."""

    @property
    def facts(self) -> Facts:
        """Facts about the client."""

    @property
    def call(self) -> asyncio.Task[None] | None:
        """The Headrace call that the client waits for."""

    def interrupt(self) -> None:
        """Cancel that call."""

    def end(self, message: str) -> None:
        """Send the client the reason, and close."""

    def kill(self) -> None:
        """End the client by command, and its running statement on the source."""


Total = tuple[str, str, bool]
"""(database, role, whether for present sessions)"""


class Port:
    """State shared by the clients of one port."""

    def __init__(
        self, settings: Settings, target: SourceAddress, database: str, runner: Runner
    ) -> None:
        """Take ``runner``, which runs a call; its errors are sent to the client."""
        self.settings = settings
        self.target = target
        self.runner = runner
        self.roles = Roles(settings.source)
        self.tls = tls.server_context(settings)
        self.binding = tls.own_binding(settings)
        self._database = database
        self.rules = self._rules()
        self.noise = Noise()
        self.admission = Admission(settings.logins_per_address_max, settings.connections_max)
        self.connections: set[Guest] = set()
        self.sessions: set[Guest] = set()
        self.keys: dict[bytes, Guest] = {}
        self._numbers = itertools.count(1)
        self._ended: dict[tuple[str, str], ClientCounts] = {}
        """Counts of ended sessions by database and role; each had logged in."""
        self._tasks: set[asyncio.Task[None]] = set()

    def _rules(self) -> Rules:
        settings = self.settings
        return Rules(
            database=self._database,
            nonce=lambda: secrets.token_hex(16),
            tls=self.tls is not None,
            tls_required=settings.tls_required,
            allow_trust=settings.allow_trust,
            full=lambda: len(self.sessions) >= self.settings.connections_max,
            statement_bytes_max=settings.statement_bytes_max,
        )

    def reconfigure(
        self,
        settings: Settings,
        target: SourceAddress,
        context: ssl.SSLContext | None,
        binding: bytes,
    ) -> None:
        """Use other settings for new connections."""
        self.settings, self.target, self.tls, self.binding = settings, target, context, binding
        self.rules = self._rules()
        self.admission.limit(settings.logins_per_address_max, settings.connections_max)

    def number(self) -> int:
        """Return the number of a new client."""
        return next(self._numbers)

    def facts(self) -> list[Facts]:
        """Return the facts about each connected client."""
        return [guest.facts for guest in self.connections]

    def totals(self) -> dict[Total, ClientCounts]:
        """Return the counts since the start, of ended and of present sessions."""
        out = {(*key, False): counts for key, counts in self._ended.items()}
        for facts in self.facts():
            if facts.let_in:
                out.setdefault((facts.database, facts.user, True), ClientCounts()).add(facts.counts)
        return out

    def ended(self, facts: Facts) -> None:
        """Add the counts of a client that has gone."""
        if facts.let_in:
            self._ended.setdefault((facts.database, facts.user), ClientCounts()).add(facts.counts)

    def kill(self, number: int) -> bool:
        """End the client with that number; return whether there is one."""
        found = next((guest for guest in self.connections if guest.facts.id == number), None)
        if found is None:
            return False
        found.kill()
        return True

    def cancel(self, key: bytes, packet: bytes) -> None:
        """Cancel the Headrace call of ``key``; if none runs, pass the request to the source."""
        client = self.keys.get(key)
        if client and client.call:
            client.interrupt()
            return
        self.spawn(self._cancel_upstream(packet))

    def cancel_upstream(self, key: bytes) -> None:
        """Cancel the running statement of session ``key`` on the source."""
        self.spawn(self._cancel_upstream(cancel_request(key)))

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
            # The server closes the connection once it has read the request.
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await gone.wait()
        transport.close()


class _Silent(asyncio.Protocol):
    """The connection of a cancel request, which is never answered."""

    def __init__(self, gone: asyncio.Event) -> None:
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the server has closed the connection."""
        self._gone.set()
