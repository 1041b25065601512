"""wait_for: finds the position that a caller means, and waits until the view covers it.

One separate connection answers in one statement which view is meant and where the source is now.
The stream sends only flushed WAL, and the caller may have committed asynchronously.  So a position
that is not flushed yet is flushed by a tiny transaction.  The worker does the rest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg
import structlog

from headrace import clock
from headrace.errors import (
    DefiniteFailure,
    HeadraceError,
    QueryCancelled,
    TransientError,
    UndefinedError,
    UserError,
    from_wire,
)
from headrace.postgres import failures, tokens
from headrace.postgres.connect import async_session
from headrace.process import rpc
from headrace.sql import origins, states
from headrace.sql.states import WaitedView
from headrace.sql.status import UNFINISHED, Status
from headrace.sql.verbs import WaitFor
from headrace.types import format_lsn, parse_lsn, record_end

_log = structlog.get_logger(__name__)

_ENTRY: Final = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",\s][^",]*?))\s*(?:,|$)')
_DEFAULT_PATH: Final = '"$user", public'
_RETRY_S: Final = 0.05
_ATTEMPTS: Final = 3
_POLL_S: Final = 0.01
_QUEUED_S: Final = 0.02
"""Seconds between two looks at calls that are to be carried out first."""
_MENDING_S: Final = 0.1
"""Seconds between two looks at a view that is being refilled."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class WaitTarget:
    """View and position that a call waits for."""

    view_id: int
    name: str
    lsn: int
    timeout_s: float | None
    owns: bool
    """Whether the caller may see why the view does not run."""
    beyond: bool
    """Whether other databases must also come as far as they are now."""
    mending: bool
    """Whether the view has stopped and is refilled automatically."""


class SessionWaits:
    """Answers ``wait_for`` calls."""

    def __init__(
        self,
        dsn: str,
        worker: Callable[[], Awaitable[rpc.Peer]],
        mends: Callable[[WaitedView], bool],
    ) -> None:
        """Take ``worker``, which waits until the worker is up and returns its peer.

        ``mends`` returns whether a stopped view is refilled automatically.
        """
        self._dsn = dsn
        self._mends = mends
        self._worker = worker
        self._conn: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._block = self._segment = 0
        self._lock = asyncio.Lock()
        self._flushed = 0

    async def close(self) -> None:
        """Disconnect."""
        if self._conn is not None:
            await self._conn.close()

    async def wait_for(self, request: WaitFor) -> None:
        """Return once the view's result table covers the position.

        Raises:
            QueryCancelled: 57014, it did not within the time-out.
            DefiniteFailure: 55000, the view has stopped until a user resyncs it, or is paused.
            UndefinedError: 42P01, there is no such view.
        """
        target = await self._target(request)
        late = f"It does not cover {format_lsn(target.lsn)} after {target.timeout_s or 0:g} s."
        try:
            async with asyncio.timeout(target.timeout_s):
                target = await self._mended(target, request)
                if target.beyond:
                    for name, dsn in (await self._sources(target)).items():
                        late = f'Changes of source "{name}" have not come.'
                        await self._reached(name, dsn)
                    # The changes that have come from them are before this new position.
                    target = await self._mended(await self._target(request), request)
                    late = f"It does not cover {format_lsn(target.lsn)}."
                await self._covered(target, request)
        except TimeoutError as error:
            raise QueryCancelled(
                f"canceling wait for view {target.name} due to timeout",
                detail=late,
                hint="See headrace.list_views() for its status and lag.",
            ) from error

    async def runs(self, request: WaitFor, refilled: Callable[[], None]) -> bool:
        """Return whether the view runs; call ``refilled`` and wait while it is being refilled.

        A view whose table cannot be written now counts as one that runs.
        """
        try:
            target = await self._target(request)
            if target.mending:
                refilled()
                await self._mended(target, request)
        except HeadraceError:
            return False  # it has stopped, is paused, or is being created
        return True

    async def _sources(self, target: WaitTarget) -> dict[str, str]:
        """Return the other databases that the view reads: their DSNs by name."""
        async with self._lock:
            conn = await self._connected()
            return await self._asking(origins.read_by(conn, target.view_id))

    async def _reached(self, name: str, dsn: str) -> None:
        """Wait until all that is committed in a source by now is in our stream."""
        try:
            there = await async_session(dsn, name="headrace waits")
            async with there:
                # This flushes all earlier WAL as well; the source sends only flushed WAL.
                cursor = await there.execute(
                    "SELECT pg_logical_emit_message(true, 'headrace', '')::text"
                )
                row = await cursor.fetchone()
        except psycopg.Error as error:
            raise TransientError(
                f'source "{name}" cannot be reached now',
                detail=str(error).strip(),
                hint="See SELECT * FROM headrace.sources();",
            ) from error
        assert row is not None, "a function gives a row"
        lsn = parse_lsn(str(row[0]))
        while True:
            async with self._lock:
                conn = await self._connected()
                if await self._asking(origins.reach(conn, name, lsn)) is not False:
                    return
            await asyncio.sleep(_POLL_S)

    async def _asking(self, work: Awaitable[Answer]) -> Answer:
        try:
            return await work
        except psycopg.OperationalError as error:
            await self._disconnect()
            raise TransientError(
                "the source database cannot be reached now", detail=str(error).strip()
            ) from error
        except asyncio.CancelledError:
            await self._disconnect()
            raise

    async def _mended(self, target: WaitTarget, request: WaitFor) -> WaitTarget:
        """Wait while the view is being refilled; return its target after that."""
        while target.mending:
            await asyncio.sleep(_MENDING_S)
            target = await self._target(request)
        return target

    async def _covered(self, target: WaitTarget, request: WaitFor) -> None:
        view_id = target.view_id
        while True:
            worker = await self._worker()
            try:
                await worker.call("wait", {"view_id": view_id, "lsn": target.lsn})
            except UndefinedError:
                # A resync has given the view another id; otherwise this raises.
                view_id = (await self._target(request)).view_id
            except TransientError as error:
                _log.info("waiting again", view=target.name, reason=error.message)
            except DefiniteFailure:
                # Wait if the view is refilled automatically; otherwise this raises.
                found = await self._mended(await self._target(request), request)
                view_id = found.view_id
            except HeadraceError as error:
                if not target.owns:
                    raise DefiniteFailure(
                        f"view {target.name} does not run", hint=error.hint
                    ) from error
                raise
            else:
                return
            await asyncio.sleep(_RETRY_S)

    async def _target(self, request: WaitFor) -> WaitTarget:
        asked = {
            "name": request.name,
            "lsn": request.lsn,
            "timeout": request.timeout,
            "caller": request.caller,
            "path": search_path(
                request.settings.get("search_path", _DEFAULT_PATH), request.caller or ""
            ),
        }
        began = clock.monotonic()
        while (found := await self._asked(asked, request)).queued:
            if found.timeout is not None and clock.monotonic() > began + found.timeout:
                raise QueryCancelled(
                    f"canceling wait for view {request.name} due to timeout",
                    detail="Calls made in earlier transactions are not carried out yet.",
                    hint="See headrace.calls().",
                )
            await asyncio.sleep(_QUEUED_S)
        mending = found.status == Status.ERROR and self._mends(found)
        if not mending:
            _check_status(found)
        if found.timeout is not None and found.timeout < 0:
            raise UserError("timeout must not be negative")
        assert found.id is not None, "it exists"
        wanted = record_end(parse_lsn(found.lsn), self._block, self._segment)
        return WaitTarget(
            found.id, found.name, wanted, found.timeout, found.owns, found.beyond, mending
        )

    async def _asked(self, asked: dict[str, Any], request: WaitFor) -> WaitedView:
        """Return the view, after the WAL that the caller may mean was flushed."""
        async with self._lock:
            found = await self._ask(asked)
            if found.queued:
                return found
            if found.failed is not None:
                raise from_wire(found.failed)
            if found.id is None:
                raise UndefinedError(
                    f'view "{request.name}" does not exist',
                    hint="See headrace.list_views().",
                    sqlstate="42P01",
                )
            self._flushed = max(self._flushed, parse_lsn(found.flushed))
            if min(parse_lsn(found.lsn), parse_lsn(found.now)) > self._flushed:
                await self._flush()
                self._flushed = parse_lsn(found.now)
        return found

    async def _ask(self, asked: dict[str, Any]) -> WaitedView:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                conn = await self._connected()
                return await states.look_up(conn, asked)
            except psycopg.OperationalError as error:
                await self._disconnect()
                if attempt == _ATTEMPTS:
                    raise TransientError(
                        "the source database cannot be reached now", detail=str(error).strip()
                    ) from error
            except psycopg.DataError as error:
                raise _bad_argument(error) from error
            except psycopg.Error as error:
                raise failures.classify(error) from error
            except asyncio.CancelledError:
                # The answer has not been read completely.
                await self._disconnect()
                raise
        raise AssertionError("the last attempt returns or raises")

    async def _flush(self) -> None:
        """Flush all earlier WAL to the source's disk: the source sends only flushed WAL."""
        conn = await self._connected()
        try:
            await conn.execute("SELECT pg_logical_emit_message(true, 'headrace', '')")
        except psycopg.Error as error:
            # Postgres flushes it by itself after a while.
            _log.warning("WAL not flushed", reason=str(error).strip())

    async def _connected(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        if self._conn is None or self._conn.closed:
            # A local flush is enough: no standby need have it.
            settings = {"synchronous_commit": "local"}
            conn = await async_session(self._dsn, name="headrace waits", settings=settings)
            cursor = await conn.execute(
                "SELECT current_setting('wal_block_size')::bigint,"
                " pg_size_bytes(current_setting('wal_segment_size'))"
            )
            row = await cursor.fetchone()
            assert row is not None, "functions give a row"
            self._block, self._segment = int(row[0]), int(row[1])
            self._conn = conn
        return self._conn

    async def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()


def search_path(text: str, user: str) -> list[str]:
    """Return the schemas in a ``search_path`` setting; ``$user`` is ``user``."""
    names = []
    for found in _ENTRY.finditer(text):
        quoted, plain = found.groups()
        name = plain.lower() if quoted is None else quoted.replace('""', '"')
        names.append(user if name == "$user" else name)
    return names


def _check_status(view: WaitedView) -> None:
    if view.status == Status.ERROR:
        # The message may contain a value of a row.
        why = view.message if view.owns else None
        raise DefiniteFailure(f"view {view.name} has stopped", detail=why)
    if view.status == Status.PAUSED:
        argument = tokens.doubled(view.name)
        raise DefiniteFailure(
            f"view {view.name} is paused", hint=f"CALL headrace.resume_view('{argument}')."
        )
    if view.status in UNFINISHED:
        raise DefiniteFailure(f"view {view.name} is being created")


def _bad_argument(error: psycopg.Error) -> UserError:
    message = error.diag.message_primary or str(error).strip()
    lsn = "pg_lsn" in message
    return UserError(
        message,
        detail=error.diag.message_detail,
        hint="'2s'. => Pass the timeout by name: timeout => '2s'. => '2s'." if lsn else None,
        sqlstate=error.sqlstate,
    )
