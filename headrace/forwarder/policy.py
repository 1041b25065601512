"""The batching policy: the time and size of batches, the groups that lag, the next checkpoint.

    facts and the time ──► policy ──► decision        callers gather the facts, and act

Every function is pure: it reads no clock, no setting and no state.  Times are on the monotonic
clock.  The callers are ``batcher.py`` and, in ``runtime/``, the engine, its read-ahead, the views
that lag, and the checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

_REST: Final = 0.5
"""Share of a batch's processing time for which the next batch gathers.  At 1.0, 200
transactions/s took a fifth less CPU, but results came a fifth later."""
_GATHER: Final = 0.5
"""Share of the least ``latency_ms`` for which a batch gathers; the rest is for processing it."""
_GATHER_S: Final = 0.02
"""Seconds for which a batch gathers while a view catches up ..."""
_GATHER_AFTER_S: Final = 1.0
"""... that has done so for this long."""
_AT_ONCE: Final = 64
"""Maximum number of batches per step of read-ahead, so that processing gets its turn."""
_COALESCED_BYTES: Final = 4 << 20
"""Maximum bytes of a coalesced batch, except for a single txid; commands wait for its end."""
_COALESCED_REMOTE_BYTES: Final = 1 << 18
"""The same if it goes to another worker, whose link may be slow."""
COALESCED_TXIDS: Final = 1_000
"""Maximum number of txids of a coalesced batch."""
_FEWER: Final = 8
"""Factor by which a coalesced batch that exceeded a limit shrinks."""
_COALESCED_S: Final = 0.5
"""Longest time that a coalesced batch should take."""
_PART_VIEWS: Final = 16
"""Number of views in a coalesced batch before it is known how long they take."""
_VIEW_ROWS: Final = 125
"""Number of rows whose change takes as long as the part of one more view in a batch."""
_TIME_ROWS_MAX: Final = 2_500
"""Rows, and views counted as rows, that change in a batch of leading views as time passes."""
_REMEMBERED: Final = 0.9
"""Weight of a batch beside that of the next one."""
_SPREAD: Final = 0.02
"""Least relative variance of the sizes of batches that tells their fixed cost."""
AHEAD_TXIDS: Final = 100
"""Batches by which a shared subplan goes ahead of a reader that lags, which writes them at once."""
_SLOW_TIMES: Final = 2
"""Number of batches of which a group takes most, within ``_WITHIN_S``, that move it."""
_WITHIN_S: Final = 60.0
_MOST: Final = 2.0
"""Minimum ratio of the group's time to that of all others."""
_STAY_S: Final = 30.0
"""Seconds for which a slow group lags at least, the first time."""
_STAY_S_MAX: Final = 3_600.0
_NEAR: Final = 2
"""A view is about to lead if it lacks so many times the txids that may be in flight, or only those
of the last ``_MEETING_S``."""
_LINGER_S: Final = 0.1
"""Seconds for which a view may be about to lead before new batches wait for it."""
_MEETING_S: Final = 0.1
"""Longest time for which new batches wait; doubled each time that it was too short."""
_MEETING_S_MAX: Final = 1.0
_MEETING_PAUSE: Final = 10
"""Shortest time between two waits, as a multiple of the last wait."""
_MISSING_MAX: Final = 8
"""Missing checkpoints after which no more batches are taken."""
_LEAVES_OUT_S: Final = 1.0
_BACKOFF_S: Final = 0.2
_LOCK_RETRY_S: Final = 0.1
_TARGET_S: Final = (0.05, 1.0)
"""Least and greatest latency target by which views take turns: none gets less than a twentieth of
the time that another one gets."""

# --- batches of the views that lead


def closes_at(
    opened_at: float, interval_s: float, rested_at: float, gather_s: float, *, pressed: bool
) -> float:
    """Return when a batch stops gathering: not before ``gather_s``, if all views may be late.

    ``pressed``: a caller hurries, there is no more room, or the stream has ended.
    """
    if pressed:
        return opened_at
    return max(opened_at + gather_s, min(opened_at + interval_s, rested_at))


def rested_at(now: float, worked_s: float) -> float:
    """Return when the engine has rested after a batch of ``worked_s``; load makes batches grow."""
    return now + worked_s * _REST


def gather_s(latency_s: float, catching_up_s: float) -> float:
    """Return for how long batches gather, if all views may be late by ``latency_s``.

    ``catching_up_s``: for how long a view has been catching up; negative: none is.  Fewer batches
    help it, because a batch of few rows takes as long as one of many.
    """
    return max(latency_s * _GATHER, _GATHER_S if catching_up_s > _GATHER_AFTER_S else 0.0)


def waits_s(due_s: float, meeting_s: float, *, full: bool, held: bool) -> float | None:
    """Return for how long to wait for commits before a batch may be taken; None: take one now.

    ``due_s``: time until other work is due.  ``full``: as many txids as possible are in flight.
    ``held``: state must become durable first.
    """
    if meeting_s:
        return min(due_s, meeting_s)
    return due_s if full or held else None


def is_complete(messages: int, rows_max: int, *, alone: bool) -> bool:
    """Return whether a batch takes no more transactions."""
    return alone or messages >= rows_max


def is_full(buffered: int, bytes_max: int, *, takeable: bool) -> bool:
    """Return whether the stream must wait; a batch that cannot be taken yet must get room."""
    return takeable and buffered > bytes_max


def is_crowded(waiting: int, bytes_max: int) -> bool:
    """Return whether so many bytes wait that batches are put into the log before their turn."""
    return waiting > bytes_max // 2


def may_read_ahead(moved: int, *, has_room: bool, reads_clock: bool) -> bool:
    """Return whether one more batch may be put into the log, after ``moved`` in this step.

    Not while a view reads the clock: the time that passes between two batches is decided when the
    second one is taken.
    """
    return moved < _AT_ONCE and has_room and not reads_clock


def takes_together(views: int, rows: int) -> bool:
    """Return whether views that lead take a new time in one batch, which changes ``rows`` of them.

    Otherwise they lag for it, and the other views do not wait.
    """
    return views * _VIEW_ROWS + rows <= _TIME_ROWS_MAX


# --- batches of the views that lag


def last_coalesced(
    after: int,
    end: int,
    bytes_after: Callable[[int], int],
    txids_max: int = COALESCED_TXIDS,
    *,
    remote: bool = False,
) -> int:
    """Return the last txid of a coalesced batch after ``after``: the next one, or up to ``end``.

    ``bytes_after``: bytes in the log after a txid.  ``txids_max``: see ``CoalescedSize``.
    ``remote``: it goes to another worker.
    """
    bytes_max = _COALESCED_REMOTE_BYTES if remote else _COALESCED_BYTES
    low, high = after + 1, min(end, after + min(txids_max, COALESCED_TXIDS))
    while low < high:
        middle = (low + high + 1) // 2
        if bytes_after(after) - bytes_after(middle) <= bytes_max:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class CoalescedSize:
    """The number of txids in a coalesced batch of one view, so that it takes half a second.

    Or of the views in one, each of which then takes its turn.

    Commands wait for the end of a batch, and a slow group is as late as its batches take.  But if a
    batch takes long however few txids it has, as for a window over one large partition, it has so
    many that they take half of its time: otherwise the view would never catch up.
    """

    count: int = COALESCED_TXIDS
    fixed_s: float = 0.0
    """Estimated seconds of a batch, besides ``each_s`` for each txid."""
    each_s: float = 0.0
    sums: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0)
    """Of the last batches, the latest ones with more weight: weights, txids, seconds, txids²,
    txids · seconds."""

    def took(self, txids: int, seconds: float) -> CoalescedSize:
        """Return the size after a batch of ``txids`` took ``seconds``."""
        seen = (1.0, txids, seconds, txids * txids, txids * seconds)
        sums = tuple(_REMEMBERED * old + new for old, new in zip(self.sums, seen, strict=True))
        weight, n, s, nn, ns = sums
        spread, expected_s = weight * nn - n * n, self.fixed_s + self.each_s * txids
        if spread > _SPREAD * n * n:  # a regression
            each_s = min(max((weight * ns - n * s) / spread, 0.0), s / n)
            fixed_s = max((s - each_s * n) / weight, 0.0)
        elif expected_s:
            each_s, fixed_s = (part * seconds / expected_s for part in (self.each_s, self.fixed_s))
        else:
            each_s, fixed_s = seconds / txids, 0.0
        time_s = max(_COALESCED_S - fixed_s, fixed_s)
        most = min(2 * self.count, COALESCED_TXIDS)
        wanted = most if time_s >= most * each_s else max(int(time_s / each_s), 1)
        return CoalescedSize(wanted, fixed_s, each_s, sums)

    def after_excess(self, txids: int) -> CoalescedSize:
        """Return the size after a batch of ``txids`` exceeded a limit of one transaction."""
        return CoalescedSize(max(txids // _FEWER, 1))


def first_part() -> CoalescedSize:
    """Return the number of views that take part in the first of several coalesced batches."""
    return CoalescedSize(_PART_VIEWS)


def slow_group(seconds: Mapping[str, float], limit_s: float) -> str | None:
    """Return the group that takes most of a batch, and ``limit_s`` at least."""
    total = sum(seconds.values())
    slow = (g for g, took in seconds.items() if took >= limit_s and took >= _MOST * (total - took))
    return next(slow, None)


def must_lag(times: int) -> bool:
    """Return whether a group lags that was slow so many times since ``counts_anew``."""
    return times >= _SLOW_TIMES


def counts_anew(since: float, now: float) -> bool:
    """Return whether slow batches are counted anew."""
    return now > since + _WITHIN_S


def refused_until(now: float) -> float:
    """Return until when no group begins to lag, as the log has no room."""
    return now + _STAY_S_MAX


@dataclass(frozen=True, slots=True)
class Stay:
    """The time for which a slow group lags at least."""

    seconds: float
    until: float

    @staticmethod
    def begin(last: Stay | None, now: float) -> Stay:
        """Return the stay of a group that begins to lag: twice the last one."""
        seconds = min(2 * last.seconds if last is not None else _STAY_S, _STAY_S_MAX)
        return Stay(seconds, now + seconds)

    def begin_again(self, now: float) -> Stay:
        """Return the stay of a group that was slow while it lagged."""
        return replace(self, until=now + self.seconds)


@dataclass(frozen=True, slots=True)
class Meeting:
    """The waiting of new batches for views that are about to lead.

    Under load some batch is always in flight, so a view that has caught up would lag for ever.
    """

    near_since: float = math.inf
    """Since when a view has been about to lead."""
    seconds: float = _MEETING_S
    """Length of the next wait."""
    until: float = 0.0
    again: float = 0.0
    """When the next wait may begin."""

    def at(
        self, now: float, lacks: float, lacks_s: float, inflight_max: int
    ) -> tuple[Meeting, float]:
        """Return the state ``now``, and the seconds that new batches wait.

        ``lacks``: number of txids that the nearest view lacks.  ``lacks_s``: for how many seconds
        it has lacked a txid.
        """
        if lacks > _NEAR * inflight_max and lacks_s > _MEETING_S:
            return replace(self, near_since=math.inf), 0.0
        since = min(self.near_since, now)
        if now < self.until:
            return replace(self, near_since=since), self.until - now
        if now - since < _LINGER_S or now < self.again:
            return replace(self, near_since=since), 0.0
        again = now + _MEETING_PAUSE * self.seconds
        longer = min(2 * self.seconds, _MEETING_S_MAX)
        return Meeting(since, longer, now + self.seconds, again), self.seconds

    def met(self) -> Meeting:
        """Return the state after a view has begun to lead: the next wait is short."""
        return replace(self, seconds=_MEETING_S)


@dataclass(frozen=True, slots=True)
class PassingTimes:
    """When the last few txids were committed by the views that lead."""

    times: tuple[tuple[int, float], ...] = ()
    """Txids with the time at which each was first seen, ascending."""

    def noted(self, txid: int, now: float) -> PassingTimes:
        """Return the times after ``txid`` was seen as the last one ``now``."""
        times = self.times
        if times and times[-1][0] == txid:
            return self
        if times and times[-1][0] > txid:
            times = ()  # the stream began again
        late = [at for _, at in times if at < now - 2 * _MEETING_S]
        return PassingTimes((*times[max(len(late) - 1, 0) :], (txid, now)))

    def since(self, txid: float, now: float) -> float:
        """Return since when there is a later one than ``txid``; ``now`` if there is none.

        For a txid that was passed long ago it is some time that is long ago.
        """
        return next((at for known, at in self.times if known > txid), now)


def target_s(latency_ms: float) -> float:
    """Return the latency target, in seconds, by which a view takes turns (``FairShares``)."""
    least, most = _TARGET_S
    return min(max(latency_ms / 1000, least), most)


@dataclass(frozen=True, slots=True)
class FairShares:
    """The shares of views that lag in the time of their thread (stride scheduling).

    Views with the same latency target form a class, and the thread's time is divided among the
    classes that have work in inverse proportion to their targets.  A class that had no work begins
    where the others are.  In a class, the views that are furthest back and those that are nearest
    alternate: the former meet others, the latter are soon done.
    """

    used: Mapping[float, float] = field(default_factory=dict)
    """By target: the time used, weighted with the target, up to now."""
    far: frozenset[float] = frozenset()
    """The classes whose next turn is that of the views furthest back."""

    def next(self, waiting: Mapping[float, Sequence[int]]) -> tuple[float, int]:
        """Return the target and the position whose turn it is.

        ``waiting``: by target, in seconds, the positions of views that have work, ascending.
        """
        begun = min((self.used[t] for t in waiting if t in self.used), default=0.0)
        target = min(waiting, key=lambda t: (max(self.used.get(t, begun), begun), t))
        return target, waiting[target][0 if target in self.far else -1]

    def took(self, waiting: Collection[float], target: float, seconds: float) -> FairShares:
        """Return the turns after ``target`` of the classes ``waiting`` took ``seconds``."""
        begun = min((self.used[t] for t in waiting if t in self.used), default=0.0)
        used = {t: max(self.used.get(t, begun), begun) for t in waiting}
        used[target] += seconds * target
        return FairShares(used, (self.far ^ {target}) & used.keys())


# --- checkpoints


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """The work that may be lost, by the settings."""

    txids: int
    interval_s: float
    idle_s: float

    def due(
        self, last: float, pending: int, *, owed: bool, large: bool, crowded: bool, ahead: bool
    ) -> float:
        """Return when the next checkpoint begins, if the last one began at ``last``.

        ``pending``: committed txids that none holds.  ``owed``: the last one left units out that
        the next can hold.  ``large``: state that is not durable takes much memory.  ``crowded``:
        queues cannot free memory before.  ``ahead``: a position could be confirmed once durable.
        """
        if pending >= self.txids or (pending and large) or owed:
            return last
        if pending or crowded:
            return last + self.interval_s
        return last + self.idle_s if ahead else math.inf

    def missing(self, pending: int) -> bool:
        """Return whether so many checkpoints are missing that no more batches may be taken."""
        return pending >= _MISSING_MAX * self.txids


def leaves_out_at(now: float) -> float:
    """Return when a checkpoint begins without the units that lag, if they are worked on ``now``."""
    return now + _LEAVES_OUT_S


def lock_retry_s(last_s: float, longest_s: float) -> float:
    """Return the pause before a locked table is tried again; ``last_s``: the last one, 0: none."""
    return min(max(2 * last_s, _LOCK_RETRY_S), longest_s)


def backoff_s(failures: int, longest_s: float) -> float:
    """Return the pause before the next attempt; it doubles with each earlier failure in a row."""
    return min(_BACKOFF_S * 2.0 ** min(failures, 30), longest_s)
