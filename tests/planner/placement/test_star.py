"""Plans on workers around a main one with sources and sink: cut by hand and by strategies."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from headrace.collections import plan as p
from headrace.collections import subplans
from headrace.errors import UndefinedError, UnsupportedError, UserError
from headrace.planner.placement import cuts
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Costs
from headrace.planner.placement.place import Strategy
from headrace.planner.placement.star import StarPlacement, Station, cheapest, place_star
from tests.planner.placement.drawn import SCHEMA, plan
from tests.plans import all_plans, table

JOINED = plan("A B f:A j:f,B agg:j")
COSTS = Costs({"A": 100.0, "B": 10.0, "f": 10.0, "j": 20.0, "agg": 1.0})
"""A filter that keeps a tenth of A, a join that sends more than it gets, a group that sends little."""


def placed(strategy: Strategy, main: int, *others: Station, of=JOINED, costs=COSTS):
    return place_star(of, Station("main", main), others, strategy, costs)


# --- cut by hand


def test_what_is_below_a_collection_goes_with_it():
    assert cuts.cuts(JOINED, {"j": "w1"}, "main") == {"j": "w1"}
    assert cuts.cuts(JOINED, {"join": "w1"}, "main") == {"j": "w1"}
    assert cuts.cuts(JOINED, {"j": "w1", "f": "w1", "A": "main"}, "main") == {"j": "w1"}
    assert cuts.cuts(JOINED, {"agg": "w1", "join": "w1"}, "main") == {"agg": "w1"}
    assert cuts.cuts(JOINED, {"f": "w1", "B": "w2"}, "main") == {"f": "w1", "B": "w2"}
    assert cuts.cuts(JOINED, {"j": "main"}, "main") == {}
    assert cuts.cuts(JOINED, {}, "main") == {}


def test_the_id_counts_before_the_kind():
    two = plan("A f:A g:f")
    assert cuts.cuts(two, {"filter": "w1", "g": "main"}, "main") == {"f": "w1"}


def test_what_several_read_is_a_part_for_who_is_elsewhere():
    """A part and a node on main read the filter: its rows are sent to main."""
    shared = plan("A B f:A j:f,B k:f,j")
    assert cuts.cuts(shared, {"f": "w1", "j": "w1"}, "main") == {"f": "w1", "j": "w1"}
    # The shared node has no placement: each reader has its own copy.
    assert cuts.cuts(shared, {"j": "w1"}, "main") == {"j": "w1"}


@pytest.mark.parametrize(
    ("wanted", "error", "code"),
    [
        ({"j": "w1", "f": "main"}, UnsupportedError, "0A000"),
        ({"Sink": "w1"}, UnsupportedError, "0A000"),
        ({"k": "w1"}, UndefinedError, "42704"),
    ],
)
def test_what_cannot_be(wanted, error, code):
    with pytest.raises(error) as caught:
        cuts.cuts(JOINED, wanted, "main")
    assert caught.value.code == code
    assert caught.value.hint


def test_a_part_reads_parts_on_other_workers():
    chain = plan("A B f:A j:f,B agg:j")
    found = cuts.cuts(chain, {"agg": "w1", "j": "w2", "f": "w1"}, "main")
    assert found == {"f": "w1", "j": "w2", "agg": "w1"}
    assert subplans.largest(chain, found) == ["agg"]
    assert subplans.feeds(chain, found, "agg") == ["j"]
    assert subplans.feeds(chain, found, "j") == ["f"]
    assert subplans.feeds(chain, found, "f") == []
    assert [n.id for n in subplans.part(chain, found, "agg").nodes] == ["j", "agg", "Sink"]
    sends = {"A": 100.0, "B": 10.0, "f": 5.0, "j": 20.0, "agg": 1.0}
    assert cuts.received(chain, found, sends, "main") == {
        ("main", "w1"): 100.0 + 20.0,
        ("w1", "main"): 5.0 + 1.0,
        ("main", "w2"): 10.0 + 5.0,
        ("w2", "main"): 20.0,
    }


def test_the_output_of_a_part_goes_to_a_worker_once():
    two = plan("A f:A g:f h:f union:g,h")
    found = cuts.cuts(two, {"f": "w1", "g": "w2", "h": "w2"}, "main")
    sends = {"A": 50.0, "f": 10.0, "g": 2.0, "h": 3.0}
    assert cuts.received(two, found, sends, "main") == {
        ("main", "w1"): 50.0,
        ("w1", "main"): 10.0,
        ("main", "w2"): 10.0,
        ("w2", "main"): 5.0,
    }


PLANS = all_plans(table(1), table(2)) | {
    "shared below": plan("A B f:A j:f,B k:f,j agg:k"),
    "diamond": plan("A f:A g:f h:f j:g,h k:j,f"),
    "chain": plan("A f:A g:f h:g k:h"),
}


@pytest.mark.parametrize("name", sorted(PLANS))
def test_any_placement_by_hand_recomposes_or_its_remedy_works(name):
    """Each node on any of three workers, or nothing said of it; a random choice of large plans."""
    whole = PLANS[name]
    if not cuts.is_cuttable(whole):
        return
    names = [node.id for node in whole.nodes[:-1]]
    every = itertools.product(("main", "w1", "w2", None), repeat=len(names))
    rng = random.Random(name)
    drawn = [[rng.choice(("main", "w1", "w2", None)) for _ in names] for _ in range(500)]
    for workers in every if len(names) <= 4 else drawn:
        wanted = {n: w for n, w in zip(names, workers, strict=True) if w is not None}
        for _ in range(len(names) * 3 + 1):
            try:
                found = cuts.cuts(whole, wanted, "main")
                break
            except UnsupportedError as error:
                wanted = remedied(whole, wanted, error, rng)
        else:
            pytest.fail(f"no end of remedies: {wanted}")
        recomposes(whole, wanted, found)


def remedied(whole, wanted, error: UnsupportedError, rng: random.Random) -> dict[str, str]:
    """Return the placement after following the hint of an error."""
    if no_table := re.match(r'part "(.+)" of the plan', error.message):
        return {n: w for n, w in wanted.items() if n != no_table[1]}
    hint = re.fullmatch(r'Place "(.+)" on "(.+)" as well, or "(.+)" on "(.+)"\.', error.hint)
    return wanted | rng.choice(({hint[1]: hint[2]}, {hint[3]: hint[4]}))


def recomposes(whole, wanted, found) -> None:
    """Assert that parts are where they should be, and that together they are the plan."""
    plans = {top: subplans.part(whole, found, top) for top in found}
    plans[whole.sink.id] = subplans.over_feeds(whole, subplans.largest(whole, found))
    at = found | {whole.sink.id: "main"}
    read: set[str] = set()
    composed: dict[str, p.Node] = {}
    for top, made in plans.items():
        for node in made.nodes[:-1]:
            if isinstance(node, p.FeedSpec):
                assert found[node.id] != at[top]
                assert node.schema == whole.node(node.id).schema
                read.add(node.id)
                continue
            composed[node.id] = node
            if not isinstance(node, p.SourceSpec):
                assert wanted.get(node.id, at[top]) == at[top]
        assert made.sources or made.feeds or top == whole.sink.id
    composed[whole.sink.id] = plans[whole.sink.id].sink
    assert read == found.keys()  # each part has a reader
    assert composed == {node.id: node for node in whole.nodes}


def test_plans_that_cannot_be_cut():
    constant = plan("values A j:values,A")
    with pytest.raises(UnsupportedError, match="no table is below it"):
        cuts.cuts(constant, {"values": "w1"}, "main")
    fed = p.PhysicalPlan((p.FeedSpec("A", SCHEMA), *plan("A f:A").nodes[1:]))
    with pytest.raises(UnsupportedError, match="is fed"):
        cuts.cuts(fed, {"f": "w1"}, "main")
    assert not cuts.is_cuttable(fed)
    assert not cuts.is_cuttable(plan("values"))
    many = plan(
        "A "
        + " ".join(f"f{n}:A" for n in range(65))
        + " union:"
        + ",".join(f"f{n}" for n in range(65))
    )
    with pytest.raises(UserError) as caught:
        cuts.cuts(many, {"filter": "w1"}, "main")
    assert caught.value.code == "54000"


def test_a_table_goes_to_a_worker_once():
    two = plan("A f:A g:A union:f,g")
    sends = {"A": 5.0, "f": 2.0, "g": 3.0}
    parts = {"f": "w1", "g": "w1"}
    assert cuts.received(two, parts, sends, "main") == {("main", "w1"): 5.0, ("w1", "main"): 5.0}
    assert cuts.received(two, {}, sends, "main") == {}


# --- by strategies


def test_what_main_has_room_for_costs_nothing():
    for strategy in (Strategy.TOP_DOWN, Strategy.IFCOP, Strategy.EXACT):
        found = placed(strategy, 3, Station("w1", 9))
        assert (found.parts, found.cost, found.crossing) == ({}, 0, {})


def test_bottom_up_is_where_the_most_room_is():
    found = placed(Strategy.BOTTOM_UP, 9, Station("w1", 9, 5), Station("w2", 9, 1))
    assert found.parts == {"agg": "w2"}
    assert found.crossing == {("main", "w2"): 110.0, ("w2", "main"): 1.0}


def test_n42_the_cheapest_cut_is_found():
    """With room for two on main: the filter goes (100 there, 10 back), not all of it (110, 1)."""
    for strategy in (Strategy.EXACT, Strategy.IFCOP):
        found = placed(strategy, 2, Station("w1", 9))
        assert (found.parts, found.cost) == ({"f": "w1"}, 110.0)
    # With room for one, all of it goes: 110 and 1 back; else the join would send 20.
    for strategy in (Strategy.EXACT, Strategy.IFCOP):
        found = placed(strategy, 1, Station("w1", 9))
        assert (found.parts, found.cost) == ({"agg": "w1"}, 111.0)
    assert placed(Strategy.EXACT, 1, Station("w1", 2)).parts == {"j": "w1"}
    # A link that costs twice as much is not taken.
    found = placed(Strategy.EXACT, 2, Station("w1", 9, weight=2.0), Station("w2", 9))
    assert (found.parts, found.cost) == ({"f": "w2"}, 110.0)
    assert placed(Strategy.EXACT, 2, Station("w1", 9, weight=2.0)).cost == 220.0


def test_r1_capacities_are_kept_and_what_has_no_room_says_so():
    for strategy in Strategy:
        found = placed(strategy, 1, Station("w1", 1))
        assert isinstance(found, PlacementFailed), strategy
        found = placed(strategy, 9, Station("w1", 9, 9))
        assert isinstance(found, StarPlacement)
        assert found.parts == {}


def test_the_cheapest_of_several():
    found = [placed(strategy, 2, Station("w1", 9)) for strategy in Strategy]
    best = cheapest([*found, PlacementFailed("x", "y", "z"), UserError("no")])
    assert best is not None
    assert best.cost == 110.0
    assert cheapest([PlacementFailed("x", "y", "z")]) is None


def closed(whole: p.PhysicalPlan, found: StarPlacement) -> bool:
    """Return whether all collections on workers read only tables, constants, and local ones."""
    constants = {n.id for n in whole.nodes if not _tables(whole, n.id)}
    return all(
        found.nodes[name] == found.nodes[node.id]
        or isinstance(whole.node(name), p.SourceSpec)
        or name in constants
        for node in whole.nodes
        if found.nodes[node.id] != "main"
        for name in p.inputs(node)
    )


def _tables(whole: p.PhysicalPlan, name: str) -> bool:
    node = whole.node(name)
    below = p.inputs(node)
    return isinstance(node, p.SourceSpec) or any(_tables(whole, other) for other in below)


@pytest.mark.parametrize("tries", [1, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(all_plans(table(1), table(2))))
def test_n35_any_plan_is_placed_by_the_rules(name, tries):
    whole = all_plans(table(1), table(2))[name]
    if not cuts.is_cuttable(whole):
        return
    rng = random.Random(name)
    operators = [n for n in whole.nodes if not isinstance(n, p.SourceSpec | p.SinkSpec)]
    for _ in range(tries):
        costs = Costs({n.id: float(rng.randint(1, 100)) for n in whole.nodes[:-1]})
        slots = {"main": rng.randint(0, 4), "w1": rng.randint(0, 4), "w2": rng.randint(0, 4)}
        stations = [Station(worker, count) for worker, count in slots.items()]
        found = {s: place_star(whole, stations[0], stations[1:], s, costs, 1) for s in Strategy}
        for strategy, one in found.items():
            again = place_star(whole, stations[0], stations[1:], strategy, costs, 1)
            assert one == again
            if isinstance(one, PlacementFailed):
                continue
            assert one.nodes.keys() == {n.id for n in whole.nodes}
            assert closed(whole, one)
            tables = {n.id for n in operators if _tables(whole, n.id)}
            for worker, count in slots.items():
                assert sum(one.nodes[n] == worker for n in tables) <= count
            said = {n: at for n, at in one.nodes.items() if n in tables}
            assert cuts.cuts(whole, said, "main") == one.parts
            assert one.cost == pytest.approx(sum(one.crossing.values()))
        best = found[Strategy.EXACT]
        costs_of = [f.cost for f in found.values() if isinstance(f, StarPlacement)]
        assert bool(costs_of) == isinstance(best, StarPlacement)
        if isinstance(best, StarPlacement) and len(whole.sources) == len(_reads(whole)):
            assert best.cost <= min(costs_of) * (1 + 1e-6) + 1e-6


def _reads(whole: p.PhysicalPlan) -> list[str]:
    sources = {source.id for source in whole.sources}
    return [name for node in whole.nodes for name in set(p.inputs(node)) & sources]
