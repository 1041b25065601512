"""Sink: the changes of a txid as they are written to the table (E-18, E-25)."""

from __future__ import annotations

from headrace.collections import plan
from headrace.collections.sink import Sink
from headrace.types import FLOAT8, NUMERIC, Field
from tests.ledger import diffs, lines

SCHEMA = (Field("n", NUMERIC), Field("f", FLOAT8))


def make() -> Sink:
    return Sink(plan.SinkSpec("s", "i", SCHEMA))


def test_e23_only_what_a_whole_txid_changed() -> None:
    made = make()
    assert made.apply(0, diffs(SCHEMA, "+3 1 1", "+4 2 2")) == []
    assert made.apply(0, diffs(SCHEMA, "-2 1 1")) == []
    assert lines(*made.time_end(1)) == ["+ 1 1.0", "+4 2 2.0"]
    made.apply(0, diffs(SCHEMA, "- 1 1", "+ 1 1"))
    assert made.time_end(2) == []
    assert made.describe() == "Sink (n, f)"


def test_values_that_look_different_are_different() -> None:
    made = make()
    made.apply(0, diffs(SCHEMA, "- 1.0 0", "+ 1.00 0", "+ 1 0", "- 1 -0"))
    assert lines(*made.time_end(1)) == ["+ 1 0.0", "+ 1.00 0.0", "- 1 -0.0", "- 1.0 0.0"]


def test_nan_cancels() -> None:
    made = make()
    made.apply(0, diffs(SCHEMA, "- . NaN", "+ . NaN"))
    assert made.time_end(1) == []
