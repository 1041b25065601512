"""The topology: nodes with slots, and links that lead from the sources up to the sink (N-44).

A topology is immutable: a placement gives another one, with fewer free slots.  Nodes are in order
of registration, and ties are resolved in favour of the first.
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from headrace.errors import DuplicateError, UndefinedError, UserError

_FRAME_BYTES: Final = 64 << 10
"""Size of the frame whose transfer time is the weight of a link."""
ORDINARY_BYTES_S: Final = 125e6
"""Of an ordinary link, a gigabit per second."""


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """A worker process: how many operators it has room for, and how many are there (N-35)."""

    name: str
    capacity: int
    """In slots."""
    taken: int = 0
    """Slots of what was placed before; it may be more than the capacity, which may be lowered."""
    maintenance: bool = False
    """Nothing new is placed on it, nor led over it (N-37)."""

    @property
    def free(self) -> int:
        """Slots that are not taken; never negative."""
        return max(0, self.capacity - self.taken)


@dataclass(frozen=True, slots=True)
class TopologyLink:
    """A link from a node to another one, which is a step nearer to the sink."""

    child: str
    parent: str
    weight: float = 1.0
    """Cost of moving a byte over it, relative to an ordinary link."""

    @classmethod
    def measured(cls, child: str, parent: str, bytes_s: float, latency_ms: float) -> TopologyLink:
        """Return a link by its bandwidth and latency.

        Its weight is the time of a frame of 64 KiB, relative to a gigabit link without latency.

        Raises:
            UserError: the bandwidth or latency is invalid.
        """
        if not (bytes_s > 0 and 0 <= latency_ms < math.inf):
            raise UserError(f"a link of {bytes_s:g} bytes/s and {latency_ms:g} ms cannot be")
        seconds = latency_ms / 1e3 + _FRAME_BYTES / bytes_s
        return cls(child, parent, seconds / (_FRAME_BYTES / ORDINARY_BYTES_S))


@dataclass(frozen=True)
class Topology:
    """Nodes and links; links never lead in a circle.

    Raises:
        UserError: the nodes and links are inconsistent; the message says how.
    """

    nodes: tuple[TopologyNode, ...]
    links: tuple[TopologyLink, ...] = ()
    _places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {node.name: place for place, node in enumerate(self.nodes)}
        object.__setattr__(self, "_places", places)
        if len(places) < len(self.nodes):
            raise DuplicateError("two nodes of a topology have one name")
        for node in self.nodes:
            if node.capacity < 0 or node.taken < 0:
                raise UserError(f'worker "{node.name}" cannot have a negative number of slots')
        ends = {(link.child, link.parent) for link in self.links}
        if len(ends) < len(self.links):
            raise DuplicateError("two links of a topology join the same nodes")
        for link in self.links:
            self.node(link.child)
            self.node(link.parent)
            if not 0 < link.weight < math.inf:
                raise UserError(
                    f'link "{link.child}" to "{link.parent}" must have a weight above zero'
                )
        self._check_circles()

    def _check_circles(self) -> None:
        below: dict[str, list[str]] = {}
        for link in self.links:
            below.setdefault(link.parent, []).append(link.child)
        try:
            graphlib.TopologicalSorter(below).prepare()
        except graphlib.CycleError as error:
            way = ", ".join(f'"{name}"' for name in error.args[1])
            raise UserError(
                f"links of a topology form a cycle: {way}",
                hint="Links lead from the sources towards the sink, never back.",
            ) from error

    def node(self, name: str) -> TopologyNode:
        """Return the node of that name.

        Raises:
            UndefinedError: there is none.
        """
        return self.nodes[self.place(name)]

    def place(self, name: str) -> int:
        """Return the number of nodes registered before that one.

        Raises:
            UndefinedError: there is no node of that name.
        """
        if name not in self._places:
            raise UndefinedError(f'worker "{name}" does not exist')
        return self._places[name]

    @cached_property
    def parents(self) -> Mapping[str, tuple[str, ...]]:
        """Of each node that is at work: where its links lead, in the order of nodes."""
        usable = {node.name for node in self.nodes if not node.maintenance}
        found: dict[str, list[str]] = {name: [] for name in self._places if name in usable}
        for link in self.links:
            if link.child in usable and link.parent in usable:
                found[link.child].append(link.parent)
        return {name: tuple(sorted(up, key=self.place)) for name, up in found.items()}

    @cached_property
    def above(self) -> Mapping[str, frozenset[str]]:
        """Of each node that is at work: itself and all that its links lead to, directly or not."""
        found: dict[str, frozenset[str]] = {}
        for name in graphlib.TopologicalSorter(self.parents).static_order():
            found[name] = frozenset((name,)).union(*(found[up] for up in self.parents[name]))
        return found

    @cached_property
    def weights(self) -> Mapping[tuple[str, str], float]:
        """Of each link, by its ends."""
        return {(link.child, link.parent): link.weight for link in self.links}

    @property
    def free(self) -> dict[str, int]:
        """Free slots of each node."""
        return {node.name: node.free for node in self.nodes}

    def taking(self, slots: Mapping[str, int]) -> Topology:
        """Return the topology with more slots taken of each node; fewer where negative.

        Raises:
            UserError: the slots taken would be negative.
        """
        for name in slots:
            self.node(name)
        return replace(
            self,
            nodes=tuple(replace(n, taken=n.taken + slots.get(n.name, 0)) for n in self.nodes),
        )

    def joined(self, node: TopologyNode, links: Iterable[TopologyLink] = ()) -> Topology:
        """Return the topology with an additional node, the last, and links.

        Raises:
            UserError: the name is taken, or the links are no links.
        """
        return replace(self, nodes=(*self.nodes, node), links=(*self.links, *links))

    def left(self, name: str) -> Topology:
        """Return the topology without a node, which must be unused, and its links.

        Raises:
            UserError: there is no such node, or it is in use.
        """
        if self.node(name).taken:
            raise UserError(
                f'worker "{name}" is in use', sqlstate="55006", hint="Set it in maintenance first."
            )
        nodes = tuple(n for n in self.nodes if n.name != name)
        links = tuple(link for link in self.links if name not in (link.child, link.parent))
        return replace(self, nodes=nodes, links=links)
