"""Actions that a session (``protocol.py``) asks its listener to do, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.server.context import CallContext
from headrace.server.procedures import Invocation


@dataclass(frozen=True, slots=True)
class ToClient:
    """Send to the client."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ToServer:
    """Send to the source, once connected."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the source for this session; then call ``connected``."""


@dataclass(frozen=True, slots=True)
class StartTls:
    """Begin TLS with the client; answer with ``tls_started``."""

    first: bytes = b""
    """First bytes of a handshake that the client began unasked (sslnegotiation=direct)."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Find the SCRAM verifier of ``user``; answer with ``verifier_found``."""

    user: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the session of ``key``; ``packet`` is the request to pass to the source."""

    key: bytes
    packet: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """Report that the client has logged in; ``key`` identifies its cancel requests."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """Run the call of a session that logged in as ``login``; then ``finish`` or ``fail``."""

    invocation: Invocation
    context: CallContext
    login: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close both connections after the queued bytes are sent."""

    reason: str = field(default="", compare=False)
    """Reason for the log, if the client violated the protocol."""


Begun = Connect | StartTls | Verify | Run
"""Actions that are started here and finish later."""
Action = ToClient | ToServer | Cancel | Ready | Close | Begun
