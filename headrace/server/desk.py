"""Carries out the commands of the admin database: shows sessions and settings, ends sessions.

Superusers and members of the engine's role see and end all sessions; any other role only the
sessions that logged in as the same role.  For each command the source is asked about the privileges
of the role that it has authenticated.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from headrace import clock
from headrace.config import Settings, redact
from headrace.errors import BugError, PrivilegeError, UndefinedError
from headrace.server import reload
from headrace.server.admin import Carried
from headrace.server.facts import ClientCounts, Facts
from headrace.server.messages import ResultSet
from headrace.server.orders import HELP, SHOWN, Order
from headrace.server.port import Port

Row = list[Any]
_log = structlog.get_logger(__name__)
_REST: Final = 8.0
"""Pause after each command in multiples of its duration; other commands wait meanwhile."""
_SECRET: Final = ("source", "eval_dsn")


class Desk:
    """Handler of the admin commands."""

    def __init__(
        self,
        port: Port,
        release: str = "",
        reread: Callable[[], Awaitable[list[str]]] | None = None,
    ) -> None:
        """Take ``reread``, which applies changed settings and returns messages about them."""
        self._port = port
        self._release = release
        self._reread = reread
        self._turn = asyncio.Lock()

    async def carry_out(self, order: Order, login: str) -> Carried:
        """Carry out ``order`` for a session that logged in as ``login``.

        Raises:
            PrivilegeError: 42501, the role may not; 28000, the role does not exist any more.
            UndefinedError: 42704, there is no such session.
            HeadraceError: the settings cannot be read or used.
            TransientError: the source cannot be asked about the role.
        """
        async with self._turn:
            everything = await self._port.roles.sees_all(login)
            began = clock.monotonic()
            carried = await self._carried(order, login, everything=everything)
            # Repeated commands can take only a share of this process.
            await asyncio.sleep(_REST * (clock.monotonic() - began))
        return carried

    async def _carried(self, order: Order, login: str, *, everything: bool) -> Carried:
        match order.verb:
            case "show":
                rows = self._shown(order.subject, login, everything=everything)
                return Carried("SHOW", ResultSet(SHOWN[order.subject], rows))
            case "kill":
                assert order.number is not None, "it is bound"
                self._kill(order.number, login, everything=everything)
                return Carried("KILL")
            case "reload":
                _require(everything, "reload the settings")
                return Carried("RELOAD", None, await self._reread() if self._reread else [])
            case verb:
                raise BugError(f'nobody does "{verb}"')

    def _shown(self, subject: str, login: str, *, everything: bool) -> list[Row]:
        if subject == "version":
            return [[f"Headrace {self._release}"]]
        if subject == "help":
            return [list(line) for line in HELP]
        if subject == "config":
            _require(everything, "see the settings")
            return _config(self._port.settings)
        if subject == "stats":
            return _stats(
                (key, counts)
                for key, counts in self._port.totals().items()
                if everything or key[1] == login
            )
        seen = sorted(
            (f for f in self._port.facts() if everything or is_own(f, login)), key=lambda f: f.id
        )
        if subject == "clients":
            return [_client(f) for f in seen]
        if subject == "servers":
            return [row for f in seen for row in _server(f)]
        return [_session(f) for f in seen if f.let_in]

    def _kill(self, number: int, login: str, *, everything: bool) -> None:
        found = next((f for f in self._port.facts() if f.id == number), None)
        if not everything and (found is None or not is_own(found, login)):
            # Do not reveal whether a session exists that the role may not see.
            raise PrivilegeError(
                f"permission denied to end session {number}",
                hint="Superusers and members of Headrace's role end any, others their own"
                " (SHOW sessions).",
            )
        if found is None or not self._port.kill(number):
            raise UndefinedError(f"there is no session {number}", hint="See SHOW clients.")
        _log.info("session killed", session=number, user=found.user, by=login)


def _require(everything: bool, what: str) -> None:
    if not everything:
        raise PrivilegeError(
            f"permission denied to {what}",
            hint="Only superusers and members of Headrace's role may.",
        )


def is_own(facts: Facts, login: str) -> bool:
    """Return whether a session is one of ``login``: the source says so, not only the client."""
    return facts.let_in and facts.user == login


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _client(f: Facts) -> Row:
    (addr, port), (local_addr, local_port) = f.client
    asked = clock.now() - timedelta(milliseconds=f.quiet_ms)
    return [
        *("C", f.user or None, f.database or None, f.state, addr, port, local_addr, local_port),
        *(_time(f.since), _time(asked), f.id if f.server else None, f.client_tls),
        *(f.application, f.id),
    ]


def _server(f: Facts) -> Iterable[Row]:
    if f.server is None:
        return
    (addr, port), (local_addr, local_port) = f.server
    yield [
        *("S", f.user, f.database, f.state, addr, port, local_addr, local_port),
        *(_time(f.since), f.id, f.pid, f.server_tls, f.application, f.id),
    ]


def _session(f: Facts) -> Row:
    return [
        *(f.id, f.user, f.database, f.state, f.transaction, f.call, f.call_ms, _time(f.since)),
        *(f.quiet_ms, f.counts.queries, f.counts.received, f.counts.sent),
        *(f.pid, f.application),
    ]


def _stats(found: Iterable[tuple[tuple[str, str, bool], ClientCounts]]) -> list[Row]:
    """Return a row per database, summed over the roles in ``found``."""
    whole: dict[str, ClientCounts] = {}
    now: dict[str, int] = {}
    for (database, _, live), counts in found:
        whole.setdefault(database, ClientCounts()).add(counts)
        now[database] = now.get(database, 0) + live * counts.sessions
    return [
        [
            *(name, now[name], each.queries, each.received, each.sent, each.sessions),
            *(each.calls, each.call_errors, each.call_us),
        ]
        for name, each in sorted(whole.items())
    ]


def _config(settings: Settings) -> list[Row]:
    out: list[Row] = []
    defaults = Settings()
    for field in dataclasses.fields(Settings):
        values = [getattr(s, field.name) for s in (settings, defaults)]
        shown = [redact(v) if field.name in _SECRET and v else _text(v) for v in values]
        changeable = "yes" if field.name in reload.CHANGEABLE else "no"
        out.append([field.name, *shown, changeable])
    return out


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
