"""Window: the values of the calls are Postgres' over the rows that are there."""

from __future__ import annotations

import random
from collections import Counter

import psycopg
import pytest

from headrace.collections import plan
from headrace.collections.window import Window
from headrace.errors import BugError, RowError
from headrace.expressions.remote import RemoteEvaluator
from headrace.state.memory import MemoryStore
from headrace.types import INT4, INT8, NUMERIC, TEXT, Field
from tests.ledger import diffs, lines

SCHEMA = (Field("g", INT4), Field("k", INT4), Field("n", NUMERIC), Field("v", TEXT))
CALLS = (
    ("pg_catalog.row_number()", (), INT8),
    ("pg_catalog.rank()", (), INT8),
    ("pg_catalog.lag($1, 1)", (3,), TEXT),
    ("pg_catalog.sum($1) FILTER (WHERE $2 > 0)", (2, 1), NUMERIC),
)
ORDER = (
    plan.SortKey(1, "OPERATOR(pg_catalog.>)", True, True, True),
    plan.SortKey(3, "OPERATOR(pg_catalog.<)", False, False, False),
)


@pytest.fixture
def remote(postgres):
    evaluator = RemoteEvaluator(postgres, {})
    yield evaluator
    evaluator.close()


def node(keys=(0,), order=ORDER, frame="", calls=CALLS) -> plan.Window:
    made = tuple(
        plan.WindowCall(sql, args, Field(f"c{i}", oid))
        for i, (sql, args, oid) in enumerate(calls)
    )
    schema = (*SCHEMA, *(c.result for c in made))
    return plan.Window("w", "i", keys, order, frame, made, schema)


def make(spec: plan.Window, remote) -> tuple[Window, MemoryStore]:
    store = MemoryStore()
    made = Window(spec, SCHEMA, remote)
    made.open(store)
    return made, store


def expected(dsn: str, now: Counter, spec: plan.Window) -> Counter:
    """What Postgres shows of the rows, peers in the order of their other columns."""
    names = "gknv"
    columns = ", ".join(
        sql.replace("$1", names[args[0]] if args else "").replace(
            "$2", names[args[-1]] if args else ""
        )
        + f" OVER (PARTITION BY g ORDER BY k DESC NULLS FIRST, v, n {spec.frame})"
        for sql, args, _ in CALLS
    ).replace(
        "rank() OVER (PARTITION BY g ORDER BY k DESC NULLS FIRST, v, n",
        "rank() OVER (PARTITION BY g ORDER BY k DESC NULLS FIRST, v",
    )
    rows = [row for row in now.elements()]
    values = ", ".join(["(%s::int, %s::int, %s::numeric, %s::text)"] * len(rows))
    with psycopg.connect(dsn) as conn:
        found = conn.execute(
            f"SELECT g, k, n::text, v, {columns} FROM (VALUES {values}) t(g, k, n, v)",
            [value for row in rows for value in row],
        ).fetchall()
    return Counter(tuple(None if x is None else str(x) for x in row) for row in found)


def test_partitions_follow_random_changes(postgres, remote) -> None:
    rng = random.Random(7)
    spec = node(frame="ROWS BETWEEN 1 PRECEDING AND CURRENT ROW")
    made, store = make(spec, remote)
    now: Counter = Counter()
    shown: Counter = Counter()

    def step(txid: int, changes) -> None:
        out = []
        for row, weight in changes:
            now[row] += weight
            words = " ".join("." if x is None else str(x) for x in row)
            out += made.apply(0, diffs(SCHEMA, f"{weight:+d} {words}"))
        assert out == []
        for batch in made.time_end(txid):
            for row in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                key = tuple(None if x is None else str(x) for x in row[:-1])
                shown[key] += row[-1]
        assert not -shown
        want = expected(postgres, now, spec) if any(now.values()) else Counter()
        assert +shown == want
        store.checkpoint()

    for txid in range(12):
        changes = []
        left = Counter(now)
        for _ in range(rng.randrange(6)):
            row = (
                rng.choice([None, 1, 2]),
                rng.choice([None, 1, 2]),
                rng.choice([None, "1", "2.5"]),
                rng.choice([None, "a", "b"]),
            )
            weight = max(rng.choice([-2, -1, 1, 1, 2]), -left[row])
            left[row] += weight
            if weight:
                changes.append((row, weight))
        step(txid, changes)
    step(99, [(row, -weight) for row, weight in now.items() if weight])
    assert not any(store.dump().values())


def test_several_partitions_and_statements(remote, monkeypatch) -> None:
    from headrace.expressions import windows

    monkeypatch.setattr(windows, "ROWS_PER_STATEMENT_MAX", 3)
    count = (("pg_catalog.count(*)", (), INT8),)
    made, _ = make(node(order=(), calls=count), remote)
    made.apply(
        0,
        diffs(SCHEMA, "+ 1 1 . a", "+ 1 2 . a", "+2 2 . . .", "+ . . . .", "+ 3 1 . b"),
    )
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
