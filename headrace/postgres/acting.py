"""Running the rest of a transaction as another role: its rights and its search path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.errors import PrerequisiteError
from headrace.postgres.settings import PINNED_SETTINGS

SUPERUSER: Final = """EXISTS (
SELECT FROM pg_catalog.pg_roles s
 WHERE s.rolsuper AND pg_catalog.pg_has_role(o.oid, s.oid, 'MEMBER'))"""
"""Condition on a role ``o``: it is a superuser or a member of one, and so is each of its members.

Headrace's role must never become a member of such a role, unless it is one itself.
"""
OWN_SUPERUSER: Final = (
    "Let an ordinary role own the table (ALTER TABLE … OWNER TO …) that Headrace's role is a member"
    " of: headrace init prints the statements."
)
"""Hint for a table of such a role."""

_SEARCH_PATH: Final = '"$user", public'
"""Postgres' default, for a caller that gave none: the session's own path is pinned."""

_REFUSED: Final = f"""
SELECT current_user, {SUPERUSER} FROM pg_catalog.pg_roles o
 WHERE o.rolname OPERATOR(pg_catalog.=) %s"""  # noqa: S608  a constant


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
        raise _refused(conn, caller) from error


def _refused(conn: psycopg.Connection[Any], caller: str) -> PrerequisiteError:
    row = conn.execute(_REFUSED, (caller,)).fetchone()
    assert row is not None, "a role that cannot be taken exists"
    engine, powerful = row
    detail = "Queries are checked and run with the rights of the role that owns the view."
    if powerful:
        detail += (
            f' Headrace\'s role "{engine}" is no superuser, and would be one in effect as a member of'
            f' "{caller}".'
        )
        hint = (
            "Connect as an ordinary role that owns the tables or may read them, or SET ROLE to it."
            " Headrace's role must be a member of it: headrace init prints the GRANT."
        )
    else:
        hint = f"Run: {membership(caller, engine).as_string(conn)};"
    return PrerequisiteError(
        f'Headrace may not act for role "{caller}"', detail=detail, hint=hint, sqlstate="42501"
    )


def membership(role: str, member: str) -> sql.Composed:
    """Return the GRANT that lets Headrace's role, ``member``, act for ``role``.

    REQUIRES: ``SUPERUSER`` is false for ``role``.
    """
    return sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(member))


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
