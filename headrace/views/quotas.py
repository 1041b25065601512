"""Limits of one role's share of common resources: views, populations, other calls.

Superusers and members of the engine's role are exempt: they can change the settings.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from headrace.config import Settings
from headrace.counting import counted
from headrace.errors import UserError
from headrace.postgres import reuse
from headrace.postgres.connect import Connection
from headrace.sql import views


def check_views(conn: Connection, settings: Settings, owner: str | None) -> None:
    """Raise UserError 53400 if the role ``owner`` may have no more views."""
    most = settings.views_per_role_max
    if owner is None or not most:
        return
    count = views.count_of(conn, owner)
    if count < most or is_exempt(conn, owner):
        return
    raise UserError(
        f'role "{owner}" has {counted(count, "view")} and may have no more',
        hint="Drop some, or have the setting views_per_role_max raised.",
        sqlstate="53400",
    )


def is_exempt(conn: Connection, caller: str) -> bool:
    """Return whether there is no quota for ``caller``."""
    row: Any = conn.execute(
        "SELECT pg_has_role(oid, current_user, 'MEMBER') FROM pg_roles WHERE rolname = %s",
        (caller,),
    ).fetchone()
    return bool(row and row[0])


class Turns:
    """Limits the calls of each role at once. REQUIRES: use on one event loop."""

    def __init__(self, settings: Settings, most: int) -> None:
        """``most``: number of calls; 0: no limit."""
        self._settings = settings
        self._most = most
        self._roles: dict[str, asyncio.Semaphore] = {}

    @contextlib.asynccontextmanager
    async def turn(self, caller: str | None, waits: Callable[[], None]) -> AsyncIterator[None]:
        """Wait for the caller's turn; call ``waits`` first if it has to wait."""
        if caller is None or not self._most:
            yield
            return
        own = self._roles.setdefault(caller, asyncio.Semaphore(self._most))
        if own.locked():
            if await asyncio.to_thread(self._is_exempt, caller):
                yield
                return
            waits()
        async with own:
            yield

    def _is_exempt(self, caller: str) -> bool:
        with reuse.lent(self._settings.source) as conn:
            return is_exempt(conn, caller)
