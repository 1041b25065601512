"""Hints for connections that Postgres refused, in commands of a shell."""

from __future__ import annotations

import re
from typing import Final

import psycopg

from headrace.errors import HeadraceError

_UNPREPARED: Final = re.compile(
    r'role ".*" does not exist|password authentication failed|permission denied for database'
    r"|is not permitted to log in"
)
"""Answers to a role that does not exist or lacks rights; a server may translate them.

With passwords, a role that does not exist and a wrong password have the same answer.
"""
_WAYS: Final = "in PGPASSWORD or a password file"


def for_source(error: psycopg.Error) -> str | None:
    """Return the hint for a refused connection to the source, as Headrace's role."""
    if error.pgconn is None:
        return None
    role = _role(error)
    if error.pgconn.needs_password:
        return f"The connection is made as role {role}: give its password {_WAYS}."
    if not _UNPREPARED.search(str(error)):
        return None
    password = " Otherwise check the password." if error.pgconn.used_password else ""
    return (
        f"If role {role} does not exist yet, or lacks rights, headrace init prepares it.{password}"
    )


def for_admin(error: psycopg.Error, flag: str) -> str:
    """Return the hint for a refused connection of a superuser, which option ``flag`` names."""
    role = "a superuser" if error.pgconn is None else f"role {_role(error)}"
    return (
        f"The connection is made as {role}: give its password {_WAYS}, or another superuser with"
        f" {flag} DSN."
    )


def with_hint(error: HeadraceError) -> HeadraceError:
    """Return ``error`` with the hint of the refused connection that it comes from, if any."""
    cause = error.__cause__
    hint = for_source(cause) if isinstance(cause, psycopg.OperationalError) else None
    return error if error.hint or hint is None else error.again(hint=hint)


def _role(error: psycopg.Error) -> str:
    user = error.pgconn.user if error.pgconn is not None else b""
    return f'"{user.decode(errors="replace")}"'
