"""The HTTP port: its sockets, and limits for slow, misbehaving or numerous clients.

uvicorn speaks HTTP (over h11).  It is given sockets only, so that it takes no signals and has no
loop of its own.  This module adds a time limit for a request's head, and limits of connections, in
total and per address.  A client that exceeds a limit loses only its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
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


class _Connections:
    """Counts of connections, by network."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    def enter(self, host: str) -> str | None:
        """Count a connection and return its key; None: there are enough."""
        key = admission.network(host)
        if self._of[key] >= PER_NETWORK_MAX or self._of.total() >= CONNECTIONS_MAX:
            return None
        self._of[key] += 1
        return key

    def leave(self, key: str) -> None:
        """Remove a connection from the counts."""
        self._of[key] -= 1
        if not self._of[key]:
            del self._of[key]


class _Client(H11Protocol):
    """One connection of a client."""

    def __init__(self, room: _Connections, config: Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self.logger.disabled = True  # client errors are not logged; the app logs its own
        self._room = room
        self._key: str | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, if there is room."""
        super().connection_made(transport)
        self._key = self._room.enter(self.client[0] if self.client else "")
        if self._key is None:
            transport.abort()
            return
        # The system detects a client that has gone, or reads nothing.
        admission.tune(transport.get_extra_info("socket"), int(UNREAD_S * 2_000))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the place of the connection."""
        self._forget_head()
        if self._key is not None:
            self._room.leave(self._key)
            self._key = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes; any that are no request end the connection."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_answering():
            self._forget_head()
        elif self._patience is None:
            self._await_head()

    def handle_events(self) -> None:
        """Read requests; called for new bytes, and for pipelined ones after an answer."""
        try:
            super().handle_events()
        except h11.LocalProtocolError:  # bytes that are no request, in the middle of an answer
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self._is_answering():
            self._forget_head()  # uvicorn limits the wait for it

    def pause_writing(self) -> None:
        """Start the time limit for a client that does not read its answer."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that time limit: the client reads again, or has gone."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _await_head(self) -> None:
        self._patience = self.loop.call_later(HEAD_S, self.transport.abort)

    def _forget_head(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


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
            self._app,
            lifespan="off",
            ws="none",
            interface="asgi3",
            log_config=None,
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
        self._server = await loop.create_server(self._client, host, port, ssl=self._tls)
        if self._app.people is not None:
            self._app.people.start()
        return host, int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and end running requests."""
        if self._server:
            self._server.close()
        if self._app.people is not None:
            await self._app.people.close()
        for client in list(self._state.connections):
            client.shutdown()
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=_CLOSE_S)
        for client in list(self._state.connections):
            with contextlib.suppress(AttributeError):
                client.transport.abort()

    def _client(self) -> Any:
        return _Client(self._room, self._config, self._state)
