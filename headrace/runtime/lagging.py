"""Data of the views that lag: those whose cursor is ``catching_up`` (``catching_up.py``)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Lagging:
    """Data of the lagging views of one engine; only the engine's thread changes it."""

    groups: set[str] = field(default_factory=set)
    """Commit groups that are slow, so that their views lag on purpose."""
    working: frozenset[int] = frozenset()
    """IDs of the units that are worked on now; no other thread may touch their states."""
    awaited: bool = False
    """Whether a checkpoint waits for the end of that work, or has left these units out."""
