"""``headrace worker``: keeps the process of a worker on another machine running."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvloop

from headrace import events
from headrace.config import Settings
from headrace.process import rpc
from headrace.process.fork_server import ForkServer
from headrace.runtime import joined
from headrace.server.main import lock_data_dir
from headrace.server.supervisor import Child
from headrace.state import formats


def run(settings: Settings, fork_server: ForkServer) -> int:
    """Run until a signal; return the exit status.

    Raises:
        UserError: the data directory's path is too long.
        PrerequisiteError: the token is missing or not valid; another engine or worker uses the
            directory, or a later version did; the worker cannot listen at its address.
        TransientError: the database cannot be reached.
    """
    settings = settings.replace(worker=joined.token(settings).partition(".")[0])
    events.start(settings, f"worker {settings.worker}")
    os.umask(0o077)
    rpc.check(settings.worker_socket)
    with lock_data_dir(settings.data_dir):
        if later := formats.later([settings.state_dir]):
            raise later
        settings.run_dir.mkdir(mode=0o700, exist_ok=True)
        link = joined.Joined(settings)
        try:
            uvloop.run(_stand(settings, fork_server))
        finally:
            link.close()
    return 0


async def _stand(settings: Settings, fork_server: ForkServer) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    name = f"worker {settings.worker}"
    child = Child(name, fork_server, settings.worker_socket, settings, _nothing, "host")
    child.start()
    try:
        stopped, ready = asyncio.create_task(stop.wait()), asyncio.create_task(child.peer())
        await asyncio.wait((stopped, ready), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            where = settings.worker_listen
            sys.stdout.write(f"headrace worker {settings.worker} ready on {where}\n")
            sys.stdout.flush()
        await stopped
        ready.cancel()
    finally:
        await child.stop()


async def _nothing(peer: rpc.Peer) -> None:
    """Do nothing: the worker needs no first message."""
