"""The shared subplans that each unit reads, as recorded in the state database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final


class UnitFeeds:
    """Feeds of one engine's units: ids of subplans, by node of the unit's plan."""

    def __init__(self) -> None:
        self._feeds: Final[dict[int, dict[str, int]]] = {}
        self._read: Final = Counter[int]()
        """Number of units that read each subplan."""
        self._left: set[int] = set()
        """Subplans that may have no reader: new ones, and those that a reader has left."""

    def load(self, feeds: Mapping[int, Mapping[str, int]], subplans: Iterable[int]) -> None:
        """Replace everything by these feeds and subplans."""
        self._feeds.clear()
        self._read.clear()
        for unit_id, read in feeds.items():
            self.put(unit_id, read)
        self._left = set(subplans)

    def __contains__(self, unit_id: int) -> bool:
        return unit_id in self._feeds

    @property
    def views(self) -> list[int]:
        """Ids of the views that read any subplan."""
        return [unit_id for unit_id in self._feeds if unit_id > 0]

    def get(self, unit_id: int) -> dict[str, int]:
        """Return the feeds of a unit."""
        return dict(self._feeds.get(unit_id, {}))

    def put(self, unit_id: int, feeds: Mapping[str, int]) -> None:
        """Replace the feeds of a unit."""
        self.drop(unit_id)
        self._feeds[unit_id] = dict(feeds)
        self._read.update(set(feeds.values()))

    def drop(self, unit_id: int) -> dict[str, int]:
        """Remove the feeds of a unit; return them."""
        feeds = self._feeds.pop(unit_id, {})
        for feeder in set(feeds.values()):
            self._read[feeder] -= 1
            if not self._read[feeder]:
                del self._read[feeder]
                self._left.add(feeder)
        return feeds

    def add(self, subplan_id: int) -> None:
        """Add a new subplan, which has no reader yet."""
        self._left.add(subplan_id)

    def take_unread(self) -> list[int]:
        """Return the subplans that have lost their last reader since the last call."""
        left, self._left = self._left, set()
        return [subplan_id for subplan_id in left if subplan_id not in self._read]
