"""Rows of ``headrace.commands``: the commander takes them and writes answers; on an event loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import psycopg
from psycopg.rows import class_row, tuple_row

from headrace.sql.status import CommandStatus

Connection = psycopg.AsyncConnection[Any]

_KEEP: Final = "1 hour"


@dataclass(frozen=True, slots=True)
class Taken:
    """Command to be executed; every field but ``caller`` is untrusted input."""

    id: int
    procedure: str
    arguments: str
    settings: str
    caller: str | None
    """None: the role no longer exists."""
    queued: bool = False
    """Whether it was made in a transaction, so that its caller does not wait."""


async def fail_running(conn: Connection, error: Mapping[str, str]) -> None:
    """Mark all running commands as failed, because no process executes them any more."""
    await conn.execute(
        "UPDATE headrace.commands SET status = %s, error = %s,"
        " arguments = '{}', finished_at = now() WHERE status = %s",
        (CommandStatus.FAILED, msgspec.json.encode(error).decode(), CommandStatus.RUNNING),
    )


async def give_back(conn: Connection, known: Collection[int]) -> None:
    """Return running commands that are not in ``known`` to the queue: they were not begun."""
    await conn.execute(
        "UPDATE headrace.commands SET status = %s WHERE status = %s AND id <> ALL (%s)",
        (CommandStatus.PENDING, CommandStatus.RUNNING, list(known)),
    )


async def take(conn: Connection, most: int) -> list[Taken]:
    """Take up to ``most`` pending commands in order, and mark them as running.

    A queued one waits for earlier ones of its role.
    """
    async with conn.cursor(row_factory=class_row(Taken)) as cursor:
        await cursor.execute(
            "WITH taken AS (UPDATE headrace.commands SET status = %s"
            " WHERE id IN (SELECT c.id FROM headrace.commands c WHERE c.status = %s"
            " AND NOT (c.queued AND EXISTS (SELECT FROM headrace.commands e WHERE e.queued"
            " AND e.caller = c.caller AND e.id < c.id AND e.status IN ('pending', 'running')))"
            " ORDER BY c.id LIMIT %s)"
            " RETURNING id, procedure, arguments, caller, settings, queued)"
            " SELECT t.id, t.procedure, t.arguments::text, t.settings::text,"
            " r.rolname AS caller, t.queued"
            " FROM taken t LEFT JOIN pg_roles r ON r.oid = t.caller ORDER BY t.id",
            (CommandStatus.RUNNING, CommandStatus.PENDING, most),
        )
        return await cursor.fetchall()


async def write_progress(conn: Connection, number: int, columns: Mapping[str, str]) -> bool:
    """Write the progress of a command; with a status: write its outcome, and delete old commands.

    Returns whether a queued one has ended, so that the next one of its role may begin.

    The arguments of a finished command are erased, because they may hold a password.
    """
    status = columns.get("status")
    cursor = conn.cursor(row_factory=tuple_row)
    await cursor.execute(
        "UPDATE headrace.commands SET status = coalesce(%s, status),"
        " progress = coalesce(%s::jsonb, progress),"
        " result = %s::jsonb, error = %s::jsonb,"
        " arguments = CASE WHEN %s::text IS NULL THEN arguments ELSE '{}' END, finished_at ="
        " CASE WHEN %s::text IS NOT NULL THEN clock_timestamp() END"
        " WHERE id = %s RETURNING queued",
        (
            *(status, columns.get("progress"), columns.get("result")),
            *(columns.get("error"), status, status, number),
        ),
    )
    row = await cursor.fetchone()
    if status is not None:
        await conn.execute(
            "DELETE FROM headrace.commands WHERE finished_at < now() - %s::interval", (_KEEP,)
        )
    return status is not None and row is not None and bool(row[0])
