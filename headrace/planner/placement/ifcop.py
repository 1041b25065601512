"""IFCOP: draws random candidates and takes the cheapest (N-23 … N-34).

From each source upwards, a draw decides at each node whether the next operator stays there or the
walk goes on to the parent.  Every candidate is a valid placement except for its slots.  An operator
goes only to a node that all its sources reach, and no higher than its placed readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from headrace.errors import UserError
from headrace.planner.placement.cost import CostWeights, PlacementCost, cost_of, load
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Operators
from headrace.planner.placement.rooms import Rooms
from headrace.planner.placement.topology import Topology
from headrace.planner.placement.ways import Ways

ITERATIONS: Final = 100
STAY: Final = 0.5

Draw = Callable[[], bool]
"""Whether the next operator stays on the node that the walk has come to."""


@dataclass(frozen=True, slots=True)
class IfcopOptions:
    """Options of the search and weights of its costs (N-40)."""

    iterations: int = ITERATIONS
    stay: float = STAY
    """Probability that an operator stays on a node."""
    weights: CostWeights = field(default_factory=CostWeights)


@dataclass(frozen=True, slots=True)
class IfcopSearch:
    """Result of a search."""

    best: Mapping[str, str]
    """The last best candidate."""
    cost: PlacementCost
    fitting: Mapping[str, str] | None
    """The cheapest candidate for which there are slots everywhere: the best one, if it is so."""
    bests: tuple[float, ...]
    """The total costs of all that were the best for a while; each is less than the one before."""


def ifcop(
    operators: Operators, topology: Topology, ways: Ways, seed: int, options: IfcopOptions
) -> dict[str, str] | PlacementFailed:
    """Return the node of each operator; the result is the same for the same ``seed``.

    Raises:
        UserError: ``seed`` is negative, or see ``search``.
    """
    if failed := Rooms(operators, ways).unreachable():
        return failed
    if seed < 0:
        raise UserError("a seed cannot be negative")
    numbers = np.random.Generator(np.random.PCG64(seed))
    found = search(operators, topology, ways, lambda: numbers.random() < options.stay, options)
    if found.fitting is not None:
        return dict(found.fitting)
    return _overload(operators, topology, found, options)


def search(
    operators: Operators, topology: Topology, ways: Ways, draw: Draw, options: IfcopOptions
) -> IfcopSearch:
    """Return the cheapest of ``options.iterations`` candidates; of equal ones the first (N-34).

    Raises:
        UserError: there is no iteration, or no such probability.
    """
    if options.iterations < 1:
        raise UserError("IFCOP needs at least one iteration")
    if not 0 <= options.stay <= 1:
        raise UserError("the probability that an operator stays must be from 0 to 1")
    best: dict[str, str] = {}
    fitting: dict[str, str] | None = None
    cost = fits = None
    bests: list[float] = []
    for _ in range(options.iterations):
        nodes = candidate(operators, ways, draw)
        now = cost_of(operators, topology, ways, nodes, options.weights)
        if cost is None or now.total < cost.total:
            best, cost = nodes, now
            bests.append(now.total)
        if not now.over and (fits is None or now.total < fits.total):
            fitting, fits = nodes, now
    assert cost is not None, "there was an iteration"
    return IfcopSearch(best, cost, best if not cost.over else fitting, tuple(bests))


def candidate(operators: Operators, ways: Ways, draw: Draw) -> dict[str, str]:
    """Draw a node for each operator (N-25, N-30)."""
    rooms = Rooms(operators, ways)
    done: set[str] = set()
    for source in in_turn(operators):
        left = [source]
        while left:
            name = left.pop()
            if name in done:
                continue
            if operators.by_name[name].pin is None:
                *below, highest = rooms.legal(name)
                rooms.put(name, next((node for node in below if draw()), highest))
            done.add(name)
            left += reversed(operators.readers[name])
    return rooms.nodes


def in_turn(operators: Operators) -> Iterator[str]:
    """Yield the sources; of a logical one, the physical one registered last is first (N-26)."""
    for physical in operators.expanded.physical.values():
        yield from reversed(physical)


def _overload(
    operators: Operators, topology: Topology, found: IfcopSearch, options: IfcopOptions
) -> PlacementFailed:
    """Return a failure that names a node where the best candidate lacks slots."""
    free = topology.free
    node = next(n for n, taken in load(operators, found.best).items() if taken > free[n])
    there = [o for o in operators.by_name.values() if found.best[o.name] == node and o.slots]
    who = min(there, key=lambda o: o.pin is not None)
    reason = (
        f"none of {options.iterations} candidates has slots for all operators;"
        f' the cheapest lacks {found.cost.over}, some of them on "{node}"'
    )
    return PlacementFailed(who.name, node, reason)
