"""Logins to the console, and the role that the queries of each login run as.

With the *token*, which only users who may read the engine's files have, queries run as the engine's
role.  With a role's *name and password* the source decides, and queries run on that very
connection: row security shows what the role may see.  The password is not kept, so when the
connection is lost the login is over.

The source must have asked for the password (``require_auth``): a source that trusts this computer
has identified Headrace, not the user who logs in.  The engine's own credentials are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import structlog
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.config import Settings
from headrace.errors import PrerequisiteError
from headrace.postgres import connect
from headrace.postgres.connect import OwnSettings
from headrace.process import durable, secret_files
from headrace.sql import seen

ENGINE: Final = "engine"
"""Identity of a login by token; other identities are the OID of their role."""
LOGINS_MAX: Final = 4
"""Logins that the source is asked about at one time."""
ROLES_MAX: Final = 32
"""Roles that are logged in at one time: each has a connection."""
_LOGIN_S: Final = 10.0
_NAME_BYTES_MAX: Final = 63
_PASSWORD_BYTES_MAX: Final = 1_024
_TOKEN_MIN: Final = 16
_WHERE: Final = frozenset(
    (
        *("host", "hostaddr", "port", "dbname", "service", "target_session_attrs"),
        *("load_balance_hosts", "sslmode", "sslrootcert", "sslcrl", "sslcrldir", "sslsni"),
        *("sslnegotiation", "ssl_min_protocol_version", "ssl_max_protocol_version"),
        *("connect_timeout", "channel_binding"),
    )
)
"""Parts of the engine's DSN that say where the source is, and contain no credentials."""
_ASKED: Final = "password,md5,scram-sha-256"
_OWN: Final = {"row_security": "on", "statement_timeout": "10000"}
"""Row security as for any role, and a time limit for long queries."""

Connection = psycopg.AsyncConnection[Any]
_log = structlog.get_logger(__name__)


class Refused(Exception):
    """A refused login; its message may be shown to any client."""


class Gone(Exception):
    """The end of a login: its role can no longer be used."""


@dataclass(slots=True)
class Person:
    """A logged-in identity: its queries run on ``conn``."""

    key: str
    role: str
    database: str
    conn: Connection | None
    own: OwnSettings
    """Settings of the role's own sessions, with which its calls are made."""


class Access:
    """Checks logins to the console."""

    def __init__(self, settings: Settings) -> None:
        """Read the token, or make one.

        Raises:
            PrerequisiteError: the file cannot be read, has no token, or other users may read it.
        """
        self._settings = settings
        self._token = _token(settings).encode()
        self._asking = asyncio.Semaphore(LOGINS_MAX)

    def is_token(self, token: str) -> bool:
        """Return whether this is the token; takes the same time for every text."""
        return hmac.compare_digest(token.encode(errors="replace"), self._token)

    async def by_token(self, token: str) -> Person:
        """Log in with the token.

        Raises:
            Refused: it is another one, or the source cannot be reached.
        """
        if not self.is_token(token):
            raise Refused("invalid token")
        try:
            return await self._identity(*await self._engine(), ENGINE)
        except (psycopg.Error, TimeoutError, Gone) as error:
            raise Refused("the database cannot be reached now") from error

    async def engine(self) -> Connection:
        """Connect as the engine's role.

        Raises:
            psycopg.Error, TimeoutError: the source cannot be reached.
        """
        return (await self._engine())[0]

    async def _engine(self) -> tuple[Connection, OwnSettings]:
        async with self._asking, asyncio.timeout(_LOGIN_S):
            return await _connected(self._settings.source)

    async def by_password(self, role: str, password: str) -> Person:
        """Log in to the source as ``role``.

        Raises:
            Refused: the source does not let it in, or cannot be reached.
        """
        dsn = self._as_role(role, password)
        try:
            async with self._asking, asyncio.timeout(_LOGIN_S):
                conn, own = await _connected(dsn)
            return await self._identity(conn, own, None)
        except (psycopg.Error, TimeoutError, Gone) as error:
            # libpq gives no SQLSTATE here, and its message may name hosts: it goes only to the log.
            _log.info("console login failed", role=role, reason=str(error).strip())
            raise Refused("the database rejected this role, or cannot be reached") from None

    def _as_role(self, role: str, password: str) -> str:
        texts = (role, password)
        if not all(texts):
            # libpq would replace an empty value by the engine's own, or by one from a file.
            raise Refused("a role and its password are required")
        if "\0" in role + password or not all(_is_utf8(text) for text in texts):
            raise Refused("role and password must be strings")
        if len(role.encode()) > _NAME_BYTES_MAX or len(password.encode()) > _PASSWORD_BYTES_MAX:
            raise Refused("role or password is too long")
        where = {k: v for k, v in conninfo_to_dict(self._settings.source).items() if k in _WHERE}
        own = {"user": role, "password": password, "passfile": os.devnull}
        own |= {"gssencmode": "disable", "sslcertmode": "disable"}
        if not self._settings.allow_trust:
            own["require_auth"] = _ASKED
        return make_conninfo("", **(where | own))

    async def _identity(self, conn: Connection, own: OwnSettings, key: str | None) -> Person:
        try:
            async with asyncio.timeout(_LOGIN_S):
                me = await welcome(conn)
        except BaseException:
            await conn.close()
            raise
        return Person(key or str(me["oid"]), me["role"], me["database"], conn, own)


async def _connected(dsn: str) -> tuple[Connection, OwnSettings]:
    return await connect.async_captured(dsn, name="headrace console", settings=_OWN)


async def welcome(conn: Connection) -> dict[str, Any]:
    """Return the role of ``conn``, its OID and the database.

    Raises:
        Gone: the role does not exist any more, or may not log in any more.
        psycopg.Error: the connection is lost.
    """
    try:
        me = await seen.me(conn)
    except psycopg.errors.UndefinedObject:
        me = None
    if me is None or not me["welcome"]:
        raise Gone("the role may no longer log in")
    return me


async def let_go(conn: Connection | None) -> None:
    """Close ``conn``, but do not wait long for a server that does not answer."""
    if conn is not None:
        with contextlib.suppress(psycopg.Error, TimeoutError):
            async with asyncio.timeout(1.0):
                await conn.close()


def token_path(settings: Settings) -> Path:
    """Return the path of the token's file."""
    given = settings.console_token_file
    return Path(given) if given else settings.data_dir / "console.token"


def _token(settings: Settings) -> str:
    path = token_path(settings)
    if not settings.console_token_file and not path.exists():
        durable.replace(path, f"{secrets.token_urlsafe(32)}\n".encode(), 0o600)
    try:
        if not settings.console_token_file:
            secret_files.restrict(path, "token")
        token = secret_files.read(path, "token").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PrerequisiteError(
            f'could not read the console\'s token "{path}": {error}',
            hint="Set console_token_file to the name of a file with a secret, or leave it empty.",
        ) from error
    if len(token) < _TOKEN_MIN:
        raise PrerequisiteError(
            f'the console\'s token in "{path}" is shorter than {_TOKEN_MIN} characters',
            hint="Remove the file, so that Headrace creates a new one, or write a longer secret"
            " into it.",
        )
    return token


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON may contain lone surrogates
        return False
    return True
