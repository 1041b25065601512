"""What all clients share: who is connected, which key cancels what, what they are relayed to.

A client is a session when it has sent its startup packet: only then it counts against
``connections_max``.  Until it has logged in ``process/admission.py`` counts it.
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
from headrace.server.admin import Carried
from headrace.server.context import CallContext
from headrace.server.facts import ClientCounts, Facts
from headrace.server.flow import Rules
from headrace.server.messages import ResultSet, cancel_request
from headrace.server.orders import Order
from headrace.server.procedures import Invocation
from headrace.server.roles import Roles
from headrace.server.upstream import SourceAddress

_CANCEL_TIMEOUT_S: Final = 10.0

_log = structlog.get_logger(__name__)


_ADMINS_MAX: Final = 20
"""Sessions of the admin database at once."""

Report = Callable[[str], None]
Carrier = Callable[[Order, str], Awaitable[Carried]]
Runner = Callable[[Invocation, CallContext, Report], Awaitable[ResultSet | None]]


class Guest(Protocol):
    """A client, as the others see it."""

    @property
    def facts(self) -> Facts:
        """What is known of it."""

    @property
    def call(self) -> asyncio.Task[None] | None:
        """The call of ours that it waits for."""

    def interrupt(self) -> None:
        """Cancel that call."""

    def end(self, message: str) -> None:
        """Tell it why, and close."""

    def kill(self) -> None:
        """End it by command, and what it is at on the source."""


Total = tuple[str, str, bool]
"""(database, role, of sessions that are there now)"""


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
        self._database = database
        self.rules = self._rules()
        self.carry: Carrier = _nobody
        """Carries out what is said to the admin database; set by who can."""
        self.noise = Noise()
        self.admission = Admission(settings.logins_per_address_max, settings.connections_max)
        self.connections: set[Guest] = set()
        self.sessions: set[Guest] = set()
        self.admins: set[Guest] = set()
        """Sessions of the admin database."""
        self.keys: dict[bytes, Guest] = {}
        self._numbers = itertools.count(1)
        self._ended: dict[tuple[str, str], ClientCounts] = {}
        """Of sessions that have ended, by database and role: the source has let in each."""
        self._tasks: set[asyncio.Task[None]] = set()

    def _rules(self) -> Rules:
        settings = self.settings
        return Rules(
            database=self._database,
            admin=settings.admin_database,
            nonce=lambda: secrets.token_hex(16),
            tls=self.tls is not None,
            tls_required=settings.tls_required,
            allow_trust=settings.allow_trust,
            full=self._full,
            statement_bytes_max=settings.statement_bytes_max,
        )

    def _full(self, admin: bool) -> bool:
        """Who ends sessions where there is no room for one more must find room himself."""
        if admin:
            return len(self.admins) >= _ADMINS_MAX
        return len(self.sessions) >= self.settings.connections_max

    def reconfigure(
        self,
        settings: Settings,
        target: SourceAddress,
        context: ssl.SSLContext | None,
        binding: bytes,
    ) -> None:
        """Other settings, for whoever connects from now on."""
        self.settings, self.target, self.tls, self.binding = settings, target, context, binding
        self.rules = self._rules()
        self.admission.limit(settings.logins_per_address_max, settings.connections_max)

    def number(self) -> int:
        """The number of a new client."""
        return next(self._numbers)

    def facts(self) -> list[Facts]:
        """What is known of each client that is there."""
        return [guest.facts for guest in self.connections]

    def totals(self) -> dict[Total, ClientCounts]:
        """What has gone through since the start."""
        out = {(*key, False): counts for key, counts in self._ended.items()}
        for facts in self.facts():
            if facts.let_in and not facts.admin:
                out.setdefault((facts.database, facts.user, True), ClientCounts()).add(facts.counts)
        return out

    def ended(self, facts: Facts) -> None:
        """A client has gone; what it has done still counts."""
        if facts.let_in and not facts.admin:
            self._ended.setdefault((facts.database, facts.user), ClientCounts()).add(facts.counts)

    def kill(self, number: int) -> bool:
        """End the client of that number; whether there is one."""
        found = next((guest for guest in self.connections if guest.facts.id == number), None)
        if found is None:
            return False
        found.kill()
        return True

    def cancel(self, key: bytes, packet: bytes) -> None:
        """A cancel request: for a call of ours if one runs, else for the source."""
        client = self.keys.get(key)
        if client and client.call:
            client.interrupt()
            return
        self.spawn(self._cancel_upstream(packet))

    def cancel_upstream(self, key: bytes) -> None:
        """Cancel what the session of ``key`` is at on the source."""
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
            # The server closes once it has read the request.
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await gone.wait()
        transport.close()


async def _nobody(order: Order, login: str) -> Carried:
    raise TransientError("the admin database is not there yet")


class _Silent(asyncio.Protocol):
    """The connection of a cancel request: nothing is ever answered."""

    def __init__(self, gone: asyncio.Event) -> None:
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed it."""
        self._gone.set()
