"""The memory regulator: which key groups are in memory (F-22), for all states of all views.

Source: Flink's spillable state backend.  Flink spills when the garbage collector reports a full
heap.  The regulator compares the bytes of all maps with their share of ``Settings.memory.states``:

=======  ==============================  ===================================================
action   condition                       groups
=======  ==============================  ===================================================
spill    more than 100 %                 greatest spill weight first, 20 % of all bytes
                                         (or the excess, if that is more)
fill     less than 60 %, and a state is  all of it, up to 50 %: the rest is for requested
         new: a start, a new view        groups
load     less than 60 %, and requested   greatest load weight first, up to 80 %;
         groups are spilled              their size is known only once they are loaded
=======  ==============================  ===================================================

The gap between 80 % (after a spill or load) and both thresholds prevents flapping.  So does the
second between two decisions, but a load may follow a load at once after a long batch.  The work is
done between batches, in slices of a few milliseconds or as long as the batch.

Entries that are in no checkpoint cannot be spilled.  So above 100 % the running checkpoint hurries.
Above 125 % no batch is accepted until it is written and its entries have been spilled.
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
from headrace.state.tiers import Tier
from headrace.state.warm_start import PackedPairs

INTERVAL_S: Final = 1.0
"""Minimum time between two decisions."""
SPILL_RATIO: Final = 0.2
LOAD_BELOW: Final = 0.6
LOAD_UP_TO: Final = 0.8
FILL_UP_TO: Final = 0.5
CROWDED: Final = 1.25
"""Above it, batches wait for the running checkpoint: only then can its entries be spilled."""
_STEP_S: Final = 0.003
_STEP_S_MAX: Final = 0.25
_LONG_S: Final = 0.05
"""After a batch this long a decision may follow at once: it takes far less time."""
_CLEAN_NODES: Final = 4096
_SPILL_NODES: Final = 4096

Floats = npt.NDArray[np.float64]
Numbers = Sequence[float] | npt.NDArray[Any]


def normalised(values: Numbers) -> Floats:
    """Return ``values`` shifted and scaled to 0 … 1; all 0 if they are equal."""
    array = np.asarray(values, np.float64)
    if len(array) == 0:
        return array
    low, high = array.min(), array.max()
    if high == low:
        return np.zeros(len(array))
    out: Floats = (array - low) / (high - low)
    return out


def spill_weights(sizes: Numbers, requests: Numbers) -> Floats:
    """Return the spill weights of groups: large and rarely used ones first (F-22)."""
    return (0.7 * normalised(sizes) - 0.3 * normalised(requests)) / 0.4


def load_weights(sizes: Numbers, requests: Numbers) -> Floats:
    """Return the load weights of groups: often used and small ones first (F-22)."""
    return (-0.3 * normalised(sizes) + 0.7 * normalised(requests)) / 0.4


def choose_spill(sizes: Numbers, requests: Numbers, target: float) -> list[int]:
    """Return positions of the groups to spill, in order, until ``target`` bytes are reached."""
    chosen: list[int] = []
    total = 0.0
    for at in np.argsort(-spill_weights(sizes, requests), kind="stable").tolist():
        if total >= target:
            break
        chosen.append(at)
        total += sizes[at]
    return chosen


def choose_load(sizes: Numbers, requests: Numbers, room: float) -> list[int]:
    """Return positions of the groups to load, in order, while they fit into ``room`` bytes."""
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
    """The spill of a group."""

    tier: Tier
    group: int
    after: bytes | None = None
    begun: bool = False
    freed: int = 0
    given_up: bool = False
    """Whether it undoes a load that was not finished."""

    def step(self) -> bool:
        """Do a slice; return whether the spill is complete."""
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
    """The load of the spilled groups from ``group`` to ``last``, inclusive."""

    tier: Tier
    group: int
    last: int = -1
    unasked: bool = False
    pairs: Groups | PackedPairs | None = None

    def __post_init__(self) -> None:
        self.last = max(self.group, self.last)

    @classmethod
    def packed(cls, tier: Tier, pairs: PackedPairs) -> Load:
        """Return a load of all groups of a new state from its pack; REQUIRES: no write so far."""
        job = cls(tier, 0, layout.GROUPS - 1, unasked=True, pairs=pairs)
        tier.fresh = False
        for group in job.groups:
            # Begin now: the pack does not get the changes of later checkpoints.
            tier.map.begin_load(group)
        return job

    @property
    def groups(self) -> range:
        """Groups that are not resident yet."""
        return range(self.group, self.last + 1)

    def step(self) -> bool:
        """Do a slice; return whether the load is complete."""
        tier = self.tier
        if self.pairs is None:
            for group in self.groups:
                tier.map.begin_load(group)
            # Only now: the reader must show every entry that the map does not keep.
            self.pairs = tier.section.groups(self.group, self.last)
        key = self.pairs.fill(tier.map)
        # Pairs are in order, so all groups before the last key's are complete.
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
        """Release the files; the tier is about to be closed."""
        if self.pairs is not None:
            self.pairs.close()

    def give_up(self) -> list[Spill]:
        """Stop; return the jobs that spill the incomplete groups again."""
        if self.pairs is None:
            return []
        self.pairs.close()
        self.pairs = None
        tier = self.tier
        for group in self.groups:
            tier.map.set_resident(group, False)
        return [Spill(tier, group, begun=True, given_up=True) for group in self.groups]


class Regulator:
    """Spills and loads key groups; one for all states of a worker."""

    def __init__(self, budget_bytes: int, monotonic: Callable[[], float] = clock.monotonic) -> None:
        self.budget_bytes = budget_bytes
        """Share of the maps in the memory budget; the owner may change it between two steps."""
        self.full = 0.0
        """Bytes of the maps divided by the budget, as of the last step."""
        self.spilled_groups = 0
        self.loaded_groups = 0
        self._monotonic = monotonic
        self._next_at = monotonic()
        self.postponed = False
        """Whether a decision was postponed because it is too soon after the previous one."""
        self._spilled_at = -math.inf
        self._work: deque[Spill | Load] = deque()
        self._bytes: Final[dict[Tier, int]] = {}
        """Bytes of each tier, as of its last inspection."""
        self._total = 0
        self._cleaning: Final[dict[Tier, None]] = {}
        self._fresh: Final[dict[Tier, None]] = {}
        self._spilled: Final[dict[Tier, None]] = {}
        """Tiers with groups that are not in memory."""

    def step(self, tiers: Iterable[Tier], worked_s: float = 0.0) -> bool:
        """Work for a few milliseconds between batches; return whether work is left.

        ``tiers`` are new, or were used since the last step.

        After a batch that took ``worked_s``, work for up to that long: to load the entries that it
        read from RocksDB costs a third of its reads, and the next batch finds them in memory.
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
        """Update the record of a tier that may have changed."""
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
        """Whether the maps were so far above the budget that batches may have to wait."""
        return self.full > CROWDED

    @property
    def busy(self) -> bool:
        """Whether jobs are left."""
        return bool(self._work)

    def reconsider(self) -> None:
        """Set the next decision due at once, since more can be spilled now."""
        self._next_at = self._monotonic()

    def add(self, job: Spill | Load) -> None:
        """Add a job."""
        self._work.append(job)

    def forget(self, tiers: Iterable[Tier]) -> None:
        """Remove tiers that are about to be closed, and their jobs."""
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
            # No caller waits for this group; a later reader of it gets the error.
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
                # The group is larger than estimated: do not retry it at once.
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
    """Return bytes, requests and residency of every group of every tier, as flat arrays."""
    sizes = np.array([tier.map.group_bytes() for tier in tiers], np.int64)
    requests = np.array([tier.map.group_requests() for tier in tiers], np.int64)
    resident = np.array([tier.resident for tier in tiers], np.bool_)
    return sizes.reshape(-1), requests.reshape(-1), resident.reshape(-1)
