"""Path selection: worked examples, and properties of all topologies."""

from __future__ import annotations

import graphlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UserError
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.operators import Costs
from headrace.planner.placement.paths import SelectedPaths, select_paths
from headrace.planner.placement.place import Strategy, try_to_place
from headrace.planner.placement.topology import Topology, TopologyLink, TopologyNode
from tests.planner.placement.drawn import operators, plan, selected, topology

TWO_WAYS = "1,2>0 3,4>1 5,6>2 7>4,5 8,9>7"


def counted(found: SelectedPaths) -> dict[str, int]:
    """Return the column sums of the occurrence matrix."""
    total: dict[str, int] = {}
    for row in found.occurrences.values():
        for node, count in row.items():
            total[node] = total.get(node, 0) + count
    return total


def weights(found: SelectedPaths, node: str) -> dict[str, float]:
    return {p: round(w, 3) for c in found.choices if c.node == node for p, w in c.weights}


def done(found: SelectedPaths | PlacementFailed) -> SelectedPaths:
    assert isinstance(found, SelectedPaths), found
    return found


def test_sources_share_the_way_that_was_registered_first_where_ways_are_equal() -> None:
    """PL-1, N-2, N-6, N-7, N-8: W(4) = W(5) = (2 + 2 + 4) / 3."""
    found = done(selected(topology("0123456789", TWO_WAYS), {"L": "89"}, "0"))
    assert counted(found) == {
        "0": 4, "1": 2, "2": 2, "4": 2, "5": 2, "7": 2, "8": 1, "9": 1
    }  # fmt: skip
    assert weights(found, "7") == {"4": 2.667, "5": 2.667}
    assert found.ways.up("8") == ("8", "7", "4", "1", "0")
    assert found.ways.up("9") == ("9", "7", "4", "1", "0")


def test_a_node_counts_once_per_path() -> None:
    """PL-2, N-36, R-5: the root has two ways, so the short one wins.

    Counted once per sub-graph they were equal.
    """
    where = topology("0123456789", "1,2>0 3,4>1 5>0 6>2 7>4,5 8,9>7")
    found = done(selected(where, {"L": "8"}, "0"))
    assert counted(found) == {"0": 2, "1": 1, "4": 1, "5": 1, "7": 1, "8": 1}
    assert weights(found, "7") == {"4": 1.333, "5": 1.5}
    assert found.ways.up("8") == ("8", "7", "5", "0")


def test_of_equal_weights_the_shorter_way_stays() -> None:
    """R-5: W(b) = (1 + 2 + 3) / 3 and W(a) = (1 + 3) / 2, and b was registered first."""
    found = done(selected(topology("Sbcap", "b>c c,a>S p>b,a"), {"L": "pc"}, "S"))
    assert weights(found, "p") == {"b": 2.0, "a": 2.0}
    assert found.ways.up("p") == ("p", "a", "S")


@pytest.mark.parametrize(
    ("sources", "links", "total", "w", "kept"),
    [
        # PL-3
        ("pq", "", {"S": 3, "a": 2, "b": 1}, {"a": 2.5, "b": 2.0}, "a"),
        # PL-4
        ("pqrt", " r,t>b", {"S": 5, "a": 2, "b": 3}, {"a": 3.5, "b": 4.0}, "b"),
    ],
)
def test_a_way_that_others_take_wins(sources, links, total, w, kept) -> None:
    where = topology("Sabpqrt", "a,b>S p>a q>a,b" + links)
    found = done(selected(where, {"L": sources}, "S"))
    assert counted(found).items() >= total.items()
    assert weights(found, "q") == w
    assert found.ways.up("q") == ("q", kept, "S")


def test_nodes_in_maintenance_are_not_seen() -> None:
    """PL-5, N-37."""
    sources = {"L": "8"}
    found = done(selected(topology("0123456789", TWO_WAYS, maintenance="4"), sources, "0"))
    assert found.ways.up("8") == ("8", "7", "5", "2", "0")
    failed = selected(topology("0123456789", TWO_WAYS, maintenance="45"), sources, "0")
    assert failed == PlacementFailed("L_8", "8", 'no path leads from worker "8" up to worker "0"')
    for pinned in "80":
        failed = selected(topology("0123456789", TWO_WAYS, maintenance=pinned), sources, "0")
        assert isinstance(failed, PlacementFailed)
        assert failed.reason == f'worker "{pinned}" is in maintenance'


def test_logical_sources_are_pruned_again_together() -> None:
    """PL-6, N-9, N-10, R-6: each alone keeps another parent of x; then each node has one."""
    where = topology("Sabxpquvw", "a,b>S x>a,b p,u>x q>a v,w>b")
    first, second = {"L1": "pq"}, {"L2": "uvw"}
    assert done(selected(where, first, "S")).ways.up("x") == ("x", "a", "S")
    assert done(selected(where, second, "S")).ways.up("x") == ("x", "b", "S")
    found = done(selected(where, first | second, "S"))
    total = counted(found)
    assert (total["a"], total["b"], total["S"]) == (3, 4, 7)
    assert weights(found, "x") == {"a": 5.0, "b": 5.5}
    assert found.ways.up("p") == ("p", "x", "b", "S")
    assert found.ways.up("q") == ("q", "a", "S")


def test_a_way_leads_past_what_is_pinned_between() -> None:
    query, where = plan("A f:A"), topology("Sabp", "a,b>S p>a,b")
    for node in "ab":
        known = operators(query, {"A": "p", "f": node, "Sink": "S"})
        assert done(select_paths(known, where)).ways.up("p") == ("p", node, "S")


def test_a_way_past_a_pin_is_kept_when_another_source_would_rather_not() -> None:
    query = plan("A B C f:A j:f,B k:j,C")
    where = topology("Sabxpqr", "a,b>S x>a,b p,q>x r>a")
    pins = {"A": "p", "B": "q", "C": "r", "Sink": "S"}
    free = try_to_place(query, where, Strategy.BOTTOM_UP, Costs(), pins)
    assert not isinstance(free, PlacementFailed)
    assert free.ways.up("x") == ("x", "a", "S")
    pinned = try_to_place(query, where, Strategy.BOTTOM_UP, Costs(), pins | {"f": "b"})
    assert not isinstance(pinned, PlacementFailed)
    assert pinned.nodes == pins | {"f": "b", "j": "b", "k": "S"}


def test_what_is_no_topology_is_refused() -> None:
    a, b = TopologyNode("a", 1), TopologyNode("b", 1)
    for nodes, links in [
        ((a, a), ()),
        ((a, TopologyNode("b", -1)), ()),
        ((a,), (TopologyLink("a", "b"),)),
        ((a, b), (TopologyLink("a", "b"), TopologyLink("a", "b", 2.0))),
        ((a, b), (TopologyLink("a", "b"), TopologyLink("b", "a"))),
        ((a,), (TopologyLink("a", "a"),)),
        ((a, b), (TopologyLink("a", "b", 0.0),)),
    ]:
        with pytest.raises(UserError):
            Topology(nodes, links)
    with pytest.raises(UserError, match="cannot be"):
        TopologyLink.measured("a", "b", 0.0, 1.0)


def test_a_link_is_worse_for_being_narrow_or_far() -> None:
    assert TopologyLink.measured("a", "b", 125e6, 0.0).weight == 1.0
    assert TopologyLink.measured("a", "b", 12.5e6, 0.0).weight == pytest.approx(10.0)
    assert TopologyLink.measured("a", "b", 125e6, 5.0).weight == pytest.approx(10.5, abs=0.1)


@st.composite
def topologies(draw: st.DrawFn) -> tuple[Topology, list[str]]:
    """Draw nodes that all lead to the first one, and some of them as sources."""
    count = draw(st.integers(2, 9))
    links = []
    for low in range(1, count):
        highs = draw(st.sets(st.integers(0, low - 1), min_size=1, max_size=3))
        links += [TopologyLink(f"n{low}", f"n{high}") for high in sorted(highs)]
    nodes = tuple(TopologyNode(f"n{i}", 9) for i in range(count))
    sources = draw(st.lists(st.sampled_from([n.name for n in nodes]), min_size=1, unique=True))
    return Topology(nodes, tuple(links)), sources


@given(topologies(), st.integers(1, 3))
def test_each_node_has_one_parent_and_leads_to_the_sink(drawn, groups) -> None:
    where, sources = drawn
    logical = {f"L{i}": sources[i::groups] for i in range(groups) if sources[i::groups]}
    found = done(selected(where, logical, "n0"))
    assert found == done(selected(where, logical, "n0"))
    links = {(link.child, link.parent) for link in where.links}
    for node in sources:
        assert found.ways.up(node)[-1] == "n0"
        assert set(found.ways.hops(node, "n0")) <= links
    used = {n for s in sources for n in found.ways.up(s)}
    assert set(found.ways.nodes) == used | {"n0"}
    assert {c.node: c.kept for c in found.choices}.items() <= dict(found.ways.parents).items()


@given(topologies())
def test_the_matrix_counts_paths(drawn) -> None:
    """The test walks each path."""
    where, sources = drawn
    found = done(selected(where, {"L": sources}, "n0"))
    order = list(graphlib.TopologicalSorter(where.parents).static_order())

    def walks(low: str, high: str) -> int:
        return 1 if low == high else sum(walks(up, high) for up in where.parents[low])

    for source in sources:
        row = found.occurrences[f"L_{source}"]
        assert row == {n: walks(source, n) for n in order if walks(source, n)}
