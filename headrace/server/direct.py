"""Calls made on direct connections: the command table, its notifications, its outcomes.

The caller of a row is the role whose OID was stored when the row was written
(``sql/commands.sql``).  Any role may have written anything else in the row, so it is parsed where
an error fails only that command.

There are three connections of the engine's role.  The first listens, and looks for the questions
of functions (``server/asking.py``); ``headrace.engine_running`` looks for its backend.  The second
takes commands, so that no command waits behind notifications, which every role can send in any
number.  The third writes.

A command whose caller has gone is cancelled.  The caller holds an advisory lock while it waits
(``check_command``); several checks in a row without that lock mean that the caller has gone.
A queued command was made in a transaction, and its caller need not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
import psycopg
import structlog

from headrace.config import Settings
from headrace.errors import BugError, HeadraceError, QueryCancelled, UndefinedError, UserError
from headrace.postgres.connect import async_dicts
from headrace.process import tasks
from headrace.server.asking import QuestionTaker
from headrace.server.commands import DOCUMENTS, Commands
from headrace.server.context import CallContext, settings_of
from headrace.server.messages import ResultSet
from headrace.server.procedures import invocation_of
from headrace.sql import commands, history, meta
from headrace.sql.commands import Taken
from headrace.sql.status import CommandStatus

LOOK_S: Final = 0.3
_COLUMNS: Final = 70
"""Width of an excerpt of a query."""
POLL_S: Final = 5.0
"""Seconds after which the table is read without a notification; a lost one is only a delay."""
PAUSE_S: Final = 0.005
"""Seconds between two reads of a table without new commands, however many notifications come."""
IDLE_S: Final = 60.0
"""Seconds between two checks of the writer while no command runs."""
MISSES_MAX: Final = 4
LOCK_CLASS: Final = 1_212_437_059
_RETRY_S: Final = 0.5
_COMMANDS: Final = "headrace_commands"
_TAKEN_MAX: Final = 16
"""Limit of commands taken at once: a command may have 1 MB of text."""

Connection = psycopg.AsyncConnection[dict[str, Any]]

_log = structlog.get_logger(__name__)


class Direct:
    """Serves the command table."""

    def __init__(
        self,
        settings: Settings,
        commands: Commands,
        asserted: Callable[[], None] = lambda: None,
    ) -> None:
        """Take ``asserted``, which is called when rows of assertions may have changed."""
        self._asserted = asserted
        self._settings = settings
        self._commands = commands
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._misses: dict[int, int] = {}
        """Checks without the caller's lock, by command whose caller waits."""
        self._outbox: dict[int, dict[str, Any]] = {}
        self._wake = asyncio.Event()
        self._announced = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self._main: asyncio.Task[None] | None = None
        self._asking = QuestionTaker(self._begin)
        self._fresh = True
        """Whether the commands that the table calls running were begun by an earlier process."""
        self.connected = asyncio.Event()

    def start(self) -> None:
        """Start serving."""
        loop = tasks.forever("command table", self._serve, _RETRY_S)
        self._main = asyncio.create_task(loop)

    async def stop(self) -> None:
        """Cancel running commands, write their outcomes, disconnect."""
        for task in self._tasks.values():
            tasks.cancel(task)
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=10)
        if self._main:
            self._wake.set()
            # Give the writer time for the last outcomes.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await self._written.wait()
            await tasks.end(self._main)

    async def _serve(self) -> None:
        while True:
            try:
                async with (
                    await self._connect() as listen,
                    await self._connect() as take,
                    await self._connect() as write,
                ):
                    await self._announce(listen)
                    self.connected.set()
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._listen(listen))
                        group.create_task(self._take_all(take))
                        group.create_task(self._write(write))
            except* psycopg.Error as errors:
                _log.warning("command table not reachable", reason=str(errors.exceptions[0]))
            finally:
                self.connected.clear()
            await asyncio.sleep(_RETRY_S)

    async def _connect(self) -> Connection:
        return await async_dicts(self._settings.source, name="headrace commands")

    async def _announce(self, conn: Connection) -> None:
        """Announce the engine, and resolve the commands that an earlier connection left running."""
        await conn.execute(f'LISTEN {_COMMANDS}; LISTEN "{history.ASSERTED}"')
        if self._fresh:
            error = {
                "C": "57P01",
                "M": "headrace was restarted while the command was under way",
                "H": "See headrace.list_views() and call again.",
            }
            await commands.fail_running(conn, error)
        else:
            # A lost connection may have hidden commands that it took: they were not begun.
            await commands.give_back(conn, [*self._tasks, *self._outbox, *self._asking.incoming])
        self._fresh = False
        await conn.execute(meta.ANNOUNCE, ("commander", None))

    async def _listen(self, conn: Connection) -> None:
        """Wake ``_take_all``, or the recorder, for each notification; take questions."""
        self._asserted()  # a notification may have been lost with the last connection
        while True:
            async for heard in conn.notifies(timeout=self._asking.pause_s):
                if heard.channel == _COMMANDS:
                    self._announced.set()
                else:
                    self._asserted()
            # The query also detects a connection that is dead without an error.
            await self._asking.look(conn)

    async def _take_all(self, conn: Connection) -> None:
        """Take new commands as they are announced."""
        while True:
            self._announced.clear()
            taken = await self._take(conn)
            if taken == _TAKEN_MAX:
                continue  # there may be more
            if not taken:
                await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._announced.wait()

    async def _take(self, conn: Connection) -> int:
        """Begin a few of the waiting commands; return how many."""
        rows = await commands.take(conn, _TAKEN_MAX)
        for row in rows:
            self._begin(row)
        return len(rows)

    def _begin(self, command: Taken) -> None:
        if not command.queued:
            self._misses[command.id] = 0
        self._tasks[command.id] = asyncio.create_task(self._run(command))
        self._wake.set()

    async def _run(self, command: Taken) -> None:
        number, text = command.id, None

        def report(line: str) -> None:
            # Keep lines that are not written yet; the last lines are written with the outcome.
            if unwritten := self._outbox.get(number, {}).get("progress"):
                line = f"{msgspec.json.decode(unwritten)['text']}\n{line}"
            self._post(number, progress=_json({"text": line}))

        try:
            if command.caller is None:
                raise UndefinedError("the calling role no longer exists")
            arguments = _read(command, "arguments")
            settings = settings_of(_read(command, "settings"))
            invocation = invocation_of(command.procedure, arguments)
            text = invocation.text
            context = CallContext(command.caller, settings)
            found = await self._commands.run(invocation, context, report)
            self._post(
                number, status=CommandStatus.DONE, result=_json(_objects(command.procedure, found))
            )
        except asyncio.CancelledError:
            error = QueryCancelled("canceling statement due to user request")
            self._fail(number, error)
        except HeadraceError as error:
            self._fail(number, error, text)
        except Exception as error:  # noqa: BLE001  the command's boundary, as a session's
            _log.exception("command failed", procedure=command.procedure)
            self._fail(number, BugError(f"internal error: {error!r}"))
        finally:
            self._tasks.pop(number, None)
            self._misses.pop(number, None)

    def _fail(self, number: int, error: HeadraceError, text: str | None = None) -> None:
        """Record ``error``; its position in ``text`` is shown, as PL/pgSQL cannot raise one."""
        fields = error.fields()
        if text is not None and "P" in fields:
            shown = f"The query has it here:\n{_excerpt(text, int(fields['P']))}"
            fields["D"] = "\n".join(filter(None, (shown, fields.get("D"))))
        self._post(number, status=CommandStatus.FAILED, error=_json(fields))

    def _post(self, number: int, **columns: str) -> None:
        self._outbox.setdefault(number, {}).update(columns)
        self._written.clear()
        self._wake.set()

    async def _write(self, conn: Connection) -> None:
        """Write progress and outcomes, and check whether callers still wait."""
        if self._outbox:  # left by a lost connection
            self._wake.set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if self._tasks else IDLE_S):
                    await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                number, latest = next(iter(self._outbox.items()))
                columns = dict(latest)
                if await commands.write_progress(conn, number, columns):
                    self._announced.set()
                # Only after the write: a lost connection must not lose the outcome.
                if self._outbox[number] == columns:
                    del self._outbox[number]
            self._written.set()
            if self._tasks:
                await self._look(conn)

    async def _look(self, conn: Connection) -> None:
        cursor = await conn.execute(
            "SELECT objid::bigint AS id FROM pg_locks WHERE locktype = 'advisory'"
            " AND classid = %s AND objsubid = 2 AND granted AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())",
            (LOCK_CLASS,),
        )
        waiting = {int(r["id"]) for r in await cursor.fetchall()}
        for number in list(self._misses):
            missing = number % 2_147_483_647 not in waiting
            self._misses[number] = self._misses[number] + 1 if missing else 0
            if self._misses[number] == MISSES_MAX:
                _log.info("command's caller is gone", command=number)
                tasks.cancel(self._tasks[number])


def _excerpt(text: str, position: int) -> str:
    """Return the line of ``text`` around its 1-based ``position``, marked as in psql."""
    before = text[: position - 1]
    number, start = before.count("\n") + 1, before.rfind("\n") + 1
    line = text[start:].split("\n", 1)[0].replace("\t", " ").rstrip("\r")
    at = len(before) - start
    left = max(0, min(at - _COLUMNS // 2, len(line) - _COLUMNS))
    head = f"LINE {number}: " + ("…" if left else "")
    tail = "…" if left + _COLUMNS < len(line) else ""
    return f"{head}{line[left : left + _COLUMNS]}{tail}\n{' ' * (len(head) + at - left)}^"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _read(command: Taken, column: str) -> Any:
    """Decode a column of type json; Postgres accepts more than Python does."""
    try:
        return msgspec.json.decode(getattr(command, column))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"the {column} of the call cannot be read",
            detail=f"It is JSON that is nested too deeply, or has a number too long: {error}.",
            sqlstate="22023",
        ) from error


def _objects(procedure: str, found: ResultSet | None) -> list[dict[str, Any]] | None:
    if found is None:
        return None
    documents = DOCUMENTS.get(procedure, ())
    return [
        {
            name: _read_json(value) if name in documents else value
            for name, value in zip(found.columns, row, strict=True)
        }
        for row in found.rows
    ]


def _read_json(value: Any) -> Any:
    return None if value is None else msgspec.Raw(str(value).encode())
