"""Semi and anti joins by one comparison: many rows per key, read in small pages."""

from __future__ import annotations

import random

import pytest

from headrace.collections import plan, threshold
from headrace.collections.plan import PhysicalPlan
from headrace.state.memory import MemoryStore
from headrace.types import INT4, Field
from tests.collections.test_dataflow import accumulate, counted, expected, feed, start
from tests.plans import join
from tests.streams import DELETE, INSERT, UPDATE, Op, Table

CASES = [(op, operator) for op in ("semi", "anti") for operator in ("<", "<=", ">", ">=")]
COLUMNS = (("id", INT4), ("k", INT4), ("v", INT4))


def sides(op: str, operator: str, keys: tuple[int, ...]) -> tuple[PhysicalPlan, list[Table]]:
    tables = [Table(number, COLUMNS, (0,)) for number in (1, 2)]
    a, b = (each.source(name) for each, name in zip(tables, "ab", strict=True))
    node = join("j", a, b, keys, keys, (), op, (), plan.Comparison(2, operator, 2))
    return PhysicalPlan((a, b, node, plan.SinkSpec("sink", "j", node.schema))), tables


def change(rng: random.Random, table: Table, number: int) -> Op:
    row = (str(number), str(rng.randrange(3)), rng.choice([None, *map(str, range(30))]))
    old = rng.choice(table.rows) if table.rows and rng.random() < 0.7 else None
    if old is None:
        return Op(INSERT, row)
    return Op(DELETE, None, old) if rng.random() < 0.5 else Op(UPDATE, (old[0], *row[1:]), old)


@pytest.mark.parametrize("keys", [(1,), ()], ids=["key", "cross"])
@pytest.mark.parametrize(("op", "operator"), CASES)
def test_any_number_of_rows_turns(op, operator, keys, monkeypatch):
    monkeypatch.setattr(threshold, "_PAGE_ROWS", 2)
    monkeypatch.setattr(threshold, "_READ_ROWS_MAX", 7)
    monkeypatch.setattr(threshold, "_KEYS_MAX", 2)
    rng = random.Random(f"{op}{operator}{keys}")
    physical, tables = sides(op, operator, keys)
    tables[0].carry_out([change(rng, Table(1, COLUMNS, (0,)), i) for i in range(90)])
    flow = start(physical, tables, MemoryStore())
    shown = counted(flow.end(0))
    assert shown == expected(physical, tables)
    turned = 0
    for txid in range(1, 60):
        ops = []
        for place in range(rng.choice([1, 1, 4])):
            which = rng.choice([0, 1, 1])
            op_ = change(rng, tables[which], 1000 * txid + place)
            tables[which].carry_out([op_])
            ops.append((which, op_))
        feed(flow, tables, ops, 2)
        diffs = counted(flow.end(txid))
        turned = max(turned, diffs.total())
        shown = accumulate(shown, diffs)
        assert shown == expected(physical, tables)
    assert turned > 20, "one change turns many rows"


def test_a_join_without_a_comparison_is_refused():
    physical, _ = sides("semi", "<", (1,))
    node = physical.nodes[2]
    with pytest.raises(threshold.BugError):
        threshold.Threshold(
            plan.JoinSpec("j", "a", "b", (1,), (1,), (), node.schema, "semi"),
            (Field("v", INT4),),
            (Field("v", INT4),),
        )
