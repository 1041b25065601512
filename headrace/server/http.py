"""The HTTP port: GET of /livez, /readyz and /metrics, one request per connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from headrace.config import address
from headrace.server.health import CONTENT_TYPE, Health

_HEAD_BYTES_MAX: Final = 8_192
_TIMEOUT_S: Final = 10.0
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class HttpServer:
    """Serves a ``Health``; never more than a small head is read of anybody."""

    def __init__(self, listen: str, health: Health) -> None:
        self._listen = listen
        self._health = health
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address."""
        host, port = address(self._listen)
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES_MAX)
        return host, int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening."""
        if self._server:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that is slow, gone, or sends too much costs its own connection only.
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError
        ):
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = await self._answer(head)
                data = body.encode()
                writer.write(
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
                    f"Content-Type: {kind}; charset=utf-8\r\n"
                    f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
                    + data
                )
                await writer.drain()
        writer.close()

    async def _answer(self, head: bytes) -> tuple[int, str, str]:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3:
            return 400, "text/plain", "malformed request\n"
        method, path, _ = words
        if method != "GET":
            return 405, "text/plain", "only GET\n"
        match path.split("?", 1)[0]:
            case "/livez":
                return 200, "text/plain", "ok\n"
            case "/readyz":
                ready, why = await self._health.ready()
                return (200 if ready else 503), "text/plain", why + "\n"
            case "/metrics":
                return 200, CONTENT_TYPE, await self._health.metrics()
            case _:
                return 404, "text/plain", "not found\n"
