"""Expand: every row once per grouping set."""

from __future__ import annotations

import pyarrow as pa

from headrace.collections import plan
from headrace.collections.expand import Expand
from headrace.types import INT4, TEXT, Diffs, Field, TimeEnd
from tests.ledger import diffs, lines

IN = (Field("a", INT4), Field("b", TEXT))
SCHEMA = (*IN, Field("b", TEXT), Field("a", INT4), Field("number", INT4))


def made(*sets: tuple[int, ...]) -> Expand:
    return Expand(plan.ExpandSpec("e", "in", (1, 0), sets, SCHEMA))


def test_keys_outside_of_a_set_are_null_and_the_columns_stay() -> None:
    expand = made((0, 1), (1,), ())
    out = expand.apply(0, diffs(IN, "+ 1 x", "-2 . y"))
    assert [line for batch in out for line in lines(batch)] == [
        "+ 1 x x 1 0", "-2 . y y . 0",
        "+ 1 x . 1 1", "-2 . y . . 1",
        "+ 1 x . . 2", "-2 . y . . 2",
    ]  # fmt: skip
    assert expand.describe() == "Expand to 3 grouping sets"


def test_a_set_given_twice_is_there_twice() -> None:
    out = made((1,), (1,)).apply(0, diffs(IN, "+ 5 x"))
    assert [line for batch in out for line in lines(batch)] == ["+ 5 x . 5 0", "+ 5 x . 5 1"]


def test_it_keeps_nothing_and_ends_with_its_input() -> None:
    expand = made((0,), ())
    assert expand.apply(0, diffs(IN)) == []
    assert len(expand.receive(0, Diffs(1, 0, diffs(IN, "+ 1 x")))) == 2
    assert expand.receive(0, TimeEnd(1, 0, 1)) == [TimeEnd(1, 0, 2)]


def test_the_columns_are_not_copied() -> None:
    batch = diffs(IN, "+ 1 x")
    one, two = made((0,), (1,)).apply(0, batch)
    assert isinstance(one, pa.RecordBatch)
    address = batch.column(0).buffers()[1].address
    assert one.column(0).buffers()[1].address == address
    assert two.column(3).buffers()[1].address == address
