"""A commander without worker: a real listener, a real Postgres, and a fake builder.

The builder speaks our own control protocol on a real socket, so that a test decides its answers;
Postgres is never faked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvloop
from psycopg.conninfo import make_conninfo

from headrace.config import Settings
from headrace.errors import UnsupportedError
from headrace.process import rpc
from headrace.server.clients import ClientCalls
from headrace.server.commands import Commands
from headrace.server.direct import Direct
from headrace.server.listener import Listener
from headrace.server.upstream import SourceAddress
from tests.waiting import PATIENCE_S, time_passes


class FakeBuilder:
    """A builder that answers create_view depending on the view's name, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.cancelled = threading.Event()
        self.cleaned = threading.Event()
        self.started = threading.Event()
        self._may_go_on = threading.Event()

    def go_on(self) -> None:
        """Let views called held be created."""
        self._may_go_on.set()

    def handlers(self) -> dict[str, rpc.Handler]:
        names = ("drop_view", "create_index", "drop_index")
        others = {n: self._plain(n) for n in names}
        return {"create_view": self._create, "check_view": self._check, **others}

    def _plain(self, method: str) -> rpc.Handler:
        async def handler(params: dict[str, Any], progress: rpc.Progress) -> Any:
            self.calls.append((method, params))
            return None

        return handler

    async def _check(self, params: dict[str, Any], progress: rpc.Progress) -> Any:
        self.calls.append(("check_view", params))
        return {"physical": f"plan of {params['query']}\n"}

    async def _create(self, params: dict[str, Any], progress: rpc.Progress) -> Any:
        self.calls.append(("create_view", params))
        progress({"phase": "planning", "rows": 0, "total": 0})
        name = params["name"]
        if name == "refused":
            raise UnsupportedError(
                "LEFT JOIN is not supported", detail="A detail.", hint="A hint.", position=8
            )
        if name == "held":
            self.started.set()
            await asyncio.to_thread(self._may_go_on.wait)
        if name == "slow":
            self.started.set()
            progress({"phase": "reading", "rows": 0, "total": 1000, "percent": 0})
            try:
                await asyncio.Event().wait()  # for ever
            except asyncio.CancelledError:
                self.cancelled.set()
                await asyncio.to_thread(time_passes, 0.2)
                self.cleaned.set()
                raise
        progress(
            {"phase": "reading", "rows": 250_000, "total": 1_000_000, "percent": 25, "eta_s": 3.1}
        )
        return {"view_id": 1, "rows": 4}


class Running:
    """A listener in its own thread, on the same kind of event loop as in the commander."""

    def __init__(self, source: str, folder: Path, **settings: Any) -> None:
        self.source = source
        self.builder = FakeBuilder()
        given: dict[str, Any] = {"allow_trust": True, "listen": "127.0.0.1:0"} | settings
        self.settings = Settings(source=source, data_dir=folder, **given)
        self.port = 0
        self.listener: Listener
        self._up = threading.Event()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()), daemon=True)
        self._thread.start()
        assert self._up.wait(PATIENCE_S), "the listener starts"

    @property
    def dsn(self) -> str:
        return make_conninfo(self.source, host="127.0.0.1", port=self.port)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        path = self.settings.data_dir / "b.sock"
        peers: list[rpc.Peer] = []
        server = await rpc.serve(path, self.builder.handlers(), peers.append)
        peer = await rpc.connect(path)

        async def builder() -> rpc.Peer:
            return peer

        commands = Commands(self.settings, builder)
        direct = Direct(self.settings, commands)
        direct.start()
        database = psycopg.conninfo.conninfo_to_dict(self.source)["dbname"]
        target = SourceAddress.of(self.source)
        self.listener = Listener(self.settings, target, str(database), commands.run)
        commands.handle(ClientCalls(self.listener.port).handlers())
        _, self.port = await self.listener.start()
        await direct.connected.wait()
        self._up.set()
        await self._stop.wait()
        await self.listener.close()
        await direct.stop()
        await peer.close()
        for other in peers:
            await other.close()
        server.close()
        await asyncio.sleep(0)

    def cancel_when_started(self, conn: psycopg.Connection) -> threading.Thread:
        """Cancel the statement of ``conn`` once the builder works on it."""

        def cancel() -> None:
            assert self.builder.started.wait(PATIENCE_S)
            conn.cancel_safe()

        thread = threading.Thread(target=cancel)
        thread.start()
        return thread

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def start(catalog: None, database: str, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """A function that starts a commander on a fresh database with schema headrace."""
    running: list[Running] = []

    def begin(**settings: Any) -> Running:
        running.append(Running(database, tmp_path, **settings))
        return running[-1]

    yield begin
    for one in running:
        one.stop()


@pytest.fixture
def commander(start: Callable[..., Running]) -> Running:
    return start()
