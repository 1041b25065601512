"""For the rest of a transaction, being somebody else: his rights, his names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.errors import PrerequisiteError
from headrace.postgres.settings import PINNED_SETTINGS

_SEARCH_PATH: Final = '"$user", public'
"""Postgres' own default, for a caller who gave none: ours is pinned."""


def become(conn: psycopg.Connection[Any], caller: str) -> None:
    """For the rest of the transaction, have the rights of ``caller``.

    Raises:
        PrerequisiteError: we may not act for that role.
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
            detail="Queries are checked and carried out with the rights of whoever asks.",
            hint=f"Run: {grant.as_string(conn)}",
            sqlstate="42501",
        ) from error


def act_as(conn: psycopg.Connection[Any], caller: str | None, settings: dict[str, str]) -> None:
    """For the rest of the transaction, be ``caller`` with the caller's search path."""
    path = settings.get("search_path", _SEARCH_PATH)
    if caller is not None:
        become(conn, caller)
    conn.execute("SELECT pg_catalog.set_config('search_path', %s, true)", (path,))


@contextmanager
def own_names(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """For statements of ours amid the settings of a caller: names in them mean what we mean.

    On a caller's search path any operator, function or type of a statement may be one of his, which
    then runs there.  REQUIRES: a transaction; what the statements do is undone.
    """
    with conn.transaction(force_rollback=True):
        conn.execute(
            "SELECT pg_catalog.set_config('search_path', %s, true)",
            (PINNED_SETTINGS["search_path"],),
        )
        yield
