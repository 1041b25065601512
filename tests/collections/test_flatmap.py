"""FlatMap: set-returning functions of a row, evaluated by Postgres."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.collections import plan
from headrace.collections.flatmap import FlatMap
from headrace.errors import BugError, RowError
from headrace.expressions import sets
from headrace.expressions.remote import RemoteEvaluator
from headrace.types import INT4, INT8, TEXT, TIMESTAMPTZ, Field
from tests.ledger import diffs, lines

SCHEMA = (Field("k", INT4), Field("v", TEXT))
N = Field("n", INT4)
WORD = Field("word", TEXT)


@pytest.fixture
def remote(postgres):
    evaluator = RemoteEvaluator(postgres, {})
    yield evaluator
    evaluator.close()


def make(remote, calls, arguments, fields, **more) -> FlatMap:
    node = plan.FlatMapSpec(
        "f",
        "i",
        calls,
        arguments,
        ordinality=more.get("ordinality", False),
        outer=more.get("outer", False),
        trusted=True,
        schema=(*SCHEMA, *fields),
    )
    return FlatMap(node, SCHEMA, remote)


def send(made: FlatMap, txid: int, *rows: str) -> list[str]:
    for row in rows:
        assert made.apply(0, diffs(SCHEMA, row)) == []
    return lines(*made.time_end(txid))


def test_rows_of_a_function_come_and_go_with_the_row(remote) -> None:
    made = make(remote, ("generate_series(1, $1)",), (0,), (N,))
    first = send(made, 0, "+ 2 a", "+2 1 b", "+ 0 c", "+ . d")
    assert first == ["+ 2 a 1", "+ 2 a 2", "+2 1 b 1"]
    assert send(made, 1, "- 1 b", "- 2 a", "+ 3 a", "- 3 a") == ["- 1 b 1", "- 2 a 1", "- 2 a 2"]
    assert send(made, 2) == []


def test_calls_in_lockstep_with_ordinality(remote) -> None:
    made = make(
        remote,
        ("generate_series(1, $1)", "string_to_table($2, ',')"),
        (0, 1),
        (N, WORD, Field("o", INT8)),
        ordinality=True,
    )
    assert send(made, 0, "+ 1 a,b") == ["+ 1 a,b . b 2", "+ 1 a,b 1 a 1"]


def test_outer_keeps_rows_that_have_none(remote) -> None:
    made = make(remote, ("string_to_table($1, ',')",), (1,), (WORD,), outer=True)
    assert send(made, 0, "+3 1 .", "+ 2 x") == ["+ 2 x x", "+3 1 . ."]


def test_a_column_definition_list(remote) -> None:
    made = make(
        remote,
        ("json_to_recordset($1::json) AS (a int, b text)",),
        (1,),
        (Field("a", INT4), Field("b", TEXT)),
    )
    rows = '[{"a":1,"b":"x"},{"b":"y"}]'
    assert send(made, 0, f"+ 1 {rows}") == [f"+ 1 {rows} . y", f"+ 1 {rows} 1 x"]


def test_without_arguments(remote) -> None:
    made = make(remote, ("generate_series(1, 2)",), (), (N,))
    assert send(made, 0, "+ 7 a", "- 8 b") == ["+ 7 a 1", "+ 7 a 2", "- 8 b 1", "- 8 b 2"]


def test_an_error_names_the_row_and_needs_a_row_that_stays(remote) -> None:
    made = make(remote, ("generate_series(1, 10, $1)",), (0,), (N,))
    assert send(made, 0, "+ 0 a", "+ 5 b", "- 0 a") == ["+ 5 b 1", "+ 5 b 6"]
    for row in ("+ 1 x", "+ 0 y", "+ 2 z"):
        made.apply(0, diffs(SCHEMA, row))
    with pytest.raises(RowError, match="step size") as caught:
        made.time_end(1)
    assert caught.value.code == "22023"
    assert "(0, y)" in (caught.value.detail or "")


def test_population_runs_at_once(remote) -> None:
    made = make(remote, ("generate_series(1, $1)",), (0,), (N,))
    made.insert_only = True
    assert lines(*made.apply(0, diffs(SCHEMA, "+ 1 a"))) == ["+ 1 a 1"]
    assert made.time_end(0) == []


def test_it_needs_an_evaluator() -> None:
    with pytest.raises(BugError):
        make(None, ("generate_series(1, $1)",), (0,), (N,))


@pytest.mark.parametrize("cached", [0, 3, 20_000])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_any_batches_and_any_cache_give_the_same(remote, monkeypatch, size, cached) -> None:
    monkeypatch.setattr(sets, "TUPLES_PER_STATEMENT_MAX", size)
    monkeypatch.setattr(sets, "CACHE_ROWS_MAX", cached)
    made = make(remote, ("generate_series(1, $1)",), (0,), (N,))
    want: Counter[str] = Counter()
    got: Counter[str] = Counter()
    for txid, numbers in enumerate([[3, 1, 0, 3], [2, 1], [3, 4, 0, 1, 1]]):
        rows = [f"+ {n} r{i}" for i, n in enumerate(numbers)]
        want.update(f"+ {n} r{i} {m + 1}" for i, n in enumerate(numbers) for m in range(n))
        got.update(send(made, txid, *rows))
    assert got == want


def test_captured_settings_hold_inside_and_output_is_pinned(postgres) -> None:
    evaluator = RemoteEvaluator(postgres, {"TimeZone": "America/New_York"})
    made = make(
        evaluator,
        ("generate_series($1::timestamp::timestamptz, '2024-01-02', '1 day')",),
        (1,),
        (Field("t", TIMESTAMPTZ),),
    )
    made.apply(0, diffs(SCHEMA, "+ 1 2024-01-01"))
    [batch] = made.time_end(0)
    # Midnight in New York, microseconds since 2000 in UTC.
    hours = [value // 3_600_000_000 for value in batch.column(2).to_pylist()]
    assert [hour % 24 for hour in hours] == [5, 5]
    evaluator.close()
