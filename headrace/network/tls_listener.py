"""TLS listener in front of a worker's Arrow Flight server.

    engine ── TLS, both certificates ──► TlsListener ── Unix socket of our own ──► FlightPort

gRPC keeps every silent connection for two minutes, without a bound on their number, and has no
setting for either.  So the Flight server listens on a socket that only this user can open, and
network connections end here.  A connection that has not shown the engine's certificate and sent
its first bytes in time is closed.  The number of these is bounded per address and in total
(``process/admission.py``).

One event loop on its own thread accepts, does the handshakes and relays; nothing blocks it.
REQUIRES: a process that computes nothing.  Beside a thread that holds the interpreter's lock the
relay was 80 times slower (``runtime/joined.py`` runs it in the parent).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from headrace.config import address
from headrace.network.ends import Far
from headrace.process.admission import Admission, Noise, tune

LOGIN_S: Final = 10.0
"""Seconds for the TLS handshake and the first bytes after it, together."""
PER_ADDRESS_MAX: Final = 32
"""Connections of one address that have not identified themselves; the oldest is closed."""
TOTAL_MAX: Final = 128
_PENDING_MAX: Final = 512
"""Connections that the system keeps until they are accepted."""
_PAUSE_S: Final = 0.1
"""Seconds before the next attempt to accept when the process is out of file descriptors."""
_UNSENT_BYTES_MAX: Final = 1 << 20
"""Bytes of a connection that may wait in the relay; beyond them the other side is not read."""
_ALPN: Final = "h2"
_TURNS: Final = 5
"""Turns of the loop in which transports that were aborted close their sockets."""


class TlsListener:
    """Listener on a TCP address that relays the engine's connections to a Unix socket."""

    def __init__(self, end: Far, target: Path) -> None:
        """Listen.

        Raises:
            OSError: the address is not free, or not of this machine.
        """
        self._target: Final = str(target)
        self._context: Final = _context(end)
        self._certificate: Final = ssl.PEM_cert_to_DER_cert(end.other.decode())
        self._socket: Final = _listening(end.address)
        self.port: Final = int(self._socket.getsockname()[1])
        self._noise: Final = Noise()
        self.waiting: Final = Admission(PER_ADDRESS_MAX, TOTAL_MAX)
        """Connections that have not identified themselves; used by the loop's thread only."""
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: Final = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._noise.on_exception)
        self._thread = threading.Thread(target=self._run, name="headrace-tls", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and close every connection."""
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        accepting.cancel()
        for connection in self._connections.copy():
            connection.close()
        self._loop.run_until_complete(_ended([accepting, *self._tasks]))
        self._loop.close()
        self._socket.close()

    async def _accept(self) -> None:
        while True:
            try:
                sock, peer = await self._loop.sock_accept(self._socket)
            except OSError as error:
                self._noise.tell("cannot accept a connection", reason=str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            connection = _Connection(sock)
            self._connections.add(connection)
            if self.waiting.enter(connection, str(peer[0])):
                self._noise.tell("too many connections that do not identify themselves", peer=peer)
            task = self._loop.create_task(self._serve(connection, peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: _Connection, peer: Any) -> None:
        """Relay a connection once the other side is known to be the engine."""
        deadline = self._loop.call_later(LOGIN_S, connection.close)
        try:
            tune(connection.socket, 0)
            made = await self._loop.connect_accepted_socket(
                lambda: connection.outer,
                connection.socket,
                ssl=self._context,
                ssl_handshake_timeout=LOGIN_S,
            )
            transport = cast("asyncio.Transport", made[0])
            shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if shown != self._certificate:
                raise ssl.SSLError("another certificate than the engine's")
            if await connection.outer.spoken:
                self.waiting.leave(connection)
                deadline.cancel()
                await self._loop.create_unix_connection(lambda: connection.inner, self._target)
                connection.join()
                await connection.outer.lost
        except (OSError, ssl.SSLError) as error:
            reason = str(error) or type(error).__name__
            self._noise.tell("link not accepted", reason=reason, peer=peer)
        finally:
            deadline.cancel()
            self.waiting.leave(connection)
            connection.close()
            self._connections.discard(connection)


class _Connection:
    """Network connection, and its connection to the Unix socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket: Final = sock
        self.outer: Final = _Side()
        self.inner: Final = _Side()

    def join(self) -> None:
        """Relay the bytes of each side to the other from now on."""
        self.outer.relay_to(self.inner)
        self.inner.relay_to(self.outer)

    def close(self) -> None:
        """Close both sides, also amid a handshake."""
        with contextlib.suppress(OSError):
            # A handshake may be using the socket; this ends it.
            self.socket.shutdown(socket.SHUT_RDWR)
        for side in (self.outer, self.inner):
            if side.transport is not None:
                side.transport.abort()
        if self.outer.transport is None:
            self.socket.close()


class _Side(asyncio.Protocol):
    """One side of a relayed connection; bytes received before both are joined are buffered."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.spoken: Final[asyncio.Future[bool]] = loop.create_future()
        """True once bytes have come; False if the connection has ended without."""
        self.lost: Final[asyncio.Future[None]] = loop.create_future()
        self._other: _Side | None = None
        self._kept: list[bytes] = []

    def relay_to(self, other: _Side) -> None:
        """Send the buffered bytes, and all later ones, to ``other``."""
        assert self.transport is not None, "it is connected"
        assert other.transport is not None, "it is connected"
        self._other = other
        for data in self._kept:
            other.transport.write(data)
        self._kept.clear()
        if self.lost.done():
            other.transport.close()
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport after the handshake; uvloop's are not subclasses of ``Transport``."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(_UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Relay ``data``; before both sides are joined, buffer it and stop reading."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.write(data)
            return
        assert self.transport is not None, "it is connected"
        self._kept.append(data)
        self.transport.pause_reading()
        if not self.spoken.done():
            self.spoken.set_result(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other side once it has sent its buffer."""
        for future, value in ((self.spoken, False), (self.lost, None)):
            if not future.done():
                future.set_result(value)  # type: ignore[arg-type]  # each its own
        if self._other is not None and self._other.transport is not None:
            self._other.transport.close()

    def pause_writing(self) -> None:
        """Stop reading the other side, which is faster than this one."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read the other side again, since this one has caught up."""
        other = self._other
        if other is not None and other.transport is not None and not other.transport.is_closing():
            other.transport.resume_reading()


def _listening(where: str) -> socket.socket:
    host, port = address(where)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=_PENDING_MAX)
    sock.setblocking(False)
    return sock


def _context(end: Far) -> ssl.SSLContext:
    """Return a TLS context that accepts only the other end's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=end.other.decode())
    context.set_alpn_protocols([_ALPN])
    context.num_tickets = 0  # a link is never resumed
    with tempfile.NamedTemporaryFile() as file:  # of mode 0600; `ssl` reads keys from files only
        file.write(end.own.certificate + end.own.key)
        file.flush()
        context.load_cert_chain(file.name)
    return context


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
