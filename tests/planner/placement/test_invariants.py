"""Properties of all plans on all topologies, and strategies' costs against the exact solver.

``make test-all`` runs 1 000 plans per strategy and prints the ratios; 60 plans always run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from headrace.collections import plan as p
from headrace.errors import UserError
from headrace.planner.placement.cost import cost_of
from headrace.planner.placement.expansion import Pins, Shards
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Costs
from headrace.planner.placement.place import Placement, Strategy, try_to_place
from headrace.planner.placement.topology import Topology, TopologyLink, TopologyNode
from tests.planner.placement.drawn import GREEDY, assigned, made_of, topology

CASES = [60, pytest.param(1_000, marks=pytest.mark.slow)]


@dataclass(frozen=True)
class Case:
    query: p.PhysicalPlan
    where: Topology
    pins: Pins
    costs: Costs


def case(seed: int, *, small: bool = False) -> Case:
    """Return a plan of some tables with shared outputs, constants, shards, pins; random links."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 5 if small else 9))
    links = []
    for low in range(1, count):
        highs = rng.choice(low, size=min(low, int(rng.integers(1, 3))), replace=False)
        links += [
            TopologyLink(f"n{low}", f"n{h}", float(rng.choice([1.0, 0.5, 3.0]))) for h in highs
        ]
    tightness = rng.choice([2, 4, 12])
    nodes = tuple(
        TopologyNode(
            f"n{i}",
            int(rng.integers(i == 0, tightness + 1)) + int(rng.random() < 0.7),
            maintenance=rng.random() < 0.02,
        )
        for i in range(count)
    )
    where = Topology(nodes, tuple(links))
    made: list[p.Node] = []
    pins: dict[str, str | Shards] = {"Sink": "n0"}
    for number in range(int(rng.integers(1, 3 if small else 4))):
        name = f"t{number}"
        made.append(made_of(name))
        at = [f"n{i}" for i in rng.integers(0, count, size=3)]
        pins[name] = Shards(tuple(at[:2]), True) if rng.random() < 0.15 else at[0]
    if rng.random() < 0.2:
        made.append(made_of("values"))
    open_ends = [node.id for node in made]
    for number in range(int(rng.integers(0, 3 if small else 9))):
        kind = ["f", "agg", "j"][rng.integers(0, 3)]
        below = list(rng.choice([node.id for node in made], size=2))
        if rng.random() < 0.7:
            below[0] = open_ends[0]
        node = made_of(f"{kind}{number}", *map(str, below[: 2 if kind == "j" else 1]))
        made.append(node)
        open_ends = [name for name in open_ends if name not in p.inputs(node)] + [node.id]
    if len(open_ends) > 1:
        made.append(made_of("union", *open_ends))
    plan = p.PhysicalPlan((*made, p.SinkSpec("Sink", made[-1].id, made[-1].schema)))
    if rng.random() < 0.1:
        pins.setdefault(made[-1].id, f"n{rng.integers(0, count)}")
    names = [node.id for node in made]
    tables = [name for name in names if name.startswith("t")]
    return Case(
        plan,
        where,
        pins,
        Costs(
            {name: float(rng.integers(0, 1000)) for name in tables},
            {
                name: float(rng.choice([0.01, 0.5, 1.0, 2.0]))
                for name in names
                if name not in tables
            },
            {name: int(rng.integers(0, 3)) for name in names if rng.random() < 0.1},
        ),
    )


def answer(drawn: Case, strategy: Strategy) -> Placement | PlacementFailed:
    return try_to_place(drawn.query, drawn.where, strategy, drawn.costs, drawn.pins, 5)


def check(drawn: Case, found: Placement) -> None:
    """Check all guarantees of a placement from outside."""
    pinned = {n: at for n, at in drawn.pins.items() if isinstance(at, str)}
    copies = {f"{n}#{i}": at for n, s in drawn.pins.items() if isinstance(s, Shards)
              for i, at in enumerate(s.nodes, 1)}  # fmt: skip
    assert found.nodes.items() >= (pinned | copies).items()
    assert found.nodes.keys() == {node.id for node in found.plan.nodes}
    there = [node.id for part in found.parts.values() for node in part.operators]
    assert sorted(there) == sorted(found.nodes)
    for name, part in found.parts.items():
        assert all(found.nodes[node.id] == name for node in part.operators)
        assert not drawn.where.node(name).maintenance
    free = drawn.where.free
    assert all(taken <= free[node] for node, taken in found.slots.items())
    origin = found.operators.expanded.origins
    for name in found.operators.by_name:
        slots = 0 if name.endswith("#all") else drawn.costs.slots.get(origin.get(name, name), 1)
        assert found.operators.by_name[name].slots == slots
    assert sum(found.slots.values()) == sum(o.slots for o in found.operators.by_name.values())
    follow(drawn, found)


def follow(drawn: Case, found: Placement) -> None:
    """Check that each edge follows the links, and that no rows cross an unneeded link."""
    links = {(link.child, link.parent) for link in drawn.where.links}
    sources = {(n, s.name): s for n, part in found.parts.items() for s in part.receives}
    sinks = {(n, s.name): s for n, part in found.parts.items() for s in part.sends}
    assert len(sources) == len(sinks) == sum(len(part.sends) for part in found.parts.values())
    schemas = {node.id: node.schema for node in found.plan.nodes}
    used = set()
    for here, part in found.parts.items():
        for node in part.operators:
            wanted = p.inputs(found.plan.node(node.id))
            for name, output in zip(p.inputs(node), wanted, strict=True):
                at, now = here, name
                while now != output:
                    source = sources[at, now]
                    assert (source.sender, at) in links
                    sink = sinks[source.sender, now]
                    assert (sink.receiver, sink.output, source.output) == (at, output, output)
                    assert sink.schema == source.schema == schemas[output]
                    used.add((source.sender, now))
                    at, now = source.sender, sink.input
                assert at == found.nodes[output]
    assert used == set(sinks)
    distances = [
        max((found.ways.up(found.nodes[n]).index(found.nodes[r]) for r in readers), default=0)
        for n, readers in found.operators.readers.items()
    ]
    assert len(sinks) == sum(distances)


@pytest.mark.parametrize("count", CASES)
@pytest.mark.parametrize("strategy", [Strategy.BOTTOM_UP, Strategy.TOP_DOWN, Strategy.IFCOP])
def test_placements_keep_their_promises(strategy, count, record_property) -> None:
    """N-1, N-3, N-4, N-13, N-21, N-24, N-35, N-37, N-38."""
    ratios, found_none, nowhere = [], 0, 0
    for seed in range(count):
        drawn = case(seed)
        found = answer(drawn, strategy)
        again = answer(drawn, strategy)
        if isinstance(found, Placement):
            check(drawn, found)
            assert isinstance(again, Placement)
            assert (again.nodes, again.parts) == (found.nodes, found.parts)
        else:
            assert again == found
        small = case(seed, small=True)
        mine, least = answer(small, strategy), answer(small, Strategy.EXACT)
        if isinstance(mine, Placement):
            assert isinstance(least, Placement), "there is one, so the exact solver finds one"
            check(small, mine)
            check(small, least)
            assert least.cost.network <= mine.cost.network * (1 + 1e-9)
            same = mine.cost.network == pytest.approx(least.cost.network)
            beside = least.cost.network or np.nan  # all on one node
            ratios.append(1.0 if same else mine.cost.network / beside)
        elif isinstance(least, Placement):
            found_none += 1
        else:
            nowhere += 1
    assert len(ratios) > count / 4
    if count < 1_000:
        return
    q = np.nanquantile(ratios, [0.5, 0.9, 0.99])
    record_property(
        "told",
        f"{strategy}: {len(ratios)} placed, network cost beside the exact solver's: median"
        f" {q[0]:.2f}, 90 % {q[1]:.2f}, 99 % {q[2]:.2f}, optimal {ratios.count(1.0)};"
        f" {found_none} not found, {nowhere} without any",
    )


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_nobody_is_better_than_the_exact_solver(count) -> None:
    """N-42: also on plans that are too large to try all assignments of."""
    solved = large = 0
    for seed in range(5_000, 5_000 + count):
        drawn = case(seed)
        try:
            least = answer(drawn, Strategy.EXACT)
        except UserError as error:
            if error.code != "54001":
                raise
            large += 1
            continue
        for strategy in (Strategy.BOTTOM_UP, Strategy.TOP_DOWN, Strategy.IFCOP):
            found = answer(drawn, strategy)
            if isinstance(found, Placement):
                assert isinstance(least, Placement)
                assert least.cost.network <= found.cost.network * (1 + 1e-9)
        if isinstance(least, Placement):
            check(drawn, least)
            solved += 1
    assert solved > count / 3
    assert large < count / 10


def all_placements(found: Placement, where: Topology) -> Iterator[dict[str, str]]:
    """Yield all placements on the ways of ``found``, limited by slots alone."""
    known, ways = found.operators, found.ways
    order = list(reversed(known.by_name.values()))

    def rest(number: int, nodes: dict[str, str], free: dict[str, int]) -> Iterator[dict[str, str]]:
        if number == len(order):
            yield nodes
            return
        operator = order[number]
        for node in ways.nodes if operator.pin is None else (operator.pin,):
            if free[node] >= operator.slots and all(
                ways.reaches(node, nodes[r]) for r in known.readers[operator.name]
            ):
                left = free | {node: free[node] - operator.slots}
                yield from rest(number + 1, nodes | {operator.name: node}, left)

    return rest(0, {}, where.free)


def least_of_all(drawn: Case, like: Placement, limit: int) -> float | None:
    """Return the least network cost of all placements on ``like``'s ways; None if too many."""
    least = None
    for number, nodes in enumerate(all_placements(like, drawn.where)):
        if number == limit:
            return None
        cost = cost_of(like.operators, drawn.where, like.ways, nodes).network
        least = cost if least is None else min(least, cost)
    return least


def tight(seed: int) -> Case:
    """Return two joined chains on few slots, whose operators' output sizes differ much."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, size=3)
    made, ends = [], []
    for table, length in zip("ab", lengths, strict=False):
        made.append(made_of(table))
        for number in range(length):
            made.append(made_of(f"{table}{number}", made[-1].id))
        ends.append(made[-1].id)
    if rng.random() < 0.5:
        ends.append("a")
    made.append(made_of("union", *ends))
    made += [made_of(f"f{n}", "union" if not n else f"f{n - 1}") for n in range(lengths[2])]
    plan = p.PhysicalPlan((*made, p.SinkSpec("Sink", made[-1].id, made[-1].schema)))
    names = [node.id for node in made]
    return Case(
        plan,
        topology(
            {name: int(rng.integers(1, 5)) for name in ("r", "m", "n", "x", "y")},
            "x,y>n n>m m>r",
        ),
        {"a": "x", "b": "y", "Sink": "r"},
        Costs(
            {name: float(rng.integers(1, 100)) for name in "ab"},
            {
                name: float(rng.choice([0.1, 0.5, 0.9, 1.1, 3.0]))
                for name in names
                if name not in "ab"
            },
            {name: int(rng.integers(1, 3)) for name in names},
        ),
    )


@pytest.mark.parametrize("count", [120, pytest.param(3_000, marks=pytest.mark.slow)])
def test_the_exact_solver_is_exact(count) -> None:
    """N-42: compared with all placements, also on the paths that another strategy takes."""
    tried = 0
    for seed in range(count):
        for drawn in (case(seed, small=True), tight(seed)):
            found = answer(drawn, Strategy.EXACT)
            if isinstance(found, PlacementFailed):
                assert isinstance(answer(drawn, Strategy.TOP_DOWN), PlacementFailed)
                continue
            least = least_of_all(drawn, found, 1_500)
            if least is None:
                continue
            tried += 1
            assert least == pytest.approx(found.cost.network)
            other = answer(drawn, Strategy.TOP_DOWN)
            if isinstance(other, Placement) and other.ways != found.ways:
                least = least_of_all(drawn, other, 1_500)
                assert least is None or found.cost.network <= least * (1 + 1e-9)
    assert tried > count / 3


@pytest.mark.parametrize("strategy", list(GREEDY))
def test_reservation_gives_the_plan_of_the_literal_order(strategy) -> None:
    """R-7: if that order finds one."""
    same = 0
    for seed in range(150):
        drawn = case(seed)
        pins = dict(drawn.pins)
        if isinstance(answer(drawn, strategy), PlacementFailed) or len(pins) > 6:
            continue
        literal = assigned(strategy, drawn.query, drawn.where, pins, reserve=False)
        found = assigned(strategy, drawn.query, drawn.where, pins, reserve=True)
        if not isinstance(literal, PlacementFailed):
            assert found == literal
            same += 1
    assert same > 20
