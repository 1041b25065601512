"""Whether views move to local executors, and back: pure decisions over readings of the load.

    calm ── overload for SUSTAINED_S ──► spread, at most every SUSTAINED_S
    any  ── all work would fit into one process, for CALM_S ──► gather

Between both is a wide range of loads in which nothing moves, so views do not move to and fro.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

SUSTAINED_S: Final = 30.0
"""Seconds of overload after which views move, and then between two such moves."""
CALM_S: Final = 600.0
"""Seconds for which the work must fit into one process before the views come home."""
LIMIT_CPU: Final = 0.7
"""Share of a core from which an overloaded process is itself the limit; below it, it waits."""
_CALM_CPU: Final = 0.5
"""Share of a core that the work of all processes may take to fit into one."""
_GAP_S: Final = 30.0
"""Seconds without a reading after which the earlier ones say nothing."""


class Verdict(enum.Enum):
    """The decision at this time."""

    STAY = "stay"
    SPREAD = "spread"
    GATHER = "gather"


@dataclass(frozen=True, slots=True)
class Reading:
    """Load of the server at one time."""

    at: float
    """Seconds on any monotonic clock."""
    overloaded: bool
    """Whether the overload detector says that processing cannot keep up."""
    main_cpu: float
    """Cores that the main process used since the last reading."""
    all_cpu: float
    """Cores that it and the executors used."""

    @property
    def limited(self) -> bool:
        """Whether the main process is the limit."""
        return self.overloaded and self.main_cpu >= LIMIT_CPU

    @property
    def calm(self) -> bool:
        """Whether one process could do all the work, and have as much time left."""
        return not self.overloaded and self.all_cpu <= _CALM_CPU


@dataclass(slots=True)
class LoadHistory:
    """How long the load has been high, or low."""

    _last: float | None = None
    _limited_since: float | None = None
    _calm_since: float | None = None

    def judge(self, reading: Reading) -> Verdict:
        """Return what the readings up to this one call for; their times must not decrease."""
        if self._last is None or reading.at - self._last > _GAP_S:
            self._limited_since = self._calm_since = None
        self._last = reading.at
        self._limited_since = _since(self._limited_since, reading.at, holds=reading.limited)
        self._calm_since = _since(self._calm_since, reading.at, holds=reading.calm)
        if _lasted(self._limited_since, reading.at, SUSTAINED_S):
            self._limited_since = None  # the next views move only if that does not suffice
            return Verdict.SPREAD
        if _lasted(self._calm_since, reading.at, CALM_S):
            self._calm_since = None
            return Verdict.GATHER
        return Verdict.STAY


def _since(since: float | None, now: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now if since is None else since


def _lasted(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since >= seconds
