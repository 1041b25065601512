"""The batching policy: how large a coalesced batch is, and which groups lag.

    facts and the time ──► policy ──► decision        callers gather the facts, and act

Every function is pure: it reads no clock, no setting and no state.  Times are on the monotonic
clock.  The callers are in ``runtime/``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

_COALESCED_BYTES: Final = 4 << 20
"""Maximum bytes of a coalesced batch, except for a single txid; commands wait for its end."""
_COALESCED_TXIDS: Final = 1_000
_SLOW_TIMES: Final = 2
"""Number of batches of which a group takes most, within ``_WITHIN_S``, that move it."""
_WITHIN_S: Final = 60.0
_MOST: Final = 2.0
"""Minimum ratio of the group's time to that of all others."""
_STAY_S: Final = 30.0
"""Seconds for which a slow group lags at least, the first time."""
_STAY_S_MAX: Final = 3_600.0
_NEAR: Final = 2
"""A view is about to lead if it lacks so many times the txids that may be in flight."""
_LINGER_S: Final = 0.1
"""Seconds for which a view may be about to lead before new batches wait for it."""
_MEETING_S: Final = 0.1
"""Longest time for which new batches wait; doubled each time that it was too short."""
_MEETING_S_MAX: Final = 1.0
_MEETING_PAUSE: Final = 10
"""Shortest time between two waits, as a multiple of the last wait."""
_BACKOFF_S: Final = 0.2

# --- batches of the views that lag


def last_coalesced(after: int, end: int, bytes_after: Callable[[int], int]) -> int:
    """Return the last txid of a coalesced batch after ``after``: the next one, or up to ``end``.

    ``bytes_after``: bytes in the log after a txid.
    """
    low, high = after + 1, min(end, after + _COALESCED_TXIDS)
    while low < high:
        middle = (low + high + 1) // 2
        if bytes_after(after) - bytes_after(middle) <= _COALESCED_BYTES:
            low = middle
        else:
            high = middle - 1
    return low


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

    def at(self, now: float, lacks: float, inflight_max: int) -> tuple[Meeting, float]:
        """Return the state ``now``, and the seconds that new batches wait.

        ``lacks``: number of txids that the nearest view lacks.
        """
        if lacks > _NEAR * inflight_max:
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


def backoff_s(failures: int, longest_s: float) -> float:
    """Return the pause before the next attempt; it doubles with each earlier failure in a row."""
    return min(_BACKOFF_S * 2.0 ** min(failures, 30), longest_s)
