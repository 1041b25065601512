"""Distinct: each row once, shown as the least of its representations."""

from __future__ import annotations

import pytest

from headrace.collections import plan
from headrace.collections.distinct import Distinct
from headrace.errors import BugError
from headrace.state.memory import MemoryStore
from headrace.types import INT4, NUMERIC, TEXT, Field
from tests.ledger import diffs, lines

SCHEMA = (Field("k", INT4), Field("v", TEXT))
NUMBERS = (Field("n", NUMERIC),)


def make(schema) -> tuple[Distinct, MemoryStore]:
    store = MemoryStore()
    made = Distinct(plan.DistinctSpec("d", "i", schema))
    made.open(store)
    return made, store


def send(made: Distinct, txid: int, *rows: str) -> list[str]:
    for row in rows:
        assert made.apply(0, diffs(made.schema, row)) == []
    return lines(*made.time_end(txid))


def test_rows_appear_once_and_go_with_the_last() -> None:
    made, store = make(SCHEMA)
    assert send(made, 0, "+2 1 a", "+ . .", "+ . .") == ["+ . .", "+ 1 a"]
    assert send(made, 1, "- 1 a", "- . .", "+ 1 b") == ["+ 1 b"]
    assert send(made, 2, "- 1 a", "- . .") == ["- . .", "- 1 a"]
    assert send(made, 3) == []
    assert send(made, 4, "- 1 b", "+ 1 b") == []
    assert send(made, 5, "- 1 b") == ["- 1 b"]
    assert store.dump() == {"d": []}


def test_order_within_a_txid_is_irrelevant() -> None:
    made, store = make(SCHEMA)
    assert send(made, 0, "- 1 a", "-2 2 b", "+ 1 a", "+3 2 b") == ["+ 2 b"]
    store.checkpoint()


def test_the_least_representation_is_shown() -> None:
    made, _ = make(NUMBERS)
    assert send(made, 0, "+ 1.00", "+ 1.0", "+ 2") == ["+ 1.0", "+ 2"]
    assert send(made, 1, "+ 1") == ["+ 1", "- 1.0"]
    assert send(made, 2, "- 1.0", "- 1") == ["+ 1.00", "- 1"]
    assert send(made, 3, "- 1.00") == ["- 1.00"]


def test_rows_without_columns() -> None:
    made, _ = make(())
    assert send(made, 0, "+3") == ["+"]
    assert send(made, 1, "-2") == []
    assert send(made, 2, "-") == ["-"]


def test_a_negative_sum_is_a_bug() -> None:
    made, _ = make(SCHEMA)
    with pytest.raises(BugError, match="negative"):
        send(made, 0, "- 1 a")
