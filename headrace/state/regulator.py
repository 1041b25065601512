"""The memory regulator: which key groups are in memory (F-22), for all states of all views.

Source: Flink's spillable state backend.  There the heap's garbage collector says when to spill;
here the bytes of all maps against their share of ``state_memory_bytes``:

=======  ==============================  ===================================================
action   when the maps take more / less  what
=======  ==============================  ===================================================
spill    more than 100 %                 greatest spill weight first, 20 % of what is there
                                         (or the excess, if that is more)
load     less than 60 %, groups asked    greatest load weight first, up to 80 %;
         for are spilled                 how large they are is known when they are there
=======  ==============================  ===================================================

The gap between 80 % (after spilling, after loading) and both thresholds keeps it from flapping;
so does a second between two decisions.  What was decided is done in slices of a few
milliseconds, between batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace import clock
from headrace.errors import HeadraceError
from headrace.state import layout
from headrace.state.columns import reading
from headrace.state.map import keygroups
from headrace.state.tiers import Tier

INTERVAL_S: Final = 1.0
"""Least time between two decisions."""
SPILL_RATIO: Final = 0.2
LOAD_BELOW: Final = 0.6
LOAD_UP_TO: Final = 0.8
_STEP_S: Final = 0.003
_CLEAN_NODES: Final = 4096
_SPILL_NODES: Final = 4096
_LOAD_PAIRS: Final = 512
_LOAD_BYTES: Final = 256 * 1024

Floats = npt.NDArray[np.float64]
Numbers = Sequence[float] | npt.NDArray[Any]


def normalised(values: Numbers) -> Floats:
    """``values`` moved and scaled to 0 … 1; all 0 if they are equal."""
    array = np.asarray(values, np.float64)
    if len(array) == 0:
        return array
    low, high = array.min(), array.max()
    if high == low:
        return np.zeros(len(array))
    out: Floats = (array - low) / (high - low)
    return out


def spill_weights(sizes: Numbers, requests: Numbers) -> Floats:
    """How much each group should be spilled: large and little used first (F-22)."""
    return (0.7 * normalised(sizes) - 0.3 * normalised(requests)) / 0.4


def load_weights(sizes: Numbers, requests: Numbers) -> Floats:
    """How much each group should be loaded: much used and small first (F-22)."""
    return (-0.3 * normalised(sizes) + 0.7 * normalised(requests)) / 0.4


def choose_spill(sizes: Numbers, requests: Numbers, target: float) -> list[int]:
    """Positions of the groups to spill, in order, until ``target`` bytes are reached."""
    chosen: list[int] = []
    total = 0.0
    for at in np.argsort(-spill_weights(sizes, requests), kind="stable").tolist():
        if total >= target:
            break
        chosen.append(at)
        total += sizes[at]
    return chosen


def choose_load(sizes: Numbers, requests: Numbers, room: float) -> list[int]:
    """Positions of the groups to load, in order, as long as they fit into ``room`` bytes."""
    chosen: list[int] = []
    total = 0.0
    for at in np.argsort(-load_weights(sizes, requests), kind="stable").tolist():
        total += sizes[at]
        if total > room:
            break
        chosen.append(at)
    return chosen


@dataclass(slots=True)
class Spill:
    """A group on its way out of memory."""

    tier: Tier
    group: int
    after: bytes | None = None
    begun: bool = False
    freed: int = 0
    given_up: bool = False
    """Whether it is a load that was not finished."""

    def step(self) -> bool:
        """Do a slice; True: done."""
        if not self.begun:
            self.begun = True
            self.tier.make_spilled(self.group)
        freed, self.after = self.tier.map.spill(self.group, self.after, _SPILL_NODES)
        self.freed += freed
        if self.after is not None:
            return False
        if not self.given_up:
            self.tier.learn(self.group, self.freed)
        return True


@dataclass(slots=True)
class Load:
    """A group on its way into memory."""

    tier: Tier
    group: int
    iterator: Any = None
    before: int = 0

    def step(self) -> bool:
        """Do a slice; True: done."""
        tier = self.tier
        with reading(tier.name):
            if self.iterator is None:
                tier.map.begin_load(self.group)
                self.before = tier.map.live_bytes
                # Only now: it must show whatever the map does not keep.
                self.iterator = tier.section.own_iterator()
                self.iterator.seek(bytes((self.group,)))
            keys, values = keygroups.read_pairs(self.iterator, _LOAD_PAIRS, _LOAD_BYTES, self.group)
            if not keys:
                self.iterator.status()
        if keys:
            tier.map.load(keys, values)
            return False
        self.iterator = None
        tier.learn(self.group, tier.map.live_bytes - self.before)
        tier.make_resident(self.group)
        return True

    def give_up(self) -> Spill:
        """Stop; what was loaded has to go again."""
        self.iterator = None
        tier = self.tier
        tier.map.set_resident(self.group, False)
        # It is larger than it was thought to be: it must not be tried again at once.
        loaded = tier.map.live_bytes - self.before
        tier.learn(self.group, 2 * max(loaded, tier.estimate(self.group)))
        return Spill(tier, self.group, begun=True, given_up=True)


class Regulator:
    """Decides and does; one for all states of a worker."""

    def __init__(self, budget_bytes: int, monotonic: Callable[[], float] = clock.monotonic) -> None:
        """``budget_bytes`` is the share of the maps."""
        self.budget_bytes: Final = budget_bytes
        self.spilled_groups = 0
        self.loaded_groups = 0
        self._monotonic = monotonic
        self._next_at = monotonic()
        self._work: deque[Spill | Load] = deque()

    def step(self, tiers: list[Tier]) -> bool:
        """A few milliseconds of work, between batches; returns whether there is more."""
        until = clock.monotonic() + _STEP_S
        for tier in tiers:
            while tier.cleaning and clock.monotonic() < until:
                tier.clean(_CLEAN_NODES)
        total = _bytes(tiers)
        if not self._work and self._monotonic() >= self._next_at:
            self._decide(tiers, total)
        while self._work and clock.monotonic() < until:
            if _bytes(tiers) > LOAD_UP_TO * self.budget_bytes:
                self._stop_loading()
            if self._work:
                self._do()
        return self.busy or any(tier.cleaning for tier in tiers)

    @property
    def busy(self) -> bool:
        """Whether something that was decided is not done yet."""
        return bool(self._work)

    def add(self, job: Spill | Load) -> None:
        """Do this, too."""
        self._work.append(job)

    def forget(self, tiers: Iterable[Tier]) -> None:
        """Tiers are going away."""
        gone = set(map(id, tiers))
        self._work = deque(job for job in self._work if id(job.tier) not in gone)

    def _do(self) -> None:
        job = self._work[0]
        try:
            done = job.step()
        except HeadraceError:
            # Nobody has asked for this group just now: who reads it will meet the error himself.
            assert isinstance(job, Load), "only loading reads files"
            self._work[0] = job.give_up()
            job.tier.forbid(job.group)
            return
        if done:
            self._work.popleft()
            if isinstance(job, Load):
                self.loaded_groups += 1
            elif not job.given_up:
                self.spilled_groups += 1

    def _stop_loading(self) -> None:
        loads = [job for job in self._work if isinstance(job, Load)]
        if not loads:
            return
        rest: deque[Spill | Load] = deque(job for job in self._work if isinstance(job, Spill))
        if loads[0].iterator is not None:
            rest.append(loads[0].give_up())
        self._work = rest

    def _decide(self, tiers: list[Tier], total: int) -> None:
        if total > self.budget_bytes:
            self._decide_spill(tiers, total)
        elif total < LOAD_BELOW * self.budget_bytes and any(t.spilled for t in tiers):
            self._decide_load(tiers, total)
        else:
            return
        self._next_at = self._monotonic() + INTERVAL_S

    def _decide_spill(self, tiers: list[Tier], total: int) -> None:
        sizes, requests, resident = _numbers(tiers)
        where = np.flatnonzero(resident & (sizes > 0))
        target = max(SPILL_RATIO * total, total - self.budget_bytes)
        for at in choose_spill(sizes[where], requests[where], target):
            tier, group = divmod(int(where[at]), layout.GROUPS)
            self._work.append(Spill(tiers[tier], group))

    def _decide_load(self, tiers: list[Tier], total: int) -> None:
        _, requests, resident = _numbers(tiers)
        where = np.flatnonzero(~resident & (requests > 0))
        sizes = [tiers[at // layout.GROUPS].estimate(at % layout.GROUPS) for at in where.tolist()]
        room = LOAD_UP_TO * self.budget_bytes - total
        for at in choose_load(sizes, requests[where], room):
            tier, group = divmod(int(where[at]), layout.GROUPS)
            self._work.append(Load(tiers[tier], group))


def _bytes(tiers: list[Tier]) -> int:
    return sum(tier.map.live_bytes for tier in tiers)


def _numbers(tiers: list[Tier]) -> tuple[Any, Any, Any]:
    """Bytes, requests and residence of every group of every tier."""
    sizes = np.array([tier.map.group_bytes() for tier in tiers], np.int64)
    requests = np.array([tier.map.group_requests() for tier in tiers], np.int64)
    resident = np.array([tier.resident for tier in tiers], np.bool_)
    return sizes.reshape(-1), requests.reshape(-1), resident.reshape(-1)
