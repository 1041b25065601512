"""Facts about one client connection: its current state, and counters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Self

from headrace import clock
from headrace.server.protocol import Session

Address = tuple[str, int]
_TRANSACTION: Final = {b"I": "idle", b"T": "open", b"E": "failed"}


@dataclass(slots=True)
class ClientCounts:
    """Counters of one session or of many."""

    sessions: int = 0
    """Sessions that have logged in."""
    queries: int = 0
    received: int = 0
    """Bytes from clients."""
    sent: int = 0
    """Bytes to clients."""
    calls: int = 0
    """Headrace calls carried out."""
    call_errors: int = 0
    call_us: int = 0
    """Microseconds spent in them."""

    def add(self, other: ClientCounts) -> None:
        """Add the counts of ``other``."""
        self.sessions += other.sessions
        self.queries += other.queries
        self.received += other.received
        self.sent += other.sent
        self.calls += other.calls
        self.call_errors += other.call_errors
        self.call_us += other.call_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about one client connection; before ``let_in`` its identity is only a claim."""

    id: int
    let_in: bool
    user: str
    database: str
    application: str
    state: str
    """login, active (the source owes an answer, or a call is running) or idle."""
    transaction: str | None
    """idle, open or failed; None: the session's messages are not inspected."""
    call: str | None
    """Name of the running call."""
    call_ms: int | None
    since: datetime
    quiet_ms: int
    """Milliseconds since the client last sent anything."""
    pid: int | None
    """Of the source's backend."""
    client: tuple[Address, Address]
    """Remote and local address of the client's connection."""
    server: tuple[Address, Address] | None
    """Remote and local address of the source's connection; None: there is none."""
    client_tls: str
    server_tls: str
    counts: ClientCounts = field(default_factory=ClientCounts)


class ClientMeter:
    """Counters and clocks of one client connection."""

    def __init__(self, number: int) -> None:
        self.let_in = False
        self.number = number
        self._client = _Ends()
        self._server: _Ends | None = None
        self._since, self._asked = clock.now(), clock.monotonic()
        self._counts = ClientCounts()
        self._waits = False
        """Whether the client sent the last bytes."""
        self._call: tuple[str, float] | None = None
        """Name of the running call, and when it began."""

    def received(self, size: int) -> None:
        """Count bytes from the client."""
        self._counts.received += size
        self._waits = True
        self._asked = clock.monotonic()

    def sent(self, size: int) -> None:
        """Count bytes to the client."""
        self._counts.sent += size
        self._waits = False

    def begins(self, call: str) -> None:
        """Record the start of a call."""
        self._call = call, clock.monotonic()

    def ends(self, *, failed: bool) -> None:
        """Record the end of the call."""
        assert self._call is not None, "it has begun"
        self._counts.calls += 1
        self._counts.call_errors += failed
        self._counts.call_us += round((clock.monotonic() - self._call[1]) * 1e6)
        self._call = None

    def meets_client(self, transport: asyncio.BaseTransport) -> None:
        """Record the client's connection, at its start and after TLS has begun."""
        self._client = _Ends.of(transport)

    def meets_server(self, transport: asyncio.BaseTransport | None) -> None:
        """Record the source's connection; None: it has ended."""
        self._server = None if transport is None else _Ends.of(transport)

    def facts(self, session: Session) -> Facts:
        """Return the current facts, with those of ``session``."""
        about, now, key = session.about, clock.monotonic(), session.key
        call, since = self._call or (None, now)
        owed = not session.pipeline.settled if about.ours else self._waits
        state = "active" if owed or call else "idle"
        status = _TRANSACTION.get(session.pipeline.status)
        server = self._server
        return Facts(
            id=self.number,
            let_in=self.let_in,
            user=about.user,
            database=about.database,
            application=about.application,
            state=state if self.let_in else "login",
            transaction=status if about.ours else None,
            call=call,
            call_ms=None if call is None else round((now - since) * 1e3),
            since=self._since,
            quiet_ms=round((now - self._asked) * 1e3),
            pid=int.from_bytes(key[:4], "big") if server is not None and key else None,
            client=(self._client.other, self._client.own),
            server=None if server is None else (server.other, server.own),
            client_tls=self._client.tls,
            server_tls="" if server is None else server.tls,
            counts=replace(self._counts, queries=session.pipeline.asked, sessions=int(self.let_in)),
        )


@dataclass(frozen=True, slots=True)
class _Ends:
    """Addresses and TLS of a connection, recorded at its start: later its socket may be gone."""

    other: Address = ("", 0)
    own: Address = ("", 0)
    tls: str = ""

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Self:
        """Return those of ``transport``."""
        other, own = (_end(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        return cls(other, own, _tls(transport))


def _tls(transport: asyncio.BaseTransport) -> str:
    """Return the TLS version and cipher of a connection; "" without TLS."""
    secured = transport.get_extra_info("ssl_object")
    if secured is None:
        return ""
    chosen = secured.cipher()
    return f"{secured.version()}/{chosen[0]}" if chosen else str(secured.version())


def _end(name: object) -> Address:
    """Return a socket's name as an address; ("unix", 0) for a Unix socket."""
    if isinstance(name, tuple) and len(name) > 1:
        return str(name[0]), int(name[1])
    return "unix", 0
