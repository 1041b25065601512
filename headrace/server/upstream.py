"""Address of the source, and how relayed sessions connect to it.

The engine's own credentials in the DSN (password, client certificate) are never used here: a
relayed session logs in as the role that the client names, and the source decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from headrace.errors import TransientError
from headrace.process.admission import tune
from headrace.server.messages import SSL_REQUEST
from headrace.server.route import Route, SourceServer

CONNECT_TIMEOUT_S: Final = 10.0
ALPN: Final = "postgresql"
"""Name of the protocol in ALPN."""


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """The source's addresses (tried in order), and how its TLS is checked."""

    addresses: tuple[tuple[str, int], ...]
    sslmode: str = "prefer"
    sslrootcert: str = ""
    direct: bool = False
    """TLS from the first byte on (sslnegotiation=direct)."""
    pinned: bool = False
    """Whether the source must speak TLS, regardless of sslmode, because it has done so."""
    route: Route | None = field(default=None, compare=False)
    """Finds the one to take, where ``target_session_attrs`` decides."""

    @classmethod
    def of(cls, dsn: str) -> Self:
        """Parse a libpq DSN, with libpq's own environment and defaults."""
        values = {o.keyword.decode(): (o.val or b"").decode() for o in pq.Conninfo.get_defaults()}
        given = conninfo_to_dict(dsn)
        values |= {k: str(v) for k, v in given.items() if v is not None}
        names = values.get("host", "").split(",")
        numbers = values.get("hostaddr", "").split(",")
        hosts = numbers if any(numbers) else names
        if hosts == [""]:
            hosts = ["/var/run/postgresql"]
        ports = (values.get("port") or "5432").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        addresses = tuple((host, int(port)) for host, port in zip(hosts, ports, strict=True))
        named = not any(numbers) and not all(map(_is_one, names))
        several = len(addresses) > 1 or named
        chosen = several and values.get("target_session_attrs", "any") != "any"
        return cls(
            addresses,
            values.get("sslmode") or "prefer",
            values.get("sslrootcert", ""),
            values.get("sslnegotiation") == "direct",
            route=Route(dsn) if chosen else None,
        )

    async def open(self, protocol: asyncio.Protocol) -> tuple[asyncio.WriteTransport, bool]:
        """Connect ``protocol``; return its transport and whether TLS is on.

        Raises:
            TransientError: no address answers.
        """
        problems: list[str] = []
        servers = [SourceServer(host, port) for host, port in self.addresses]
        for server in servers if self.route is None else [await self.route.find()]:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await self._open(protocol, server)
            except (OSError, ssl.SSLError, asyncio.IncompleteReadError) as error:
                problems.append(f"{server.host}:{server.port}: {error or type(error).__name__}")
        if self.route is not None:
            self.route.forget()
        raise TransientError(
            "could not connect to the source database", detail="; ".join(problems) + "."
        )

    async def _open(
        self, protocol: asyncio.Protocol, server: SourceServer
    ) -> tuple[asyncio.WriteTransport, bool]:
        loop = asyncio.get_running_loop()
        host, port, address = server.host, server.port, server.address or server.host
        answer = _Answer(loop.create_future())
        if host.startswith(("/", "@")):
            path = f"{host}/.s.PGSQL.{port}".replace("@", "\0", 1)
            local, _ = await loop.create_unix_connection(lambda: answer, path)
            return _hand_over(local, protocol), False
        if self.direct:
            context = self._context()
            secured, _ = await loop.create_connection(
                lambda: protocol, address, port, ssl=context, server_hostname=host
            )
            tune(secured.get_extra_info("socket"), 0)
            return secured, True
        transport, _ = await loop.create_connection(lambda: answer, address, port)
        tune(transport.get_extra_info("socket"), 0)
        if self.sslmode == "disable":
            return _hand_over(transport, protocol), False
        transport.write(SSL_REQUEST)
        if await answer.received == b"S":
            upgraded = await loop.start_tls(
                transport, protocol, self._context(), server_hostname=host
            )
            if upgraded is None:
                raise ConnectionResetError("connection lost in TLS handshake")
            return upgraded, True
        if self.pinned or self.sslmode in ("require", "verify-ca", "verify-full"):
            transport.close()
            raise ConnectionRefusedError("server does not support SSL")
        return _hand_over(transport, protocol), False

    def _context(self) -> ssl.SSLContext:
        """Return the TLS context; as in libpq, sslmode or a root file asks for verification."""
        root = self.sslrootcert or str(Path.home() / ".postgresql" / "root.crt")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([ALPN])
        context.check_hostname = self.sslmode == "verify-full"
        if root == "system":
            context.load_default_certs()
            context.check_hostname = True
        elif self.sslmode.startswith("verify") or (
            self.sslmode == "require" and Path(root).exists()
        ):
            context.load_verify_locations(root)
        else:
            context.verify_mode = ssl.CERT_NONE
        return context


class _Answer(asyncio.Protocol):
    """Waits for the one byte that answers an SSLRequest."""

    def __init__(self, received: asyncio.Future[bytes]) -> None:
        self.received = received

    def data_received(self, data: bytes) -> None:
        """Accept a single byte; more could come from an attacker (CVE-2021-23222)."""
        if self.received.done() or len(data) != 1:
            self._fail(ConnectionAbortedError("unexpected data before TLS"))
        else:
            self.received.set_result(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail: the server closed the connection without an answer."""
        self._fail(exc or ConnectionResetError("connection closed"))

    def _fail(self, error: Exception) -> None:
        if not self.received.done():
            self.received.set_exception(error)
            # Mark it as retrieved: nothing awaits it if no TLS was asked for.
            self.received.exception()


def _is_one(host: str) -> bool:
    """Return whether ``host`` is an address or a socket, and no name, which may have several."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return not host or host.startswith(("/", "@"))


def _hand_over(
    transport: asyncio.WriteTransport, protocol: asyncio.Protocol
) -> asyncio.WriteTransport:
    if transport.is_closing():
        raise ConnectionResetError("connection closed")
    transport.set_protocol(protocol)
    return transport
