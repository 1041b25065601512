"""Filter: rows for which every predicate is true."""

from __future__ import annotations

from headrace.collections import plan
from headrace.collections.chain import Filter
from headrace.types import BOOL, INT4, TEXT, Field
from tests.ledger import diffs, lines
from tests.plans import col, native, number

SCHEMA = (Field("x", INT4), Field("v", TEXT))


def make(*predicates) -> Filter:
    return Filter(plan.FilterSpec("f", "i", predicates, SCHEMA), SCHEMA, None)


def test_null_is_not_true() -> None:
    made = make(native(">", col(0), number(1)))
    batch = diffs(SCHEMA, "+ 1 a", "+ . b", "-3 2 c", "+2 3 .")
    assert lines(*made.apply(0, batch)) == ["+2 3 .", "-3 2 c"]
    assert made.time_end(0) == []


def test_predicates_run_in_order_on_the_survivors() -> None:
    made = make(
        native("<>", col(0), number(0)),
        native(">", native("/", number(6), col(0), oid=INT4), number(1)),
    )
    # The second may fail on a row, so it waits for the TimeEnd.
    assert made.apply(0, diffs(SCHEMA, "+ 0 a", "+ 3 b", "+ 6 c")) == []
    assert lines(*made.time_end(0)) == ["+ 3 b"]
    assert made.time_end(1) == []


def test_no_survivor_is_no_batch() -> None:
    made = make(native("=", col(0), number(9)), native("=", col(0, BOOL), number(9)))
    assert made.apply(0, diffs(SCHEMA, "+ 1 a")) == []
    assert made.describe() == "Filter (2 predicates)"
