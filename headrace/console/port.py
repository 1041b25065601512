"""The HTTP port: its sockets, and limits for slow, misbehaving or numerous clients.

uvicorn speaks HTTP (over h11).  It is given sockets only, so that it takes no signals and has no
loop of its own.  A protocol around uvicorn's adds time limits for a request's head and for unread
answers, and limits of connections, in total and per address.  A client that exceeds a limit loses
only its own connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from headrace.config import address
from headrace.console.access import Access, token_path
from headrace.console.app import App
from headrace.console.host_interface import HostInterface
from headrace.process import admission

HEAD_BYTES_MAX: Final = 16_384
HEAD_S: Final = 10.0
UNREAD_S: Final = 20.0
"""Seconds a client may leave 64 kB of an answer unread; the system does the same for less."""
KEEP_ALIVE_S: Final = 15
CONNECTIONS_MAX: Final = 512
PER_NETWORK_MAX: Final = 128
_CLOSE_S: Final = 2.0
_STATE: Final = "connection"
"""Key of the connection in the state of a request."""


class _Connections:
    """The open connections, each with the network of its client."""

    def __init__(self) -> None:
        self._networks: dict[_Connection, str] = {}

    def __iter__(self) -> Iterator[_Connection]:
        return iter(list(self._networks))

    def enter(self, connection: _Connection, host: str) -> bool:
        """Add a connection and return True; False: there are enough."""
        network = admission.network(host)
        same = sum(other == network for other in self._networks.values())
        if same >= PER_NETWORK_MAX or len(self._networks) >= CONNECTIONS_MAX:
            return False
        self._networks[connection] = network
        return True

    def leave(self, connection: _Connection) -> None:
        """Remove a connection, if it was added."""
        self._networks.pop(connection, None)


class _Timer:
    """Aborts a connection, unless it is stopped before the time is over."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, transport: asyncio.Transport) -> None:
        """Start the timer, unless it is running."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(seconds, transport.abort)

    def stop(self) -> None:
        """Stop the timer, if it is running."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class _Connection(asyncio.Protocol):
    """One connection of a client: limits around uvicorn's protocol, which gets all calls."""

    def __init__(self, room: _Connections, config: Config, state: ServerState) -> None:
        protocol: Any = config.http_protocol_class
        self._http = protocol(config=config, server_state=state, app_state={_STATE: self})
        self._room = room
        self._head = _Timer()
        self._unread = _Timer()
        self._answers = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, if there is room."""
        self.transport = transport
        self._http.connection_made(transport)
        if not self._room.enter(self, (transport.get_extra_info("peername") or [""])[0]):
            transport.abort()
            return
        # The system detects a client that has gone, or reads nothing.
        admission.tune(transport.get_extra_info("socket"), int(UNREAD_S * 2_000))
        self._head.start(HEAD_S, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the place of the connection."""
        self._head.stop()
        self._unread.stop()
        self._room.leave(self)
        self._http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes; any that are no request end the connection, also during an answer."""
        try:
            self._http.data_received(data)
        except h11.LocalProtocolError:
            self.transport.abort()
        if not self._answers and not self.transport.is_closing():
            self._head.start(HEAD_S, self.transport)

    def eof_received(self) -> bool | None:
        """Pass the end of the client's data on."""
        return bool(self._http.eof_received())

    def pause_writing(self) -> None:
        """Start the time limit for a client that does not read its answer."""
        self._http.pause_writing()
        self._unread.start(UNREAD_S, self.transport)

    def resume_writing(self) -> None:
        """Stop that time limit: the client reads again, or has gone."""
        self._http.resume_writing()
        self._unread.stop()

    def answer_begins(self) -> None:
        """Stop the time limit of the head, which is complete."""
        self._answers += 1
        self._head.stop()

    def answer_ends(self) -> None:
        """Limit the time of the next head from its first byte; uvicorn limits the wait for it."""
        self._answers -= 1


def _noticed(app: ASGIApp) -> ASGIApp:
    """Return ``app`` with a notice to the connection where each answer begins and ends."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        connection: _Connection = scope["state"][_STATE]
        connection.answer_begins()

        async def noticed(message: Message) -> None:
            last = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)
            if last:
                connection.answer_ends()

        await app(scope, receive, noticed)

    return answer


def _login(outside: HostInterface) -> str:
    """Return how to log in, and from where; a newcomer reads it in the log."""
    words = "a role of the database and its password, or the token in token_file"
    if outside.tls is not None or outside.settings.console_plain:
        return words
    return f"{words}; without TLS from this computer only (http_tls, console_plain)"


class HttpPort:
    """HTTP server for health, and for the console if it is on."""

    def __init__(self, listen: str, outside: HostInterface) -> None:
        """Raise PrerequisiteError if the console's token cannot be used."""
        self._listen = listen
        self._tls = outside.tls
        console = outside.settings.console
        self.token_file = str(token_path(outside.settings)) if console else None
        """File of the console's token; None: there is no console."""
        self.login = _login(outside) if console else None
        """How to log in at the console, for the log; None: there is no console."""
        self._room = _Connections()
        self._app = App(outside, Access(outside.settings) if console else None)
        self._config = Config(
            _noticed(self._app),
            http="h11",
            lifespan="off",
            ws="none",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # errors of clients are not logged; the app logs its own
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; return host and port."""
        host, port = address(self._listen)
        if not self._config.loaded:
            self._config.load()
        loop = asyncio.get_running_loop()
        handshake_s = HEAD_S if self._tls else None
        self._server = await loop.create_server(
            self._connection, host, port, ssl=self._tls, ssl_handshake_timeout=handshake_s
        )
        if self._app.people is not None:
            self._app.people.start()
        return host, int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and end running requests."""
        if self._server:
            self._server.close()
        if self._app.people is not None:
            await self._app.people.close()
        for protocol in list(self._state.connections):
            protocol.shutdown()
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=_CLOSE_S)
        for connection in self._room:
            connection.transport.abort()

    def _connection(self) -> _Connection:
        return _Connection(self._room, self._config, self._state)
