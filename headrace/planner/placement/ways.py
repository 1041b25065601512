"""The part of the topology that a plan may be placed in: one way up from each of its nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from headrace.planner.placement.topology import Topology


@dataclass(frozen=True)
class Ways:
    """A tree of nodes: each has one parent, but for the sink's."""

    root: str
    parents: Mapping[str, str]
    """Of all nodes but the root."""

    @cached_property
    def _up(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {self.root: (self.root,)}
        for name in self.parents:
            chain = []
            while name not in found:
                chain.append(name)
                name = self.parents[name]  # noqa: PLW2901  the next one up
            for below in reversed(chain):
                found[below] = (below, *found[self.parents[below]])
        return found

    @property
    def nodes(self) -> Iterable[str]:
        """All of them."""
        return self._up.keys()

    def up(self, node: str) -> tuple[str, ...]:
        """Return the node itself, its parent, and so on to the root."""
        return self._up[node]

    def reaches(self, low: str, high: str) -> bool:
        """Return whether ``high`` is ``low``, or on its way up."""
        return high in self._up and high in self._up[low]

    def between(self, low: str, high: str) -> tuple[str, ...]:
        """Return the way from ``low`` up to ``high``, both included; REQUIRES: there is one."""
        way = self._up[low]
        return way[: way.index(high) + 1]

    def hops(self, low: str, high: str) -> Iterator[tuple[str, str]]:
        """Yield the links of that way: child, parent."""
        way = self.between(low, high)
        return itertools.pairwise(way)

    def meeting(self, nodes: Iterable[str]) -> str:
        """Return the lowest node that all of them reach; for one node, that node itself (N-39)."""
        first, *others = nodes
        common = [set(self._up[n]) for n in others]
        return next(n for n in self._up[first] if all(n in up for up in common))

    def distance(self, topology: Topology, low: str, high: str) -> float:
        """Sum the weights of the links between ``low`` and ``high``."""
        return sum(topology.weights[hop] for hop in self.hops(low, high))
