"""Connections with pinned settings: one value always has one text (E13).

The settings travel as start-up ``options``: they override those of the database and the role,
and they are in force before the first statement.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace import errors
from headrace.errors import HeadraceError, PrerequisiteError, TransientError
from headrace.types import PINNED_SETTINGS

_ALIVE: Final = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""A dead peer or network is noticed within half a minute (H39); the DSN may say otherwise."""

_ALONE: Final = """
SELECT pg_catalog.pg_try_advisory_xact_lock(%(number)s::pg_catalog.int8), EXISTS (
  SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
   WHERE l.locktype = 'advisory' AND l.classid = 0 AND l.objid = %(number)s AND l.objsubid = 1
     AND l.granted AND a.datname = current_database() AND a.usename <> current_user)"""
_AGAIN_S: Final = 0.02

_ENDING: Final = ("FATAL", "PANIC")
"""Severities with which a server ends the session; no code of a user has them."""


def conninfo(
    dsn: str,
    *,
    name: str,
    replication: bool = False,
    settings: Mapping[str, str] | None = None,
) -> str:
    """``dsn`` with pinned settings, laid over by ``settings``; ``name``: application_name."""
    given: dict[str, Any] = _ALIVE | conninfo_to_dict(dsn)
    pinned = dict(PINNED_SETTINGS) | dict(settings or {})
    options = " ".join(f"-c {k}={_escape(v)}" for k, v in pinned.items())
    before = given.pop("options", None) or ""
    given["options"] = f"{before} {options}".strip()
    given["application_name"] = name
    if replication:
        given["replication"] = "database"
    return make_conninfo("", **given)


def connect(
    dsn: str, *, name: str, settings: Mapping[str, str] | None = None
) -> psycopg.Connection[tuple[Any, ...]]:
    """An ordinary autocommit connection with pinned settings.

    Raises:
        TransientError: the server cannot be reached now.
        PrerequisiteError: it refuses us (password, database, pg_hba.conf).
    """
    try:
        conn = psycopg.connect(
            conninfo(dsn, name=name, settings=settings), autocommit=True
        )
        if conn.info.server_version >= 170000:
            # Unknown before 17: as a start-up option it would refuse the connection there.
            conn.execute("SET transaction_timeout = 0")
    except psycopg.Error as error:
        raise classify(error) from error
    return conn


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


def one_statement(conn: psycopg.Connection[Any], text: str) -> None:
    """Carry out ``text``, in which Postgres takes no more than one statement.

    Binary results need the extended protocol, which refuses several; ``prepare`` does not where
    ``prepare_threshold`` is None.
    """
    conn.execute(text.encode(), binary=True)


def alone(conn: psycopg.Connection[Any], number: int) -> None:
    """Be the only one of our role at what ``number`` stands for, until the transaction ends.

    Anybody may take an advisory lock, for ever: one that another role holds is none of ours.
    """
    while True:
        row = conn.execute(_ALONE, {"number": number}).fetchone()
        assert row is not None, "functions give a row"
        if row[0] or row[1]:
            return
        time.sleep(_AGAIN_S)


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, whatever SQLSTATE the error has."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.diag.severity_nonlocalized in _ENDING


def is_transient(error: psycopg.Error) -> bool:
    """Whether trying a *statement of ours* again may help (``errors.transient``).

    Of a statement that can run code of a user only ``is_lost`` can be believed.
    """
    if error.sqlstate is None:
        return is_lost(error)
    return errors.transient(error.sqlstate)


def classify(error: psycopg.Error) -> HeadraceError:
    """The error of our tree for a failure of a connection, or of a statement of ours."""
    return translate(error, PrerequisiteError)


def translate(
    error: psycopg.Error,
    otherwise: type[HeadraceError],
    *,
    shift: int | None = None,
    inner: str | None = None,
) -> HeadraceError:
    """Postgres' error in our tree, with its words and its SQLSTATE.

    A ``TransientError`` where trying again may help, else an ``otherwise``.  The position
    counts in the user's text, before which ``shift`` characters of the statement stand; without
    ``shift`` the statement is ours, and a position in it says nothing.  ``inner`` is the statement
    that counts, where a function of ours carries it out.
    """
    diag = error.diag
    at = diag.statement_position
    if inner is not None and diag.internal_query == inner:
        at = diag.internal_position
    position = 0 if shift is None else int(at or 0) - shift
    transient = is_transient(error)
    kind = TransientError if transient else otherwise
    return kind(
        diag.message_primary or str(error).strip() or type(error).__name__,
        detail=diag.message_detail,
        hint=diag.message_hint,
        position=position if position > 0 else None,
        sqlstate=error.sqlstate or ("08006" if transient else None),
    )


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
