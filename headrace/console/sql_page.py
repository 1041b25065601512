"""The three actions of the SQL page: check a query, explain it, create a view of it.

Each is a call of the logged-in role (``host_interface.Ask``), with the settings of its own
sessions.  No text is ever executed as a statement here.  A login by token reads only.

A call ends with its request: it is cancelled when the browser goes, and after ``SQL_S``.  A view is
created with ``block: false``, so the call returns once the query is accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import psycopg

from headrace.console import access
from headrace.console.access import ENGINE, Gone, Person
from headrace.console.graph import graph
from headrace.console.host_interface import HostInterface
from headrace.errors import HeadraceError, PrivilegeError, QueryCancelled, TransientError, UserError
from headrace.process import tasks
from headrace.sql import seen

SQL_BYTES_MAX: Final = 131_072
SQL_S: Final = 25.0
"""Less than the time limit of an answer."""
RUNNING_MAX: Final = 4
"""Limit of calls of one identity at one time, with cancelled ones that still clean up."""
FILL_S: Final = 6.0
"""Seconds that an answer waits for the contents of an accepted view."""
NOTICES_MAX: Final = 100
_PHYSICAL: Final = {"stage": "physical", "format": "json"}


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request of the page."""

    action: Literal["check", "explain", "create"]
    query: str
    name: str = ""
    options: dict[str, Any] = {}


class Busy(Exception):
    """Too many calls of the identity are running."""


_BODY: Final = msgspec.json.Decoder(SqlBody)


def body_of(data: bytes) -> SqlBody:
    """Return the body of a request.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    return _BODY.decode(data)


@dataclass(frozen=True, slots=True)
class _Caller:
    """Role that calls, the connection that proves it, and where the notices go."""

    role: str
    person: Person
    notices: list[str]

    def report(self, text: str) -> None:
        """Keep a notice."""
        if len(self.notices) < NOTICES_MAX:
            self.notices.append(text)


class SqlPage:
    """Runs the actions, a few at a time for each identity."""

    def __init__(self, outside: HostInterface) -> None:
        self._outside = outside
        self._running: dict[str, set[asyncio.Task[Any]]] = {}

    async def answer(
        self, person: Person, body: SqlBody, leaving: Callable[[], Coroutine[Any, Any, Any]]
    ) -> dict[str, Any]:
        """Return the outcome of an action, or its error; cancel it when ``leaving`` returns.

        Raises:
            Busy: too many calls of this identity are running.
        """
        notices: list[str] = []
        task = self._begin(person, body, notices)
        left = asyncio.create_task(leaving())
        try:
            await asyncio.wait((task, left), timeout=SQL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                tasks.cancel(task)
            left.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await left
        try:
            if not task.done() or task.cancelled():
                raise QueryCancelled(f"canceling the call after {SQL_S:.0f} s")
            return {"notices": notices, **task.result()}
        except HeadraceError as error:
            return {"notices": notices, "error": _told(error)}

    def _begin(self, person: Person, body: SqlBody, notices: list[str]) -> asyncio.Task[Any]:
        mine = self._running.setdefault(person.key, set())
        if len(mine) >= RUNNING_MAX:
            raise Busy(f"{RUNNING_MAX} calls of this login are running: wait for one to end")
        task = asyncio.create_task(self._act(person, body, notices))
        mine.add(task)

        def ended(done: asyncio.Task[Any]) -> None:
            if not done.cancelled():
                done.exception()  # a caller that has gone does not take it
            mine.discard(done)
            if not mine:
                self._running.pop(person.key, None)

        task.add_done_callback(ended)
        return task

    async def _act(self, person: Person, body: SqlBody, notices: list[str]) -> dict[str, Any]:
        if body.action == "create":
            _check_writes(person)
        conn = person.conn
        if conn is None:
            raise TransientError("the database does not answer")
        try:
            # Check the role each time: it may have been dropped, renamed, or shut out.
            me = await access.welcome(conn)
        except (psycopg.Error, Gone) as error:
            raise TransientError("the database does not answer, or the login is over") from error
        caller = _Caller(me["role"], person, notices)
        if body.action == "create":
            return await self._create(caller, conn, body)
        accepted = None
        if body.action == "check":
            await self._ask(caller, "check_view", {"query": body.query, "options": body.options})
            accepted = "create_view accepts this query"
        arguments = {"name_or_query": body.query, **_PHYSICAL}
        dialect = body.options.get("dialect")
        if dialect is not None:
            arguments["dialect"] = str(dialect)
        kept = len(notices)
        lines = await self._ask(caller, "explain_view", arguments)
        if accepted:
            del notices[kept:]  # check_view has said the same
        return {"done": accepted, "graph": graph("\n".join(line["plan"] for line in lines))}

    async def _create(
        self, caller: _Caller, conn: access.Connection, body: SqlBody
    ) -> dict[str, Any]:
        if not body.name.strip():
            raise UserError("the view needs a name", sqlstate="42602")
        options = body.options | {"block": False}
        arguments = {"name": body.name, "query": body.query, "options": options}
        filled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        filled.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self._ask(caller, "create_view", arguments, filled)
        # A failure that comes soon is shown here; a later one is in the log.
        await asyncio.wait((filled,), timeout=FILL_S)
        if filled.done():
            filled.result()
        try:
            view = await seen.created(conn, body.name)
        except psycopg.Error:
            view = None
        words = "The view is up to date" if filled.done() else "The view is being filled"
        return {"done": words, "view": view}

    async def _ask(
        self,
        caller: _Caller,
        procedure: str,
        arguments: dict[str, Any],
        filled: asyncio.Future[None] | None = None,
    ) -> list[dict[str, Any]]:
        def later(error: BaseException | None) -> None:
            if filled is None or filled.done():
                return
            if error is None:
                filled.set_result(None)
            else:
                filled.set_exception(error)

        own = caller.person.own.captured
        ask = self._outside.ask
        return await ask(procedure, arguments, caller.role, own, caller.report, later)


def _check_writes(person: Person) -> None:
    """Refuse a login that only reads.

    Raises:
        PrivilegeError: the login is by token.
        UserError: 25006, the role's sessions are read-only.
    """
    if person.key == ENGINE:
        raise PrivilegeError(
            "a login with the token reads only",
            hint="Log in as a role of the database to create views: they belong to that role.",
        )
    if person.own.read_only:
        raise UserError(
            "cannot execute headrace.create_view in a read-only transaction",
            hint="The sessions of this role are read-only (default_transaction_read_only).",
            sqlstate="25006",
        )


def _told(error: HeadraceError) -> dict[str, Any]:
    names = {"C": "sqlstate", "M": "message", "D": "detail", "H": "hint", "P": "position"}
    return {names[key]: value for key, value in error.fields().items() if key in names}
