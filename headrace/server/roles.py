"""The commander's questions to the source about roles, on a connection of its own.

Client sessions do not share this connection, so a session's claim about its caller is checked by
something that the client cannot reach.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

import psycopg

from headrace.errors import PrivilegeError, TransientError
from headrace.postgres.connect import async_session
from headrace.server.scram import Verifier

_TIMEOUT_S: Final = 10.0
_MAY_BECOME: Final = """
SELECT l.rolsuper OR pg_catalog.pg_has_role(l.oid, c.oid,
         CASE WHEN pg_catalog.current_setting('server_version_num')::int4 < 160000
              THEN 'MEMBER' ELSE 'SET' END)
  FROM pg_catalog.pg_roles l, pg_catalog.pg_roles c
 WHERE l.rolname = %s AND c.rolname = %s
"""
_READABLE: Final = """
SELECT pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'rolname', 'SELECT')
   AND pg_catalog.has_column_privilege('pg_catalog.pg_authid', 'rolpassword', 'SELECT')
"""
_SEES_ALL: Final = """
SELECT r.rolsuper OR pg_catalog.pg_has_role(r.oid, current_user, 'MEMBER')
  FROM pg_catalog.pg_roles r WHERE r.rolname = %s
"""
_STORED: Final = "SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = %s"


class Roles:
    """Asks the source as the engine's role."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._lock = asyncio.Lock()
        self._secret = secrets.token_bytes(32)

    async def close(self) -> None:
        """Disconnect."""
        if self._conn is not None:
            await self._conn.close()

    async def check(self, login: str, caller: str) -> None:
        """Raise an error unless a session that logged in as ``login`` may act as ``caller``.

        Raises:
            PrivilegeError: 42501, neither SET ROLE nor SET SESSION AUTHORIZATION allows it.
            TransientError: the source cannot be asked.
        """
        if login == caller:
            return
        row = await self._ask(_MAY_BECOME, (login, caller))
        if row is None or not row[0]:
            raise PrivilegeError(
                f'role "{login}" may not act as "{caller}"',
                hint="If a role was renamed or its memberships changed, connect again.",
            )

    async def sees_all(self, login: str) -> bool:
        """Return whether ``login`` is a superuser, or a member of the engine's role.

        Raises:
            PrivilegeError: 28000, there is no such role.
            TransientError: the source cannot be asked.
        """
        row = await self._ask(_SEES_ALL, (login,))
        if row is None:
            raise PrivilegeError(f'role "{login}" does not exist any more', sqlstate="28000")
        return bool(row[0])

    async def verifier(self, user: str) -> Verifier | None:
        """Return the SCRAM verifier of ``user``, or a mock one; None: verifiers cannot be read.

        Raises:
            TransientError: the source cannot be asked.
        """
        readable = await self._ask(_READABLE, ())
        if readable is None or not readable[0]:
            return None
        row = await self._ask(_STORED, (user,))
        found = Verifier.read(row[0]) if row and row[0] else None
        return found or Verifier.mock(self._secret, user)

    async def _ask(self, text: str, values: tuple[str, ...]) -> tuple[Any, ...] | None:
        try:
            async with self._lock, asyncio.timeout(_TIMEOUT_S):
                if self._conn is None or self._conn.closed:
                    self._conn = await async_session(self._dsn, name="headrace roles")
                return await (await self._conn.execute(text, values)).fetchone()
        except (psycopg.Error, TimeoutError) as error:
            if self._conn is not None:
                await self._conn.close()
            raise TransientError(
                f"the source cannot be asked about roles: {str(error).strip()}"
            ) from error
