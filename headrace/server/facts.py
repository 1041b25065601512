"""What is known of one client connection, for SHOW: facts as they are at a moment, and counts."""

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
class Counts:
    """What has gone through, of one session or of many."""

    sessions: int = 0
    """That have logged in."""
    queries: int = 0
    received: int = 0
    """Bytes from clients."""
    sent: int = 0
    """Bytes to clients."""
    calls: int = 0
    """Calls of ours that were carried out here."""
    call_errors: int = 0
    call_us: int = 0
    """Microseconds in them."""

    def add(self, other: Counts) -> None:
        """Count what another has counted as well."""
        self.sessions += other.sessions
        self.queries += other.queries
        self.received += other.received
        self.sent += other.sent
        self.calls += other.calls
        self.call_errors += other.call_errors
        self.call_us += other.call_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One client connection; what it says of itself is not proven before it is ``let_in``."""

    id: int
    let_in: bool
    admin: bool
    user: str
    database: str
    application: str
    state: str
    """login, active (the source owes an answer, or a call is under way) or idle."""
    transaction: str | None
    """idle, open or failed; None: the session is not read along."""
    call: str | None
    """The procedure of ours that is carried out."""
    call_ms: int | None
    since: datetime
    quiet_ms: int
    """Since the client has last sent anything."""
    pid: int | None
    """Of the source's process."""
    client: tuple[Address, Address]
    """Of the client's connection: its end, and ours."""
    server: tuple[Address, Address] | None
    """Of the source's: its end, and ours; None: there is none."""
    client_tls: str
    server_tls: str
    counts: Counts = field(default_factory=Counts)


class Meter:
    """Counts and clocks of one client connection."""

    def __init__(self, number: int) -> None:
        """``number`` is that of the connection."""
        self.let_in = False
        self.number = number
        self._client = _Ends()
        self._server: _Ends | None = None
        self._since, self._asked = clock.now(), clock.monotonic()
        self._counts = Counts()
        self._waits = False
        """Whether the client has spoken last."""
        self._call: tuple[str, float] | None = None
        """What is carried out for it, and since when."""

    def received(self, size: int) -> None:
        """The client has sent so many bytes."""
        self._counts.received += size
        self._waits = True
        self._asked = clock.monotonic()

    def sent(self, size: int) -> None:
        """It was sent so many."""
        self._counts.sent += size
        self._waits = False

    def begins(self, call: str) -> None:
        """This is carried out for it."""
        self._call = call, clock.monotonic()

    def ends(self, *, failed: bool) -> None:
        """It is done."""
        assert self._call is not None, "it has begun"
        self._counts.calls += 1
        self._counts.call_errors += failed
        self._counts.call_us += round((clock.monotonic() - self._call[1]) * 1e6)
        self._call = None

    def meets_client(self, transport: asyncio.BaseTransport) -> None:
        """The client's connection is this one, or has begun to speak TLS."""
        self._client = _Ends.of(transport)

    def meets_server(self, transport: asyncio.BaseTransport | None) -> None:
        """The source's connection is this one; None: it has ended."""
        self._server = None if transport is None else _Ends.of(transport)

    def facts(self, session: Session) -> Facts:
        """What is known now, with what its session tells."""
        about, now, key = session.about, clock.monotonic(), session.key
        call, since = self._call or (None, now)
        owed = not session.pipeline.settled if about.ours else self._waits
        state = "active" if owed or call else "idle"
        status = _TRANSACTION.get(session.pipeline.status)
        server = self._server
        return Facts(
            id=self.number,
            let_in=self.let_in,
            admin=about.admin,
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
    """A connection, as it was when it began: later its socket may be gone."""

    other: Address = ("", 0)
    own: Address = ("", 0)
    tls: str = ""

    @classmethod
    def of(cls, transport: asyncio.BaseTransport) -> Self:
        """What ``transport`` tells."""
        other, own = (_end(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        return cls(other, own, _tls(transport))


def _tls(transport: asyncio.BaseTransport) -> str:
    """The protocol and the cipher of a connection; "" where it has none."""
    secured = transport.get_extra_info("ssl_object")
    if secured is None:
        return ""
    chosen = secured.cipher()
    return f"{secured.version()}/{chosen[0]}" if chosen else str(secured.version())


def _end(name: object) -> Address:
    """An end of a connection, as a socket tells it."""
    if isinstance(name, tuple) and len(name) > 1:
        return str(name[0]), int(name[1])
    return "unix", 0
