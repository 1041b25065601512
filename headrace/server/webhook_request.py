"""One signed HTTP request to a webhook, over asyncio, within a time limit.

Headers and signature are those of Standard Webhooks (standardwebhooks.com), so receivers can use
its libraries.  Redirects are not followed: ``webhook_hosts`` names the hosts that may be reached.
Of the answer only the status counts, and only its first bytes are read.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import hmac
import socket
import ssl
import threading
from typing import Any, Final

from headrace.sql.webhook_urls import WebhookUrl

_LINE_BYTES_MAX: Final = 8_192
_ANSWER_BYTES_MAX: Final = 16_384
_DRAIN_S: Final = 1.0
PREFIX: Final = "whsec_"
"""Beginning of a secret; the key follows, as base64."""


class DeliveryError(Exception):
    """The request was not accepted; the text names no part of the URL but the host."""


def signature(secret: str, number: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a request: HMAC-SHA256 over id, timestamp and body."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{number}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


async def post(url: WebhookUrl, headers: dict[str, str], body: bytes, timeout_s: float) -> None:
    """Send ``body``; return if the receiver has accepted it (status 2xx).

    Raises:
        DeliveryError: it has not, within ``timeout_s``.
    """
    try:
        async with asyncio.timeout(timeout_s):
            status = await _exchange(url, headers, body)
    except TimeoutError:
        raise DeliveryError(f"{url.place} did not answer within {timeout_s:g} s") from None
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise DeliveryError(f"{url.place}: {_plain(error)}") from None
    if 300 <= status < 400:
        raise DeliveryError(f"{url.place} answered {status}: redirects are not followed")
    if not 200 <= status < 300:
        raise DeliveryError(f"{url.place} answered {status}")


async def _exchange(url: WebhookUrl, headers: dict[str, str], body: bytes) -> int:
    """Send the request over a new connection; return the status of the answer."""
    reader, writer = await _connected(url)
    try:
        lines = [f"POST {url.path} HTTP/1.1", f"Host: {url.host_header}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()
        status = await _status(reader)
        # A server that sees its answer cut off may log an error.
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_DRAIN_S):
                await reader.read(_ANSWER_BYTES_MAX)
        return status
    finally:
        writer.transport.abort()


async def _status(reader: asyncio.StreamReader) -> int:
    """Return the status of the answer, after any interim ones.

    Raises:
        ValueError: it is not HTTP.
    """
    while True:
        line = await reader.readline()
        version, _, rest = line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise ValueError("the answer is not HTTP/1.1" if line else "the connection was closed")
        if rest[:1] != b"1":
            return int(rest[:3])
        while (await reader.readline()).strip():
            pass


async def _connected(url: WebhookUrl) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address of the host that answers."""
    problem: OSError = OSError("the host has no address")
    for address in await _addresses(url.host, url.port):
        try:
            return await asyncio.open_connection(
                address,
                url.port,
                limit=_LINE_BYTES_MAX,
                ssl=_context() if url.tls else None,
                server_hostname=url.host if url.tls else None,
            )
        except OSError as error:
            problem = error
    raise problem


async def _addresses(host: str, port: int) -> list[str]:
    """Look up a name on a thread of its own: a look-up may hang, and the loop's pool is shared."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Any]] = loop.create_future()

    def tell(result: list[Any] | OSError) -> None:
        if found.done():
            return
        if isinstance(result, OSError):
            found.set_exception(result)
        else:
            found.set_result(result)

    def look() -> None:
        result: list[Any] | OSError
        try:
            result = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            result = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result)

    threading.Thread(target=look, name="headrace-names", daemon=True).start()
    return [str(entry[4][0]) for entry in await found]


@functools.cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _plain(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
