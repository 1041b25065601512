"""What the coordinator knows of another worker, and of states that are there (``hosting.py``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.errors import OutOfReach
from headrace.network.link import FlightLink, Joining
from headrace.network.messages import AskClock, AskStats, Commits, GoBack, Mark, ToWorker


@dataclass(slots=True)
class Outpost:
    """A worker besides this one; the engine's thread writes it."""

    name: str
    link: FlightLink | None = None
    """None: there was none yet.  It may be dead."""
    units: set[int] = field(default_factory=set)
    """Views whose states are there."""
    commits: Commits = field(default_factory=dict)
    """Txids that are in the result tables, and it has not been told."""
    retry_at: float = 0.0
    """When to try again to reach it, on the monotonic clock."""
    joining: Joining | None = None
    """The link that is being made."""
    slow: bool = False
    """Whether it did not answer at once the last time: nobody waits for it."""
    marks: dict[int, Mark] = field(default_factory=dict)
    """The durable ones that it had when it was joined, of views that have not gone on since."""
    guilty: set[int] = field(default_factory=set)
    """Views that it has died of."""
    pid: int = 0
    awaited_s: float | None = None
    """Since when the engine waits for its part of a batch, on the monotonic clock."""
    large: bool = False
    """Whether so much is not durable there that a checkpoint is due."""
    crowded: bool = False
    """Whether nothing more should come until it is durable."""
    memory_bytes: int = 0

    @property
    def up(self) -> bool:
        """Whether it can be asked."""
        return self.link is not None and self.link.up

    def told(self) -> Commits:
        """What it has not been told of commits; whoever asks tells it."""
        out, self.commits = self.commits, {}
        return out


def lost(worker: str) -> OutOfReach:
    """That a worker cannot be asked."""
    return OutOfReach(f'worker "{worker}" cannot be reached')


@dataclass(slots=True)
class AwayStore:
    """The states of a view on another worker, as far as the coordinator decides on them."""

    host: Outpost
    link: FlightLink
    """By which it is known; once that is dead, nobody knows the states any more."""
    unit_id: int
    durable: int
    """The txid of the last checkpoint."""

    @property
    def up(self) -> bool:
        """Whether it can be asked."""
        return self.link.up

    def begin(self, txid: int) -> None:
        """The worker begins it by itself."""

    def commit(self, txid: int) -> None:
        """``txid`` is in the result table; the worker hears it before anything else."""
        self.host.commits.setdefault(self.unit_id, []).append(txid)

    def rollback(self, txid: int) -> int:
        """Forget what was done from ``txid`` on; returns where the states are then.

        Those of a worker that is gone are as of its last checkpoint when it is back.
        """
        try:
            return self.call(lambda number: GoBack(number, self.unit_id, txid, self.host.told()))
        except OutOfReach:
            return self.durable

    def near(self, instant: int) -> int:
        """See ``Dataflow``."""
        return self.call(lambda number: AskClock(number, self.unit_id, "near", instant))

    def crossing(self, instant: int) -> int:
        """See ``Dataflow``."""
        return self.call(lambda number: AskClock(number, self.unit_id, "crossing", instant))

    @property
    def now(self) -> int:
        """See ``Dataflow``."""
        return self.call(lambda number: AskClock(number, self.unit_id, "now", 0))

    def stats(self) -> dict[str, Any]:
        """What the collections of its dataflow have done (``Dataflow.metrics``); any thread.

        Raises:
            OutOfReach: the worker is gone.
        """
        number = self.link.number()
        self.link.send(AskStats(number, self.unit_id))
        found: dict[str, Any] = msgspec.json.decode(self.link.reply(number).text)
        return found

    def call(self, word: Callable[[int], ToWorker]) -> int:
        """What the worker answers to ``word``, which is given its number.

        Raises:
            HeadraceError: what went wrong there.
            OutOfReach: it is gone.
        """
        number = self.link.number()
        self.link.send(word(number))
        return self.link.answer(number)
