"""Feed nodes and plans cut at a node: both parts together give the rows of the whole plan."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from msgspec import structs

from headrace.collections import plan, subplans
from headrace.collections.dataflow import Dataflow
from headrace.state.memory import MemoryStore
from headrace.types import INT4, NUMERIC, Field, diff_batch
from tests import plans

A = plan.FeedSpec("a", (Field("k", INT4), Field("v", INT4)))
B = plan.FeedSpec("b", (Field("k", INT4), Field("w", INT4)))
JOIN = plans.join("j", A, B, (0,), (0,))
SUMS = plan.ReduceSpec(
    "r",
    "j",
    (0,),
    (plan.AggregateSpec("count_star", None, None, Field("n", 20)),),
    (Field("k", INT4), Field("n", 20)),
)
WHOLE = plan.PhysicalPlan((A, B, JOIN, SUMS, plan.SinkSpec("sink", "r", SUMS.schema)))


def random_diffs(rng: random.Random, node: plan.FeedSpec, there: list) -> pa.RecordBatch:
    """Return a batch of new rows and some deletions."""
    came = [(rng.randint(0, 3), rng.randint(0, 5)) for _ in range(rng.randint(0, 4))]
    gone = [there.pop(rng.randrange(len(there))) for _ in range(len(there) // 3)]
    there += came
    rows = [*came, *gone]
    columns = [pa.array([r[i] for r in rows], pa.int32()) for i in range(2)]
    weights = pa.array([1] * len(came) + [-1] * len(gone), pa.int64())
    return diff_batch(node.schema, columns, weights)


def flow(physical: plan.PhysicalPlan) -> Dataflow:
    return Dataflow(physical, MemoryStore(), None, 0)


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_give_what_the_whole_gives(seed):
    rng = random.Random(seed)
    whole = flow(WHOLE)
    below = flow(subplans.subplan(WHOLE, "j"))
    above = flow(subplans.over_feeds(WHOLE, ["j"]))
    there = {"a": [], "b": []}
    for txid in range(1, 12):
        for node in (A, B):
            diffs = random_diffs(rng, node, there[node.id])
            for each in (whole, below):
                each.feed(node.id, diffs)
        above.feed("j", below.end(txid))
        want, got = whole.end(txid).to_pylist(), above.end(txid).to_pylist()
        assert sorted(map(str, got)) == sorted(map(str, want))


def test_names_are_its_own_and_negative_diffs_pass():
    node = plan.FeedSpec("f", (Field("shown", INT4),))
    made = flow(plan.PhysicalPlan((node, plan.SinkSpec("sink", "f", node.schema))))
    other = (Field("kept", INT4),)
    made.feed("f", diff_batch(other, [pa.array([1, 2], pa.int32())], pa.array([2, -1], pa.int64())))
    assert made.end(1).to_pylist() == [{"shown": 1, "__weight": 2}, {"shown": 2, "__weight": -1}]


def renamed(node: plan.Node, suffix: str) -> plan.Node:
    """Return the node with other names of nodes and columns."""
    fields = tuple(structs.replace(f, name=f.name + suffix) for f in node.schema)
    node = structs.replace(node, id=node.id + suffix, schema=fields)
    return subplans.over(node, {n: n + suffix for n in plan.inputs(node)})


def source(name: str, *oids: int) -> plan.SourceSpec:
    columns = tuple(plan.SourceColumn(i, f"c{i}", oid) for i, oid in enumerate(oids, 1))
    schema = tuple(Field(c.name, c.oid) for c in columns)
    oid = int.from_bytes(name.encode()[:3], "big")
    return plan.SourceSpec(name, oid, "public", name, columns, columns[:1], False, schema=schema)


def test_equal_subplans_have_one_signature():
    left, right = source("left", INT4, INT4), source("right", INT4, INT4)
    join = plans.join("j", left, right, (0,), (0,))
    one = plans.finish(left, right, join)
    two = plans.finish(*(renamed(n, "_x") for n in (left, right, join)))
    mine, other = subplans.signatures(one, {}), subplans.signatures(two, {})
    assert list(mine) == ["j"], "a copy of a table's columns is not worth it"
    assert mine["j"] == other["j_x"]
    assert subplans.signatures(one, {"TimeZone": "UTC"})["j"] != mine["j"]
    columns = (structs.replace(left.columns[0], name="new"), *left.columns[1:])
    newer = structs.replace(left, table_name="newer", columns=columns)
    assert subplans.signatures(plans.finish(newer, right, join), {})["j"] == mine["j"]
    outer = plans.join("j", left, right, (0,), (0,), op="left")
    assert subplans.signatures(plans.finish(left, right, outer), {})["j"] != mine["j"]


@pytest.mark.parametrize(("oid", "shared"), [(INT4, True), (NUMERIC, False)])
def test_groups_that_show_the_first_form_of_a_key_are_not_shared(oid, shared):
    table = source("table", oid, INT4)
    groups = plan.ReduceSpec("r", "table", (0,), (), (Field("k", oid),))
    found = subplans.signatures(plans.finish(table, groups), {})
    assert ("r" in found) is shared


def test_nodes_that_read_the_clock_are_not_shared():
    table = source("table", INT4, INT4)
    today = plan.CalendarSpec("c", "table", (), table.schema)
    groups = plan.ReduceSpec("r", "c", (0,), (), (Field("k", INT4),))
    assert subplans.signatures(plans.finish(table, today, groups), {}) == {}
    groups = structs.replace(groups, input="table")
    assert [*subplans.signatures(plans.finish(table, groups), {})] == ["r"]


def test_which_states_belong_to_a_part():
    above = subplans.over_feeds(WHOLE, ["j"])
    assert subplans.keeps(above, "r.values")
    assert not subplans.keeps(above, "j.left")
    assert not subplans.keeps(above, "a")
    assert subplans.keeps(subplans.subplan(WHOLE, "j"), "j.left")
