"""Expressions that may fail, and the reason why they wait for the TimeEnd."""

from __future__ import annotations

import itertools

import pytest

from headrace import clock
from headrace.collections import plan, steps
from headrace.collections.dataflow import Dataflow
from headrace.collections.steps import MapStep, may_raise, rank
from headrace.errors import RowError
from headrace.expressions.ir import Remote
from headrace.state.memory import MemoryStore
from headrace.types import INT4, Field
from tests.ledger import diffs, lines
from tests.plans import col, finish, join, native, number, table
from tests.streams import INSERT, UPDATE, Op

QUOTIENT = native("/", number(12), native("-", col(1), col(5), oid=INT4), oid=INT4)


def test_what_may_fail() -> None:
    compare = native("and", native("<", col(0), number(1)), native("is_null", col(1)))
    assert not may_raise(compare)
    assert may_raise(native("=", QUOTIENT, number(1)))
    assert may_raise(native("no such operator", col(0)))
    assert may_raise(Remote("f($1)", (col(0),), INT4))


@pytest.mark.parametrize("residual", [False, True], ids=["map", "join residual"])
def test_a_half_done_transaction_fails_nothing(residual) -> None:
    one, two = table(1), table(2)
    a, b = one.source("a"), two.source("b")
    if residual:
        joined = join("j", a, b, (0,), (0,), (native(">", QUOTIENT, number(0)),))
        view = finish(a, b, joined)
    else:
        joined = join("j", a, b, (0,), (0,))
        out = plan.MapSpec("m", "j", (QUOTIENT,), (Field("q", INT4),))
        view = finish(a, b, joined, out)
    flow = Dataflow(view, MemoryStore(), None, 0)
    flow.end(0)
    rows = [("1", k, "x", "1") for k in ("3", "1", "5", "3")]
    flow.ingest(1, one.changes([Op(INSERT, rows[0])]))
    flow.ingest(2, two.changes([Op(INSERT, rows[1])]))
    first = lines(flow.end(1))
    # One transaction: a.k 3 -> 5 and b.k 1 -> 3.  Were b changed first, 3 - 3 would be seen.
    flow.ingest(2, two.changes([Op(UPDATE, rows[3], rows[1])]))
    flow.ingest(1, one.changes([Op(UPDATE, rows[2], rows[0])]))
    second = lines(flow.end(2))
    if residual:
        assert first == ["+ 1 3 x 1 1 1 x 1"]
        assert second == ["+ 1 5 x 1 1 3 x 1", "- 1 3 x 1 1 1 x 1"]
    else:
        assert (first, second) == (["+ 6"], [])


def test_an_error_names_its_row() -> None:
    schema = (Field("id", INT4), Field("k", INT4))
    expression = native("/", number(1), col(1), oid=INT4)
    made = MapStep((expression,), (Field("q", INT4),), None)
    with pytest.raises(RowError, match="division by zero") as caught:
        made.run(diffs(schema, "+ 1 2", "+ 7 0", "+ . 0"))
    assert caught.value.code == "22012"
    assert caught.value.detail == "The row is (id, k) = (7, 0)."


def test_a48_tests_that_commute_come_by_what_they_let_pass_and_cost() -> None:
    few, many = rank(0.1, 1), rank(0.9, 1)
    assert few > many
    # The cost of a row: the first test, and the second one for rows that pass the first.
    assert pytest.approx(1.1) == 1 + 0.1 * 1
    assert pytest.approx(1.9) == 1 + 0.9 * 1
    assert rank(0.5, 1) > rank(0.5, 100)
    assert rank(0.5, 0) > few


def test_a48_a_filter_finds_the_order_and_shows_nobody_more_rows(monkeypatch) -> None:
    """Only adjacent tests that cannot fail are reordered."""
    monkeypatch.setattr(steps, "_ORDER_ROWS", 100)
    # All have the same cost here: their selectivity decides.
    now = itertools.count()
    monkeypatch.setattr(clock, "monotonic", lambda: next(now))
    schema = (Field("x", INT4), Field("y", INT4))
    most = native("<", col(0), number(90))
    least = native("=", col(1), number(0))
    barrier = native(">", native("/", number(6), col(0), oid=INT4), number(-1))
    half = native("<", col(0), number(50))
    step = steps.FilterStep((most, least, barrier, half), None)
    seen: list[tuple[int, int]] = []
    run_program = steps.run_program

    def spied(program, batch):
        seen.append((order.index(program), batch.num_rows))
        return run_program(program, batch)

    monkeypatch.setattr(steps, "run_program", spied)
    order = [test.program for run in step._runs for test in run]
    rows = diffs(schema, *(f"+ {x} {x % 10}" for x in range(1, 101)))
    expected = ["+ 10 0", "+ 20 0", "+ 30 0", "+ 40 0"]
    for _ in range(4):
        assert sorted(lines(step.run(rows))) == expected
    # The first batch has the order of the query; from the second batch on the most selective test
    # is first. The test that may fail has seen the same rows each time, and so have later tests.
    assert seen[:4] == [(0, 100), (1, 89), (2, 8), (3, 8)]
    assert seen[-4:] == [(1, 100), (0, 10), (2, 8), (3, 8)]
