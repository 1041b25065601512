"""The memory regulator: which key groups are in memory (F-22), for all states of all views.

Source: Flink's spillable state backend.  There the heap's garbage collector says when to spill;
here the bytes of all maps against their share of ``Settings.memory.states``:

=======  ==============================  ===================================================
action   when the maps take more / less  what
=======  ==============================  ===================================================
spill    more than 100 %                 greatest spill weight first, 20 % of what is there
                                         (or the excess, if that is more)
fill     less than 60 %, a state has     all of it, but up to 50 % only: the rest is for what is
         just come: a start, a new view  asked for
load     less than 60 %, groups asked    greatest load weight first, up to 80 %;
         for are spilled                 how large they are is known when they are there
=======  ==============================  ===================================================

The gap between 80 % (after spilling, after loading) and both thresholds keeps it from flapping;
so does a second between two decisions (a load may follow a load at once, behind a long batch).
What was decided is done between batches, in slices of a few milliseconds or as long as the batch.

What no checkpoint holds cannot be spilled.  So beyond 100 % the one under way hurries, and beyond
125 % no batch is taken until it is written and what it holds has been spilled.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from headrace import clock
from headrace.errors import HeadraceError
from headrace.state import layout
from headrace.state.columns import Groups
from headrace.state.packs import PackedPairs
from headrace.state.tiers import Tier

INTERVAL_S: Final = 1.0
"""Least time between two decisions."""
SPILL_RATIO: Final = 0.2
LOAD_BELOW: Final = 0.6
LOAD_UP_TO: Final = 0.8
FILL_UP_TO: Final = 0.5
CROWDED: Final = 1.25
"""Beyond it, what is being made durable is waited for: only then can it be spilled."""
_STEP_S: Final = 0.003
_STEP_S_MAX: Final = 0.25
_LONG_S: Final = 0.05
"""A batch that took so long may be followed by a decision at once: a decision takes far less."""
_CLEAN_NODES: Final = 4096
_SPILL_NODES: Final = 4096

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
    """Spilled groups on their way into memory: ``group`` and those behind it, up to ``last``."""

    tier: Tier
    group: int
    last: int = -1
    unasked: bool = False
    pairs: Groups | PackedPairs | None = None

    def __post_init__(self) -> None:
        self.last = max(self.group, self.last)

    @classmethod
    def packed(cls, tier: Tier, pairs: PackedPairs) -> Load:
        """All groups of a new state, out of its pack.  REQUIRES: nothing was written yet."""
        job = cls(tier, 0, layout.GROUPS - 1, unasked=True, pairs=pairs)
        tier.fresh = False
        for group in job.groups:
            # From now on: the pack does not know what checkpoints will.
            tier.map.begin_load(group)
        return job

    @property
    def groups(self) -> range:
        """Those that are not resident yet."""
        return range(self.group, self.last + 1)

    def step(self) -> bool:
        """Do a slice; True: done."""
        tier = self.tier
        if self.pairs is None:
            for group in self.groups:
                tier.map.begin_load(group)
            # Only now: it must show whatever the map does not keep.
            self.pairs = tier.section.groups(self.group, self.last)
        key = self.pairs.fill(tier.map)
        # They come in order: all before the last one's are complete.
        reached = key[0] if key is not None else self.last + 1
        if reached > self.group:
            sizes = tier.map.group_bytes()
            for group in range(self.group, reached):
                tier.learn(group, sizes[group])
                tier.make_resident(group)
            self.group = reached
        if key is None:
            self.pairs.close()
        return key is None

    def close(self) -> None:
        """Let go of files; the tier is going away."""
        if self.pairs is not None:
            self.pairs.close()

    def give_up(self) -> list[Spill]:
        """Stop; what was loaded has to go again, but for whole groups."""
        if self.pairs is None:
            return []
        self.pairs.close()
        self.pairs = None
        tier = self.tier
        for group in self.groups:
            tier.map.set_resident(group, False)
        return [Spill(tier, group, begun=True, given_up=True) for group in self.groups]


class Regulator:
    """Decides and does; one for all states of a worker."""

    def __init__(self, budget_bytes: int, monotonic: Callable[[], float] = clock.monotonic) -> None:
        """``budget_bytes`` is the share of the maps."""
        self.budget_bytes: Final = budget_bytes
        self.full = 0.0
        """The maps' part of the budget, as of the last step."""
        self.spilled_groups = 0
        self.loaded_groups = 0
        self._monotonic = monotonic
        self._next_at = monotonic()
        self.postponed = False
        """Whether the last decision was put off, for it is too soon after the one before."""
        self._spilled_at = -math.inf
        self._work: deque[Spill | Load] = deque()
        self._bytes: Final[dict[Tier, int]] = {}
        """Bytes of each tier, as of the last look at it."""
        self._total = 0
        self._cleaning: Final[dict[Tier, None]] = {}
        self._fresh: Final[dict[Tier, None]] = {}
        self._spilled: Final[dict[Tier, None]] = {}
        """Tiers with groups that are not in memory."""

    def step(self, tiers: Iterable[Tier], worked_s: float = 0.0) -> bool:
        """A few milliseconds of work, between batches; returns whether there is more.

        ``tiers`` are those that are new, or were used since the last step.

        Up to ``worked_s`` after a batch that took so long: what it has asked RocksDB for costs a
        third when it is loaded, and the next one finds it.
        """
        long = _STEP_S_MAX if self.crowded else min(worked_s, _STEP_S_MAX)
        until = clock.monotonic() + max(_STEP_S, long)
        for tier in tiers:
            self._look_at(tier)
        for tier in list(self._cleaning):
            while tier.cleaning and clock.monotonic() < until:
                tier.clean(_CLEAN_NODES)
            self._look_at(tier)
        self.full = self._total / self.budget_bytes
        if not self._work:
            self._decide(long=worked_s > _LONG_S)
        while self._work and clock.monotonic() < until:
            self.full = self._total / self.budget_bytes
            if self.full > FILL_UP_TO:
                self._stop_loading(unasked_only=self.full <= LOAD_UP_TO)
            if self._work:
                # A job changes its own tier only.
                tier = self._work[0].tier
                self._do()
                self._look_at(tier)
        return self.busy or bool(self._cleaning)

    def _look_at(self, tier: Tier) -> None:
        """Note what there is to know of a tier that may have changed."""
        if tier.closed:
            self._leave(tier)
            return
        held = tier.map.live_bytes
        self._total += held - self._bytes.get(tier, 0)
        self._bytes[tier] = held
        for tiers, is_one in (
            (self._cleaning, tier.cleaning),
            (self._fresh, tier.fresh),
            (self._spilled, tier.spilled),
        ):
            if is_one:
                tiers[tier] = None
            else:
                tiers.pop(tier, None)

    def _leave(self, tier: Tier) -> None:
        self._total -= self._bytes.pop(tier, 0)
        for tiers in (self._cleaning, self._fresh, self._spilled):
            tiers.pop(tier, None)

    @property
    def crowded(self) -> bool:
        """Whether the maps were so far beyond the budget that more may have to wait."""
        return self.full > CROWDED

    @property
    def busy(self) -> bool:
        """Whether something that was decided is not done yet."""
        return bool(self._work)

    def reconsider(self) -> None:
        """What could not be spilled may be now: decide at once."""
        self._next_at = self._monotonic()

    def add(self, job: Spill | Load) -> None:
        """Do this, too."""
        self._work.append(job)

    def forget(self, tiers: Iterable[Tier]) -> None:
        """Tiers are going away."""
        gone = set(tiers)
        for tier in gone:
            self._leave(tier)
        work, self._work = self._work, deque[Spill | Load]()
        for job in work:
            if job.tier not in gone:
                self._work.append(job)
            elif isinstance(job, Load):
                job.close()

    def _do(self) -> None:
        job = self._work[0]
        spilled = job.tier.spilled
        try:
            done = job.step()
        except HeadraceError:
            # Nobody has asked for this group just now: who reads it will meet the error himself.
            assert isinstance(job, Load), "only loading reads files"
            self._work.popleft()
            job.tier.fresh = isinstance(job.pairs, PackedPairs)
            self._work.extendleft(job.give_up())
            if not job.tier.fresh:
                job.tier.forbid(job.group)
            return
        if isinstance(job, Load):
            self.loaded_groups += spilled - job.tier.spilled
        elif done and not job.given_up:
            self.spilled_groups += 1
        if done:
            self._work.popleft()

    def _stop_loading(self, *, unasked_only: bool) -> None:
        work, self._work = self._work, deque[Spill | Load]()
        for job in work:
            if isinstance(job, Spill) or (unasked_only and not job.unasked):
                self._work.append(job)
                continue
            if job.pairs is not None and not job.unasked:
                # It is larger than it was thought to be: it must not be tried again at once.
                loaded = job.tier.map.group_bytes()[job.group]
                job.tier.learn(job.group, 2 * max(loaded, job.tier.estimate(job.group)))
            self._work.extend(job.give_up())

    def _decide(self, *, long: bool) -> None:
        total = self._total
        now = self._monotonic()
        if total < LOAD_BELOW * self.budget_bytes:
            for tier in list(self._fresh):
                tier.fresh = False
                self._look_at(tier)
                if tier.spilled == layout.GROUPS:
                    self._work.append(Load(tier, 0, layout.GROUPS - 1, unasked=True))
            due = self._spilled_at + INTERVAL_S if long else self._next_at
            wanted = not self._work and bool(self._spilled)
            self.postponed = wanted and now < due
            if wanted and now >= due:
                self._decide_load(list(self._spilled), total)
                self._next_at = now + INTERVAL_S
        elif total > self.budget_bytes:
            self.postponed = now < self._next_at
            if not self.postponed:
                self._decide_spill(list(self._bytes), total)
                self._spilled_at = now
                self._next_at = now + INTERVAL_S
        else:
            self.postponed = False

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
        chosen = [int(where[at]) for at in choose_load(sizes, requests[where], room)]
        if len(chosen) == len(where):
            chosen.sort()  # neighbours are read together
        for at in chosen:
            tier, group = divmod(at, layout.GROUPS)
            job = self._work[-1] if self._work else None
            if isinstance(job, Load) and job.tier is tiers[tier] and job.last == group - 1:
                job.last = group
            else:
                self._work.append(Load(tiers[tier], group))


def _numbers(tiers: list[Tier]) -> tuple[Any, Any, Any]:
    """Bytes, requests and residence of every group of every tier."""
    sizes = np.array([tier.map.group_bytes() for tier in tiers], np.int64)
    requests = np.array([tier.map.group_requests() for tier in tiers], np.int64)
    resident = np.array([tier.resident for tier in tiers], np.bool_)
    return sizes.reshape(-1), requests.reshape(-1), resident.reshape(-1)
