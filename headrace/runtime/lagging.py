"""The views that lag: those further back in the intake log than all others (``catching_up.py``)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Lagging:
    """Which views of one engine lag; only the engine's thread changes it."""

    groups: set[str] = field(default_factory=set)
    """Commit groups that are slow, so that their views lag on purpose."""
    views: set[int] = field(default_factory=set)
    """IDs of the views that catch up."""
    working: frozenset[int] = frozenset()
    """IDs of the units that are worked on now; no other thread may touch their states."""
    left_out: bool = False
    """Whether the last checkpoint left out units that were worked on."""

    @property
    def any(self) -> bool:
        """Whether there may be such views."""
        return bool(self.groups or self.views)

    def has(self, view_id: int, group: str) -> bool:
        """Return whether a view of this commit group lags."""
        return view_id in self.views or group in self.groups
