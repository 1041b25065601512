"""Why there is no placement, as a value: strategies give it back, and nothing was reserved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlacementFailed:
    """The first operator for which no node was found (N-13, N-16, N-20)."""

    operator: str
    node: str
    """Where it must be, or the last node where it was tried."""
    reason: str
