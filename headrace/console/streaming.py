"""Server-sent events to one tab, for as long as its session is open and it reads.

A client that takes nothing for ``SEND_S`` is dropped; the browser reconnects by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from starlette.types import Receive, Scope, Send

from headrace import clock
from headrace.console.graph_collector import GraphCollector, Tab, frame
from headrace.console.sessions import Sessions, WebSession

SEND_S: Final = 20.0
QUIET_S: Final = 15.0
"""Seconds of silence before a comment, which detects a lost client and keeps proxies connected."""
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Live:
    """The response; its caller has already added ``stream`` to ``lookout``."""

    def __init__(
        self,
        *,
        lookout: GraphCollector,
        stream: Tab,
        view: str | None,
        session: WebSession,
        sessions: Sessions,
    ) -> None:
        self._lookout = lookout
        self._stream = stream
        self._view = view
        self._session = session
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the client leaves, is too slow, or has no session any more."""
        here = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(left(receive))
        try:
            await asyncio.wait((here, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._lookout.leave(self._stream, self._view)
            for task in (here, leaving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._write(send, b"retry: 2000\n\n")
        while True:
            self._sessions.expire(clock.monotonic())
            if self._lookout.gone or not self._session.open:
                await self._write(send, frame("gone", {"message": self._lookout.gone}))
                break
            self._session.seen = clock.monotonic()
            for data in self._stream.frames(self._lookout.topics):
                await self._write(send, data)
            try:
                async with asyncio.timeout(QUIET_S):
                    await self._stream.changed.wait()
            except TimeoutError:
                await self._write(send, b":\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    @staticmethod
    async def _write(send: Send, data: bytes) -> None:
        async with asyncio.timeout(SEND_S):
            await send({"type": "http.response.body", "body": data, "more_body": True})


async def left(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
