"""Several databases behind one table, constants, and pins."""

from __future__ import annotations

import pytest

from headrace.collections import plan as p
from headrace.errors import UndefinedError, UnsupportedError, UserError
from headrace.planner.placement.expansion import Shards, expand
from headrace.planner.placement.operators import Costs
from headrace.planner.placement.place import Strategy
from tests.planner.placement.drawn import hops, operators, placed, plan, topology

UP, DOWN = Strategy.BOTTOM_UP, Strategy.TOP_DOWN
QUERY = plan("L f:L")
SHARDS = Shards(("n2", "n3"), unique_keys=True)
PINS = {"L": SHARDS, "Sink": "n1"}


def star(n1: int = 4, n2: int = 4, n3: int = 4):
    return topology({"n1": n1, "n2": n2, "n3": n3}, "n2,n3>n1")


def reads(query: p.PhysicalPlan) -> dict[str, tuple[str, ...]]:
    return {node.id: p.inputs(node) for node in query.nodes}


def test_filters_run_beside_each_source() -> None:
    """PL-13, N-5, N-6, N-11: Bottom-Up."""
    found = placed(UP, QUERY, star(), PINS)
    assert found.nodes == {
        "L#1": "n2", "L#2": "n3", "f#1": "n2", "f#2": "n3", "f#all": "n1", "Sink": "n1"
    }  # fmt: skip
    assert hops(found) == 2
    assert {s.output for part in found.parts.values() for s in part.sends} == {"f#1", "f#2"}
    assert found.slots == {"n1": 1, "n2": 2, "n3": 2}


def test_filters_run_beside_the_sink() -> None:
    """PL-13, N-22: Top-Down, with room there and with room for one of them."""
    found = placed(DOWN, QUERY, star(), PINS)
    assert (found.nodes["f#1"], found.nodes["f#2"]) == ("n1", "n1")
    assert {s.output for part in found.parts.values() for s in part.sends} == {"L#1", "L#2"}
    assert hops(found) == 2
    found = placed(DOWN, QUERY, star(n1=2), PINS)
    assert (found.nodes["f#1"], found.nodes["f#2"]) == ("n1", "n3")


def test_a_chain_is_copied_up_to_what_keeps_state_or_has_several_inputs() -> None:
    """N-11."""
    found = expand(plan("L M f:L g:f agg:g h:agg j:h,M"), {"L": SHARDS, "M": "n1", "Sink": "n1"})
    assert reads(found.plan) == {
        "L#1": (), "L#2": (), "M": (), "f#1": ("L#1",), "f#2": ("L#2",), "g#1": ("f#1",),
        "g#2": ("f#2",), "g#all": ("g#1", "g#2"), "agg": ("g#all",), "h": ("agg",),
        "j": ("h", "M"), "Sink": ("j",),
    }  # fmt: skip
    assert found.physical == {"L": ("L#1", "L#2"), "M": ("M",)}


def test_each_copy_that_somebody_reads_alone_has_its_union() -> None:
    found = expand(plan("L f:L j:L,f"), PINS)
    wanted = {"L#all": ("L#1", "L#2"), "f#all": ("f#1", "f#2"), "j": ("L#all", "f#all")}
    assert reads(found.plan).items() >= wanted.items()
    assert found.plan.node("L#all").schema == QUERY.node("L").schema


def test_what_is_pinned_is_not_copied() -> None:
    found = expand(plan("L f:L g:f"), PINS | {"f": "n1"})
    wanted = {"L#all": ("L#1", "L#2"), "f": ("L#all",), "g": ("f",)}
    assert reads(found.plan).items() >= wanted.items()


def test_fused_steps_read_their_own_copy() -> None:
    source = QUERY.node("L")
    fused = p.FusedSpec("x", "L", (p.FilterSpec("s", "L", ()),), source.schema)
    found = expand(p.PhysicalPlan((source, fused, p.SinkSpec("Sink", "x", source.schema))), PINS)
    copy = found.plan.node("x#2")
    assert isinstance(copy, p.FusedSpec)
    assert copy.steps[0].input == "L#2"


def test_one_database_is_no_union() -> None:
    found = expand(QUERY, {"L": Shards(("n2",), True), "Sink": "n1"})
    assert reads(found.plan) == {"L": (), "f": ("L",), "Sink": ("f",)}


def test_rates_of_a_logical_source_are_shared_out() -> None:
    known = operators(QUERY, PINS, Costs({"L": 100.0}, {"f": 0.5}))
    sends = {name: o.sends for name, o in known.by_name.items()}
    assert sends == {"L#1": 50, "L#2": 50, "f#1": 25, "f#2": 25, "f#all": 50, "Sink": 50}
    known = operators(QUERY, PINS, Costs({"L": 100.0, "L#2": 1.0}, slots={"f": 3}))
    assert known.by_name["f#2"].sends == 1.0
    assert [o.slots for o in known.by_name.values()] == [1, 1, 3, 3, 0, 1]


def test_keys_that_may_be_in_two_databases_are_refused() -> None:
    """A plan may have left out a DISTINCT."""
    with pytest.raises(UnsupportedError, match="may be in several"):
        expand(QUERY, PINS | {"L": Shards(("n2", "n3"), unique_keys=False)})


@pytest.mark.parametrize(
    "pins",
    [
        {"Sink": "n1"},
        {"L": "n2"},
        PINS | {"f": SHARDS},
        PINS | {"L": Shards((), True)},
        PINS | {"nobody": "n1"},
    ],
)
def test_pins_that_cannot_be_are_refused(pins) -> None:
    """N-13: each source and the sink have their place."""
    with pytest.raises(UserError):
        expand(QUERY, pins)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_node_that_is_not_there_is_refused(strategy) -> None:
    with pytest.raises(UndefinedError, match='worker "n9" does not exist'):
        placed(strategy, QUERY, star(), PINS | {"Sink": "n9"})


@pytest.mark.parametrize("strategy", list(Strategy))
def test_constants_stand_beside_their_readers(strategy) -> None:
    """They take no slot, and each reader has its own."""
    query = plan("A B values fv:values j:A,fv k:B,fv l:j,k")
    where = topology({"a": 2, "b": 2, "root": 2}, "a,b>root")
    found = placed(strategy, query, where, {"A": "a", "B": "b", "Sink": "root"})
    assert reads(found.plan).items() >= {"k": ("B", "fv~k"), "fv~k": ("values~k",)}.items()
    for reader, constants in {"j": ("values", "fv"), "k": ("values~k", "fv~k")}.items():
        assert {found.nodes[name] for name in constants} == {found.nodes[reader]}
    assert sum(found.slots.values()) == 6


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_view_of_constants_is_where_its_sink_is(strategy) -> None:
    found = placed(strategy, plan("values fv:values"), star(), {"Sink": "n3"})
    assert found.nodes == {"values": "n3", "fv": "n3", "Sink": "n3"}
    assert list(found.parts) == ["n3"]
