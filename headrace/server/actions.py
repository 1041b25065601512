"""What a session asks its listener to do (``protocol.py``), in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.server.context import CallContext
from headrace.server.orders import Order
from headrace.server.procedures import Invocation


@dataclass(frozen=True, slots=True)
class ToClient:
    """Send to the client."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ToServer:
    """Send to the source (after connecting, if that is still under way)."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the source for this session; then ``connected``."""


@dataclass(frozen=True, slots=True)
class StartTls:
    """Begin TLS with the client; answer with ``tls_started``."""

    first: bytes = b""
    """What has come of its handshake, which was not asked for (sslnegotiation=direct)."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Find the SCRAM verifier of ``user``; answer with ``verifier_found``."""

    user: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancel request for the session of ``key``; ``packet`` is for the source."""

    key: bytes
    packet: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """The client has logged in; ``key`` is what its cancel requests carry."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """Carry out the call of who logged in as ``login``; then ``finish`` or ``fail``."""

    invocation: Invocation
    context: CallContext
    login: str


@dataclass(frozen=True, slots=True)
class Find:
    """Find whether the source has a database of that name; answer with ``database_found``."""

    database: str


@dataclass(frozen=True, slots=True)
class Detach:
    """The source is not needed any more: its connection ends, the client's stays."""


@dataclass(frozen=True, slots=True)
class Carry:
    """Carry out a command of who logged in as ``login``; then ``carried_out`` or ``fail``."""

    order: Order
    login: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close both connections, after what was sent before."""

    reason: str = field(default="", compare=False)
    """Of a client that does not speak our protocol: for the log."""


Begun = Connect | StartTls | Verify | Run | Find | Detach | Carry
"""What takes its time."""
Action = ToClient | ToServer | Cancel | Ready | Close | Begun
