"""Connections of the builder to the source database: pinned, named, cancellable.

Settings go into the startup packet, where they win over those of the database and the role
(E7, E13): one value always has one text, and no idle timeout kills a snapshot.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from headrace.errors import HeadraceError, UserError
from headrace.postgres import pinned

Connection = psycopg.Connection[Any]

_TRANSACTION_TIMEOUT_SINCE: Final = 170_000
_SEARCH_PATH: Final = '"$user", public'
"""Postgres' own default, for a caller who gave none: ours is pinned."""


def connect(
    dsn: str,
    *,
    what: str,
    autocommit: bool = True,
    replication: bool = False,
    settings: dict[str, str] | None = None,
) -> Connection:
    """An ordinary or logical replication connection under ``PINNED_SETTINGS``.

    ``what`` is shown as its application name; ``settings`` are laid over the pinned ones.

    Raises:
        TransientError: the server cannot be reached, or refuses connections for now.
    """
    target = pinned.conninfo(
        dsn,
        name=f"headrace {what}",
        replication=replication,
        settings={"idle_session_timeout": "0"} | (settings or {}),
    )
    # A replication connection knows the simple protocol only; ours sends values as literals.
    factory = psycopg.ClientCursor if replication else psycopg.Cursor
    try:
        conn: Connection = psycopg.connect(
            target,
            autocommit=autocommit,
            prepare_threshold=None,
            cursor_factory=factory,
        )
    except psycopg.Error as error:
        raise as_headrace(error) from error
    if conn.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
        conn.execute("SET transaction_timeout = 0")
        if not autocommit:
            conn.commit()
    return conn


def as_headrace(error: psycopg.Error) -> HeadraceError:
    """The same error in our tree, with Postgres' own words.

    Whether a user gave up is the job's to say (``Job.check``), not an SQLSTATE's.
    """
    return pinned.translate(error, UserError)


def act_as(conn: Connection, caller: str | None, settings: dict[str, str]) -> None:
    """For the rest of the transaction, be ``caller`` with the caller's search path."""
    path = settings.get("search_path", _SEARCH_PATH)
    if caller is not None:
        pinned.become(conn, caller)
    conn.execute("SELECT pg_catalog.set_config('search_path', %s, true)", (path,))


def quoted(schema: str, name: str) -> str:
    """``schema.name`` with quotes where they are needed for the eye to read it as two."""
    return f'"{schema}"."{name}"'
