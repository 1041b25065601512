"""The door to the user's database: every connection of ours, pinned from its start.

The settings travel as start-up ``options``: they override those of the database and the role (E7,
E13), and they are in force before the first statement.  So one value always has one text, and no
idle time-out ends a snapshot.  Only what evaluates is not pinned: its settings are those of a view
(``for_values``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, TupleRow, dict_row

from headrace.errors import HeadraceError, PrerequisiteError, UserError
from headrace.postgres.failures import translate
from headrace.postgres.settings import PINNED_SETTINGS

Connection = psycopg.Connection[Any]

_TRANSACTION_TIMEOUT_SINCE: Final = 170_000
"""Unknown before: as a start-up option it would refuse the connection there."""
_NO_TIMEOUT: Final = "SET transaction_timeout = 0"
_LOGIN_S: Final = 5
_ALIVE: Final = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""A dead peer or network is noticed within half a minute (H39); the DSN may say otherwise."""


def conninfo(
    dsn: str, *, name: str, replication: bool = False, settings: Mapping[str, str] | None = None
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


def session(
    dsn: str,
    *,
    name: str,
    settings: Mapping[str, str] | None = None,
    autocommit: bool = True,
    replication: bool = False,
    prepare: bool = True,
) -> psycopg.Connection[TupleRow]:
    """A connection, ordinary or for logical replication; ``prepare``: what is repeated.

    Raises:
        psycopg.Error: there is none to be had.
    """
    conn = psycopg.connect(
        conninfo(dsn, name=name, replication=replication, settings=settings),
        autocommit=autocommit,
        prepare_threshold=5 if prepare else None,
        # A replication connection knows the simple protocol only; this one sends values as
        # literals.
        cursor_factory=psycopg.ClientCursor if replication else psycopg.Cursor,
    )
    try:
        unlimited(conn)
    except BaseException:
        conn.close()
        raise
    return conn


def unlimited(conn: psycopg.Connection[Any]) -> None:
    """Have the session's transactions take any time, whatever is set at the database or role.

    Raises:
        psycopg.Error: the connection is lost.
    """
    if conn.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
        conn.execute(_NO_TIMEOUT)
        if not conn.autocommit:
            conn.commit()


def connect(
    dsn: str,
    *,
    name: str,
    settings: Mapping[str, str] | None = None,
    autocommit: bool = True,
    replication: bool = False,
    prepare: bool = True,
    otherwise: type[HeadraceError] = PrerequisiteError,
) -> Connection:
    """``session``, with errors of our tree.

    Raises:
        TransientError: the server cannot be reached now.
        HeadraceError: ``otherwise``; it refuses us (password, database, pg_hba.conf).
    """
    try:
        return session(
            dsn,
            name=name,
            settings=settings,
            autocommit=autocommit,
            replication=replication,
            prepare=prepare,
        )
    except psycopg.Error as error:
        raise translate(error, otherwise) from error


def for_job(
    dsn: str,
    *,
    what: str,
    autocommit: bool = True,
    replication: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Connection:
    """One of the builder's: what fails on it is told to a user; nothing is prepared.

    Raises:
        TransientError: the server cannot be reached, or refuses connections for now.
    """
    return connect(
        dsn,
        name=f"headrace {what}",
        settings=settings,
        autocommit=autocommit,
        replication=replication,
        prepare=False,
        otherwise=UserError,
    )


def duplicate(conn: Connection) -> Connection:
    """Another connection that was opened with the same parameters, in autocommit mode.

    Raises:
        TransientError: the server cannot be reached, or refuses connections for now.
    """
    given = conn.info.get_parameters() | {"password": conn.info.password}
    try:
        other = psycopg.connect(
            make_conninfo("", **{name: value for name, value in given.items() if value}),
            autocommit=True,
            prepare_threshold=None,
        )
        try:
            unlimited(other)
        except BaseException:
            other.close()
            raise
    except psycopg.Error as error:
        raise translate(error, UserError) from error
    return other


async def async_session(
    dsn: str, *, name: str, settings: Mapping[str, str] | None = None
) -> psycopg.AsyncConnection[TupleRow]:
    """One that answers by tuples, for an event loop.

    Raises:
        psycopg.Error: there is none to be had.
    """
    conn = await psycopg.AsyncConnection.connect(
        conninfo(dsn, name=name, settings=settings), autocommit=True
    )
    try:
        if conn.info.server_version >= _TRANSACTION_TIMEOUT_SINCE:
            await conn.execute(_NO_TIMEOUT)
    except BaseException:
        await conn.close()
        raise
    return conn


async def async_dicts(
    dsn: str, *, name: str, settings: Mapping[str, str] | None = None
) -> psycopg.AsyncConnection[DictRow]:
    """One that answers by columns' names, for an event loop; raises as ``async_session``."""
    conn: Any = await async_session(dsn, name=name, settings=settings)
    conn.row_factory = dict_row
    return conn  # type: ignore[no-any-return]


def for_values(dsn: str, *, name: str) -> psycopg.Connection[TupleRow]:
    """One on which a view's expressions are evaluated, under settings that it gets later.

    Raises:
        psycopg.Error: there is none to be had.
    """
    return psycopg.connect(
        make_conninfo(dsn, application_name=name),
        autocommit=True,
        client_encoding="UTF8",
        prepare_threshold=None,
    )


def log_in(dsn: str) -> None:
    """Log in and out again; nothing is sent.

    Raises:
        psycopg.Error: the server does not let us in.
    """
    psycopg.connect(dsn, connect_timeout=_LOGIN_S).close()


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
