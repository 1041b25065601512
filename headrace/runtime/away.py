"""What the coordinator knows of another worker, and of states that are there (``hosting.py``)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace import clock
from headrace.collections.plan import PhysicalPlan
from headrace.errors import OutOfReach
from headrace.network.link import AWAITED_S, FlightLink, Joining
from headrace.network.messages import (
    AskClock,
    AskRows,
    AskStats,
    Commits,
    Export,
    GoBack,
    Mark,
    ToWorker,
)

_PATIENCE_S_MAX: Final = 60.0
_RELIABLE_S: Final = 300.0
"""A worker that was there for so long is taken for one that was never lost."""


class Sending:
    """Staged states on their way to a worker on another machine."""

    def __init__(self, link: FlightLink, runs: Sequence[Path], poke: Callable[[], None]) -> None:
        """``poke`` is called, on another thread, when they are there."""
        self.link: Final = link
        self.names: Final = [f"{uuid.uuid4().hex}.sst" for _ in runs]
        self._runs: Final = list(runs)
        self._poke = poke
        self._done = threading.Event()
        self._error: OutOfReach | OSError | None = None
        threading.Thread(target=self._send, name="headrace-send", daemon=True).start()

    def there(self, timeout_s: float) -> bool:
        """Whether they are there, after so long at most.

        Raises:
            OutOfReach: the link died.
            OSError: they cannot be read.
        """
        if not self._done.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def _send(self) -> None:
        try:
            for run, name in zip(self._runs, self.names, strict=True):
                self.link.send_file(run, name)
        except (OutOfReach, OSError) as error:
            self._error = error
        self._done.set()
        self._poke()


@dataclass(slots=True)
class Outpost:
    """A worker besides this one; the engine's thread writes it."""

    name: str
    link: FlightLink | None = None
    """None: there was none yet.  It may be dead."""
    units: set[int] = field(default_factory=set)
    """Views whose states are there."""
    plans: dict[int, PhysicalPlan] = field(default_factory=dict)
    """Of the units that it was greeted with."""
    commits: Commits = field(default_factory=dict)
    """Txids that are in the result tables, and it has not been told."""
    retry_at: float = 0.0
    """When to try again to reach it, on the monotonic clock."""
    sending: dict[int, Sending] = field(default_factory=dict)
    """By view."""
    joining: Joining | None = None
    """The link that is being made."""
    patience_s: float = AWAITED_S
    """How long it may give no sign of life while somebody waits for it.

    More each time that it has failed to: perhaps it cannot.
    """
    slow: bool = False
    """Whether it did not answer at once the last time: nobody waits for it."""
    marks: dict[int, Mark] = field(default_factory=dict)
    """The durable ones that it had when it was joined, of views that have not gone on since."""
    taken: dict[int, Mark] = field(default_factory=dict)
    """Parts of views that it has taken in since it was joined, and as of what."""
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

    def lost_again(self) -> None:
        """Its link has died: be more patient with a worker that was silent, and may be slow."""
        link = self.link
        if link is not None and link.silent:
            lasted_s = clock.monotonic() - link.begun
            before = AWAITED_S / 2 if lasted_s > _RELIABLE_S else self.patience_s
            self.patience_s = min(before * 2, _PATIENCE_S_MAX)

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

    def has_rows(self, sources: Collection[str]) -> bool:
        """See ``Unit``.

        Raises:
            OutOfReach: the worker is gone.
        """
        return bool(self.call(lambda number: AskRows(number, self.unit_id, list(sources))))

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

    def export(self, path: Path, leave: Collection[str] = ()) -> None:
        """Write its durable states into a sorted file here, but for those of nodes; any thread.

        Raises:
            HeadraceError: what went wrong there.
            OutOfReach: it is gone.
        """
        far = self.link.end.far
        name = f"{uuid.uuid4().hex}.sst" if far else str(path)
        self.call(lambda number: Export(number, self.unit_id, name, sorted(leave)))
        if far:
            self.link.fetch_file(name, path)

    def call(self, word: Callable[[int], ToWorker]) -> int:
        """What the worker answers to ``word``, which is given its number.

        Raises:
            HeadraceError: what went wrong there.
            OutOfReach: it is gone.
        """
        number = self.link.number()
        self.link.send(word(number))
        return self.link.answer(number)
