"""Union: the multiset sum of its inputs."""

from __future__ import annotations

from headrace.collections import plan
from headrace.collections.union import Union
from headrace.types import INT4, Diffs, Field, TimeEnd
from tests.ledger import diffs, lines

SCHEMA = (Field("x", INT4),)


def test_every_input_passes_under_the_names_of_the_union() -> None:
    made = Union(plan.UnionSpec("u", ("a", "b"), SCHEMA))
    other = (Field("another", INT4),)
    assert lines(*made.apply(0, diffs(SCHEMA, "+ 1"))) == ["+ 1"]
    (out,) = made.apply(1, diffs(other, "+ 1", "-2 ."))
    assert lines(out) == ["+ 1", "-2 ."]
    assert out.schema.names == ["x", "__weight"]
    assert made.describe() == "Union (2 inputs)"


def test_it_ends_with_its_last_input() -> None:
    made = Union(plan.UnionSpec("u", ("a", "b"), SCHEMA))
    assert made.receive(0, TimeEnd(1, 0)) == []
    assert len(made.receive(1, Diffs(1, 0, diffs(SCHEMA, "+ 1")))) == 1
    assert made.receive(1, TimeEnd(1, 0, 1)) == [TimeEnd(1, 0, 1)]
