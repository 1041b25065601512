"""How one gets in, and as whom all that he asks is asked.

With the *token*, which only who may read the engine's files has, everything is asked as the
engine's role.  With a role's *name and password* the source decides, and everything is asked over
that very connection: row security shows what the role may see.  The password is not kept, so when
the connection is lost the login is over.

The source must have asked for the password (``require_auth``): one that trusts this computer has
looked at us and not at who logs in.  What the engine itself logs in with is left out.
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
from headrace.process import durable, secret_files
from headrace.sql import seen

ENGINE: Final = "engine"
"""The identity of who has the token; others are called by the OID of their role."""
LOGINS_MAX: Final = 4
"""That the source is asked about at once."""
ROLES_MAX: Final = 32
"""Roles that are logged in at once: each has a connection."""
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
"""Parts of the engine's DSN that say where the source is, and nothing of who we are."""
_ASKED: Final = "password,md5,scram-sha-256"
_OWN: Final = {"row_security": "on", "statement_timeout": "10000"}
"""Row security as for everybody, and an end to what takes long."""

Connection = psycopg.AsyncConnection[Any]
_log = structlog.get_logger(__name__)


class Refused(Exception):
    """No login; the words may be shown to anybody."""


class Gone(Exception):
    """Nothing can be asked as that role any more."""


@dataclass(slots=True)
class Person:
    """Somebody who is in: everything is asked on ``conn``."""

    key: str
    role: str
    database: str
    conn: Connection | None


class Access:
    """Lets people in."""

    def __init__(self, settings: Settings) -> None:
        """Reads the token, or makes one.

        Raises:
            PrerequisiteError: its file cannot be read, has no proper token, or others may read it.
        """
        self._settings = settings
        self._token = _token(settings).encode()
        self._asking = asyncio.Semaphore(LOGINS_MAX)

    def is_token(self, token: str) -> bool:
        """Return whether this is the token; takes the same time for every text."""
        return hmac.compare_digest(token.encode(errors="replace"), self._token)

    async def by_token(self, token: str) -> Person:
        """Who shows the token.

        Raises:
            Refused: it is another one, or the source cannot be reached.
        """
        if not self.is_token(token):
            raise Refused("that is not the token")
        try:
            return await self._identity(await self.engine(), ENGINE)
        except (psycopg.Error, TimeoutError, Gone) as error:
            raise Refused("the database cannot be reached now") from error

    async def engine(self) -> Connection:
        """A connection as the engine's role; raises psycopg.Error."""
        async with self._asking, asyncio.timeout(_LOGIN_S):
            name = "headrace console"
            return await connect.async_dicts(self._settings.source, name=name, settings=_OWN)

    async def by_password(self, role: str, password: str) -> Person:
        """Who can log in to the source.

        Raises:
            Refused: the source does not let it in, or cannot be reached.
        """
        dsn = self._as_role(role, password)
        try:
            async with self._asking, asyncio.timeout(_LOGIN_S):
                conn = await connect.async_dicts(dsn, name="headrace console", settings=_OWN)
            return await self._identity(conn, None)
        except (psycopg.Error, TimeoutError, Gone) as error:
            # libpq gives no SQLSTATE here, and its words may name hosts: they are for the log.
            _log.info("console login failed", role=role, reason=str(error).strip())
            raise Refused("the database did not let this role in, or cannot be reached") from None

    def _as_role(self, role: str, password: str) -> str:
        texts = (role, password)
        if not all(texts):
            # Of an empty one libpq makes the engine's own, or what it finds in files.
            raise Refused("a role and its password are needed")
        if "\0" in role + password or not all(_is_utf8(text) for text in texts):
            raise Refused("role and password are texts")
        if len(role.encode()) > _NAME_BYTES_MAX or len(password.encode()) > _PASSWORD_BYTES_MAX:
            raise Refused("role or password is too long")
        where = {k: v for k, v in conninfo_to_dict(self._settings.source).items() if k in _WHERE}
        own = {"user": role, "password": password, "passfile": os.devnull}
        own |= {"gssencmode": "disable", "sslcertmode": "disable"}
        if not self._settings.allow_trust:
            own["require_auth"] = _ASKED
        return make_conninfo("", **(where | own))

    async def _identity(self, conn: Connection, key: str | None) -> Person:
        try:
            async with asyncio.timeout(_LOGIN_S):
                me = await welcome(conn)
        except BaseException:
            await conn.close()
            raise
        return Person(key or str(me["oid"]), me["role"], me["database"], conn)


async def welcome(conn: Connection) -> dict[str, Any]:
    """Who is asked as on ``conn``.

    Raises:
        Gone: a role that is no more, or may not log in any more.
        psycopg.Error: the connection is lost.
    """
    try:
        me = await seen.me(conn)
    except psycopg.errors.UndefinedObject:
        me = None
    if me is None or not me["welcome"]:
        raise Gone("the role may not log in any more")
    return me


async def let_go(conn: Connection | None) -> None:
    """Close it; not to wait for who does not answer."""
    if conn is not None:
        with contextlib.suppress(psycopg.Error, TimeoutError):
            async with asyncio.timeout(1.0):
                await conn.close()


def token_path(settings: Settings) -> Path:
    """Where the token stands."""
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
            hint="Setting console_token_file names a file with a secret, or is empty.",
        ) from error
    if len(token) < _TOKEN_MIN:
        raise PrerequisiteError(
            f'the console\'s token in "{path}" is shorter than {_TOKEN_MIN} characters',
            hint="Remove the file for a new one, or write a longer secret into it.",
        )
    return token


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON may have halves of characters
        return False
    return True
