"""Stacked plans: the plan of a view below, unchanged, in place of a feed."""

from __future__ import annotations

import pytest
from msgspec import structs

from headrace.collections import members, plan, stacking, subplans
from headrace.types import INT4, Field
from tests.plans import all_plans, col, table

TABLE = 1000
BELOW = all_plans(table(1), table(2))


def over(*below: plan.PhysicalPlan) -> plan.PhysicalPlan:
    """Return a plan that unites the rows of views with these plans."""
    feeds = [
        plan.FeedSpec(f"feed_{n}", low.sink.schema, f"v{n}", TABLE + n)
        for n, low in enumerate(below)
    ]
    one = (Field("x", INT4),)
    maps = [plan.MapSpec(f"map_{n}", f.id, (col(0),), one) for n, f in enumerate(feeds)]
    union = plan.UnionSpec("union", tuple(m.id for m in maps), one)
    return plan.PhysicalPlan((*feeds, *maps, union, plan.SinkSpec("sink", "union", one)))


def stacked(*below: plan.PhysicalPlan) -> plan.PhysicalPlan:
    return stacking.stacked(over(*below), {TABLE + n: low for n, low in enumerate(below)})


@pytest.mark.parametrize("name", sorted(BELOW))
def test_the_lower_nodes_mean_what_they_meant(name) -> None:
    below = BELOW[name]
    whole = stacked(below)
    known: set[str] = set()
    for node in whole.nodes:
        assert known.issuperset(plan.inputs(node)), "inputs come first"
        assert node.id not in known, "names are unique"
        known.add(node.id)
    assert whole.node("feed_0").schema == below.node(below.sink.input).schema
    top = below.sink.input
    assert members.tables(whole)["feed_0"] == members.tables(below)[top]
    if any(isinstance(node, plan.RecursiveSpec) for node in below.nodes):
        return  # the meaning of a recursion contains names
    assert subplans.meanings(whole, {})["feed_0"] == subplans.meanings(below, {})[top]
    assert subplans.signatures(whole, {}).get("feed_0") == subplans.signatures(below, {}).get(top)


@pytest.mark.parametrize("name", sorted(BELOW))
def test_what_remains_over_the_feed_is_the_upper_plan(name) -> None:
    upper, whole = over(BELOW[name]), stacked(BELOW[name])
    rest = subplans.over_feeds(whole, ["feed_0"])
    bare = [
        plan.FeedSpec(n.id, whole.node(n.id).schema) if isinstance(n, plan.FeedSpec) else n
        for n in upper.nodes
    ]
    assert list(rest.nodes) == bare
    below = subplans.owners(subplans.subplan(whole, "feed_0"))
    assert subplans.owners(rest) & below == {"sink"}, "which has no state"
    assert whole.filled_from == {"feed_0": TABLE}
    assert rest.filled_from == {}
    assert hash(whole) == hash(plan.from_json(plan.to_json(whole)))
    assert plan.from_json(plan.to_json(whole)) == whole


def test_several_views_and_a_stacked_one_below() -> None:
    names = sorted(BELOW)
    twice = stacked(BELOW[names[0]], BELOW[names[0]])
    whole = stacked(twice, BELOW[names[1]], twice)
    ids = [node.id for node in whole.nodes]
    assert len(set(ids)) == len(ids)
    meanings = subplans.meanings(whole, {})
    assert meanings["feed_0"] == meanings["feed_2"] == subplans.meanings(twice, {})["union"]


def test_members_come_and_go_in_lower_plans() -> None:
    """The name of an arm says which member it reads, so a new name must not hide that."""
    low = plan.PhysicalPlan(
        (
            table(1).source("source_1"),
            plan.UnionSpec("union_1", ("source_1",), table(1).source("s").schema),
            plan.SinkSpec("sink_1", "union_1", table(1).source("s").schema),
        )
    )
    numbers = {c.attnum: c.attnum for c in low.sources[0].columns}
    like, new = (
        low.sources[0].table_oid,
        [members.Member(n, "s", f"t{n}", numbers, 0) for n in (7, 8)],
    )
    whole = stacked(low, low)
    for member in new:
        grown = members.grow(whole, like, member)
        assert grown is not None
        whole = grown
    ids = [node.id for node in whole.nodes]
    assert len(set(ids)) == len(ids)
    assert members.tables(whole)["sink"] == {like, 7, 8}
    smaller = members.shrink(whole, 7)
    assert smaller is not None
    assert members.tables(smaller)["feed_1"] == {like, 8}
    assert smaller.filled_from == {"feed_0": TABLE, "feed_1": TABLE + 1}


def test_the_table_must_have_the_columns_of_the_plan() -> None:
    below = BELOW[min(BELOW)]
    feed = over(below).feeds[0]
    assert stacking.fits(feed, below)
    other = (*feed.schema[1:], Field("other", INT4))
    assert not stacking.fits(structs.replace(feed, schema=other), below)
