"""Map: one output column per expression."""

from __future__ import annotations

from headrace.collections import plan
from headrace.collections.chain import Map
from headrace.types import INT4, TEXT, Field
from tests.ledger import diffs, lines
from tests.plans import col, native, number

SCHEMA = (Field("x", INT4), Field("v", TEXT))


def make(schema, *expressions) -> Map:
    return Map(plan.MapSpec("m", "i", expressions, schema), SCHEMA, None)


def test_weights_stay_and_equal_rows_are_not_merged() -> None:
    made = make((Field("w", TEXT),), col(1, TEXT))
    batch = diffs(SCHEMA, "+ 1 a", "-2 2 a", "+ 3 .")
    assert lines(*made.apply(0, batch)) == ["+ .", "+ a", "-2 a"]
    assert made.describe() == "Map (w)"


def test_what_may_fail_sees_only_rows_of_a_finished_txid() -> None:
    made = make((Field("q", INT4),), native("/", number(6), col(0), oid=INT4))
    assert made.apply(0, diffs(SCHEMA, "+ 0 a", "+ 2 b")) == []
    assert made.apply(0, diffs(SCHEMA, "- 0 a", "+ 1 c")) == []
    assert lines(*made.time_end(1)) == ["+ 3", "+ 6"]
    assert made.apply(0, diffs(SCHEMA, "- 2 b")) == []
    assert lines(*made.time_end(2)) == ["- 3"]


def test_population_needs_not_wait() -> None:
    made = make((Field("q", INT4),), native("/", number(6), col(0), oid=INT4))
    made.insert_only = True
    assert lines(*made.apply(0, diffs(SCHEMA, "+ 2 b"))) == ["+ 3"]
    assert made.time_end(0) == []


def test_no_columns_keep_the_weights() -> None:
    made = make(())
    assert lines(*made.apply(0, diffs(SCHEMA, "+ 1 a", "-2 2 b"))) == ["+", "-2"]
