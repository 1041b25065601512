"""Control messages between commander, worker and builder: JSON lines over a Unix socket.

A request is answered by any number of progress messages, then one result or one error, which keeps
its class (``errors.to_wire``).  These connections carry no rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from headrace import errors, events
from headrace.process import tasks

SOCKET_BYTES_MAX: Final = 107
"""The longest path of a Unix socket."""
Progress = Callable[[dict[str, Any]], None]
Handler = Callable[[dict[str, Any], Progress], Awaitable[Any]]

_LIMIT = 64 * 1024 * 1024
AGAIN: Final = "It starts again automatically. Make the call again after a second."
"""Hint for calls while a child process of the commander is down."""
_log = structlog.get_logger(__name__)


class _Message(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    id: int
    """Number of the request; each side numbers its own."""


class _Ask(_Message):
    method: str
    params: dict[str, Any]


class _Cancel(_Message):
    """Asks the other side to cancel a request."""


class _Progress(_Message):
    progress: dict[str, Any]


class _Result(_Message):
    result: Any


class _Error(_Message):
    error: errors.Wire


_READ: Final = msgspec.json.Decoder(_Ask | _Cancel | _Progress | _Result | _Error)


class Peer:
    """One end of a control connection; both ends may send requests."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: dict[str, Handler],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers = handlers
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._progress: dict[int, Progress] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self.closed = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        progress: Progress | None = None,
        *,
        linger_s: float = 0.0,
    ) -> Any:
        """Send a request and return its result; raise its error, or PeerGone if the process dies.

        A cancelled call is cancelled on the other side too.  It then waits up to ``linger_s`` for
        the answer, so that the other side has cleaned up.  A result that was already under way
        wins over the cancellation.
        """
        if self.closed.is_set():
            raise errors.TransientError(
                "the process that carries out the call is not running", hint=AGAIN
            )
        number = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        if progress:
            self._progress[number] = progress
        self._send(_Ask(number, method, params or {}))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._send(_Cancel(number))
            if linger_s:
                await asyncio.wait((future,), timeout=linger_s)
                if future.done() and future.exception() is None:
                    return future.result()
            raise
        finally:
            self._waiting.pop(number, None)
            self._progress.pop(number, None)
            if future.done():
                # Retrieve the error, or asyncio reports it as never retrieved.
                future.cancelled() or future.exception()

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await self.closed.wait()

    def _send(self, message: _Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(message) + b"\n")

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                self._dispatch(_READ.decode(line))
        except (OSError, asyncio.IncompleteReadError):
            pass
        except msgspec.DecodeError as error:
            _log.error("what the peer says is no message", reason=str(error))
        finally:
            self.closed.set()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(
                        errors.PeerGone(
                            "the process that carried out the call has ended",
                            detail="It starts again automatically, and ends or undoes the call.",
                            hint="See headrace.list_views(), and make the call again if necessary.",
                        )
                    )
            for task in self._running.values():
                task.cancel()
            self._writer.close()

    def _dispatch(self, message: _Ask | _Cancel | _Progress | _Result | _Error) -> None:
        number = message.id
        match message:
            case _Ask():
                serving = self._serve(number, message.method, message.params)
                self._running[number] = asyncio.create_task(serving)
            case _Cancel():
                if task := self._running.get(number):
                    tasks.cancel(task)
            case _Progress():
                if report := self._progress.get(number):
                    report(message.progress)
            case _:
                future = self._waiting.get(number)
                if future is None or future.done():
                    return
                if isinstance(message, _Error):
                    future.set_exception(errors.from_wire(message.error))
                else:
                    future.set_result(message.result)

    def _fail(self, number: int, error: errors.HeadraceError) -> None:
        self._send(_Error(number, errors.to_wire(error)))

    async def _serve(self, number: int, method: str, params: dict[str, Any]) -> None:
        try:
            handler = self._handlers[method]
            result = await handler(params, lambda p: self._send(_Progress(number, p)))
            self._send(_Result(number, result))
        except errors.HeadraceError as error:
            if isinstance(error, errors.BugError):
                _log.exception("request ended by a bug", method=method)
            self._fail(number, error)
        except asyncio.CancelledError:
            self._fail(number, errors.QueryCancelled("canceling statement due to user request"))
        except Exception as error:  # noqa: BLE001  the session boundary: a bug is answered as XX000
            _log.exception("request ended by a bug", method=method)
            self._fail(number, errors.BugError(f"internal error in {method}: {error!r}"))
        finally:
            self._running.pop(number, None)


async def _log_level(params: dict[str, Any], _: Progress) -> None:
    events.set_level(params["level"])


async def connect(path: Path, handlers: dict[str, Handler] | None = None) -> Peer:
    """Connect to the Unix socket at ``path``."""
    reader, writer = await asyncio.open_unix_connection(str(path), limit=_LIMIT)
    return Peer(reader, writer, handlers or {})


def check(*paths: Path) -> None:
    """Raise UserError (22023) if a path is too long for a Unix socket.

    Source: unix(7).
    """
    longest = max(paths, key=lambda path: len(os.fsencode(path)))
    size = len(os.fsencode(longest))
    if size > SOCKET_BYTES_MAX:
        raise errors.UserError(
            "the path of the data directory is too long for a worker's sockets",
            detail=f"{longest} would have {size} bytes; the limit is {SOCKET_BYTES_MAX}.",
            hint="Choose a data directory with a shorter path, or a shorter name.",
            sqlstate="22023",
        )


async def serve(
    path: Path, handlers: dict[str, Handler], on_peer: Callable[[Peer], None] | None = None
) -> asyncio.Server:
    """Listen on the Unix socket at ``path``, with ``handlers`` and the method ``log_level``."""
    handlers = {"log_level": _log_level, **handlers}

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, handlers)
        if on_peer:
            on_peer(peer)
        # The loop's end cancels this wait, and asyncio's stream callback cannot handle that.
        with contextlib.suppress(asyncio.CancelledError):
            await peer.closed.wait()

    return await asyncio.start_unix_server(accept, str(path), limit=_LIMIT)
