"""Calls about clients of the port (``clients``, ``end_client`` …) and settings (``reload`` …).

Superusers and members of the engine's role see and end all sessions; any other role only the
sessions that logged in as the same role.  For each call the source is asked about the privileges of
the role that calls.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import BugError, PrivilegeError, UndefinedError
from headrace.redaction import printable
from headrace.server import reload
from headrace.server.facts import ClientCounts, Facts
from headrace.server.port import Port
from headrace.sql.verbs import EndClient, Request

Row = list[Any]
Handler = Callable[[Request], Awaitable[Any]]
_log = structlog.get_logger(__name__)
_REST: Final = 8.0
"""Pause after each call in multiples of its duration; other calls wait meanwhile."""
_MEMBERS: Final = "Only superusers and members of Headrace's role may."


class ClientCalls:
    """Handlers of the calls."""

    def __init__(
        self, port: Port, reread: Callable[[], Awaitable[list[str]]] | None = None
    ) -> None:
        """Take ``reread``, which applies changed settings and returns messages about them."""
        self._port = port
        self._reread = reread
        self._turn = asyncio.Lock()

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler of each verb.

        They raise PrivilegeError (42501, the role may not; 28000, it does not exist any more),
        UndefinedError (42704, there is no such client), HeadraceError (the settings cannot be read
        or used) and TransientError (the source cannot be asked about the role).
        """
        return {
            "clients": lambda request: self._shown(request, self._clients),
            "client_stats": lambda request: self._shown(request, self._stats),
            "settings": lambda request: self._shown(request, self._settings),
            "end_client": lambda request: self._shown(request, self._end),
            "reload": self._reload,
        }

    async def _shown(self, request: Request, show: Callable[[Request, str, bool], Any]) -> Any:
        async with self._turn:
            caller, everything = await self._caller(request)
            began = clock.monotonic()
            answer = show(request, caller, everything)
            # Repeated calls can take only a share of this process.
            await asyncio.sleep(_REST * (clock.monotonic() - began))
        return answer

    async def _caller(self, request: Request) -> tuple[str, bool]:
        """Return the caller, and whether it may see and end the sessions of every role."""
        if request.caller is None:
            raise BugError("only roles call this")
        return request.caller, await self._port.roles.sees_all(request.caller)

    def _clients(self, _: Request, caller: str, everything: bool) -> list[Row]:
        found = (f for f in self._port.facts() if everything or is_own(f, caller))
        return [_client(f) for f in sorted(found, key=lambda f: f.id)]

    def _stats(self, _: Request, caller: str, everything: bool) -> list[Row]:
        totals = self._port.totals().items()
        return _sums((key, counts) for key, counts in totals if everything or key[1] == caller)

    def _settings(self, _: Request, _caller: str, everything: bool) -> list[Row]:
        if not everything:
            raise PrivilegeError("permission denied to see the settings", hint=_MEMBERS)
        return _settings(self._port.settings)

    def _end(self, request: Request, caller: str, everything: bool) -> None:
        assert isinstance(request, EndClient), "it is the verb's"
        number = request.id
        found = next((f for f in self._port.facts() if f.id == number), None)
        if not everything and (found is None or not is_own(found, caller)):
            # Do not reveal whether a client exists that the role may not see.
            raise PrivilegeError(
                f"permission denied to end client {number}",
                hint="Superusers and members of Headrace's role may end any client, other roles"
                " only their own (SELECT * FROM headrace.clients()).",
            )
        if found is None or not self._port.kill(number):
            raise UndefinedError(
                f"there is no client {number}", hint="See SELECT * FROM headrace.clients()."
            )
        _log.info("client ended", client=number, user=found.user, by=caller)

    async def _reload(self, request: Request) -> dict[str, Any]:
        async with self._turn:
            _, everything = await self._caller(request)
            if not everything:
                raise PrivilegeError("permission denied to reload the settings", hint=_MEMBERS)
            return {"notices": await self._reread() if self._reread is not None else []}


def is_own(facts: Facts, role: str) -> bool:
    """Return whether a client is one of ``role``: the source says so, not only the client."""
    return facts.let_in and facts.user == role


def _client(f: Facts) -> Row:
    (address, port), _ = f.client
    return [
        *(f.id, f.user or None, f.database or None, f.application or None, f.state),
        *(f.transaction, f.call, f.call_ms, f.since.strftime("%Y-%m-%d %H:%M:%S UTC"), f.quiet_ms),
        *(f.counts.queries, f.counts.received, f.counts.sent),
        *(address, port, f.client_tls or None, f.pid, f.server_tls or None),
    ]


def _sums(found: Iterable[tuple[tuple[str, str, bool], ClientCounts]]) -> list[Row]:
    """Return a row per database, summed over the roles in ``found``."""
    whole: dict[str, ClientCounts] = {}
    now: dict[str, int] = {}
    for (database, _, live), counts in found:
        whole.setdefault(database, ClientCounts()).add(counts)
        now[database] = now.get(database, 0) + live * counts.sessions
    return [
        [
            *(name, now[name], each.sessions, each.queries, each.received, each.sent),
            *(each.calls, each.call_errors, each.call_us),
        ]
        for name, each in sorted(whole.items())
    ]


def _settings(settings: Settings) -> list[Row]:
    out: list[Row] = []
    defaults = Settings()
    for field in dataclasses.fields(Settings):
        values = [getattr(s, field.name) for s in (settings, defaults)]
        shown = [_text(printable(field.name, v)) for v in values]
        out.append([field.name, *shown, field.name in reload.CHANGEABLE])
    return out


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
