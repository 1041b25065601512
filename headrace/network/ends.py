"""Endpoints at which a worker listens: on this machine, or on another one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyarrow import flight

from headrace.process.keys import HOST_NAME, KeyPair

_ALIVE: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A new link opens its own connection, and does not wait for one that is stuck.
    ("grpc.use_local_subchannel_pool", 1),
)
"""gRPC closes a connection without answers, and fails the calls that wait on it."""


@dataclass(frozen=True, slots=True)
class Near:
    """Unix socket on this machine that only our user may open.  Both ends see the same files."""

    path: Path

    @property
    def far(self) -> bool:
        """Whether files have to be sent, and rows are better compressed."""
        return False

    @property
    def uri(self) -> str:
        """Address in gRPC's notation."""
        return f"grpc+unix://{self.path}"

    def client(self) -> Any:
        """Connect to it."""
        return flight.connect(self.uri)

    def serving(self) -> dict[str, Any]:
        """Return the server's arguments for listening there; remove an old socket."""
        self.path.unlink(missing_ok=True)
        return {"location": self.uri}


@dataclass(frozen=True, slots=True)
class Relayed(Near):
    """Unix socket to which ``tls_listener.py`` relays the connections of another machine."""

    @property
    def far(self) -> bool:
        """See ``Near``."""
        return True


@dataclass(frozen=True, slots=True)
class Far:
    """Endpoint on another machine: TLS over TCP.  Each end accepts only the other's certificate."""

    address: str
    """``HOST:PORT``."""
    other: bytes
    """Certificate that the other end must present, in PEM."""
    own: KeyPair

    @property
    def far(self) -> bool:
        """See ``Near``."""
        return True

    @property
    def uri(self) -> str:
        """See ``Near``."""
        return f"grpc+tls://{self.address}"

    def client(self) -> Any:
        """See ``Near``."""
        return flight.connect(
            self.uri,
            tls_root_certs=self.other,
            cert_chain=self.own.certificate,
            private_key=self.own.key,
            override_hostname=HOST_NAME,
            generic_options=list(_ALIVE),
        )


End = Near | Far
