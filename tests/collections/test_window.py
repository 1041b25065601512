"""Window: the values of the calls equal Postgres' over the current rows."""

from __future__ import annotations

import random
from collections import Counter
from itertools import cycle

import psycopg
import pytest

from headrace.collections import plan
from headrace.collections.window import Window
from headrace.errors import BugError, RowError
from headrace.expressions.remote import RemoteEvaluator
from headrace.state.memory import MemoryStore
from headrace.types import INT4, INT8, NUMERIC, TEXT, Field
from tests.disturbed import WAYS, Disturbed, fitting, line
from tests.ledger import diffs, lines

SCHEMA = (Field("g", INT4), Field("k", INT4), Field("n", NUMERIC), Field("v", TEXT))
CALLS = (
    ("pg_catalog.row_number()", (), INT8),
    ("pg_catalog.rank()", (), INT8),
    ("pg_catalog.lag($1, 1)", (3,), TEXT),
    ("pg_catalog.sum($1) FILTER (WHERE $2 > 0)", (2, 1), NUMERIC),
    ("pg_catalog.string_agg($1::text, ',')", (2,), TEXT),
)
LAST_TWO = "ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"
FROM_HERE = "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"
ORDER = (
    plan.SortKey(1, "OPERATOR(pg_catalog.>)", True, True, True),
    plan.SortKey(3, "OPERATOR(pg_catalog.<)", False, False, False),
)


@pytest.fixture
def remote(postgres):
    evaluator = RemoteEvaluator(postgres, {})
    yield evaluator
    evaluator.close()


def node(keys=(0,), order=ORDER, frames=("",), calls=CALLS) -> plan.WindowSpec:
    made = tuple(
        plan.WindowCallSpec(sql, args, Field(f"c{i}", oid), frame=frame)
        for (i, (sql, args, oid)), frame in zip(enumerate(calls), cycle(frames), strict=False)
    )
    schema = (*SCHEMA, *(c.result for c in made))
    return plan.WindowSpec("w", "i", keys, order, made, schema)


def make(spec: plan.WindowSpec, remote) -> tuple[Window, MemoryStore]:
    store = MemoryStore()
    made = Window(spec, SCHEMA, remote)
    made.open(store)
    return made, store


def expected(dsn: str, now: Counter, spec: plan.WindowSpec) -> Counter:
    """Return Postgres' result, with peers in the order of their other columns."""
    names = "gknv"
    columns = ", ".join(
        sql.replace("$1", names[args[0]] if args else "").replace(
            "$2", names[args[-1]] if args else ""
        )
        + " OVER (PARTITION BY g ORDER BY k DESC NULLS FIRST, v"
        + (", n" if "rank" not in sql and (made.frame or args != (2, 1)) else "")
        + f" {made.frame})"
        for (sql, args, _), made in zip(CALLS, spec.calls, strict=True)
    )
    rows = [row for row in now.elements()]
    values = ", ".join(["(%s::int, %s::int, %s::numeric, %s::text)"] * len(rows))
    with psycopg.connect(dsn) as conn:
        found = conn.execute(
            f"SELECT g, k, n::text, v, {columns} FROM (VALUES {values}) t(g, k, n, v)",
            [value for row in rows for value in row],
        ).fetchall()
    return Counter(tuple(None if x is None else str(x) for x in row) for row in found)


@pytest.mark.parametrize("frames", [(LAST_TWO,), ("", LAST_TWO, FROM_HERE), (FROM_HERE, LAST_TWO)])
@pytest.mark.parametrize("seed", range(3))
def test_partitions_follow_random_changes(postgres, remote, frames, seed) -> None:
    rng = random.Random(seed)
    spec = node(frames=frames)
    made = Disturbed(lambda: Window(spec, SCHEMA, remote), SCHEMA)
    now: Counter = Counter()
    shown: Counter = Counter()

    def step(txid: int, changes, way: str) -> None:
        rows = [(0, line(*one)) for one in changes]
        for row, weight in made.txid(txid, rows, way).items():
            shown[tuple(None if x is None else str(x) for x in row)] += weight
        assert not -shown
        want = expected(postgres, now, spec) if any(now.values()) else Counter()
        assert +shown == want

    for txid in range(12):
        changes = [
            (
                (
                    rng.choice([None, 1, 2]),
                    rng.choice([None, 1, 2]),
                    rng.choice([None, "1", "2.5"]),
                    rng.choice([None, "a", "b"]),
                ),
                rng.choice([-2, -1, 1, 1, 2]),
            )
            for _ in range(rng.randrange(6))
        ]
        step(txid, fitting(now, changes), rng.choice(WAYS))
    back = [(row, -weight) for row, weight in now.items() if weight]
    now.clear()
    step(99, back, "rows")
    assert made.left() == {}


def test_several_partitions_and_statements(remote, monkeypatch) -> None:
    from headrace.expressions import windows

    monkeypatch.setattr(windows, "ROWS_PER_STATEMENT_MAX", 3)
    count = (("pg_catalog.count(*)", (), INT8),)
    made, _ = make(node(order=(), calls=count), remote)
    made.apply(0, diffs(SCHEMA, "+ 1 1 . a", "+ 1 2 . a", "+2 2 . . .", "+ . . . .", "+ 3 1 . b"))
    assert lines(*made.time_end(0)) == [
        "+ . . . . 1",
        "+ 1 1 . a 2",
        "+ 1 2 . a 2",
        "+ 3 1 . b 1",
        "+2 2 . . . 2",
    ]
    assert made.time_end(1) == []
    assert made.describe() == "Window by (g) order (): c0"


def test_errors(remote) -> None:
    failing = (("pg_catalog.sum(1 / $1)", (1,), INT8),)
    made, _ = make(node(calls=failing), remote)
    made.apply(0, diffs(SCHEMA, "+ 1 0 . a"))
    with pytest.raises(RowError, match="division by zero"):
        made.time_end(0)
    made, _ = make(node(), remote)
    made.apply(0, diffs(SCHEMA, "- 1 1 1 a"))
    with pytest.raises(BugError, match="negative"):
        made.time_end(0)
    with pytest.raises(BugError, match="evaluator"):
        make(node(), None)


def test_a_plan_of_earlier_has_one_frame_for_all_calls() -> None:
    now = plan.PhysicalPlan((node(frames=(LAST_TWO,)),))
    earlier = plan.to_json(now)
    [window] = earlier["nodes"]
    for call in window["calls"]:
        del call["frame"]
    window["frame"] = LAST_TWO
    assert plan.from_json(earlier) == now
