"""Recursive: transitive closures under insertions and deletions, against naive iteration."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.collections import build, plan
from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import PhysicalPlan, from_json, to_json
from headrace.collections.recursive import Recursive
from headrace.errors import DefiniteFailure
from headrace.expressions.ir import Column
from headrace.state.memory import MemoryStore
from headrace.types import INT4, NUMERIC, Field
from tests.amounts import examples
from tests.ledger import diffs, lines
from tests.plans import native, number

PAIR = (Field("a", INT4), Field("b", INT4))
STEP_FIELD = Field(plan.ITERATION, INT4)
WORK = (*PAIR, STEP_FIELD)


def closure(*, distinct: bool, iterations_max: int = 50, residual=()) -> plan.RecursiveSpec:
    """Return R(a, b) = edges, then R(a, b) >< edges(b, c)."""
    return plan.RecursiveSpec(
        "r",
        "edges",
        ("edges",),
        (
            plan.WorkTableSpec("w", WORK),
            plan.JoinSpec("j", "w", "edges", (1,), (0,), residual, (*WORK, *PAIR)),
            plan.MapSpec("m", "j", (Column(0, INT4), Column(4, INT4), Column(2, INT4)), WORK),
        ),
        distinct,
        iterations_max,
        PAIR,
    )


def bounded(depth: int) -> plan.RecursiveSpec:
    """Return walks with their length up to ``depth``: UNION ALL, then a filter that may fail."""
    hop = (*PAIR, Field("n", INT4))
    work = (*hop, STEP_FIELD)
    return plan.RecursiveSpec(
        "r",
        "base",
        ("edges",),
        (
            plan.WorkTableSpec("w", work),
            plan.JoinSpec("j", "w", "edges", (1,), (0,), (), (*work, *PAIR)),
            plan.FusedSpec(
                "f",
                "j",
                (
                    plan.FilterSpec("f.1", "j", (native("<", Column(2, INT4), number(depth)),)),
                    plan.MapSpec(
                        "f.2",
                        "f.1",
                        (
                            Column(0, INT4),
                            Column(5, INT4),
                            native("+", Column(2, INT4), number(1), oid=INT4),
                            Column(3, INT4),
                        ),
                        work,
                    ),
                ),
                work,
            ),
        ),
        False,
        50,
        hop,
    )


class Harness:
    """A recursion over one table, driven by hand: base and outside input are the same rows."""

    def __init__(self, node: plan.RecursiveSpec, base=PAIR) -> None:
        [self.node] = from_json(to_json(PhysicalPlan((node,)))).nodes
        self.base = base
        self.store = MemoryStore()
        self.shown: Counter[str] = Counter()
        self.txid = -1
        self.open()

    def open(self) -> None:
        sources = [plan.ValuesSpec("base", (), self.base), plan.ValuesSpec("edges", (), PAIR)]
        whole = PhysicalPlan((*sources, self.node))
        made = build.make(self.node, whole, self.store, None)
        assert isinstance(made, Recursive)
        self.made = made

    def send(self, edges: list[str], base: list[str] | None = None) -> list[str]:
        """Feed diffs of the edges (and of the base, if it is another), and end the txid."""
        self.txid += 1
        for row in edges:
            assert self.made.apply(1, diffs(PAIR, row)) == []
            if base is None:
                assert self.made.apply(0, diffs(PAIR, row)) == []
        for row in base or ():
            assert self.made.apply(0, diffs(self.base, row)) == []
        out = lines(*self.made.time_end(self.txid))
        for line in out:
            sign, _, row = line.partition(" ")
            self.shown[row] += int(sign + "1" if sign in {"+", "-"} else sign)
        self.store.checkpoint()
        self.shown = +self.shown
        return out


def reachable(edges: Counter[tuple[int, int]]) -> Counter[str]:
    found = set(edges)
    while True:
        more = {(a, d) for a, b in found for c, d in edges if b == c} - found
        if not more:
            return Counter(f"{a} {b}" for a, b in found)
        found |= more


def walks(edges: Counter[tuple[int, int]], depth: int) -> Counter[str]:
    now = Counter({(a, b, 1): n for (a, b), n in edges.items()})
    out = Counter(now)
    while now:
        step: Counter[tuple[int, int, int]] = Counter()
        for (a, b, n), w in now.items():
            for (c, d), v in edges.items():
                if b == c and n < depth:
                    step[a, d, n + 1] += w * v
        now = step
        out.update(step)
    return Counter({" ".join(map(str, row)): w for row, w in out.items()})


def test_a_path_grows_and_breaks() -> None:
    flow = Harness(closure(distinct=True))
    assert flow.send(["+ 1 2", "+ 2 3"]) == ["+ 1 2", "+ 1 3", "+ 2 3"]
    assert flow.send(["+ 3 4"]) == ["+ 1 4", "+ 2 4", "+ 3 4"]
    assert flow.send(["- 2 3", "+ 1 3"]) == ["- 2 3", "- 2 4"]
    assert flow.send(["- 1 2", "- 1 3", "- 3 4"]) == ["- 1 2", "- 1 3", "- 1 4", "- 3 4"]
    assert not any(flow.store.dump().values())


def test_what_a_cycle_supports_goes_with_the_last_edge_into_it() -> None:
    flow = Harness(closure(distinct=True))
    flow.send(["+ 0 1", "+ 1 2", "+ 2 3", "+ 3 1"])
    assert flow.shown == reachable(Counter([(0, 1), (1, 2), (2, 3), (3, 1)]))
    assert flow.send(["- 0 1"]) == ["- 0 1", "- 0 2", "- 0 3"]
    flow.send(["- 3 1"])
    assert flow.shown == reachable(Counter([(1, 2), (2, 3)]))


def test_a_longer_way_takes_over_when_the_short_one_goes() -> None:
    flow = Harness(closure(distinct=True))
    flow.send(["+ 1 2", "+ 2 3", "+ 3 4", "+ 1 4", "+ 4 5"])
    assert flow.send(["- 1 4"]) == []
    assert flow.send(["- 2 3"]) == ["- 1 3", "- 1 4", "- 1 5", "- 2 3", "- 2 4", "- 2 5"]


def test_union_all_counts_ways() -> None:
    flow = Harness(closure(distinct=False))
    assert flow.send(["+ 1 2", "+ 1 3", "+ 2 4", "+ 3 4"]) == [
        "+ 1 2",
        "+ 1 3",
        "+ 2 4",
        "+ 3 4",
        "+2 1 4",
    ]
    assert flow.send(["- 1 2"]) == ["- 1 2", "- 1 4"]


@pytest.mark.parametrize("distinct", [True, False])
def test_without_an_end_it_is_an_error(distinct) -> None:
    flow = Harness(closure(distinct=distinct, iterations_max=5))
    flow.send(["+ 1 2", "+ 2 3", "+ 3 4", "+ 4 5"])
    with pytest.raises(DefiniteFailure, match="5 iterations") as caught:
        flow.send(["+ 5 1"] if not distinct else ["+ 5 6", "+ 6 7"])
    assert caught.value.code == "54001"


def test_an_iteration_with_too_many_rows_is_an_error() -> None:
    flow = Harness(replace(closure(distinct=False), rows_max=3))
    flow.send(["+ 1 2", "+ 1 3", "+ 2 4", "+ 3 4"])
    with pytest.raises(DefiniteFailure, match="more than 3 rows") as caught:
        # Each of the two ways to 4 continues to two more nodes, and so do their beginnings.
        flow.send(["+ 4 5", "+ 4 6"])
    assert caught.value.code == "54001"


def test_rows_equal_but_not_alike_follow_the_least_of_the_first_iteration() -> None:
    schema = (Field("n", NUMERIC),)
    work = (*schema, STEP_FIELD)
    node = plan.RecursiveSpec(
        "r",
        "base",
        ("edges",),
        (
            plan.WorkTableSpec("w", work),
            plan.MapSpec("m", "w", (Column(0, NUMERIC), Column(1, INT4)), work),
        ),
        True,
        50,
        schema,
    )
    flow = Harness(node, schema)
    assert flow.send([], ["+ 1.00", "+ 1.0"]) == ["+ 1.0"]
    assert flow.send([], ["- 1.0"]) == ["+ 1.00", "- 1.0"]
    assert flow.send([], ["- 1.00"]) == ["- 1.00"]


def test_no_expression_sees_rows_that_no_commit_showed() -> None:
    # 12 / (a - c) over walks a -> b -> c: never a = c at the end of a txid.
    fraction = native(
        "/", number(12), native("-", Column(0, INT4), Column(4, INT4), oid=INT4), oid=INT4
    )
    node = closure(distinct=True)
    work, join, last = node.step
    sieve = plan.FilterSpec("s", "j", (native("<>", fraction, number(99)),), join.schema)
    step = (work, join, sieve, plan.MapSpec("m", "s", last.expressions, WORK))
    flow = Harness(plan.RecursiveSpec("r", "edges", ("edges",), step, True, 50, PAIR))
    flow.send(["+ 1 2", "+ 2 3"])
    # New edges back from 2 match the old edge to it only within the txid.
    assert flow.send(["+ 2 1", "- 1 2", "- 2 3"]) == ["+ 2 1", "- 1 2", "- 1 3", "- 2 3"]


def test_bad_diffs_are_found() -> None:
    flow = Harness(closure(distinct=True))
    with pytest.raises(Exception, match="negative"):
        flow.send(["- 1 2"])


edges = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(-2, 2)), max_size=6)


@examples(60)
@given(txids=st.lists(st.tuples(edges, st.booleans()), max_size=6))
def test_closure_equals_naive_iteration(txids) -> None:
    flow = Harness(closure(distinct=True))
    table: Counter[tuple[int, int]] = Counter()
    for chosen, reopen in txids:
        flow.send(played(table, chosen))
        assert flow.shown == reachable(+table)
        if reopen:
            flow.open()
    flow.send([f"{-n:+d} {a} {b}" for (a, b), n in table.items() if n])
    assert not flow.shown
    assert not any(flow.store.dump().values())


@examples(40)
@given(txids=st.lists(st.tuples(edges, st.booleans()), max_size=5))
def test_bounded_walks_equal_naive_iteration(txids) -> None:
    flow = Harness(bounded(4), (*PAIR, Field("n", INT4)))
    table: Counter[tuple[int, int]] = Counter()
    for chosen, reopen in txids:
        rows = played(table, chosen)
        flow.send(rows, [f"{row} 1" for row in rows])
        assert flow.shown == walks(+table, 4)
        if reopen:
            flow.open()
    rows = [f"{-n:+d} {a} {b}" for (a, b), n in table.items() if n]
    flow.send(rows, [f"{row} 1" for row in rows])
    assert not flow.shown
    assert not any(flow.store.dump().values())


def played(table: Counter[tuple[int, int]], chosen) -> list[str]:
    """Change the table by the chosen weights, and return the diffs in arbitrary order."""
    rows = []
    for a, b, weight in chosen:
        change = max(weight, -table[a, b])
        table[a, b] += change
        if change:
            rows.append(f"{change:+d} {a} {b}")
    return rows[::-1]


def test_in_a_dataflow_after_rollback() -> None:
    values = plan.ValuesSpec("edges", (("1", "2"), ("2", "3")), PAIR)
    node = closure(distinct=True)
    store = MemoryStore()
    physical = PhysicalPlan((values, node, plan.SinkSpec("sink", "r", PAIR)))
    for _ in range(2):
        flow = Dataflow(physical, store, None, 0)
        assert lines(flow.end(0)) == ["+ 1 2", "+ 1 3", "+ 2 3"]
        store.rollback()
