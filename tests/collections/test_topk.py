"""TopK: the first rows of each group, in one order (E-30), natively and as Postgres ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections import plan, topk
from headrace.collections.topk import TopK
from headrace.errors import BugError
from headrace.state.memory import MemoryStore
from headrace.types import FLOAT8, INT4, NUMERIC, TEXT, Field
from tests.amounts import examples
from tests.disturbed import WAYS, Disturbed, fitting, line
from tests.ledger import diffs, lines
from tests.reference import evaluate
from tests.streams import Table

SCHEMA = (Field("g", INT4), Field("n", NUMERIC), Field("v", TEXT))
UP, DOWN = "OPERATOR(pg_catalog.<)", "OPERATOR(pg_catalog.>)"


def key(column: int, *, desc: bool = False, first: bool = False, native: bool = True):
    return plan.SortKey(column, DOWN if desc else UP, desc, first, native)


def make(node: plan.TopKSpec, remote=None) -> tuple[TopK, MemoryStore]:
    store = MemoryStore()
    made = TopK(node, node.schema, remote)
    made.open(store)
    return made, store


def send(made: TopK, txid: int, *rows: str) -> list[str]:
    out = []
    for row in rows:
        out.extend(made.apply(0, diffs(made.schema, row)))
    return lines(*out, *made.time_end(txid))


class Ranks:
    """Ranks numbers as Postgres would, and counts the rows in its calls."""

    def __init__(self) -> None:
        self.asked = 0

    def windows(self, over, columns, partitions, weights, trusted=True):
        [item] = over.order
        self.asked += len(weights)
        values = [None if v is None else float(v) for v in columns[0].to_pylist()]
        descending = item.operator == DOWN
        ranks = []
        for value, group in zip(values, partitions.tolist(), strict=True):
            mine = {v for v, g in zip(values, partitions.tolist(), strict=True) if g == group}
            known = sorted((v for v in mine if v is not None), reverse=descending)
            nulls = [None] if None in mine else []
            ordered = [*nulls, *known] if item.nulls_first else [*known, *nulls]
            ranks.append(ordered.index(value))
        return np.arange(len(ranks)), [pa.array(ranks, pa.int64())]


NUMBERS = (Field("n", NUMERIC),)


def test_equal_values_that_look_different_e30() -> None:
    made, store = make(plan.TopKSpec("t", "i", (), (key(0, desc=True),), 3, 0, False, NUMBERS))
    assert send(made, 0, "+ 0.970", "+ 2.45", "+ 0.97", "+ 1.45") == ["+ 0.97", "+ 1.45", "+ 2.45"]
    assert send(made, 1, "+ 1.97") == ["+ 1.97", "- 0.97"]
    assert send(made, 2, "- 0.97") == []
    assert send(made, 3, "- 2.45", "- 1.97") == ["+ 0.970", "- 1.97", "- 2.45"]
    assert send(made, 4, "- 0.970", "- 1.45") == ["- 0.970", "- 1.45"]
    assert store.dump() == {"t": []}
    assert made.describe() == "TopK (n DESC) limit 3"


def test_zeros_and_nulls() -> None:
    schema = (Field("f", FLOAT8),)
    made, _ = make(plan.TopKSpec("t", "i", (), (key(0, first=True),), 2, 0, True, schema))
    assert send(made, 0, "+ 0", "+ -0", "+ 1") == ["+ -0.0", "+ 0.0"]
    assert send(made, 1, "+ .") == ["+ ."]
    assert send(made, 2, "- -0") == ["- -0.0"]
    assert send(made, 3, "+ .") == ["+ .", "- 0.0"]


def test_weights_are_cut_and_ties_are_not() -> None:
    for ties, want in ((False, ["+ 2 a"]), (True, ["+4 2 a"])):
        schema = SCHEMA[1:]
        made, _ = make(plan.TopKSpec("t", "i", (), (key(0),), 1, 2, ties, schema))
        got = send(made, 0, "+2 1 b", "+4 2 a", "+ 3 c")
        assert got == want, ties


def test_ties_go_on_over_pages(monkeypatch) -> None:
    monkeypatch.setattr(topk, "_PAGE_ROWS", 2)
    schema = (Field("k", INT4), Field("v", INT4))
    made, _ = make(plan.TopKSpec("t", "i", (), (key(0),), 1, 0, True, schema))
    rows = [f"+ 1 {i}" for i in range(9)]
    assert send(made, 0, *rows, "+ 2 1", "+ 2 2") == sorted(rows)
    assert send(made, 1, "+ 0 0") == sorted(["+ 0 0", *(f"- 1 {i}" for i in range(9))])


def test_a_negative_weight_is_a_bug() -> None:
    made, _ = make(plan.TopKSpec("t", "i", (), (key(0),), 1, 0, False, NUMBERS))
    with pytest.raises(BugError, match="negative"):
        send(made, 0, "- 1")
    with pytest.raises(BugError, match="evaluator"):
        make(plan.TopKSpec("t", "i", (), (key(0, native=False),), 1, 0, False, NUMBERS))


def test_only_the_first_rows_are_ranked() -> None:
    ranks = Ranks()
    node = plan.TopKSpec("t", "i", (), (key(0, native=False),), 2, 0, False, NUMBERS)
    made, _ = make(node, ranks)
    send(made, 0, *(f"+ {i}" for i in range(100)))
    ranks.asked = 0
    assert send(made, 1, "+ 50") == []
    assert send(made, 2, "- 77") == []
    assert send(made, 3, "+ 0.5") == ["+ 0.5", "- 1"]
    assert ranks.asked <= 9
    assert send(made, 4, "- 0") == ["+ 1", "- 0"]
    assert ranks.asked > 90


changes = st.lists(
    st.tuples(
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, "1", "1.0", "0.97", "0.970", "-2"]),
        st.sampled_from("ab"),
        st.sampled_from([-2, -1, 1, 1, 2]),
    ),
    max_size=6,
)


@examples(150)
@given(
    txids=st.lists(st.tuples(changes, st.sampled_from(WAYS)), max_size=6),
    keys=st.sampled_from([(), (0,)]),
    limit=st.sampled_from([None, 0, 1, 2, 3]),
    offset=st.integers(0, 2),
    ties=st.booleans(),
    flags=st.tuples(st.booleans(), st.booleans()),
    native=st.booleans(),
)
def test_equals_the_reference(txids, keys, limit, offset, ties, flags, native) -> None:
    item = key(1, desc=flags[0], first=flags[1], native=native)
    ties = ties and limit is not None
    node = plan.TopKSpec("t", "i", keys, (item,), limit, offset, ties, SCHEMA)
    table = Table(1, (("g", INT4), ("n", NUMERIC), ("v", TEXT)), ())
    physical = plan.PhysicalPlan((table.source("i"), node, plan.SinkSpec("s", "t", SCHEMA)))
    made = Disturbed(lambda: TopK(node, SCHEMA, Ranks()), SCHEMA)
    now: Counter = Counter()
    shown: Counter = Counter()
    for txid, (rows, way) in enumerate(txids):
        fits = fitting(now, [(row[:-1], row[-1]) for row in rows])
        shown.update(made.txid(txid, [(0, line(*one)) for one in fits], way))
        assert not -shown
        assert +shown == evaluate(physical, {1: list(now.elements())})
    back = [(0, line(row, -weight)) for row, weight in now.items() if weight]
    shown.update(made.txid(99, back, "rows"))
    assert not any(shown.values())
    assert made.left() == {}
