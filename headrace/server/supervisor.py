"""Keeps the workers and the builder running, and the control connections to them.

A dead child is restarted after a back-off that grows from 0.2 s to 5 s.  It starts over once a
child has lived for ten seconds, or has ended by itself with status 0.  Children are forked by the
fork server (``ForkServer``), and end with it when this process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError, TransientError
from headrace.process import rpc, shares, tasks
from headrace.process.fork_server import Born, ForkServer
from headrace.sql import nodes

BACKOFF_S_MIN: Final = 0.2
BACKOFF_S_MAX: Final = 5.0
BACKOFF_UP_S_MAX: Final = 1.0
"""Longest pause after a process that was up: a view may have ended it, and all others wait."""
HEALTHY_S: Final = 10.0
STOP_S: Final = 10.0
_CONNECT_S: Final = 60.0
_POLL_S: Final = 0.02
_TOLD_S: Final = 5.0
_UP_S: Final = 30.0
"""Seconds within which a worker should be up."""

OnUp = Callable[[rpc.Peer], Awaitable[None]]

_log = structlog.get_logger(__name__)


class Child:
    """One child process and the control connection to it."""

    def __init__(
        self,
        name: str,
        fork_server: ForkServer,
        socket: Path,
        settings: Settings,
        on_up: OnUp,
        kind: str | None = None,
    ) -> None:
        """Take ``on_up``, which runs on each new process before any other caller may use it.

        ``kind``: the fork server's name for such a process, if it is not ``name``.
        """
        self.name = name
        self._kind = kind or name
        self._fork_server = fork_server
        self.restarts = 0
        self.problem = ""
        self._socket = socket
        self._settings = settings
        self._on_up = on_up
        self._process: Born | None = None
        self._peer: rpc.Peer | None = None
        self._changed = asyncio.Condition()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """Whether the process can be called now."""
        return self._peer is not None and not self._peer.closed.is_set()

    @property
    def pid(self) -> int | None:
        """Process id; None: no process runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Begin to supervise."""
        loop = tasks.forever(f"child {self.name}", self._supervise, BACKOFF_S_MAX)
        self._task = asyncio.create_task(loop)

    async def peer(self) -> rpc.Peer:
        """Return the control connection, once there is one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.up)
            assert self._peer is not None, "it is up"
            return self._peer

    async def set_log_level(self, level: str) -> bool:
        """Set the log level of this process and later ones; return whether it could be told."""
        self._settings = self._settings.replace(log_level=level)
        try:
            if self._peer is None or not self.up:
                return False
            async with asyncio.timeout(_TOLD_S):
                await self._peer.call("log_level", {"level": level})
        except (HeadraceError, TimeoutError):
            return False
        return True

    async def stop(self) -> None:
        """Stop the process: SIGTERM, wait, SIGKILL."""
        self._stopping = True
        if self._task:
            process = self._process
            if process and process.returncode is None:
                process.signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_S):
                        await process.wait()
                if process.returncode is None:
                    _log.warning("child killed", child=self.name, after_s=STOP_S)
                    process.signal(signal.SIGKILL)
                    await process.wait()
            await tasks.end(self._task)

    async def _supervise(self) -> None:
        delay = BACKOFF_S_MIN
        while True:
            began = clock.monotonic()
            try:
                await self._run_once()
            except (HeadraceError, OSError) as error:
                self.problem = str(error)
                _log.warning("child not usable", child=self.name, reason=str(error))
            finally:
                longest = BACKOFF_S_MAX if self._peer is None else BACKOFF_UP_S_MAX
                await self._down()
            process = self._process
            asked = process is not None and process.returncode == 0
            if clock.monotonic() - began > HEALTHY_S or asked:
                delay = BACKOFF_S_MIN
            if self._stopping:
                return
            self.restarts += 1
            delay = min(delay, longest)
            await asyncio.sleep(delay)
            delay *= 2

    async def _run_once(self) -> None:
        """Start a process, connect, and return when it has ended."""
        self._socket.unlink(missing_ok=True)
        process = await self._fork_server.begin(self._kind, self._settings)
        self._process = process
        _log.info("child started", child=self.name, pid=process.pid)
        try:
            peer = await self._connect(process)
            await self._on_up(peer)
            async with self._changed:
                self._peer = peer
                self.problem = ""
                self._changed.notify_all()
            await peer.closed.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await process.wait()
        finally:
            if process.returncode is None:
                process.signal(signal.SIGKILL)
                await process.wait()
            if not self._stopping:
                status = process.returncode
                _log.warning("child ended", child=self.name, status=status)

    async def _connect(self, process: Born) -> rpc.Peer:
        deadline = clock.monotonic() + _CONNECT_S
        while True:
            if process.returncode is not None:
                raise TransientError(
                    f"the {self.name} process ended with status {process.returncode}"
                )
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return await rpc.connect(self._socket)
            if clock.monotonic() > deadline:
                raise TransientError(f"the {self.name} process does not listen")
            await asyncio.sleep(_POLL_S)

    async def _down(self) -> None:
        peer, self._peer = self._peer, None
        if peer:
            await peer.close()


class Supervisor:
    """The worker and the builder of one engine."""

    def __init__(self, settings: Settings, fork_server: ForkServer, before_builder: OnUp) -> None:
        """Take ``before_builder``, which cleans up after a dead builder."""
        self._before_builder = before_builder
        self._settings = settings
        self._fork_server = fork_server
        self.others: dict[str, Child] = {}
        """Further processes, named like ``worker w1`` or ``source eu``."""
        self._seeing = asyncio.Lock()
        self._looking: set[asyncio.Task[None]] = set()
        socket = settings.worker_socket
        self.worker = Child("worker", fork_server, socket, settings, self._worker_up)
        socket = settings.builder_socket
        self.builder = Child("builder", fork_server, socket, settings, self._builder_up)

    def start(self) -> None:
        """Start both; ``ready`` waits for them."""
        self.worker.start()
        self.builder.start()

    @property
    def children(self) -> list[Child]:
        """All children."""
        return [self.worker, self.builder, *self.others.values()]

    async def ready(self) -> None:
        """Wait until all are up; for the further processes at most ``_UP_S``."""
        await self.worker.peer()
        await self.builder.peer()
        await asyncio.gather(*self._looking)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_UP_S):
                for child in self.others.values():
                    await child.peer()

    async def stop(self) -> None:
        """Stop all: the builder first, because it calls the worker, which calls the rest."""
        await self.builder.stop()
        await self.worker.stop()
        await asyncio.gather(*(child.stop() for child in self.others.values()))

    async def set_log_level(self, level: str) -> list[str]:
        """Set the log level of all; return the names of those that could not be told yet."""
        self._settings = self._settings.replace(log_level=level)
        children = (self.worker, self.builder, *self.others.values())
        told = await asyncio.gather(*(child.set_log_level(level) for child in children))
        return [child.name for child, done in zip(children, told, strict=True) if not done]

    async def see(self, others: Mapping[str, Collection[str]]) -> str | None:
        """Start and stop further processes so that exactly ``others``, names by kind, run.

        Returns a notice if some are not up in time.
        """
        names = {f"{kind} {name}" for kind in others for name in others[kind]}
        async with self._seeing:
            gone = [name for name in self.others if name not in names]
            await asyncio.gather(*(self.others.pop(name).stop() for name in gone))
            await asyncio.to_thread(self._tidy, others)
            new = {name: self._other(name) for name in names if name not in self.others}
            self.others |= new
            for child in new.values():
                child.start()
        try:
            async with asyncio.timeout(_UP_S):
                for child in new.values():
                    await child.peer()
        except TimeoutError:
            return f"not started within {_UP_S:.0f} s; it is tried on"
        return None

    def _other(self, title: str) -> Child:
        kind, name = title.split()
        worker = kind == "worker"
        own = self._settings.of_carrier(name)
        if worker:
            executor = nodes.is_executor(name)
            own = (
                shares.of_executor(self._settings, name)
                if executor
                else self._settings.of_worker(name)
            )
        module = "host" if worker else "carrier"
        child = Child(title, self._fork_server, own.worker_socket, own, _nothing, module)
        own.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return child

    def _tidy(self, others: Mapping[str, Collection[str]]) -> None:
        """Remove the directories of processes that no longer exist."""
        homes = {"worker": self._settings.workers_dir, "source": self._settings.sources_dir}
        for kind, home in homes.items():
            for folder in home.glob("*"):
                if folder.name not in others[kind]:
                    shutil.rmtree(folder, ignore_errors=True)

    async def _worker_up(self, peer: rpc.Peer) -> None:
        """Start a new worker, and tell it which WAL populations still need."""
        await peer.call("start", {"holds": await self._holds()})

    async def _holds(self) -> list[Any]:
        """Return the LSN pins of the builder's jobs; none if the builder cannot be asked.

        A missing pin costs a population a second attempt, never rows: before a view appears the
        builder proves that the slot was not confirmed past its snapshot.
        """
        if not self.builder.up:
            return []
        builder = await self.builder.peer()
        try:
            return list(await builder.call("holds") or [])
        except HeadraceError as error:
            _log.info("holds unknown", reason=error.message)
            return []

    async def _builder_up(self, peer: rpc.Peer) -> None:
        # Its catalog clean-up needs the objects that a first worker may still be creating.
        await self.worker.peer()
        await self._before_builder(peer)
        # Do not wait for the further processes here: their callers wait if needed.
        look = asyncio.create_task(self._look(peer))
        self._looking.add(look)
        look.add_done_callback(self._looking.discard)

    async def _look(self, peer: rpc.Peer) -> None:
        """Ask the builder which further processes should run, and start those."""
        try:
            await self.see(await peer.call("nodes", {}))
        except HeadraceError as error:
            _log.warning("workers and sources unknown", reason=error.message)


async def _nothing(peer: rpc.Peer) -> None:
    """Do nothing: the process needs no first message."""
