"""Main loop and exit status of a Headrace child process."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Protocol

import setproctitle
import structlog

from headrace.errors import HeadraceError
from headrace.process import fork_server, parent, rpc
from headrace.process.rpc import Progress

_log = structlog.get_logger(__name__)

_CLOSE_S: Final = 5.0
"""Seconds after which a process that is told to end exits in the midst of its work."""


class Acts(Protocol):
    """The work of a process."""

    def status(self) -> dict[str, Any]:
        """Return the process's status report."""

    def close(self) -> None:
        """End the work; called on a separate thread."""


def run(serve: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run ``serve`` to its end; return 0, or 1 after an error, which is logged."""
    try:
        asyncio.run(serve())
    except HeadraceError as error:
        _log.error("worker ended", code=error.code, reason=error.message)
        return 1
    except OSError as error:
        _log.error("worker ended", reason=str(error))
        return 1
    return 0


async def stand(name: str, socket: Path, begin: Callable[[], Acts]) -> None:
    """Run as the process ``name`` until told to end, or until the parent is gone.

    ``begin`` is called on a thread.  ``socket`` serves the requests ``status`` and ``stop``.
    """
    os.umask(0o077)
    _clear(socket)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    parent.watch(loop, ended.set)
    setproctitle.setproctitle(fork_server.title(name))
    acts = await asyncio.to_thread(begin)

    async def status(params: dict[str, Any], _: Progress) -> dict[str, Any]:
        return {"pid": os.getpid(), "cpu_s": time.process_time(), **acts.status()}

    async def stop(params: dict[str, Any], _: Progress) -> None:
        ended.set()

    server = await rpc.serve(socket, {"status": status, "stop": stop})
    try:
        await ended.wait()
    finally:
        server.close()
        _clear(socket)
        closing = loop.run_in_executor(None, acts.close)
        await asyncio.wait((closing,), timeout=_CLOSE_S)
        if not closing.done():
            _log.warning("ended amid work")
            os._exit(0)


def _clear(socket: Path) -> None:
    """Remove ``socket``, and make its folder if missing."""
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
