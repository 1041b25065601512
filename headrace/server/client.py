"""One client connection: the only place where a session meets sockets.

Each client has a ``Session`` (``protocol.py``) and, after its startup packet, its own connection to
the source.  Received bytes go into the session; the actions that it returns are carried out here.
Back-pressure is TCP's: when one side cannot take more, the other side's socket is no longer read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast

import structlog

from headrace.errors import BugError, HeadraceError, QueryCancelled, UserError
from headrace.process import tasks
from headrace.process.admission import tune
from headrace.server import actions as a
from headrace.server import protocol as p
from headrace.server.context import CallContext
from headrace.server.facts import ClientMeter, Facts
from headrace.server.messages import error_response
from headrace.server.port import Port
from headrace.server.procedures import Invocation
from headrace.server.scram import end_point
from headrace.server.upstream import ALPN
from headrace.sql.verbs import VERBS

_HELD_BYTES_MAX: Final = 1_048_576
_PIECE: Final = 1 << 16

Finished = Callable[[], list[a.Action]]
"""Returns the actions that answer a finished call."""

_log = structlog.get_logger(__name__)


class Upstream(asyncio.Protocol):
    """A session's connection to the source."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.transport: asyncio.WriteTransport | None = None
        self._socket: int | None = None

    def connected(self, transport: asyncio.WriteTransport, *, tls: bool) -> None:
        """Take the transport of the open connection."""
        self.transport = transport
        if not tls:
            # Keep a duplicate: after a failed write the event loop closes its own even with data
            # unread.
            self._socket = os.dup(transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        """Process bytes from the source."""
        client = self._client
        if client.session.passes_server(data):
            client.send(data)
        else:
            client.apply(client.session.receive_server(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on what the source's end left unread after a failed write, and close."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                while exc is not None and (data := os.read(self._socket, _PIECE)):
                    self.data_received(data)
            os.close(self._socket)
        self._client.close()

    def pause_writing(self) -> None:
        """Stop reading from the client: the source is slower."""
        self._client.hold_reading("upstream", on=True)

    def resume_writing(self) -> None:
        """Read from the client again."""
        self._client.hold_reading("upstream", on=False)


class Client(asyncio.Protocol):
    """One client connection."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self.session = p.Session(port.rules)
        self.call: asyncio.Task[None] | None = None
        self._meter = ClientMeter(port.number())
        self._writable = asyncio.Event()
        self._writable.set()
        self._interrupted = False
        self._transport: asyncio.Transport | None = None
        self._upstream = Upstream(self)
        self._unsent: list[bytes] | None = []
        self._login: asyncio.TimerHandle | None = None
        self._holds: set[str] = set()
        self._held_bytes_max = max(_HELD_BYTES_MAX, 2 * port.settings.statement_bytes_max)
        self._closed = False

    @property
    def facts(self) -> Facts:
        """Facts about the client."""
        return self._meter.facts(self.session)

    # --- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the client and start its login timeout."""
        # TCP transports read and write; uvloop's have the methods but not the base class.
        self._transport = transport = cast("asyncio.Transport", transport)
        port, settings = self._port, self._port.settings
        tune(transport.get_extra_info("socket"), settings.client_timeout_ms)
        port.connections.add(self)
        peer = transport.get_extra_info("peername")
        self._meter.meets_client(transport)
        seconds = settings.login_timeout_ms / 1000
        loop = asyncio.get_running_loop()
        self._login = loop.call_later(seconds, self._too_late)
        if port.admission.enter(self, str(peer[0]) if peer else ""):
            port.noise.tell("too many clients that do not log in", peer=peer)

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client."""
        self._meter.received(len(data))
        if self.session.passes_client(data):
            self._send_upstream(data)
        else:
            self.apply(self.session.receive_client(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the client's call and end its session on the source."""
        self.close()

    def pause_writing(self) -> None:
        """Stop reading from the source: the client is slower."""
        self._writable.clear()
        self._pause_upstream(on=True)

    def resume_writing(self) -> None:
        """Read from the source again."""
        self._writable.set()
        self._pause_upstream(on=False)

    # --- actions

    def apply(self, actions: list[a.Action]) -> None:
        """Carry out the session's actions, in order."""
        for action in actions:
            match action:
                case a.ToClient(data):
                    self.send(data)
                case a.ToServer(data):
                    self._send_upstream(data)
                case a.Cancel(key, packet):
                    self._port.cancel(key, packet)
                case a.Ready(key):
                    self._logged_in(key)
                case a.Close(reason):
                    if reason and not self.session.key:
                        self._port.noise.tell("client not let in", reason=reason)
                    self.close()
                case _:
                    self._begin(action)
        if self._upstream.transport:
            busy = self.session.buffered_bytes > self._held_bytes_max
            self.hold_reading("relay", on=busy)

    def _begin(self, action: a.Begun) -> None:
        """Start an action that finishes later."""
        match action:
            case a.Connect():
                self._port.sessions.add(self)
                self._port.spawn(self._connect())
            case a.StartTls(first):
                assert self._transport is not None, "the client is connected"
                # From here on nothing may be read unencrypted.
                self._transport.pause_reading()
                self._port.spawn(self._start_tls(first))
            case a.Verify(user):
                self._port.spawn(self._verify(user))
            case a.Run(invocation, context, login):
                self._interrupted = False
                run = partial(self._run, invocation, context, login)
                self.call = asyncio.create_task(self._answer(invocation.procedure, run))

    def send(self, data: bytes) -> None:
        """Send data to the client."""
        self._meter.sent(len(data))
        transport = self._transport
        if transport and not self._closed and not transport.is_closing():
            transport.write(data)

    def interrupt(self) -> None:
        """Cancel the running call; only once, because it then waits for its clean-up."""
        if self.call and not self._interrupted:
            self._interrupted = True
            tasks.cancel(self.call)

    def end(self, reason: str) -> None:
        """Send the client the reason and close (the server shuts down)."""
        if self._transport and not self._closed:
            fields = {"C": "57P01", "M": reason}
            self._transport.write(error_response(fields, severity="FATAL"))
        self.close()

    def kill(self) -> None:
        """End the session by command, and its statement on the source, which would go on."""
        if self._upstream.transport is not None and self.session.key:
            self._port.cancel_upstream(self.session.key)
        self.end("terminating connection due to administrator command")

    def close(self) -> None:
        """End the session on both sides; data already written is still delivered."""
        if self._closed:
            return
        self._port.ended(self.facts)
        self._closed = True
        self._writable.set()
        self.interrupt()
        if self._login:
            self._login.cancel()
        self._port.connections.discard(self)
        self._port.sessions.discard(self)
        self._port.admission.leave(self)
        if self._port.keys.get(self.session.key) is self:
            del self._port.keys[self.session.key]
        for transport in (self._transport, self._upstream.transport):
            if transport:
                transport.close()

    def hold_reading(self, why: str, *, on: bool) -> None:
        """Stop or resume reading from the client; it resumes when no reason to stop is left."""
        before = bool(self._holds)
        (self._holds.add if on else self._holds.discard)(why)
        if self._transport and before != bool(self._holds) and not self._closed:
            if self._holds:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _pause_upstream(self, *, on: bool) -> None:
        transport = cast("asyncio.Transport | None", self._upstream.transport)
        if transport is not None and not transport.is_closing():
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
        self._meter.let_in = True
        self._port.admission.leave(self)
        self._port.keys[key] = self

    def _too_late(self) -> None:
        self._port.noise.tell("client did not log in in time")
        self.close()

    async def _connect(self) -> None:
        self.hold_reading("connect", on=True)
        try:
            transport, tls = await self._port.target.open(self._upstream)
        except HeadraceError as error:
            self.apply(self.session.server_lost(error.fields()))
            return
        if self._closed:
            transport.close()
            return
        certificate = b""
        if tls:
            source = transport.get_extra_info("ssl_object")
            certificate = source.getpeercert(binary_form=True) or b""
        self.session.connected(tls=tls, binding=end_point(certificate))
        self._upstream.connected(transport, tls=tls)
        self._meter.meets_server(transport)
        unsent, self._unsent = self._unsent, None
        for data in unsent or ():
            transport.write(data)
        self.hold_reading("connect", on=False)

    async def _start_tls(self, first: bytes) -> None:
        transport, context = self._transport, self._port.tls
        assert transport is not None, "the client is connected"
        assert context is not None, "TLS is only offered when configured"
        if self._closed:
            return
        if not first:
            transport.write(b"S")
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(loop.start_tls(transport, self, context, server_side=True))
        if first:
            await asyncio.sleep(0)
            if not transport.is_closing():
                _hand_on(first, transport.get_protocol())
        try:
            secured = await starting
        except (OSError, ssl.SSLError) as error:
            self._port.noise.tell("TLS handshake failed", reason=str(error))
            self.close()
            return
        if secured is None or self._closed:
            self.close()
            return
        self._transport = secured
        self._meter.meets_client(secured)
        spoken = secured.get_extra_info("ssl_object").selected_alpn_protocol()
        if first and spoken != ALPN:
            # The client may mean another service (ALPACA attack), so ALPN must name our protocol.
            self._port.noise.tell("TLS without our protocol's name", named=spoken)
            self.close()
            return
        self.apply(self.session.tls_started(self._port.binding))

    async def _verify(self, user: str) -> None:
        """Ask the source for the verifier of ``user``, and give it to the session."""
        self.hold_reading("asked", on=True)
        try:
            found = await self._port.roles.verifier(user)
        except HeadraceError as error:
            self.apply(self.session.server_lost(error.fields()))
            return
        self.apply([] if self._closed else self.session.verifier_found(found))
        self.hold_reading("asked", on=False)

    async def _run(self, invocation: Invocation, context: CallContext, login: str) -> Finished:
        """Run a call of this session."""

        def report(text: str) -> None:
            if not self._closed:
                self.apply(self.session.notice(text))

        limits = context.limits
        if limits.read_only and not VERBS[invocation.procedure].reads:
            raise UserError(
                f"cannot execute headrace.{invocation.procedure} in a read-only transaction",
                sqlstate="25006",
            )
        timeout = asyncio.timeout(limits.statement_timeout_s or None)
        awake = asyncio.create_task(_keep_alive(self, limits.idle_session_timeout_s))
        try:
            async with timeout:
                await self._port.roles.check(login, context.caller)
                rows = await self._port.runner(invocation, context, report)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise QueryCancelled("canceling statement due to statement timeout") from error
        finally:
            awake.cancel()
        return _bound(self.session.finish, rows)

    async def _answer(self, name: str, work: Callable[[], Awaitable[Finished]]) -> None:
        """Do ``work``, named ``name`` in reports, and send the client its outcome."""
        finished: Finished
        self._meter.begins(name)
        failed = True
        try:
            finished = await work()
            failed = False
        except asyncio.CancelledError:
            error = QueryCancelled("canceling statement due to user request")
            finished = _bound(self.session.fail, error.fields())
        except HeadraceError as error:
            finished = _bound(self.session.fail, error.fields())
        except Exception as error:  # noqa: BLE001  the session boundary: a bug is answered as XX000
            _log.exception("call failed", procedure=name)
            bug = BugError(f"internal error in {name}: {error!r}")
            finished = _bound(self.session.fail, bug.fields())
        self.call = None
        self._meter.ends(failed=failed)
        try:
            self.apply([] if self._closed else finished())
        except Exception:  # noqa: BLE001  as asyncio does where a socket's bytes meet a bug
            _log.exception("answer failed", procedure=name)
            self.close()


async def _keep_alive(client: Client, timeout_s: float) -> None:
    """Keep the source from ending the session as idle during a call; 0: it never does."""
    while timeout_s > 0:
        await asyncio.sleep(timeout_s / 2)
        client.apply(client.session.keep_alive())


def _hand_on(data: bytes, protocol: Any) -> None:
    """Pass data received before the handshake to ``protocol``, TLS' buffered protocol."""
    while data:
        room = memoryview(protocol.get_buffer(len(data)))
        size = min(len(data), len(room))
        room[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]


def _bound(method: Callable[[Any], list[a.Action]], value: Any) -> Finished:
    return lambda: method(value)
