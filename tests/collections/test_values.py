"""Values: constant rows, once."""

from __future__ import annotations

import pytest

from headrace.collections import plan
from headrace.collections.given import Values
from headrace.errors import BugError
from headrace.types import BOOL, FLOAT8, INT4, TEXT, Field
from tests.ledger import diffs, lines

SCHEMA = (Field("x", INT4), Field("v", TEXT), Field("b", BOOL), Field("f", FLOAT8))


def test_rows_come_at_txid_0_only() -> None:
    rows = (("1", "a", "t", "0.5"), (None, None, None, None), ("1", "a", "t", "0.5"))
    made = Values(plan.ValuesSpec("v", rows, SCHEMA))
    assert lines(*made.time_end(0)) == ["+ . . . .", "+ 1 a True 0.5", "+ 1 a True 0.5"]
    assert made.time_end(1) == []
    # A view restored at a later txid has had them.
    assert Values(plan.ValuesSpec("v", rows, SCHEMA)).time_end(8) == []
    assert made.describe() == "Values (3 rows)"


def test_one_row_without_columns() -> None:
    made = Values(plan.ValuesSpec("v", ((),), ()))
    assert lines(*made.time_end(0)) == ["+"]


def test_it_has_no_input() -> None:
    made = Values(plan.ValuesSpec("v", (), SCHEMA))
    assert made.time_end(0) == []
    with pytest.raises(BugError):
        made.apply(0, diffs(SCHEMA, "+ 1 a t 1"))
