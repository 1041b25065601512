"""Stores the worker's reports for ``list_views()``, ``status()`` and ``lag_history()``.

Every second it asks for lagging views, cursors and long operations, every few seconds for the
general state.  Unchanged reports are not written again; while all is idle, nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.postgres import connect
from headrace.process import tasks, thread_pools
from headrace.server.commands import CommandPeer
from headrace.sql import held, samples
from headrace.sql.held import Behind, Fact, Holding, PublishedCursor

_LOOK_S: Final = 1.0
_SOURCES_S: Final = 3.0
"""Seconds between two looks at the sources, if there are any."""
_COARSEN_S: Final = 60.0
_STEP_PCT: Final = 5
"""Memory is reported again when it has changed by this percentage of its budget."""
_GIVES_WAY: Final = {"lock_timeout": "300ms"}
"""A resync gives a view another id, and its rows here as well.  The two may wait for each other;
then this writer ends before the usual deadlock_timeout (1 s), which might end the resync."""
_THREADS: Final = (
    f"{thread_pools.BATCHES} for batches, {thread_pools.ROCKSDB} of RocksDB,"
    f" up to {thread_pools.CALLS} for calls"
)
_log = structlog.get_logger(__name__)

Held = tuple[list[Behind], list[PublishedCursor]]
Write = Callable[[held.AsyncConnection], Awaitable[None]]


class Observer:
    """The observer of one engine."""

    def __init__(
        self,
        settings: Settings,
        worker: Callable[[], Awaitable[CommandPeer]],
        fillings: Callable[[], list[Holding]],
    ) -> None:
        """Take ``fillings``, which returns the populations that are under way."""
        self._settings = settings
        self._worker = worker
        self._fillings = fillings
        self._coarsened = 0.0
        self._memory_pct = -_STEP_PCT
        self._known: list[Fact] | None = None
        """The facts that are stored; None: unknown."""
        self._works = True
        """Whether rows of kinds ``work`` and ``population`` are, or may be, stored."""
        self._stored: Held | None = None
        """The views whose rows of kinds ``behind`` and ``cursor`` are stored; None: unknown."""
        self._sources = True
        """Whether there are sources, or may be."""
        self._failed = ""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start asking."""
        for name, run in (("samples", self._sample), ("held", self._look)):
            loop = tasks.forever(name, run, samples.STEP_S)
            self._tasks.append(asyncio.create_task(loop))

    async def stop(self) -> None:
        """Stop asking."""
        for task in self._tasks:
            await tasks.end(task)

    async def _call(self, verb: str, **params: Any) -> Any:
        async with asyncio.timeout(samples.STEP_S):
            peer = await self._worker()
            return await peer.call(verb, params)

    # --- every few seconds

    async def _sample(self) -> None:
        self._coarsened = clock.monotonic() - _COARSEN_S + samples.STEP_S / 2  # in the second round
        while True:
            async with self._session() as session:
                await self._writing(session, self._write)
            await asyncio.sleep(samples.STEP_S)

    async def _write(self, conn: held.AsyncConnection) -> None:
        # Views without writes cost nothing unless one of them may lag.
        whole = await samples.due(conn)
        told: dict[str, Any] | None = None
        # A worker that does not answer is a fact to store as well.
        with contextlib.suppress(HeadraceError, OSError, TimeoutError):
            told = dict(await self._call("gauges", whole=whole))
        views = told["views"] if told is not None else {}
        names = ("rows_per_s", "p50_ms", "p99_ms", "max_ms", "state_bytes")
        rows = [
            {"id": int(view_id), "batches": view["recent"]} | {name: view[name] for name in names}
            for view_id, view in views.items()
        ]
        if rows or whole:
            await samples.put(conn, rows)
        facts = self._facts(told)
        sources = await held.sources(conn)
        self._sources = sources is not None
        if sources is not None:
            facts.append(sources)
        if facts != self._known:
            await held.put_facts(conn, facts)
            self._known = facts
        if clock.monotonic() - self._coarsened > _COARSEN_S:
            await samples.coarsen(conn)
            self._coarsened = clock.monotonic()

    def _facts(self, told: dict[str, Any] | None) -> list[Fact]:
        """Return the facts that ``status()`` shows to members of the engine's role."""
        if told is None:
            return [Fact("workers", "main does not answer", ok=False, hint="see the log")]
        away = sorted(name for name, up in told["workers"].items() if not up)
        up = [name for name, there in told["workers"].items() if there]
        shown = ", ".join([f"{name} up" for name in up] + [f"{name} away" for name in away])
        hint = "workers(); views that are placed there wait for it" if away else None
        budget = self._settings.memory_bytes
        pct = round(100 * told["memory_used_bytes"] / budget)
        if abs(pct - self._memory_pct) >= _STEP_PCT:
            self._memory_pct = pct
        pct = self._memory_pct
        full = "memory() says for what; slower, and nothing else" if pct > 100 else None
        return [
            Fact("workers", shown, not away, hint),
            Fact("memory", f"about {pct} % of {budget >> 20} MB", pct <= 100, full),
            Fact("threads", _THREADS),
        ]

    # --- every second

    async def _look(self) -> None:
        async with self._session() as session:
            await self._look_with(session)

    async def _look_with(self, session: WriteSession) -> None:
        looked = 0.0
        while True:
            works: list[Holding] = []
            found = self._stored  # stays as stored if the worker does not answer
            with contextlib.suppress(HeadraceError, OSError, TimeoutError):
                told = await self._call("held")
                works = [Holding(**row) for row in told["works"]]
                found = (
                    [Behind(**row) for row in told["behind"]],
                    [PublishedCursor(**row) for row in told["cursors"]],
                )
            now = clock.monotonic()
            due = self._sources and now - looked > _SOURCES_S
            # A view that stays behind for days is stored once.
            if works or self._fillings() or self._works or due or found != self._stored:
                looked = now
                await self._writing(session, partial(self._put, works, found or ([], [])))
            else:
                await session.close()
            await asyncio.sleep(_LOOK_S)

    async def _put(self, works: list[Holding], found: Held, conn: held.AsyncConnection) -> None:
        self._stored = None  # unknown if the write fails, or leaves a view out
        self._works = True
        # Taken now, because their ages are stored as times: connecting may have taken long.
        works = [*works, *self._fillings()]
        self._sources, whole = await held.put(conn, works, *found)
        self._works = bool(works)
        self._stored = found if whole else None

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[WriteSession]:
        session = WriteSession(self._settings.source)
        try:
            yield session
        finally:
            await session.close()

    async def _writing(self, session: WriteSession, write: Write) -> None:
        try:
            await session.run(write)
        except psycopg.errors.LockNotAvailable:
            pass  # it is written in the next round
        except (psycopg.Error, HeadraceError) as error:
            reason = str(error).strip()
            if reason != self._failed:
                _log.warning("samples not written", reason=reason)
            self._failed = reason
        else:
            self._failed = ""


class WriteSession:
    """A session that stays open between writes that follow each other."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._conn: held.AsyncConnection | None = None

    async def run(self, write: Write) -> None:
        """Run ``write``, again on a new session if the open one has been lost.

        Raises:
            psycopg.Error: the write failed, or the source cannot be reached.
        """
        if self._conn is not None:
            try:
                await write(self._conn)
            except psycopg.Error:
                if not self._conn.broken:
                    raise
                await self.close()
            else:
                return
        name = "headrace samples"
        self._conn = await connect.async_session(self._source, name=name, settings=_GIVES_WAY)
        await write(self._conn)

    async def close(self) -> None:
        """End the session, if one is open."""
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()
