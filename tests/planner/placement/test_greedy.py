"""Bottom-Up and Top-Down: worked examples."""

from __future__ import annotations

import pytest

from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.network import NetworkSink, NetworkSource
from headrace.planner.placement.operators import Costs
from headrace.planner.placement.place import Strategy, try_to_place
from tests.planner.placement.drawn import SCHEMA, assigned, hops, placed, plan, topology

UP, DOWN = Strategy.BOTTOM_UP, Strategy.TOP_DOWN
BOTH = pytest.mark.parametrize("strategy", [UP, DOWN])
CHAIN = plan("Source Filter:Source")
CHAIN_PINS = {"Source": "src", "Sink": "sink"}
TREE = plan("A B fA:A fB:B Join:fA,fB agg:Join")
TREE_PINS = {"A": "a", "B": "b", "Sink": "root"}


def chain(src: int, mid: int, sink: int):
    return topology({"src": src, "mid": mid, "sink": sink}, "src>mid mid>sink")


def tree(a: int, b: int, mid: int, root: int):
    return topology({"a": a, "b": b, "mid": mid, "root": root}, "a,b>mid mid>root")


@pytest.mark.parametrize(
    ("strategy", "capacities", "filter_on"),
    [
        # PL-7, PL-8, PL-10, PL-9, PL-11
        (UP, (1, 1, 1), "mid"),
        (DOWN, (1, 1, 1), "mid"),
        (UP, (2, 1, 1), "src"),
        (DOWN, (2, 1, 1), "mid"),
        (UP, (1, 0, 2), "sink"),
        (DOWN, (1, 0, 2), "sink"),
        (UP, (1, 0, 1), None),
        (DOWN, (1, 0, 1), None),
        (UP, (0, 5, 5), None),
        (DOWN, (0, 5, 5), None),
    ],
)
@pytest.mark.parametrize("reserve", [True, False])
def test_chain(strategy, capacities, filter_on, reserve) -> None:
    """N-3 (≥: R-1, N-35), N-12, N-13, N-14, N-15, N-16, N-20, N-22: a filter on its way."""
    found = assigned(strategy, CHAIN, chain(*capacities), CHAIN_PINS, reserve=reserve)
    if filter_on is None:
        assert isinstance(found, PlacementFailed)
    else:
        assert found == {"Source": "src", "Filter": filter_on, "Sink": "sink"}


def test_a_failure_says_which_operator_and_why() -> None:
    """N-13, N-16, N-20."""
    climbed = assigned(UP, CHAIN, chain(1, 0, 1), CHAIN_PINS, reserve=False)
    assert climbed == PlacementFailed(
        "Sink", "sink", 'it is pinned, and worker "sink" has no room for it (slots: 1)'
    )
    reserved = assigned(UP, CHAIN, chain(1, 0, 1), CHAIN_PINS, reserve=True)
    assert reserved == PlacementFailed(
        "Filter", "sink", 'there is no room for it (slots: 1) on "src", "mid", "sink"'
    )
    below = assigned(DOWN, CHAIN, chain(1, 0, 1), CHAIN_PINS, reserve=True)
    assert below == PlacementFailed(
        "Filter", "src", 'there is no room for it (slots: 1) on "sink", "mid", "src"'
    )
    for strategy in (UP, DOWN):
        source = assigned(strategy, CHAIN, chain(0, 5, 5), CHAIN_PINS, reserve=True)
        assert isinstance(source, PlacementFailed)
        assert (source.operator, source.node) == ("Source", "src")


def test_relays_hand_on_what_crosses_them() -> None:
    """N-4, N-21, N-38: four system operators on three nodes, and they take no slot (N-35)."""
    found = placed(UP, CHAIN, chain(2, 1, 1), CHAIN_PINS)
    assert set(found.parts) == {"src", "mid", "sink"}
    src, mid, sink = (found.parts[n] for n in ("src", "mid", "sink"))
    first, second = "Filter@mid", "Filter@sink"
    assert src.sends == (NetworkSink(first, "Filter", "Filter", "mid", SCHEMA),)
    assert mid.receives == (NetworkSource(first, "Filter", "src", SCHEMA),)
    assert mid.operators == ()
    assert mid.sends == (NetworkSink(second, "Filter", first, "sink", SCHEMA),)
    assert sink.receives == (NetworkSource(second, "Filter", "mid", SCHEMA),)
    assert [node.id for node in src.operators] == ["Source", "Filter"]
    assert [(n.id, n.input) for n in sink.operators] == [("Sink", second)]
    assert found.slots == {"src": 2, "sink": 1}
    where = chain(2, 1, 1).taking(found.slots)
    assert where.free == {"src": 0, "mid": 1, "sink": 0}


@pytest.mark.parametrize("strategy", [UP, DOWN])
def test_a_relay_without_slots_is_one_all_the_same(strategy) -> None:
    found = placed(strategy, CHAIN, chain(1, 0, 2), CHAIN_PINS)
    assert found.parts["mid"].operators == ()
    assert hops(found) == 2
    assert found.slots == {"src": 1, "sink": 2}


@pytest.mark.parametrize(
    ("strategy", "where", "pins", "starved", "rest"),
    [
        (UP, {"n": 2, "root": 3}, {"A": "n", "B": "n"}, "B", {"fA": "root", "j": "root"}),
        (DOWN, {"n": 2, "m": 1, "root": 2}, {"A": "n", "B": "m"}, "B", {"fA": "n", "j": "root"}),
    ],
)
def test_slots_of_pinned_operators_are_reserved(strategy, where, pins, starved, rest) -> None:
    """PL-12, R-7: in the literal order fA takes the slot of B."""
    links = "n>m m>root" if "m" in where else "n>root"
    query, nodes = plan("A B fA:A j:fA,B"), topology(where, links)
    pins = pins | {"Sink": "root"}
    literal = assigned(strategy, query, nodes, pins, reserve=False)
    assert isinstance(literal, PlacementFailed)
    assert literal.operator == starved
    assert assigned(strategy, query, nodes, pins, reserve=True) == pins | rest


@BOTH
@pytest.mark.parametrize(
    ("capacities", "up", "down", "pairs"),
    [
        # PL-14, PL-15, PL-16, PL-17, PL-18
        ((2, 2, 2, 1), "a b mid mid", "a b mid mid", (3, 3)),
        ((1, 1, 5, 1), "mid mid mid mid", "mid mid mid mid", (3, 3)),
        ((2, 1, 1, 4), "a mid root root", "root mid root root", (4, 4)),
        ((9, 9, 9, 9), "a b mid mid", "root root root root", (3, 4)),
        ((1, 1, 1, 2), None, None, None),
    ],
)
def test_two_branches(strategy, capacities, up, down, pairs) -> None:
    """N-17, N-19, R-8: a join of two filtered sources, grouped."""
    where = tree(*capacities)
    nodes = up if strategy is UP else down
    if nodes is None:
        assert isinstance(assigned(strategy, TREE, where, TREE_PINS, reserve=True), PlacementFailed)
        assert isinstance(
            assigned(strategy, TREE, where, TREE_PINS, reserve=False), PlacementFailed
        )
        return
    wanted = TREE_PINS | dict(zip(["fA", "fB", "Join", "agg"], nodes.split(), strict=True))
    found = placed(strategy, TREE, where, TREE_PINS)
    assert found.nodes == wanted
    assert hops(found) == pairs[strategy is DOWN]
    assert assigned(strategy, TREE, where, TREE_PINS, reserve=False) == wanted


@BOTH
def test_inputs_on_one_node_meet_there(strategy) -> None:
    """PL-19, N-39, R-4: not a hop further up."""
    where = topology({"n": 9, "root": 1}, "n>root")
    found = placed(strategy, plan("T fT:T Join:T,fT"), where, {"T": "n", "Sink": "root"})
    assert found.nodes == {"T": "n", "fT": "n", "Join": "n", "Sink": "root"}
    same = placed(strategy, plan("T Join:T,T"), where, {"T": "n", "Sink": "root"})
    assert same.nodes["Join"] == "n"


def test_an_unassigned_input_is_begun_at_its_source() -> None:
    """N-18: C's branch is begun only after the join that waits for B, so B's filter has the slot."""
    query = plan("A C B fC:C fB:B j:A,fB k:j,fC")
    where = topology({"a": 1, "b": 3, "root": 9}, "a,b>root")
    pins = {"A": "a", "B": "b", "C": "b", "Sink": "root"}
    found = assigned(UP, query, where, pins, reserve=True)
    assert found == pins | {"fB": "b", "fC": "root", "j": "root", "k": "root"}


def test_who_has_two_readers_waits_for_both() -> None:
    """N-22: else s would take the last slot above, and g must be above s."""
    query = plan("T s:T f:s g:s j:f,g")
    where = topology({"n": 3, "root": 4}, "n>root")
    found = placed(DOWN, query, where, {"T": "n", "Sink": "root"})
    assert found.nodes == {
        "T": "n",
        "s": "n",
        "f": "root",
        "g": "root",
        "j": "root",
        "Sink": "root",
    }


@BOTH
def test_an_output_with_two_readers_goes_up_once(strategy) -> None:
    """Both readers are above the link; with Bottom-Up, only one of them."""
    query = plan("T f:T g:T Join:f,g")
    where = topology({"n": 1, "mid": 1, "root": 9}, "n>mid mid>root")
    found = placed(strategy, query, where, {"T": "n", "Sink": "root"})
    assert sum(s.output == "T" for part in found.parts.values() for s in part.sends) == 2
    assert found.crossing["n", "mid"] == 1.0


@BOTH
def test_whatever_else_is_pinned_stays(strategy) -> None:
    for node in ("src", "mid", "sink"):
        found = placed(strategy, CHAIN, chain(9, 9, 9), CHAIN_PINS | {"Filter": node})
        assert found.nodes["Filter"] == node


@BOTH
def test_a_pin_beside_the_way_is_a_failure(strategy) -> None:
    where = topology({"src": 9, "beside": 9, "sink": 9}, "src,beside>sink")
    pins = CHAIN_PINS | {"Filter": "beside"}
    found = try_to_place(CHAIN, where, strategy, Costs(), pins)
    assert isinstance(found, PlacementFailed)
    assert found.operator == "Source"
    assert found.reason == 'no path leads from worker "src" up to worker "sink"'
