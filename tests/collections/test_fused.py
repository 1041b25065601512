"""Fused: the same as its steps one after the other."""

from __future__ import annotations

from headrace.collections import plan
from headrace.collections.chain import Fused
from headrace.types import INT4, TEXT, Field
from tests.ledger import diffs, lines
from tests.plans import col, native, number

SCHEMA = (Field("x", INT4), Field("v", TEXT))
OUT = (Field("y", INT4),)


def test_steps_run_one_after_the_other() -> None:
    steps = (
        plan.FilterSpec("f", "", (native(">", col(0), number(1)),), SCHEMA),
        plan.MapSpec("m", "", (native("-", col(0), number(2), oid=INT4),), OUT),
        plan.FilterSpec("g", "", (native("<>", col(0), number(0)),), OUT),
    )
    made = Fused(plan.FusedSpec("u", "i", steps, OUT), SCHEMA, None)
    assert made.describe() == "Fused (Filter -> Map -> Filter)"
    batch = diffs(SCHEMA, "+ 1 a", "+ 2 b", "+ 3 c", "-2 4 d", "+ . e")
    out = made.apply(0, batch) or made.time_end(0)
    assert lines(*out) == ["+ 1", "-2 2"]
