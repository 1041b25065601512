"""Users of the console: their sessions, and a ``GraphCollector`` per identity for all its tabs."""

from __future__ import annotations

import asyncio
from typing import Final

from headrace import clock
from headrace.console import access
from headrace.console.access import ENGINE, Access, Person
from headrace.console.graph_collector import Full, GraphCollector
from headrace.console.host_interface import HostInterface
from headrace.console.process_samples import SAMPLE_S, ProcessSamples
from headrace.console.sessions import Sessions, WebSession
from headrace.process import tasks

_SWEEP_S: Final = 10.0


class ConsoleUsers:
    """The users of one HTTP port."""

    def __init__(self, outside: HostInterface, door: Access) -> None:
        self.sessions = Sessions()
        self._outside = outside
        self._door = door
        self._lookouts: dict[str, GraphCollector] = {}
        self._processes = ProcessSamples()
        self._sweeper: asyncio.Task[None] | None = None
        self._sampler: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start expiring sessions, and sampling processes."""
        loop = tasks.forever("console sessions", self._sweep, _SWEEP_S)
        self._sweeper = asyncio.create_task(loop)
        loop = tasks.forever("process samples", self._sample, SAMPLE_S)
        self._sampler = asyncio.create_task(loop)

    async def close(self) -> None:
        """Stop, and end all lookouts."""
        await tasks.end(self._sweeper)
        await tasks.end(self._sampler)
        for lookout in list(self._lookouts.values()):
            await lookout.close("the server stops")

    def find(self, cookie: str) -> tuple[WebSession, GraphCollector] | None:
        """Return the session and lookout of a cookie; None: the login is over."""
        session = self.sessions.find(cookie, clock.monotonic())
        lookout = self._lookouts.get(session.identity) if session else None
        if session is None or lookout is None or lookout.gone:
            return None
        return session, lookout

    def is_token(self, token: str) -> bool:
        """Return whether this is the console's token; takes the same time for every text."""
        return self._door.is_token(token)

    async def log_in(self, token: str, role: str, password: str) -> tuple[str, GraphCollector]:
        """Log in by the token, or by role and password; return a cookie and the lookout.

        Raises:
            Refused: the login is not allowed.
            Full: too many users are logged in.
        """
        if token:
            identity = await self._door.by_token(token)
        else:
            identity = await self._door.by_password(role, password)
        lookout = await self._entered(identity)
        cookie = self.sessions.begin(identity.key, clock.monotonic())
        if cookie is None:
            await self._tidy()
            raise Full("too many users are logged in")
        return cookie, lookout

    async def log_out(self, cookie: str) -> None:
        """End a session."""
        self.sessions.end(cookie)
        await self._tidy()

    async def _entered(self, identity: Person) -> GraphCollector:
        """Return the lookout of an identity; close its connection if that is not needed."""
        lookout = self._lookouts.get(identity.key)
        if lookout is not None and not lookout.gone:
            await access.let_go(identity.conn)
            return lookout
        if len(self._lookouts) >= access.ROLES_MAX:
            await access.let_go(identity.conn)
            raise Full("too many roles are logged in")
        # After a lost connection the identity's earlier sessions have to log in again.
        self.sessions.end_all(identity.key)
        again = self._door.engine if identity.key == ENGINE else None
        self._lookouts[identity.key] = GraphCollector(
            identity, self._outside, again, self._processes
        )
        return self._lookouts[identity.key]

    async def _sample(self) -> None:
        while True:
            self._processes.add(clock.now().timestamp(), self._outside.health.usage())
            await asyncio.sleep(SAMPLE_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sessions.expire(clock.monotonic())
            await self._tidy()

    async def _tidy(self) -> None:
        """End the lookouts that no session needs; streams of closed sessions notice it."""
        needed = self.sessions.identities()
        for key, lookout in list(self._lookouts.items()):
            if lookout.gone:
                self.sessions.end_all(key)
            if lookout.gone or key not in needed:
                del self._lookouts[key]
                await lookout.close("logged out")
