"""Where a worker listens, as either end knows it: on this machine, or on another one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyarrow import flight

from headrace.process.keys import HOST_NAME, KeyPair

_ALIVE: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A new link begins with a connection of its own, and does not wait for the one that is stuck.
    ("grpc.use_local_subchannel_pool", 1),
)
"""A transport on which nothing comes back is given up, and with it what waits on it."""


@dataclass(frozen=True, slots=True)
class Near:
    """On this machine: a Unix socket, which only we may open.  Both ends see the same files."""

    path: Path

    @property
    def far(self) -> bool:
        """Whether files have to be sent, and rows are better compressed."""
        return False

    @property
    def uri(self) -> str:
        """As gRPC has it."""
        return f"grpc+unix://{self.path}"

    def client(self) -> Any:
        """A connection to it."""
        return flight.connect(self.uri)

    def serving(self) -> dict[str, Any]:
        """How a server is told to listen there."""
        self.path.unlink(missing_ok=True)
        return {"location": self.uri}


@dataclass(frozen=True, slots=True)
class Relayed(Near):
    """A Unix socket to which ``tls_listener.py`` relays the connections of another machine."""

    @property
    def far(self) -> bool:
        """See ``Near``."""
        return True


@dataclass(frozen=True, slots=True)
class Far:
    """On another machine: TLS over TCP.  Each end shows its certificate, and takes one only."""

    address: str
    """``HOST:PORT``."""
    other: bytes
    """The certificate that the other end has to show, in PEM."""
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
