"""IFCOP: its costs, its random draws, and the candidates that it keeps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UserError
from headrace.planner.placement import ifcop as room
from headrace.planner.placement.cost import CostWeights, cost_of
from headrace.planner.placement.expansion import Shards
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.ifcop import IfcopOptions, candidate, in_turn, search
from headrace.planner.placement.operators import Costs, Operators
from headrace.planner.placement.paths import SelectedPaths, select_paths
from headrace.planner.placement.place import Placement, Strategy, try_to_place
from headrace.planner.placement.topology import Topology, TopologyLink, TopologyNode
from tests.planner.placement.drawn import operators, placed, plan, topology

WHERE = topology({"src": 1, "mid": 1, "sink": 4}, "src>mid mid>sink")
PINS = {"A": "src", "Sink": "sink"}
ONE, TWO = plan("A f:A"), plan("A f:A m:f")
FILTER, WIDEN = Costs(factors={"f": 0.5}), Costs(factors={"f": 5 / 3})
BOTH = Costs(factors={"f": 0.5, "m": 2.0})


def selected_for(query, costs=None, where=WHERE, pins=PINS):
    known = operators(query, pins, costs)
    paths = select_paths(known, where)
    assert isinstance(paths, SelectedPaths)
    return known, paths.ways


def drawing(seed: int = 1, stay: float = 0.5):
    numbers = np.random.Generator(np.random.PCG64(seed))
    return lambda: numbers.random() < stay


@pytest.mark.parametrize(
    ("costs", "nodes", "network", "over"),
    [
        (FILTER, "src", 1.0, 1),
        (FILTER, "mid", 1.5, 0),
        (FILTER, "sink", 2.0, 0),
        (WIDEN, "src", 10 / 3, 1),
        (WIDEN, "mid", 8 / 3, 0),
        (WIDEN, "sink", 2.0, 0),
        (BOTH, "src src", 2.0, 2),
        (BOTH, "src mid", 1.5, 1),
        (BOTH, "src sink", 1.0, 1),
        (BOTH, "mid mid", 2.0, 1),
        (BOTH, "mid sink", 1.5, 0),
        (BOTH, "sink sink", 2.0, 0),
    ],
)
def test_a_cost_tells_placements_apart(costs, nodes, network, over) -> None:
    """N-31, N-32, N-33, R-2, R-3; N-41: not one cost for all placements of a chain."""
    known, ways = selected_for(TWO if " " in nodes else ONE, costs)
    found = PINS | dict(zip("fm", nodes.split(), strict=False))
    cost = cost_of(known, WHERE, ways, found)
    assert (cost.network, cost.over) == (pytest.approx(network), over)
    assert cost.total == pytest.approx(network + over)
    half = cost_of(known, WHERE, ways, found, CostWeights(0.5, 3.0))
    assert half.total == pytest.approx(network / 2 + 3 * over)


@pytest.mark.parametrize(
    ("query", "costs", "weights", "best"),
    [
        (ONE, FILTER, CostWeights(), "mid"),
        (ONE, WIDEN, CostWeights(), "sink"),
        (TWO, BOTH, CostWeights(), "mid sink"),
        (ONE, FILTER, CostWeights(1.0, 0.0), "src"),
        (ONE, WIDEN, CostWeights(1.0, 0.0), "sink"),
    ],
)
def test_the_cheapest_is_found(query, costs, weights, best) -> None:
    """N-23, N-34; with the sign as printed the overloaded node would win (R-2)."""
    known, ways = selected_for(query, costs)
    options = IfcopOptions(200, weights=weights)
    found = search(known, WHERE, ways, drawing(), options)
    assert found.best == PINS | dict(zip("fm", best.split(), strict=False))


@pytest.mark.parametrize(("query", "costs"), [(ONE, FILTER), (ONE, WIDEN), (TWO, BOTH)])
@pytest.mark.parametrize("seed", range(5))
def test_200_iterations_reach_the_optimum(query, costs, seed) -> None:
    """N-34, N-42."""
    least = placed(Strategy.EXACT, query, WHERE, PINS, costs)
    found = try_to_place(
        query, WHERE, Strategy.IFCOP, costs, PINS, seed, IfcopOptions(iterations=200)
    )
    assert isinstance(found, Placement)
    assert found.cost == least.cost


@given(
    st.lists(st.floats(0.01, 4.0), max_size=6),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.lists(st.floats(0.1, 5.0), min_size=3, max_size=3),
)
def test_on_a_chain_cost_is_what_nodes_send_up(factors, places, weights) -> None:
    """R-3: out(n) = (what n's source sends + Σ out(children)) · Π factors of operators on n."""
    names, where = [f"f{i}" for i in range(len(factors))], "abcd"
    links = zip(where, where[1:], weights, strict=False)
    chain = Topology(
        tuple(TopologyNode(n, 9) for n in where), tuple(TopologyLink(*ends) for ends in links)
    )
    reads = [f"{n}:{below}" for n, below in zip(names, ["A", *names], strict=False)]
    pins = {"A": "a", "Sink": "d"}
    costs = Costs({"A": 7.0}, dict(zip(names, factors, strict=True)))
    known, ways = selected_for(plan(" ".join(["A", *reads])), costs, chain, pins)
    on = dict(zip(names, sorted(places), strict=False))
    out, moved = 7.0, 0.0
    for place, weight in enumerate(weights):
        out *= math.prod(f for n, f in zip(names, factors, strict=True) if on[n] == place)
        moved += out * weight
    nodes = pins | {n: where[place] for n, place in on.items()}
    assert cost_of(known, chain, ways, nodes).network == pytest.approx(moved / 7.0)


def test_what_is_over_a_link_is_weighed() -> None:
    """A wide link is worth more hops."""
    where = Topology(
        WHERE.nodes, (TopologyLink("src", "mid", 3.0), TopologyLink("mid", "sink", 0.5))
    )
    known, ways = selected_for(ONE, FILTER, where)
    cost = cost_of(known, where, ways, PINS | {"f": "mid"})
    assert cost.network == pytest.approx(3.25)


def test_rates_are_measured_or_follow_from_factors() -> None:
    """N-40; network cost is in relation to what sources send (N-31)."""
    known, ways = selected_for(TWO, Costs({"A": 1000.0, "m": 300.0}, {"f": 0.5}))
    assert [o.sends for o in known.by_name.values()][:3] == [1000.0, 500.0, 300.0]
    cost = cost_of(known, WHERE, ways, PINS | {"f": "mid", "m": "mid"})
    assert cost.network == pytest.approx((1000 + 300) / 1000)
    default, _ = selected_for(
        plan("A B j:A,B"), None, topology("sb", "s>b"), dict(A="s", B="s", Sink="b")
    )
    assert [o.sends for o in default.by_name.values()][:3] == [1.0, 1.0, 2.0]


def test_over_utilisation_is_summed_over_nodes() -> None:
    """R-2: free slots of one node do not compensate for another node."""
    where = topology({"a": 1, "b": 1, "root": 9}, "a,b>root")
    pins = {"A": "a", "B": "b", "Sink": "root"}
    known, ways = selected_for(plan("A B f:A g:B j:f,g"), None, where, pins)
    nodes = pins | {"f": "a", "g": "b", "j": "root"}
    assert cost_of(known, where, ways, nodes).over == 2
    assert cost_of(known, where.taking({"root": 8}), ways, nodes).over == 3


def _matrix(operators: Operators, topology: Topology, nodes: Mapping[str, str]) -> np.ndarray:
    """Return a candidate as nodes by operators: 1 where an operator is on a node, else 0 (N-24)."""
    out = np.zeros((len(topology.nodes), len(operators.by_name)), np.uint8)
    for column, name in enumerate(operators.by_name):
        out[topology.place(nodes[name]), column] = 1
    return out


def test_a_candidate_is_a_matrix_of_zeros_and_ones() -> None:
    """N-24."""
    known, ways = selected_for(TWO)
    for _ in range(20):
        nodes = candidate(known, ways, drawing())
        cells = _matrix(known, WHERE, nodes)
        assert cells.shape == (3, 4)
        assert set(np.unique(cells)) <= {0, 1}
        assert cells.sum(axis=0).tolist() == [1, 1, 1, 1]
        assert cells[:, 0].tolist() == [1, 0, 0]
        assert cells[:, 3].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (ONE, {"src": 0.5, "mid": 0.25, "sink": 0.25}),
        (
            TWO,
            {
                "src src": 0.25,
                "src mid": 0.125,
                "src sink": 0.125,
                "mid mid": 0.125,
                "mid sink": 0.125,
                "sink sink": 0.25,
            },
        ),
    ],
)
@pytest.mark.parametrize("draws", [4_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_draws_decide_where_operators_stay(query, expected, draws) -> None:
    """N-27, N-29: one draw per node; an operator that has reached the sink's node stays there."""
    known, ways = selected_for(query)
    draw = drawing(7)
    seen = Counter(
        " ".join(nodes[n] for n in "fm" if n in nodes)
        for nodes in (candidate(known, ways, draw) for _ in range(draws))
    )
    assert seen.keys() == expected.keys()
    for nodes, share in expected.items():
        assert seen[nodes] / draws == pytest.approx(share, abs=0.01 if draws > 10_000 else 0.04)


def test_who_always_goes_on_ends_at_the_sink() -> None:
    """N-28, N-29."""
    known, ways = selected_for(TWO)
    assert candidate(known, ways, lambda: False) == PINS | {"f": "sink", "m": "sink"}
    assert candidate(known, ways, lambda: True) == PINS | {"f": "src", "m": "src"}


def test_physical_sources_are_taken_from_the_last() -> None:
    """N-25, N-26: each once."""
    pins = {"L": Shards(("s1", "s2", "s3"), True), "M": "s1", "Sink": "r"}
    known = operators(plan("L M j:L,M"), pins)
    assert list(in_turn(known)) == ["L#3", "L#2", "L#1", "M"]


def test_what_has_several_sources_goes_where_all_of_them_lead() -> None:
    """N-30: an operator of several sources is never on one source's own branch, for any draws."""
    where = topology("rmab", "a,b>m m>r")
    pins = {"A": "a", "B": "b", "Sink": "r"}
    known, ways = selected_for(plan("A B f:A j:f,B"), None, where, pins)
    seen = {candidate(known, ways, drawing(seed))["j"] for seed in range(50)}
    assert seen == {"m", "r"}


def test_the_last_best_is_returned_and_equals_do_not_replace(monkeypatch) -> None:
    """N-34: as many candidates as iterations."""
    known, ways = selected_for(TWO, BOTH)
    made = []

    def counted(*arguments):
        made.append(candidate(*arguments))
        return made[-1]

    monkeypatch.setattr(room, "candidate", counted)
    found = search(known, WHERE, ways, drawing(3), IfcopOptions(40))
    totals = [cost_of(known, WHERE, ways, nodes).total for nodes in made]
    assert len(made) == 40
    assert found.best is made[totals.index(min(totals))]
    assert totals.count(min(totals)) > 1
    assert found.bests == tuple(t for i, t in enumerate(totals) if t < min(totals[:i], default=9e9))
    assert len(found.bests) > 1
    assert all(a > b for a, b in zip(found.bests, found.bests[1:], strict=False))


def test_what_has_slots_is_placed_where_the_best_has_not() -> None:
    """N-3: weights do not make room."""
    options = IfcopOptions(200, weights=CostWeights(1.0, 0.0))
    known, ways = selected_for(ONE, FILTER)
    found = search(known, WHERE, ways, drawing(), options)
    assert (found.best["f"], found.cost.over) == ("src", 1)
    assert found.fitting == PINS | {"f": "mid"}
    answer = try_to_place(ONE, WHERE, Strategy.IFCOP, FILTER, PINS, 1, options)
    assert isinstance(answer, Placement)
    assert answer.nodes["f"] == "mid"


def test_without_slots_it_fails_and_says_where() -> None:
    where = topology({"src": 1, "mid": 0, "sink": 1}, "src>mid mid>sink")
    found = try_to_place(ONE, where, Strategy.IFCOP, FILTER, PINS, 1)
    assert isinstance(found, PlacementFailed)
    assert found.operator == "f"
    assert found.reason == (
        "none of 100 candidates has slots for all operators;"
        ' the cheapest lacks 1, some of them on "src"'
    )


def test_a_seed_decides() -> None:
    """N-34, N-40."""
    query = plan("A f1:A f2:f1 f3:f2 f4:f3 f5:f4 f6:f5")
    where = topology("sabcdr", "s>a a>b b>c c>d d>r")
    pins = {"A": "s", "Sink": "r"}
    few = IfcopOptions(2)
    seen = set()
    for seed in range(10):
        found = try_to_place(query, where, Strategy.IFCOP, Costs(), pins, seed, few)
        again = try_to_place(query, where, Strategy.IFCOP, Costs(), pins, seed, few)
        assert isinstance(found, Placement) and isinstance(again, Placement)
        assert found.nodes == again.nodes
        seen.add(tuple(found.nodes.values()))
    assert len(seen) > 3


@pytest.mark.parametrize(
    ("seed", "options"), [(0, IfcopOptions(0)), (0, IfcopOptions(1, 1.5)), (-1, IfcopOptions())]
)
def test_what_cannot_be_drawn_is_refused(seed, options) -> None:
    """N-34: no iterations."""
    with pytest.raises(UserError):
        try_to_place(ONE, WHERE, Strategy.IFCOP, FILTER, PINS, seed, options)


@pytest.mark.parametrize("costs", [Costs({"A": -1.0}), Costs({}, {"f": float("nan")})])
def test_costs_that_cannot_be_are_refused(costs) -> None:
    with pytest.raises(UserError, match="cannot be"):
        operators(ONE, PINS, costs)


def test_costs_of_nobody_are_refused() -> None:
    with pytest.raises(UserError, match="does not exist"):
        operators(ONE, PINS, Costs({"nobody": 1.0}))
