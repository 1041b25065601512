"""The process of another worker: a fork of the nursery, or ``python -m headrace.runtime.host``.

It holds the states of the views that are placed on it (``hosting.py``); the worker that writes
reaches it by a socket in that one's directory.  It ends by itself when its parent dies, and
cleanly on SIGTERM, which loses no more than SIGKILL: what is not durable comes again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any, Final

import setproctitle
import structlog

from headrace import events
from headrace.config import Settings
from headrace.process import entry, imports, nursery, parent, rpc
from headrace.process.rpc import Progress
from headrace.runtime.hosting import Host

_log = structlog.get_logger(__name__)

_CLOSE_S: Final = 5.0
"""After which it ends amid what it is at."""


async def _main() -> None:
    settings = Settings.from_env()
    imports.keep_pandas_out()
    events.configure(settings.log_level, process=f"worker {settings.worker}", pid=os.getpid())
    os.umask(0o077)
    settings.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.worker_socket.unlink(missing_ok=True)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    parent.watch(loop, ended.set)
    setproctitle.setproctitle(nursery.title(f"worker {settings.worker}"))
    host = await asyncio.to_thread(Host, settings, settings.flight_socket(settings.worker))

    async def status(params: dict[str, Any], _: Progress) -> dict[str, Any]:
        return {"pid": os.getpid(), "memory_bytes": host.memory_bytes}

    async def stop(params: dict[str, Any], _: Progress) -> None:
        ended.set()

    server = await rpc.serve(settings.worker_socket, {"status": status, "stop": stop})
    try:
        await ended.wait()
    finally:
        server.close()
        settings.worker_socket.unlink(missing_ok=True)
        closing = loop.run_in_executor(None, host.close)
        await asyncio.wait((closing,), timeout=_CLOSE_S)
        if not closing.done():
            _log.warning("ended amid work")
            os._exit(0)


def main() -> int:
    """Entry point; exit status 0 after a clean end, 1 after an error."""
    return entry.run(_main)


if __name__ == "__main__":
    sys.exit(main())
