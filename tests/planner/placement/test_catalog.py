"""Slots over several placements, one after the other and at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.errors import HeadraceError, UndefinedError, UserError
from headrace.planner.placement.catalog import TopologyCatalog
from headrace.planner.placement.expansion import Shards
from headrace.planner.placement.operators import Costs
from headrace.planner.placement.place import Placement, Strategy, place
from headrace.planner.placement.topology import Topology, TopologyLink, TopologyNode
from tests.planner.placement.drawn import altered, plan, topology

STAR = topology({"n1": 4, "n2": 4, "n3": 4}, "n2,n3>n1")
PINS = {"L": Shards(("n2", "n3"), unique_keys=True), "Sink": "n1"}


def placing(where: Topology) -> Placement:
    return place(plan("L f:L"), where, Strategy.BOTTOM_UP, Costs(), PINS)


@pytest.mark.parametrize("repetition", range(100))
def test_placements_at_once_leave_consistent_slots(repetition) -> None:
    """PL-20, N-43: two fit; the third fails and changes nothing."""
    catalog = TopologyCatalog(STAR)
    together = threading.Barrier(3)

    def request(number: int) -> bool:
        def meanwhile(where: Topology) -> Placement:
            found = placing(where)
            assert not catalog._lock.acquire(blocking=False)
            return found

        together.wait()
        try:
            catalog.place(f"v{number}", meanwhile)
        except UserError:
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(request, range(3))) == [False, True, True]
    assert catalog.topology.free == {"n1": 2, "n2": 0, "n3": 0}
    assert len(catalog.placed) == 2


def test_slots_are_taken_and_given_back() -> None:
    """N-35."""
    catalog = TopologyCatalog(STAR)
    catalog.place("v", placing)
    assert catalog.topology.free == {"n1": 3, "n2": 2, "n3": 2}
    catalog.release("v")
    assert catalog.topology == STAR
    with pytest.raises(UndefinedError, match='"v" is not placed'):
        catalog.release("v")


def test_a_view_is_placed_again_over_its_own_slots() -> None:
    """It keeps its placement if that fails."""
    catalog = TopologyCatalog(STAR)
    catalog.change(lambda where: altered(altered(where, "n2", capacity=2), "n3", capacity=2))
    first = catalog.place("v", placing)
    taken = catalog.topology
    assert catalog.place("v", placing).nodes == first.nodes
    assert catalog.topology == taken
    catalog.change(lambda where: altered(where, "n2", maintenance=True))
    before = catalog.topology
    with pytest.raises(UserError, match='"L#1" cannot be placed'):
        catalog.place("v", placing)
    assert catalog.topology == before
    assert catalog.placed.keys() == {"v"}


def test_a_topology_changes_below_what_is_placed() -> None:
    """N-37, N-44."""
    catalog = TopologyCatalog(STAR)
    catalog.place("v", placing)
    catalog.change(lambda where: where.joined(TopologyNode("n4", 2), [TopologyLink("n4", "n1")]))
    catalog.change(lambda where: altered(where, "n1", capacity=0))
    assert catalog.topology.free == {"n1": 0, "n2": 2, "n3": 2, "n4": 2}
    catalog.change(lambda where: where.left("n4"))
    with pytest.raises(UserError, match="in use"):
        catalog.change(lambda where: where.left("n2"))
    with pytest.raises(HeadraceError):
        catalog.change(lambda where: where.taking({"n2": 1}))
    with pytest.raises(HeadraceError):
        catalog.change(lambda where: Topology(where.nodes[:1]))
    assert [n.name for n in catalog.topology.nodes] == ["n1", "n2", "n3"]


def test_an_error_says_what_is_missing_and_whether_another_strategy_has_it() -> None:
    """N-13, N-16."""
    query, pins = plan("A B fA:A j:fA,B"), {"A": "n", "B": "m", "Sink": "root"}
    none = topology({"n": 1, "m": 1, "root": 1}, "n>m m>root")
    with pytest.raises(UserError) as failed:
        place(query, none, Strategy.TOP_DOWN, Costs(), pins)
    assert failed.value.code == "55000"
    assert failed.value.message == 'operator "j" cannot be placed'
    assert failed.value.detail == (
        'Strategy top_down: there is no room for it (slots: 1) on "root", "m".'
        " There is no placement at all."
    )
    assert failed.value.hint
    # fA takes the slot that fB needs.
    greedy = topology({"a": 2, "b": 1, "root": 3}, "a,b>root")
    pins = {"A": "a", "B": "b", "Sink": "root"}
    with pytest.raises(UserError, match='"fB" cannot be placed') as failed:
        place(plan("A B fA:A fB:B j:fA,fB"), greedy, Strategy.TOP_DOWN, Costs(), pins)
    assert failed.value.detail is not None
    assert failed.value.detail.endswith(
        " There is one of network cost 1, which exact finds:"
        " A on a, B on b, fA on a, fB on root, j on root, Sink on root."
    )
