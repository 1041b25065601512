"""add_worker, remove_worker and workers: the processes that views may be placed on.

Here they are entered into the catalog; the commander, who hears of it with the answer, starts and
ends the processes (``server/supervisor.py``).
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from headrace.config import Settings
from headrace.errors import (
    DuplicateError,
    HeadraceError,
    PrivilegeError,
    UndefinedError,
    UserError,
)
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.process import rpc
from headrace.sql import nodes, views
from headrace.sql.nodes import MAIN
from headrace.sql.verbs import AddWorker, RemoveWorker, Request

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,19}")
_SOCKET_BYTES_MAX: Final = 107
"""The longest path of a Unix socket."""
_ASK_S: Final = 2.0


def add_worker(context: JobContext, job: Job, request: AddWorker) -> dict[str, Any]:
    """Enter a worker.

    Raises:
        UserError: 42602, a bad name; 22023, the data directory's path is too long.
        DuplicateError: 42710, there is one of that name.
        PrivilegeError: the caller is no member of the engine's role.
    """
    if not _NAME.fullmatch(request.name):
        raise UserError(
            f'invalid name of a worker: "{request.name}"',
            hint="It has 1 to 20 characters of a-z, 0-9 and _, and begins with a letter.",
            sqlstate="42602",
        )
    if request.name == MAIN:
        raise DuplicateError('worker "main" already exists', hint="It reads and writes.")
    settings = context.settings
    own = settings.of_worker(request.name)
    longest = max(settings.flight_socket(request.name), own.worker_socket, key=_length)
    if _length(longest) > _SOCKET_BYTES_MAX:
        raise UserError(
            "the path of the data directory is too long for a worker's sockets",
            detail=f"{longest} would have {_length(longest)} bytes; {_SOCKET_BYTES_MAX} may be.",
            hint="Choose a shorter name, or a data directory with a shorter path.",
        )
    with job.connection(settings.source, what="builder") as conn, job.translating():
        _check_caller(conn, request)
        if not nodes.insert(conn, request.name):
            raise DuplicateError(f'worker "{request.name}" already exists')
        return {"workers": [node.name for node in nodes.listed(conn)]}


def remove_worker(context: JobContext, job: Job, request: RemoveWorker) -> dict[str, Any]:
    """Forget a worker on which no view is placed.

    Raises:
        UndefinedError: 42704, there is none of that name.
        PrivilegeError: the caller is no member of the engine's role.
        UserError: 55006, views are placed on it.
    """
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        _check_caller(conn, request)
        with conn.transaction():
            if not nodes.delete(conn, request.name):
                raise UndefinedError(f'worker "{request.name}" does not exist')
            placed = nodes.placed(conn, request.name)
            if placed:
                raise UserError(
                    f'worker "{request.name}" is in use',
                    detail=f"Views on it: {', '.join(placed)}.",
                    hint="CALL headrace.set_placement(view, worker) puts them elsewhere.",
                    sqlstate="55006",
                )
        return {"workers": [node.name for node in nodes.listed(conn)]}


def workers(context: JobContext, job: Job, request: Request) -> list[list[Any]]:
    """A row for each worker; the columns of ``sql/workers.sql``."""
    settings = context.settings
    with job.connection(settings.source, what="builder") as conn:
        seen = views.seen(conn, request.caller)
        found = nodes.listed(conn) if seen.everything else []
    if not seen.everything:
        return []
    away = sum(node.views for node in found)
    rows = [_row(MAIN, _asked(settings), len(seen.names) - away, None)]
    rows += [_row(n.name, _asked(settings.of_worker(n.name)), n.views, n.since) for n in found]
    return rows


def check(conn: Connection, name: str) -> None:
    """Raise UndefinedError (42704) unless there is such a worker."""
    if name == MAIN or nodes.known(conn, name):
        return
    there = ", ".join([MAIN, *(node.name for node in nodes.listed(conn))])
    raise UndefinedError(
        f'worker "{name}" does not exist',
        hint=f"There are: {there}. CALL headrace.add_worker('{name}') makes it.",
    )


def _row(name: str, status: dict[str, Any] | None, count: int, since: str | None) -> list[Any]:
    if status is None:
        return [name, "lost", None, count, None, since]
    return [name, "running", status["pid"], count, status["memory_bytes"], since]


def _asked(settings: Settings) -> dict[str, Any] | None:
    """What the process of a worker says of itself; None: it cannot be asked."""

    async def ask() -> dict[str, Any]:
        peer = await rpc.connect(settings.worker_socket)
        try:
            answer: dict[str, Any] = await peer.call("status", {})
            return answer
        finally:
            await peer.close()

    try:
        return asyncio.run(asyncio.wait_for(ask(), _ASK_S))
    except (OSError, TimeoutError, HeadraceError):
        return None


def _check_caller(conn: Connection, request: Request) -> None:
    if not views.seen(conn, request.caller).everything:
        raise PrivilegeError(
            "permission denied to control workers",
            hint=f'Only members of role "{conn.info.user}" may.',
        )


def _length(path: object) -> int:
    return len(str(path).encode())
