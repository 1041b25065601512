"""The coordinator's view of another worker, and of the states on it (``worker_service.py``)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace import clock
from headrace.collections.plan import PhysicalPlan
from headrace.errors import OutOfReach
from headrace.network.link import AWAITED_S, LEADING_S, FlightLink, Joining
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
_LEADING_S_MAX: Final = AWAITED_S
"""A slow disk keeps a worker from sending heartbeats for so long while it writes a checkpoint."""
_RELIABLE_S: Final = 300.0
"""Seconds after which a link's earlier failures are forgotten."""


class Sending:
    """Staged states on their way to a worker on another machine."""

    def __init__(self, link: FlightLink, runs: Sequence[Path], poke: Callable[[], None]) -> None:
        """Start sending; ``poke`` is called, on another thread, when all files have arrived."""
        self.link: Final = link
        self.names: Final = [f"{uuid.uuid4().hex}.sst" for _ in runs]
        self._runs: Final = list(runs)
        self._poke = poke
        self._done = threading.Event()
        self._error: OutOfReach | OSError | None = None
        threading.Thread(target=self._send, name="headrace-send", daemon=True).start()

    def there(self, timeout_s: float) -> bool:
        """Return whether all files have arrived, after at most ``timeout_s``.

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
class RemoteWorker:
    """Another worker; only the engine's thread changes it."""

    name: str
    link: FlightLink | None = None
    """None before the first link; it may be dead."""
    units: set[int] = field(default_factory=set)
    """Units whose states are there."""
    plans: dict[int, PhysicalPlan] = field(default_factory=dict)
    """Plans of the units that were sent in the greeting."""
    commits: Commits = field(default_factory=dict)
    """Committed txids that the worker has not been told of."""
    retry_at: float = 0.0
    """When to try to reach it again, on the monotonic clock."""
    sending: dict[int, Sending] = field(default_factory=dict)
    """Staged states on their way, by view."""
    joining: Joining | None = None
    """The link that is being opened."""
    patience_s: float = AWAITED_S
    """Seconds of silence, while the engine waits for it, after which it is considered lost.

    It grows with each failure, because the worker may be too slow.
    """
    leading_s: float = LEADING_S
    """The same while a batch of leading units waits for it, on this machine."""
    slow: bool = False
    """Whether its last answer was late; the engine does not wait for it then."""
    marks: dict[int, Mark] = field(default_factory=dict)
    """Durable marks at the time of joining, of units that have not gone on since."""
    taken: dict[int, Mark] = field(default_factory=dict)
    """Parts of views that it has taken in since it joined, with their marks."""
    guilty: set[int] = field(default_factory=set)
    """Views that have crashed it."""
    pid: int = 0
    awaited: list[float | None] = field(default_factory=lambda: [None, None])
    """When its part of a batch was begun to be awaited, on the monotonic clock: a batch of leading
    units, and one of units that lag."""
    large: bool = False
    """Whether it has so much undurable state that a checkpoint is due."""
    crowded: bool = False
    """Whether no batch should come until its state is durable."""
    memory_bytes: int = 0

    @property
    def up(self) -> bool:
        """Whether it is within reach."""
        return self.link is not None and self.link.up

    @property
    def awaited_since(self) -> float | None:
        """Since when its part of a batch is awaited; None: it is not."""
        return min((since for since in self.awaited if since is not None), default=None)

    def lost_again(self) -> None:
        """Increase the patience with a worker whose link died of silence, as it may be slow."""
        link = self.link
        if link is not None and link.silent:
            lasted_s = clock.monotonic() - link.begun
            if lasted_s > _RELIABLE_S:
                self.patience_s, self.leading_s = AWAITED_S, LEADING_S
            else:
                self.patience_s = min(self.patience_s * 2, _PATIENCE_S_MAX)
                self.leading_s = min(self.leading_s * 2, _LEADING_S_MAX)

    def take_commits(self) -> Commits:
        """Return and clear the commits to report; the caller reports them."""
        out, self.commits = self.commits, {}
        return out

    def take_commits_of(self, unit_ids: Iterable[int]) -> Commits:
        """Return and clear the commits of some units to report; the caller reports them."""
        return {unit: self.commits.pop(unit) for unit in unit_ids if unit in self.commits}


def unreachable(worker: str) -> OutOfReach:
    """Return the error for a worker that is out of reach."""
    return OutOfReach(f'worker "{worker}" cannot be reached')


@dataclass(slots=True)
class RemoteStore:
    """The states of a unit on another worker, as far as the coordinator controls them."""

    host: RemoteWorker
    link: FlightLink
    """The link over which they are known; once it is dead, they are unknown."""
    unit_id: int
    durable: int
    """The txid of the last checkpoint."""
    processed: int
    """The last txid that the worker has processed; later ones may have had nothing for the unit."""

    @property
    def up(self) -> bool:
        """Whether the worker is within reach."""
        return self.link.up

    def begin(self, txid: int) -> None:
        """Do nothing: the worker begins the txid by itself."""

    def commit(self, txid: int) -> None:
        """Note that ``txid`` is committed, to report it before the next request."""
        self.host.commits.setdefault(self.unit_id, []).append(txid)

    def rollback(self, txid: int) -> int:
        """Roll back to before ``txid``; return the txid of the states afterwards.

        A lost worker comes back with the states of its last checkpoint.
        """
        try:
            self.processed = self.call(
                lambda number: GoBack(number, self.unit_id, txid, self.host.take_commits())
            )
        except OutOfReach:
            return self.durable
        return self.processed

    def due(self, instant: int) -> bool:
        """See ``Dataflow``."""
        return bool(self.call(lambda number: AskClock(number, self.unit_id, "due", instant)))

    def rows(self, instant: int) -> int:
        """See ``Dataflow``."""
        return self.call(lambda number: AskClock(number, self.unit_id, "rows", instant))

    def near(self, instant: int) -> int:
        """See ``Dataflow``."""
        return self.call(lambda number: AskClock(number, self.unit_id, "near", instant))

    def crossing(self, instant: int) -> int:
        """See ``Dataflow``."""
        return self.call(lambda number: AskClock(number, self.unit_id, "crossing", instant))

    def changed(self, instant: int) -> int:
        """See ``Dataflow``."""
        return self.call(lambda number: AskClock(number, self.unit_id, "changed", instant))

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
        """Return the metrics of its dataflow (``Dataflow.metrics``); callable from any thread.

        Raises:
            OutOfReach: the worker is gone.
        """
        number = self.link.number()
        self.link.send(AskStats(number, self.unit_id))
        found: dict[str, Any] = msgspec.json.decode(self.link.reply(number).text)
        return found

    def export(self, path: Path, leave: Collection[str] = ()) -> None:
        """Write its durable states, without those of nodes ``leave``, into a sorted file here.

        Callable from any thread.

        Raises:
            HeadraceError: the worker's error.
            OutOfReach: the worker is gone.
        """
        far = self.link.end.far
        name = f"{uuid.uuid4().hex}.sst" if far else str(path)
        self.call(lambda number: Export(number, self.unit_id, name, sorted(leave)))
        if far:
            self.link.fetch_file(name, path)

    def call(self, word: Callable[[int], ToWorker]) -> int:
        """Send a request, which gets a number, and return the worker's answer.

        Raises:
            HeadraceError: the worker's error.
            OutOfReach: the worker is gone.
        """
        number = self.link.number()
        self.link.send(word(number))
        return self.link.answer(number)
