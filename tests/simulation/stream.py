"""The replication connection of a run: stands in for ``forwarder.receiver.Receiver``.

It starts at the position of the slot or of the engine, the later of both, and describes each table
once.
Transactions arrive after a while, in pieces.  Keepalives and confirmations are late or lost.  The
connection may break between any two messages.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import psycopg

from headrace.errors import ContinuityLost, TransientError
from headrace.forwarder.receiver import Origin, SourceSwitched
from headrace.postgres.timeline import Identity
from tests.simulation import model
from tests.simulation.primitives import Condition
from tests.simulation.server import Server

SYSTEM: Final = "simulation"


class Receiver:
    """See the module text."""

    def __init__(
        self,
        server: Server,
        on_confirm: Callable[[int], None],
        origin: Origin,
        ordinary: Any,
        start_lsn: int,
        on_keepalive: Callable[[list[bytes], int, bool], None],
        expected: Identity | None = None,
        repeat_lsn: int | None = None,
    ) -> None:
        scheduler = self._scheduler = server.scheduler
        self._server = server
        self._copied: Final = bool(origin.copied_from)
        """Whether it reads a copy of the slot, whose position is its own."""
        self._on_confirm = on_confirm
        self._on_keepalive = on_keepalive
        self._changed = Condition(scheduler)
        self._woken = False
        self.process: Final = scheduler.current.process
        self.identity: Final = Identity(SYSTEM, server.timeline)
        self.start_lsn: Final = start_lsn
        self.received = start_lsn
        self.streamed: Final = (0, 0)
        self.broken = False
        scheduler.stand(server.delay())
        if not server.reachable:
            raise TransientError("the server cannot be reached", sqlstate="08006")
        if expected is not None and expected != self.identity:
            raise SourceSwitched("the source has begun another timeline")
        if server.confirmed > start_lsn:
            server.scheduler.fail(
                f"the slot is at {server.confirmed}, but the engine needs {start_lsn}"
            )
            raise ContinuityLost("the slot is ahead of the engine state")
        self.begins: Final = max(start_lsn if repeat_lsn is None else repeat_lsn, server.confirmed)
        transactions = server.history.transactions
        self._next = next(
            (i for i, t in enumerate(transactions) if t.commit_lsn >= self.begins),
            len(transactions),
        )
        self._described: set[int] = set()
        self._pieces: deque[bytes] = deque()
        self._keepalives: deque[tuple[float, bool]] = deque()
        self._arrives = scheduler.now
        """When the next message arrives."""
        server.streams.append(self)

    def gather(self) -> tuple[list[bytes], bool]:
        """See ``Receiver``."""
        scheduler, chance = self._scheduler, self._scheduler.random
        scheduler.pause(0.2)
        out: list[bytes] = []
        for _ in range(chance.choice((1, 3, 40))):
            if self.broken:
                raise TransientError("the stream broke", sqlstate="08006")
            if not self._pieces and not self._load():
                self._keep_alive(out)
                return out, True
            out.append(self._pieces.popleft())
        return out, False

    def _load(self) -> bool:
        """Receive the next transaction if it has arrived."""
        transactions = self._server.history.transactions
        if self._next >= len(transactions) or self._scheduler.now < self._arrives:
            return False
        transaction = transactions[self._next]
        if transaction.end_lsn > self._server.sendable:
            return False
        self._next += 1
        new = transaction.tables - self._described
        self._described |= new
        first, *rest = transaction.messages
        self._pieces += [first, *(model.relation(oid) for oid in sorted(new)), *rest]
        self._arrives = self._scheduler.now + self._server.delay()
        return True

    def _keep_alive(self, out: list[bytes]) -> None:
        """Receive a keepalive if one has arrived; the server sends it after all before it."""
        scheduler, history = self._scheduler, self._server.history
        while self._keepalives and self._keepalives[0][0] <= scheduler.now:
            _, ask = self._keepalives.popleft()
            if self._next < len(history.transactions):
                continue
            before = list(out)
            out.clear()
            self.received = max(self.received, self._server.sendable)
            self._on_keepalive(before, self._server.sendable, ask)

    def check_notices(self) -> None:
        """See ``Receiver``."""

    def feedback(self, confirmed: int, *, ask: bool) -> None:
        """See ``Receiver``."""
        scheduler, chance = self._scheduler, self._scheduler.random
        if self.broken:
            raise psycopg.OperationalError("the stream broke")
        later = scheduler.now + chance.choice((0.001, 0.01, 0.5)) * chance.random()
        if not self._copied:
            self._on_confirm(confirmed)
            scheduler.call_at(later, functools.partial(self._confirm, confirmed))
        if ask and chance.random() < 0.8:
            self._keepalives.append((later, chance.random() < 0.02))
            scheduler.call_at(later, self._poke)

    def _confirm(self, lsn: int) -> None:
        if not self.broken:
            self._server.confirmed = max(self._server.confirmed, lsn)

    def wait(self, timeout_s: float) -> bool:
        """See ``Receiver``."""
        with self._changed:
            if not self._woken and not self._due:
                left = self._arrives - self._scheduler.now if self._waiting else timeout_s
                self._changed.wait(min(timeout_s, max(left, 0.0)))
            self._woken = False
            return self._due

    @property
    def _waiting(self) -> bool:
        transactions = self._server.history.transactions
        if self._next >= len(transactions):
            return False
        return transactions[self._next].end_lsn <= self._server.sendable

    @property
    def _due(self) -> bool:
        now = self._scheduler.now
        late = bool(self._keepalives) and self._keepalives[0][0] <= now
        return self.broken or late or (self._waiting and now >= self._arrives)

    def wake(self) -> None:
        """See ``Receiver``."""
        self._woken = True
        self._poke()

    def leave(self) -> None:
        self.wake()

    def _poke(self) -> None:
        self._changed.notify_all()

    def tell(self) -> None:
        """Note that the server has more to send."""
        chance = self._scheduler.random
        delay = self._server.delay() + (0.3 if chance.random() < 0.05 else 0.0)
        self._arrives = max(self._arrives, self._scheduler.now + delay)
        self._poke()

    def sever(self) -> None:
        """Break the connection."""
        self.broken = True
        self._poke()

    def close(self) -> None:
        """See ``Receiver``."""
        self.broken = True
        if self in self._server.streams:
            self._server.streams.remove(self)
