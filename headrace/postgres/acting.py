"""Running the rest of a transaction as another role: its rights and its search path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.errors import PrerequisiteError
from headrace.postgres.settings import PINNED_SETTINGS

_SEARCH_PATH: Final = '"$user", public'
"""Postgres' default, for a caller that gave none: the session's own path is pinned."""


def become(conn: psycopg.Connection[Any], caller: str) -> None:
    """Take the rights of ``caller`` for the rest of the transaction.

    Raises:
        PrerequisiteError: Headrace may not act for that role.
    """
    role = sql.Identifier(caller)
    try:
        with conn.transaction():
            conn.execute(sql.SQL("SET LOCAL ROLE {}").format(role))
    except psycopg.errors.InsufficientPrivilege as error:
        row = conn.execute("SELECT current_user").fetchone()
        assert row is not None, "every session has a user"
        grant = sql.SQL("GRANT {} TO {};").format(role, sql.Identifier(row[0]))
        raise PrerequisiteError(
            f'Headrace may not act for role "{caller}"',
            detail="Queries are checked and run with the rights of the calling role.",
            hint=f"Run: {grant.as_string(conn)}",
            sqlstate="42501",
        ) from error


def act_as(conn: psycopg.Connection[Any], caller: str | None, settings: dict[str, str]) -> None:
    """Become ``caller``, with the caller's search path, for the rest of the transaction."""
    path = settings.get("search_path", _SEARCH_PATH)
    if caller is not None:
        become(conn, caller)
    conn.execute("SELECT pg_catalog.set_config('search_path', %s, true)", (path,))


@contextmanager
def own_names(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Run Headrace's own statements under the pinned search path instead of the caller's.

    On the caller's search path, any operator, function or type in a statement could resolve to an
    object of the caller.  REQUIRES: a transaction; the effects of the statements are rolled back.
    """
    with conn.transaction(force_rollback=True):
        conn.execute(
            "SELECT pg_catalog.set_config('search_path', %s, true)",
            (PINNED_SETTINGS["search_path"],),
        )
        yield
