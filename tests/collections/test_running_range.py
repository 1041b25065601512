"""Ranges of a running window have together the same rows and state as the whole window."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pyarrow as pa
import pytest

from headrace.collections.base import columns_of, keys_of
from headrace.collections.running import Running
from headrace.collections.running_range import (
    DECODER,
    RangeStart,
    RangeSummary,
    RunningRange,
    RunningSummary,
    starts,
)
from headrace.collections.sorting import Sorter
from headrace.errors import BugError, RowError
from headrace.kernels import packed, packed_order, restart_points
from headrace.state.memory import MemoryStore
from tests.collections.test_running import CALLS, ROWS, SCHEMA, UP, node
from tests.disturbed import line
from tests.ledger import diffs

DOWN = msgspec.structs.replace(UP, descending=True, nulls_first=True)
NUMBERS = [None, "1", "1.0", "-2.50", "3", "99999999999999999999.5", "NaN", "Infinity", "-Infinity"]


def drawn(dice: random.Random, count: int) -> Counter:
    """Return rows with ties, NULLs and special numbers, some with few or only one peer group."""
    places = [None, *range(dice.choice((1, 3, 40, 400)))]
    numbers = NUMBERS[: dice.choice((5, 6, 9))]
    found: Counter = Counter()
    for _ in range(count):
        one = (
            dice.choice([None, 1, 1, 1, 1, 2]),
            dice.choice(places),
            dice.choice(numbers),
            dice.choice([None, "a", "b"]),
            dice.choice([None, True, False]),
        )
        found[one] += dice.choice([1, 1, 1, 2, 40])
    return found


def batch_of(given: Counter) -> pa.RecordBatch:
    return diffs(SCHEMA, *(line(*one) for one in given.items()))


def run(made: Running, given: Counter, store: MemoryStore) -> list[pa.RecordBatch]:
    made.open(store)
    made.insert_only = True
    for batch in (batch_of(given).slice(low, 50) for low in range(0, len(given), 50)):
        made.apply(0, batch)
    return made.time_end(0)


def counted(batches: list[pa.RecordBatch]) -> Counter:
    found: Counter = Counter()
    for batch in batches:
        for *values, weight in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            found[tuple(values)] += weight
    return found


def divided(spec, given: Counter, parts: int, dice: random.Random) -> list[Counter]:
    """Divide rows at random into ranges; peers stay together."""
    columns, count = columns_of(batch_of(given)), len(given)
    keys = keys_of([columns[i] for i in spec.keys], [SCHEMA[i].oid for i in spec.keys], count)
    orders = Sorter(SCHEMA, spec.keys, spec.order, None).orders(columns, count)
    both = packed.appended(keys, orders)
    splitters = sorted(dice.choices(both.strings(), k=parts - 1))
    out: list[Counter] = [Counter() for _ in range(parts)]
    places = packed_order.bisected(both, packed.pack(splitters)).tolist()
    for place, (one, weight) in zip(places, given.items(), strict=True):
        out[place][one] = weight
    return out


def summaries(spec, ranges: list[Counter]) -> list[RangeSummary]:
    found = []
    for number, some in enumerate(ranges):
        store = MemoryStore(undo=False)
        for batch in run(RunningSummary(spec, SCHEMA, f"k{number}"), some, store):
            texts = batch.column(0).to_pylist()
            found += [DECODER.decode(text) for text in texts]
        assert store.dump() == {}
    return found


def compare(spec, given: Counter, parts: int, dice: random.Random) -> None:
    whole, ranges = MemoryStore(undo=False), divided(spec, given, parts, dice)
    want = counted(run(Running(spec, SCHEMA), given, whole))
    started = starts(spec, SCHEMA, summaries(spec, ranges))
    assert started is not None
    found, state = Counter(), {name: [] for name in ("w", "w.out")}
    for number, some in enumerate(ranges):
        store = MemoryStore(undo=False)
        start = started.get(f"k{number}", RangeStart())
        assert (f"k{number}" in started) == bool(some)
        found.update(counted(run(RunningRange(spec, SCHEMA, start), some, store)))
        for name, pairs in store.dump().items():
            state[name] += pairs
    assert found == want
    assert {name: sorted(pairs) for name, pairs in state.items()} == whole.dump()


@pytest.mark.parametrize(
    "seed", [*range(150), *(pytest.param(n, marks=pytest.mark.slow) for n in range(150, 600))]
)
def test_the_same_as_the_whole(seed, monkeypatch) -> None:
    dice = random.Random(seed)
    least, most = dice.choice([(1, 1), (3, 6), (12, 32)])
    monkeypatch.setattr(restart_points, "LEAST", least)
    monkeypatch.setattr(restart_points, "MOST", most)
    names = dice.sample(sorted(CALLS), dice.randint(1, 5))
    frames = dice.choice([("",), (ROWS,), ("", ROWS)])
    spec = node(names, (dice.choice((UP, DOWN)),), frames, dice.choice([(), (0,)]))
    given = drawn(dice, dice.choice((1, 2, 10, 120, 400)))
    compare(spec, given, dice.choice((2, 3, 8, 30)), dice)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_each_function(name) -> None:
    dice = random.Random(name)
    for _ in range(4):
        for frame in ("", ROWS):
            compare(node([name], frames=(frame,)), drawn(dice, 150), 6, dice)


def test_rows_that_cancel_out_are_in_no_range() -> None:
    spec = node(["row_number", "dense_rank"])
    made, store = RunningSummary(spec, SCHEMA, "k0"), MemoryStore()
    made.open(store)
    made.apply(0, diffs(SCHEMA, "+ 1 1 1 a t", "- 1 2 1 a t"))
    made.apply(0, diffs(SCHEMA, "- 1 1 1 a t", "+ 1 2 1 a t"))
    assert made.time_end(0) == []
    made.apply(0, diffs(SCHEMA, "- 1 1 1 a t"))
    with pytest.raises(BugError, match="negative weight"):
        made.time_end(1)


def test_a_sum_of_a_range_that_is_out_of_range_gives_no_start() -> None:
    """The sum of all earlier rows may be in range, so another way has to decide."""
    spec, big = node(["sum n"]), "9" * 131_072
    low, high = (Counter({(1, k, n, None, None): 1}) for k, n in ((1, f"-{big}"), (2, big)))
    high[(1, 3, big, None, None)] = 1
    found = summaries(spec, [low, high])
    assert [each.values is None for each in found] == [False, True]
    assert starts(spec, SCHEMA, found) is None
    apart = summaries(spec, [Counter({one: 1}) for one in high])
    assert starts(spec, SCHEMA, apart[:1]) is not None
    assert starts(spec, SCHEMA, apart) is None
    with pytest.raises(RowError):
        run(Running(spec, SCHEMA), high, MemoryStore())
    run(Running(spec, SCHEMA), low + high, MemoryStore())
