"""The client port: the only place where sessions meet sockets.

Each client has a ``Session`` (protocol.py) and, after its startup packet, a connection of
its own to the source.  Bytes go in, actions come out and are carried out here.  Back-pressure
is TCP's: a side that cannot take more makes the other side's socket stop being read.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from headrace.config import Settings, address
from headrace.errors import BugError, HeadraceError, QueryCancelled, TransientError
from headrace.server import protocol as p
from headrace.server.context import Context
from headrace.server.messages import ResultSet, error_response
from headrace.server.procedures import Invocation
from headrace.server.upstream import Target

Report = Callable[[str], None]
Runner = Callable[[Invocation, Context, Report], Awaitable[ResultSet | None]]

_HELD_BYTES_MAX: Final = 1_048_576
_CANCEL_TIMEOUT_S: Final = 10.0

_log = structlog.get_logger(__name__)


class Listener:
    """Accepts clients and relays their sessions to the source."""

    def __init__(
        self, settings: Settings, target: Target, database: str, runner: Runner
    ) -> None:
        """``runner`` carries out a call; its errors become the client's."""
        self.settings = settings
        self.target = target
        self.database = database
        self.runner = runner
        self.tls = self._tls(settings)
        self.connections: set[Client] = set()
        self.keys: dict[bytes, Client] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address (port 0 in the settings takes a free one)."""
        host, port = address(self.settings.listen)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Client(self), host, port)
        name = self._server.sockets[0].getsockname()
        return host, int(name[1])

    async def close(self) -> None:
        """Stop listening and end all sessions; running calls are cancelled first."""
        if self._server:
            self._server.close()
        clients = list(self.connections)
        for client in clients:
            client.interrupt()
        calls = [c.call for c in clients if c.call]
        if calls:
            await asyncio.wait(calls, timeout=_CANCEL_TIMEOUT_S)
        for client in clients:
            client.end("terminating connection because headrace is shutting down")

    def cancel(self, key: bytes, packet: bytes) -> None:
        """A cancel request: for a call of ours if one runs, else for the source."""
        client = self.keys.get(key)
        if client and client.call:
            client.interrupt()
            return
        self.spawn(self._cancel_upstream(packet))

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

    @staticmethod
    def _tls(settings: Settings) -> ssl.SSLContext | None:
        if not settings.tls_cert:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        return context


class _Silent(asyncio.Protocol):
    """The connection of a cancel request: nothing is ever answered."""

    def __init__(self, gone: asyncio.Event) -> None:
        self._gone = gone

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed it."""
        self._gone.set()


class Upstream(asyncio.Protocol):
    """A session's connection to the source."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.transport: asyncio.WriteTransport | None = None

    def data_received(self, data: bytes) -> None:
        """Bytes of the source."""
        self._client.apply(self._client.session.receive_server(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """The source ended the session."""
        self._client.close()

    def pause_writing(self) -> None:
        """The source is slower than the client."""
        self._client.hold_reading("upstream", on=True)

    def resume_writing(self) -> None:
        """The source has caught up."""
        self._client.hold_reading("upstream", on=False)


class Client(asyncio.Protocol):
    """One client connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        settings = listener.settings
        self.session = p.Session(
            database=listener.database,
            tls=listener.tls is not None,
            full=len(listener.connections) >= settings.connections_max,
            statement_bytes_max=settings.statement_bytes_max,
        )
        self.call: asyncio.Task[None] | None = None
        self._interrupted = False
        self._transport: asyncio.Transport | None = None
        self._upstream = Upstream(self)
        self._unsent: list[bytes] | None = []
        self._login: asyncio.TimerHandle | None = None
        self._holds: set[str] = set()
        self._closed = False

    # --- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        assert isinstance(transport, asyncio.Transport), "TCP transports read and write"
        self._transport = transport
        listener = self._listener
        if len(listener.connections) >= 2 * listener.settings.connections_max:
            # A flood: not even worth an answer.
            self._closed = True
            transport.abort()
            return
        listener.connections.add(self)
        peer = transport.get_extra_info("peername")
        remote = not str(peer[0]).startswith(("127.", "::1", "::ffff:127."))
        self.session.challenge_required = remote and listener.target.local
        seconds = listener.settings.login_timeout_ms / 1000
        self._login = asyncio.get_running_loop().call_later(seconds, self.close)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        self.apply(self.session.receive_client(data))
        busy = self.session.buffered_bytes > _HELD_BYTES_MAX
        if busy and self.session.state not in (p.State.RELAY, p.State.LOGIN):
            self.hold_reading("call", on=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: its call is cancelled, its session on the source ends."""
        self.close()

    def pause_writing(self) -> None:
        """The client is slower than the source."""
        self._pause_upstream(on=True)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._pause_upstream(on=False)

    # --- what happens

    def apply(self, actions: list[p.Action]) -> None:
        """Carry out the session's actions, in order."""
        for action in actions:
            match action:
                case p.ToClient(data):
                    if self._transport and not self._closed:
                        self._transport.write(data)
                case p.ToServer(data):
                    self._send_upstream(data)
                case p.Connect():
                    self._listener.spawn(self._connect())
                case p.StartTls():
                    self._listener.spawn(self._start_tls())
                case p.Cancel(key, packet):
                    self._listener.cancel(key, packet)
                case p.Ready(key):
                    self._logged_in(key)
                case p.Run(invocation, context):
                    self._interrupted = False
                    self.call = asyncio.create_task(self._run(invocation, context))
                case p.Close():
                    self.close()

    def interrupt(self) -> None:
        """Cancel the running call; once, for it is waiting for its cleaning up then."""
        if self.call and not self._interrupted:
            self._interrupted = True
            self.call.cancel()

    def end(self, reason: str) -> None:
        """Tell the client why and close (the server shuts down)."""
        if self._transport and not self._closed:
            fields = {"C": "57P01", "M": reason}
            self._transport.write(error_response(fields, severity="FATAL"))
        self.close()

    def close(self) -> None:
        """End the session on both sides; what was written is still delivered."""
        if self._closed:
            return
        self._closed = True
        self.interrupt()
        if self._login:
            self._login.cancel()
        self._listener.connections.discard(self)
        if self._listener.keys.get(self.session.key) is self:
            del self._listener.keys[self.session.key]
        for transport in (self._transport, self._upstream.transport):
            if transport:
                transport.close()

    def hold_reading(self, why: str, *, on: bool) -> None:
        """Stop (or go on) reading from the client, for each reason on its own."""
        before = bool(self._holds)
        (self._holds.add if on else self._holds.discard)(why)
        if self._transport and before != bool(self._holds) and not self._closed:
            if self._holds:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _pause_upstream(self, *, on: bool) -> None:
        transport = self._upstream.transport
        if isinstance(transport, asyncio.Transport) and not transport.is_closing():
            if on:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def _send_upstream(self, data: bytes) -> None:
        if self._unsent is not None:
            self._unsent.append(data)
        elif self._upstream.transport and not self._upstream.transport.is_closing():
            self._upstream.transport.write(data)

    def _logged_in(self, key: bytes) -> None:
        if self._login:
            self._login.cancel()
        self._listener.keys[key] = self

    async def _connect(self) -> None:
        self.hold_reading("connect", on=True)
        try:
            transport, tls = await self._listener.target.open(self._upstream)
        except HeadraceError as error:
            self.apply(self.session.server_lost(error.fields()))
            return
        if self._closed:
            transport.close()
            return
        self.session.upstream_tls = tls
        self._upstream.transport = transport
        unsent, self._unsent = self._unsent, None
        for data in unsent or ():
            transport.write(data)
        self.hold_reading("connect", on=False)

    async def _start_tls(self) -> None:
        transport, context = self._transport, self._listener.tls
        assert transport is not None, "the client is connected"
        assert context is not None, "TLS is only offered when configured"
        # Nothing may be read in the clear after the answer.
        transport.pause_reading()
        transport.write(b"S")
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport, self, context, server_side=True
            )
        except (OSError, ssl.SSLError) as error:
            _log.info("TLS handshake failed", reason=str(error))
            self.close()
            return
        if secured is None or self._closed:
            self.close()
            return
        self._transport = secured
        self.apply(self.session.tls_started())

    async def _run(self, invocation: Invocation, context: Context) -> None:
        """Carry out a call of this session and answer the client."""
        finished: Callable[[], list[p.Action]]
        try:
            rows = await self._listener.runner(invocation, context, self._report)
            finished = _bound(self.session.finish, rows)
        except asyncio.CancelledError:
            error = QueryCancelled("canceling statement due to user request")
            finished = _bound(self.session.fail, error.fields())
        except HeadraceError as error:
            finished = _bound(self.session.fail, error.fields())
        except Exception as error:  # noqa: BLE001  the session boundary: a bug is answered as XX000
            _log.exception("call failed", procedure=invocation.procedure)
            bug = BugError(f"internal error in {invocation.procedure}: {error!r}")
            finished = _bound(self.session.fail, bug.fields())
        self.call = None
        self.hold_reading("call", on=False)
        if not self._closed:
            self.apply(finished())

    def _report(self, text: str) -> None:
        if not self._closed:
            self.apply(self.session.notice(text))


def _bound(
    method: Callable[[Any], list[p.Action]], value: Any
) -> Callable[[], list[p.Action]]:
    return lambda: method(value)
