"""Partial aggregates of frequent groups, merged with other rows, against a reduce of all rows."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headrace.collections import combined_reduce, plan
from headrace.collections.combined_reduce import FREQUENT, CombinedReduce, FrequentGroups
from headrace.collections.plan import AggregateSpec
from headrace.collections.reduce import Reduce
from headrace.kernels import text
from headrace.state.memory import MemoryStore
from headrace.types import (
    BOOL,
    DATE,
    FLOAT8,
    INT4,
    INT8,
    NUMERIC,
    TEXT,
    Diffs,
    Field,
    TimeEnd,
    diff_batch,
)

IN = (
    Field("k", INT4),
    Field("d", DATE),
    Field("t", TEXT),
    Field("n", NUMERIC),
    Field("f", FLOAT8),
    Field("i", INT8),
    Field("b", BOOL),
)
VALUES = (
    ("1", "2", None),
    ("2024-01-01", "infinity"),
    ("", "a", "ä", None),
    ("1.5", "1.50", "-0.001", "12345678901234567890.123", "NaN", "Infinity", "-Infinity", None),
    ("0.1", "-0", "1e300", "-1e300", "1e-300", "NaN", "Infinity", None),
    ("9223372036854775807", "-9223372036854775808", "3", None),
    ("t", "f", None),
)
CALLS = [
    *(AggregateSpec(function, column, filter_, Field("r", oid))
      for filter_ in (None, 6)
      for function, column, oid in (
        ("count_star", None, INT8), ("count", 3, INT8), ("sum", 3, NUMERIC), ("avg", 3, NUMERIC),
        ("var_samp", 3, NUMERIC), ("sum", 4, FLOAT8), ("avg", 4, FLOAT8), ("sum", 5, NUMERIC),
        ("avg", 0, NUMERIC), ("bool_and", 6, BOOL), ("bool_or", 6, BOOL), ("stddev_pop", 5, NUMERIC),
      )),
]  # fmt: skip


def node(rng: random.Random) -> plan.ReduceSpec:
    keys = tuple(rng.sample((0, 1, 2), rng.randint(1, 3)))
    calls = tuple(rng.sample(CALLS, rng.randint(0, 5)))
    always = (tuple("2024-01-01" if key == 1 else "1" for key in keys),)
    shown = (*(IN[i] for i in keys), *(call.result for call in calls))
    return plan.ReduceSpec("r", "in", keys, calls, shown, always=rng.choice(((), always)))


def rows(rng: random.Random, count: int) -> pa.RecordBatch:
    """Return random rows, of which most are in one group."""
    skew, plain = rng.choice((0, 0.5, 0.95, 1)), rng.random() < 0.5

    def value(place: int) -> str | None:
        if place < 3 and rng.random() < skew:
            return VALUES[place][-1]
        if place == 0:
            return str(rng.randrange(1000))
        return rng.choice(VALUES[place][:2] if plain else VALUES[place])

    columns = [
        text.parse(pa.array([value(place) for _ in range(count)], pa.string()), field.oid)
        for place, field in enumerate(IN)
    ]
    weights = [1 if rng.random() < 0.9 else rng.randint(2, 5) for _ in range(count)]
    return diff_batch(IN, columns, pa.array(weights, pa.int64()))


def shown(made: Reduce, messages: list[tuple[int, pa.RecordBatch]]) -> list[str]:
    made.insert_only = True
    sent = [0] * made.ports
    for port, batch in messages:
        sent[port] += batch.num_rows
        assert made.receive(port, Diffs(0, 0, batch)) == []
    out = [m for port in range(made.ports) for m in made.receive(port, TimeEnd(0, 0, sent[port]))]
    batches = [m.batch for m in out if isinstance(m, Diffs)]
    return sorted(
        str(row) for b in batches for row in zip(*(c.to_pylist() for c in b.columns), strict=True)
    )


@pytest.mark.parametrize("seed", range(60))
def test_any_division_gives_the_same_rows_and_state(seed):
    rng = random.Random(seed)
    spec, stores = node(rng), (MemoryStore(undo=False), MemoryStore(undo=False))
    assert combined_reduce.is_combinable(spec, IN)
    tasks = [
        [rows(rng, rng.choice((0, 1, FREQUENT - 1, 300, 3000))) for _ in range(rng.randint(1, 3))]
        for _ in range(rng.randint(1, 4))
    ]
    sent: list[tuple[int, pa.RecordBatch]] = []
    for batches in tasks:
        groups = FrequentGroups(spec, IN)
        sent += [(0, groups.rest(batch)) for batch in batches]
        sent += [(1, batch) for batch in groups.partials()]
    rng.shuffle(sent)
    whole, combined = Reduce(spec, IN, None), CombinedReduce(spec, IN, None)
    for made, store in zip((whole, combined), stores, strict=True):
        made.open(store)
    want = shown(whole, [(0, batch) for batches in tasks for batch in batches])
    assert shown(combined, sent) == want
    assert stores[1].dump() == stores[0].dump()


@pytest.mark.parametrize("period", [1, 2, 8, 16])
def test_frequent_groups_are_added_up_and_others_are_sent(period):
    count = 4096
    keys = [i % period if i % 4 else 10_000 + i for i in range(count)]
    columns = [pa.array(keys, pa.int32())]
    fields = (Field("k", INT4),)
    batch = diff_batch(fields, columns, pa.array(np.ones(count, np.int64)))
    calls = (AggregateSpec("count_star", None, None, Field("n", INT8)),)
    spec = plan.ReduceSpec("r", "in", (0,), calls, (*fields, calls[0].result))
    groups = FrequentGroups(spec, fields)
    rest = groups.rest(batch)
    frequent = {k for k in keys if keys.count(k) >= FREQUENT}
    assert rest.column(0).to_pylist() == [k for k in keys if k not in frequent]
    [partial] = groups.partials()
    assert set(partial.column(0).to_pylist()) == frequent
    assert groups.partials() == []


@pytest.mark.parametrize("oid", [NUMERIC, FLOAT8, 1186, 1042, 3802])
def test_keys_of_several_forms_are_left_out(oid):
    """Of numerics, floats, intervals, char(n) and jsonb, equal values may look different."""
    for fields, expected in (((Field("k", oid), IN[0]), False), ((IN[0], IN[1]), True)):
        spec = plan.ReduceSpec("r", "in", (0, 1), (), fields)
        assert combined_reduce.is_combinable(spec, fields) == expected
        assert not combined_reduce.is_combinable(msgspec.structs.replace(spec, keys=()), fields)
