"""Path selection: the nodes a plan may be placed in, one way up from each source (N-1 … N-10).

    occurrence(source, node) = number of ways from the source up to the node  (N-7, N-36)
    W(parent) = Σ occurrence over the nodes from the parent to the sink / their number  (N-8)

Of several parents of a node, the one with the largest W stays, so that sources share their ways.
Parents are selected for each logical source, then again for the remaining edges of all (R-6). The
nodes nearest to the sink are first, so that the way above a parent is already unique.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction

from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Operators
from headrace.planner.placement.topology import Topology
from headrace.planner.placement.ways import Ways

Edges = Mapping[str, tuple[str, ...]]
"""Of each node of a part of the topology, its parents there."""


@dataclass(frozen=True, slots=True)
class ParentChoice:
    """A node that had several parents, and why one of them was kept."""

    node: str
    kept: str
    weights: tuple[tuple[str, float], ...]
    """W of each parent."""


@dataclass(frozen=True, slots=True)
class SelectedPaths:
    """Result of path selection."""

    ways: Ways
    occurrences: Mapping[str, Mapping[str, int]]
    """The occurrence matrix of all physical sources, before anything was pruned."""
    choices: tuple[ParentChoice, ...]
    """Of the nodes that are left."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A physical source: where its ways begin, and the part of the topology that they are in."""

    source: str
    node: str
    edges: Edges


def select_paths(operators: Operators, topology: Topology) -> SelectedPaths | PlacementFailed:
    """Return the tree in which all strategies but ``exact`` assign operators (N-2)."""
    sink = operators.pinned[operators.sink.name]
    for name, node in operators.pinned.items():
        if node not in topology.parents:
            return PlacementFailed(name, node, f'worker "{node}" is in maintenance')
    pruned: list[Edges] = []
    starts: list[_Start] = []
    chosen: dict[str, ParentChoice] = {}
    for physical in operators.expanded.physical.values():
        here: list[_Start] = []
        for source in physical:
            found = _start(operators, topology, source, sink)
            if isinstance(found, PlacementFailed):
                return found
            here.append(found)
        edges, choices = _prune(topology, here, _union(s.edges for s in here), sink)
        pruned.append(edges)
        starts += here
        chosen = choices | chosen
    kept, choices = _prune(topology, starts, _union(pruned), sink)
    chosen |= choices
    return SelectedPaths(
        Ways(sink, {low: up[0] for low, up in kept.items() if up}),
        {s.source: occurrences(s.edges, s.node) for s in starts},
        tuple(chosen[low] for low in topology.parents if low in kept and low in chosen),
    )


def _start(
    operators: Operators, topology: Topology, source: str, sink: str
) -> _Start | PlacementFailed:
    """Return the nodes on ways from a source to the sink through all pinned nodes between (N-6)."""
    node = operators.pinned[source]
    above = topology.above
    edges: Edges = {n: up for n, up in topology.parents.items() if sink in above[n]}
    for name in operators.downstream[source]:
        pin = operators.by_name[name].pin
        if pin is not None:
            edges = {
                low: tuple(high for high in up if pin in above[high] or low in above[pin])
                for low, up in edges.items()
            }
    within = set(_upward(edges, node))
    if sink not in within:
        reason = f'no path leads from worker "{node}" up to worker "{sink}"'
        return PlacementFailed(source, node, reason)
    return _Start(source, node, _leading(edges, within, sink))


def _leading(edges: Edges, within: Set[str], sink: str) -> Edges:
    """Return the edges between nodes of ``within`` that finally lead to the sink."""
    leads: set[str] = {sink}
    found: dict[str, tuple[str, ...]] = {sink: ()}
    for low in _sink_first({low: edges[low] for low in edges if low in within}):
        up = tuple(high for high in edges.get(low, ()) if high in leads)
        if up and low != sink:
            leads.add(low)
            found[low] = up
    return found


def occurrences(edges: Edges, start: str) -> dict[str, int]:
    """Count the ways from ``start`` to each node above it (N-7)."""
    found = dict.fromkeys(_upward(edges, start), 0) | {start: 1}
    for low in reversed(_sink_first(edges)):
        for high in edges[low] if low in found else ():
            found[high] += found[low]
    return found


def _prune(
    topology: Topology, starts: Sequence[_Start], edges: Edges, sink: str
) -> tuple[Edges, dict[str, ParentChoice]]:
    """Return ``edges`` with one parent of each node, and the choices made (N-8)."""
    total: dict[str, int] = {}
    for start in starts:
        for name, count in occurrences(edges, start.node).items():
            total[name] = total.get(name, 0) + count
    kept: dict[str, tuple[str, ...]] = {sink: ()}
    choices: dict[str, ParentChoice] = {}
    for low in _sink_first(edges):
        parents = _allowed(starts, low, edges[low])
        if len(parents) > 1:
            choices[low] = _choice(topology, total, kept, low, parents)
            parents = (choices[low].kept,)
        kept[low] = parents
    left = {name for start in starts for name in _upward(kept, start.node)}
    return (
        {low: up for low, up in kept.items() if low in left},
        {low: choice for low, choice in choices.items() if low in left},
    )


def _choice(
    topology: Topology,
    total: Mapping[str, int],
    kept: Edges,
    low: str,
    parents: tuple[str, ...],
) -> ParentChoice:
    """Choose the parent with the largest W; ties: nearer to the sink, then the first."""
    ranked = []
    for high in parents:
        way = _upward(kept, high)
        weight = Fraction(sum(total[name] for name in way), len(way))
        ranked.append((-weight, len(way), topology.place(high), high))
    shown = tuple((high, float(-weight)) for weight, _, _, high in ranked)
    return ParentChoice(low, min(ranked)[-1], shown)


def _allowed(starts: Sequence[_Start], low: str, parents: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parents that bypass no pinned operator of a source, or else all parents."""
    fit = [high for high in parents if all(high in s.edges[low] for s in starts if low in s.edges)]
    return tuple(fit) or parents


def _union(parts: Iterable[Edges]) -> Edges:
    found: dict[str, dict[str, None]] = {}
    for part in parts:
        for low, up in part.items():
            found.setdefault(low, {}).update(dict.fromkeys(up))
    return {low: tuple(up) for low, up in found.items()}


def _upward(edges: Edges, start: str) -> tuple[str, ...]:
    """Return ``start`` and all nodes above it."""
    found = {start: None}
    left = [start]
    while left:
        for high in edges.get(left.pop(), ()):
            if high not in found:
                found[high] = None
                left.append(high)
    return tuple(found)


def _sink_first(edges: Edges) -> list[str]:
    """Return all nodes, each after those above it."""
    return list(graphlib.TopologicalSorter(edges).static_order())
