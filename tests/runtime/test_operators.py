"""Nodes of a shared subplan have the names of the plan of the view in question."""

from __future__ import annotations

from headrace.collections import plan as p
from headrace.runtime.operators import _alike
from headrace.types import INT4, Field

KEY = p.SourceColumn(1, "id", INT4)
ROW = (Field("id", INT4),)


def source(name: str, oid: int) -> p.SourceSpec:
    return p.SourceSpec(name, oid, "public", f"t{oid}", (KEY,), (KEY,), False, schema=ROW)


def join(name: str, left: str, right: str) -> p.JoinSpec:
    return p.JoinSpec(name, left, right, (0,), (0,), schema=ROW + ROW)


def test_names_of_a_subplan_in_another_plan():
    # The original view had the join first; this one has it second, over a union.
    part = p.PhysicalPlan(
        (
            source("source_1", 1),
            source("source_2", 2),
            join("join_1", "source_1", "source_2"),
            p.SinkSpec("sink_1", "join_1", ROW + ROW),
        )
    )
    whole = p.PhysicalPlan(
        (
            source("source_1", 3),
            source("source_2", 1),
            source("source_3", 2),
            join("join_1", "source_1", "source_1"),
            join("join_2", "source_2", "source_3"),
            p.UnionSpec("union_1", ("join_1", "join_2"), ROW + ROW),
            p.SinkSpec("sink_1", "union_1", ROW + ROW),
        )
    )
    assert dict(_alike(whole, "join_2", part)) == {
        "join_1": "join_2",
        "source_1": "source_2",
        "source_2": "source_3",
    }
