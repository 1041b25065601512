"""Connections to the user's database, with pinned settings from the start.

The settings are sent as start-up ``options``: they override those of the database and the role
(E7, E13), and apply before the first statement.  So a value always has the same text, and no idle
time-out ends a snapshot.  Only connections that evaluate expressions are not pinned: they get the
settings of a view (``for_values``).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, TupleRow, dict_row

from headrace.errors import HeadraceError, PrerequisiteError, UserError
from headrace.postgres.failures import translate
from headrace.postgres.settings import AS_JSON, CAPTURED, PINNED_SETTINGS

Connection = psycopg.Connection[Any]

_TRANSACTION_TIMEOUT_SINCE: Final = 170_000
"""Older servers do not know the setting; as a start-up option it would fail the connection."""
_NO_TIMEOUT: Final = "SET transaction_timeout = 0"
_OWN: Final = (*CAPTURED, "default_transaction_read_only")
"""Settings that ``async_captured`` reads before it pins them."""
_READ: Final = (
    f"SELECT ({AS_JSON})::pg_catalog.text AS settings,"
    " pg_catalog.current_setting('transaction_read_only') AS read_only"
)
"""Uses no operators: through the search path they could be the role's own."""
_PIN: Final = (
    "SELECT pg_catalog.set_config(p.name, p.value, false)"
    " FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.text[]),"
    " pg_catalog.unnest(%s::pg_catalog.text[])) AS p (name, value)"
)
_LOGIN_S: Final = 5
_ALIVE: Final = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Detect a dead peer or network within half a minute (H39); the DSN may override it."""


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """The settings with which a new session of a role begins, where a call depends on them."""

    captured: Mapping[str, str]
    read_only: bool = False


def conninfo(
    dsn: str,
    *,
    name: str,
    replication: bool = False,
    settings: Mapping[str, str] | None = None,
    unpinned: Container[str] = (),
) -> str:
    """Return ``dsn`` with the pinned settings but ``unpinned``, overridden by ``settings``.

    ``name`` is the application_name.
    """
    given: dict[str, Any] = _ALIVE | conninfo_to_dict(dsn)
    pinned = dict(PINNED_SETTINGS) | dict(settings or {})
    options = " ".join(f"-c {k}={_escape(v)}" for k, v in pinned.items() if k not in unpinned)
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
    """Open a connection, ordinary or for logical replication.

    ``prepare``: psycopg prepares statements that are repeated.

    Raises:
        psycopg.Error: the connection failed.
    """
    conn = psycopg.connect(
        conninfo(dsn, name=name, replication=replication, settings=settings),
        autocommit=autocommit,
        prepare_threshold=5 if prepare else None,
        # A replication connection supports only the simple protocol; a ClientCursor sends values
        # as literals.
        cursor_factory=psycopg.ClientCursor if replication else psycopg.Cursor,
    )
    try:
        unlimited(conn)
    except BaseException:
        conn.close()
        raise
    return conn


def unlimited(conn: psycopg.Connection[Any]) -> None:
    """Disable ``transaction_timeout`` in the session, whatever the database or role sets.

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
    """Open a ``session``, but raise errors of Headrace.

    Raises:
        TransientError: the server cannot be reached now.
        HeadraceError: ``otherwise``; the server refused (password, database, pg_hba.conf).
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
    """Open a connection of the builder: its errors are a user's, and nothing is prepared.

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
    """Open another connection with the parameters of ``conn``, in autocommit mode.

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
    dsn: str,
    *,
    name: str,
    settings: Mapping[str, str] | None = None,
    unpinned: Container[str] = (),
) -> psycopg.AsyncConnection[TupleRow]:
    """Open a connection for an event loop, with rows as tuples.

    Raises:
        psycopg.Error: the connection failed.
    """
    conn = await psycopg.AsyncConnection.connect(
        conninfo(dsn, name=name, settings=settings, unpinned=unpinned), autocommit=True
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
    """Open a connection like ``async_session``, with rows as dicts by column name."""
    conn: Any = await async_session(dsn, name=name, settings=settings)
    conn.row_factory = dict_row
    return conn  # type: ignore[no-any-return]


async def async_captured(
    dsn: str, *, name: str, settings: Mapping[str, str] | None = None
) -> tuple[psycopg.AsyncConnection[DictRow], OwnSettings]:
    """Open a connection like ``async_dicts``, and return the role's own settings as well.

    They are read before they are pinned, on this connection: a role may be limited to one.

    Raises:
        psycopg.Error: the connection failed.
    """
    conn: Any = await async_session(dsn, name=name, settings=settings, unpinned=_OWN)
    try:
        settings_text, read_only = await (await conn.execute(_READ)).fetchone()
        pins = {k: v for k, v in PINNED_SETTINGS.items() if k in _OWN}
        await conn.execute(_PIN, (list(pins), list(pins.values())))
    except BaseException:
        await conn.close()
        raise
    conn.row_factory = dict_row
    captured = msgspec.json.decode(settings_text, type=dict[str, str])
    return conn, OwnSettings(captured, read_only == "on")


def for_values(dsn: str, *, name: str) -> psycopg.Connection[TupleRow]:
    """Open a connection to evaluate a view's expressions; it gets the view's settings later.

    Raises:
        psycopg.Error: the connection failed.
    """
    return psycopg.connect(
        make_conninfo(dsn, application_name=name),
        autocommit=True,
        client_encoding="UTF8",
        prepare_threshold=None,
    )


def log_in(dsn: str) -> None:
    """Log in and out again, without a statement.

    Raises:
        psycopg.Error: the login failed.
    """
    psycopg.connect(dsn, connect_timeout=_LOGIN_S).close()


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
