"""Running: window functions that are maintained per change equal those over all rows."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from itertools import cycle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections import plan, running
from headrace.collections.base import keys_of
from headrace.collections.plan import SortKey
from headrace.collections.running import Running
from headrace.collections.running_calls import Calls, Carried
from headrace.errors import BugError, RowError
from headrace.kernels import order as order_kernel
from headrace.kernels import packed, restart_points, rows
from headrace.kernels import running as kernel
from headrace.kernels.restart_points import Points
from headrace.state.memory import MemoryStore
from headrace.types import BOOL, INT4, INT8, NUMERIC, TEXT, Field
from tests.amounts import examples
from tests.disturbed import WAYS, Disturbed, fitting, line
from tests.ledger import diffs, lines

SCHEMA = (
    Field("g", INT4),
    Field("k", INT4),
    Field("n", NUMERIC),
    Field("v", TEXT),
    Field("b", BOOL),
)
ROWS = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
UP = SortKey(1, "OPERATOR(pg_catalog.<)", False, False, True)
CALLS = {
    "row_number": (plan.RunningSpec("row_number"), INT8),
    "rank": (plan.RunningSpec("rank"), INT8),
    "dense_rank": (plan.RunningSpec("dense_rank"), INT8),
    "lag": (plan.RunningSpec("lag", 3, None, 1), TEXT),
    "lag2": (plan.RunningSpec("lag", 1, None, 2, "-1"), INT4),
    "lead": (plan.RunningSpec("lead", 3, None, 1), TEXT),
    "lead2": (plan.RunningSpec("lead", 1, None, 2, "7"), INT4),
    "first": (plan.RunningSpec("first_value", 3), TEXT),
    "last": (plan.RunningSpec("last_value", 3), TEXT),
    "count": (plan.RunningSpec("count"), INT8),
    "count n": (plan.RunningSpec("count", 2, 4), INT8),
    "sum k": (plan.RunningSpec("sum", 1, 4), INT8),
    "sum n": (plan.RunningSpec("sum", 2), NUMERIC),
    "min": (plan.RunningSpec("min", 2), NUMERIC),
    "max": (plan.RunningSpec("max", 1, 4), INT4),
    "max n": (plan.RunningSpec("max", 2), NUMERIC),
    "sum of 3": (plan.RunningSpec("sum", 2, 4, frame=(-2, 0)), NUMERIC),
    "sum k of 3": (plan.RunningSpec("sum", 1, frame=(1, 3)), INT8),
    "count of 4": (plan.RunningSpec("count", 2, 4, frame=(-1, 2)), INT8),
    "count before": (plan.RunningSpec("count", frame=(-3, -2)), INT8),
    "min of 3": (plan.RunningSpec("min", 2, frame=(-1, 1)), NUMERIC),
    "max before": (plan.RunningSpec("max", 1, 4, frame=(-4, -1)), INT4),
    "first of 3": (plan.RunningSpec("first_value", 3, frame=(-2, 0)), TEXT),
    "last after": (plan.RunningSpec("last_value", 3, frame=(1, 2)), TEXT),
    "one": (plan.RunningSpec("sum", 2, frame=(0, 0)), NUMERIC),
}


def node(names, order=(UP,), frames=("",), keys=(0,)) -> plan.WindowSpec:
    calls = tuple(
        plan.WindowCallSpec("", (), Field(name, CALLS[name][1]), True, CALLS[name][0], frame)
        for name, frame in zip(names, cycle(frames), strict=False)
    )
    schema = (*SCHEMA, *(c.result for c in calls))
    return plan.WindowSpec("w", "i", keys, order, calls, schema)


def make(spec: plan.WindowSpec) -> tuple[Running, MemoryStore]:
    assert spec.native
    store = MemoryStore()
    made = Running(spec, SCHEMA)
    made.open(store)
    return made, store


def sort_key(row, spec) -> list[Any]:
    return [(row[1] is None, row[1] or 0)] if spec.order else []


def tiebreak(row, spec) -> list[Any]:
    """Return the sort key of the other columns: their values, then their texts."""
    used = {*spec.keys, *(item.column for item in spec.order)}
    plain = [
        (v is None, Decimal(v) if i == 2 and v else v or ("" if i == 3 else 0))
        for i, v in enumerate(row)
        if i not in used
    ]
    looks = "" if row[2] is None else row[2]
    return [plain, len(looks), looks]


def expected(now: Counter, spec: plan.WindowSpec) -> Counter:
    """Compute the result by a scan of all rows for every row."""
    parts: dict[Any, list[Any]] = {}
    for row in now.elements():
        parts.setdefault(row[0] if spec.keys else None, []).append(row)
    out: Counter = Counter()
    for members in parts.values():
        ordered = sorted(members, key=lambda r: (sort_key(r, spec), tiebreak(r, spec)))
        for at, row in enumerate(ordered):
            values = [call(c, spec, ordered, at) for c in spec.calls]
            out[(*row, *values)] += 1
    return out


def call(made: plan.WindowCallSpec, spec: plan.WindowSpec, ordered, at: int) -> Any:  # noqa: C901  one case per function
    one = made.running
    assert one is not None
    keys = [sort_key(r, spec) for r in ordered]
    first = keys.index(keys[at])
    last = max(i for i, k in enumerate(keys) if k == keys[at])
    name, column = one.function, one.argument
    if name == "row_number":
        return at + 1
    if name == "rank":
        return first + 1
    if name == "dense_rank":
        return len({str(k) for k in keys[: at + 1]})
    if name in ("lag", "lead"):
        other = at - one.distance if name == "lag" else at + one.distance
        if 0 <= other < len(ordered):
            return ordered[other][column]
        return int(one.default) if one.default is not None else None
    frame = ordered[: (at if made.frame else last) + 1]
    if one.frame is not None:
        begin, end = (max(0, at + reach) for reach in (one.frame[0], one.frame[1] + 1))
        frame = ordered[begin:end]
    if name in ("first_value", "last_value"):
        return (frame[0] if name == "first_value" else frame[-1])[column] if frame else None
    if one.condition is not None:
        frame = [r for r in frame if r[one.condition]]
    if name == "count" and column is None:
        return len(frame)
    values = [r[column] for r in frame if r[column] is not None]
    if name == "count":
        return len(values)
    if not values:
        return None
    if column == 2:
        numbers = [Decimal(v) for v in values]
        if name == "sum":
            return str(sum(numbers))
        best = {"min": min, "max": max}[name](numbers)
        # Postgres keeps the last of equal values.
        return [v for v, d in zip(values, numbers, strict=True) if d == best][-1]
    return {"sum": sum, "min": min, "max": max}[name](values)


row = st.tuples(
    st.sampled_from([None, 1]),
    st.sampled_from([None, 1, 2, 3, 4, 5]),
    st.sampled_from([None, "1", "1.0", "-2.50"]),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, True, False]),
)
txids = st.lists(
    st.tuples(
        st.lists(st.tuples(row, st.sampled_from([-2, -1, 1, 1, 2])), max_size=5),
        st.sampled_from(WAYS),
    ),
    max_size=7,
)


@examples(200)
@given(
    stream=txids,
    names=st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=4, unique=True),
    frames=st.sampled_from([("",), (ROWS,), ("", ROWS), (ROWS, "")]),
    order=st.sampled_from([(), (UP,), (UP,)]),
    keys=st.sampled_from([(), (0,)]),
    page=st.sampled_from([1, 2, 3, 128]),
)
def test_equals_the_whole(stream, names, frames, order, keys, page) -> None:
    equals_the_whole(node(names, order, frames, keys), stream, page)


@pytest.mark.parametrize(
    "seed", [*range(80), *(pytest.param(n, marks=pytest.mark.slow) for n in range(80, 1500))]
)
def test_equals_the_whole_in_longer_streams(seed) -> None:
    """Partitions of several pages, of which rows come back to the places of others."""
    dice = random.Random(seed)
    names = dice.sample(sorted(CALLS), dice.randint(1, 4))
    frames = dice.choice([("",), (ROWS,), ("", ROWS)])
    spec = node(names, dice.choice([(), (UP,), (UP,)]), frames, dice.choice([(), (0,)]))
    places = [None, *range(dice.choice((2, 6, 30)))]
    numbers = [None, "1", "1.0", "-2.50", "3", "99999999999999999999.5"]

    def drawn() -> tuple[object, ...]:
        texts, flags = (None, "a", "b"), (None, True, False)
        return (
            dice.choice((1, 2)),
            dice.choice(places),
            dice.choice(numbers),
            dice.choice(texts),
            dice.choice(flags),
        )

    stream = []
    for _ in range(dice.randint(2, 14)):
        count = dice.choice((1, 2, 5, 25))
        changes = [(drawn(), dice.choice((-2, -1, 1, 1, 2))) for _ in range(count)]
        stream.append((changes, dice.choice(WAYS)))
    equals_the_whole(spec, stream, dice.choice((1, 2, 3, 8, 128)))


@pytest.mark.parametrize("seed", range(60))
def test_equals_the_whole_after_each_change(seed, monkeypatch) -> None:
    """Few calls, so that lines soon equal those without the change; restart points everywhere."""
    dice = random.Random(seed)
    least, most = dice.choice([(1, 1), (1, 3), (3, 6)])
    monkeypatch.setattr(restart_points, "LEAST", least)
    monkeypatch.setattr(restart_points, "MOST", most)
    places = dice.choice((12, 100))
    weak = ["rank", "dense_rank", "lag", "lag2", "lead2", "last", "min", "max", "count n"]
    weak += [name for name, (spec, _) in CALLS.items() if spec.frame]
    spec = node(dice.sample(weak, dice.choice((1, 1, 2))), (UP,), dice.choice([("",), (ROWS,)]), ())

    def drawn(weight: int) -> tuple[tuple[object, ...], int]:
        texts, flags = (None, "a", "b"), (None, True, False)
        numbers = (None, "1", "1.0", "-2.50")
        place = dice.randrange(places)
        return (1, place, dice.choice(numbers), dice.choice(texts), dice.choice(flags)), weight

    stream = [([drawn(1) for _ in range(40)], "whole")]
    for _ in range(25):
        changes = [drawn(dice.choice((-1, 1))) for _ in range(dice.choice((1, 2)))]
        stream.append((changes, dice.choice(WAYS)))
    equals_the_whole(spec, stream, dice.choice((3, 8, 128)))


def equals_the_whole(spec, stream, page) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "_PAGE_ROWS", page)
        patch.setattr(running, "_PAGES_ROWS_MAX", max(page, 2))
        made = Disturbed(lambda: Running(spec, SCHEMA), SCHEMA)
        now: Counter = Counter()
        shown: Counter = Counter()
        for txid, (changes, way) in enumerate(stream):
            rows = [(0, line(*one)) for one in fitting(now, changes)]
            shown.update(made.txid(txid, rows, way))
            assert not -shown
            assert +shown == expected(now, spec)
        back = [(0, line(one, -weight)) for one, weight in now.items() if weight]
        shown.update(made.txid(99, back, "rows"))
        assert not any(shown.values())
        assert made.left() == {}


def with_a_point_at_each_line(store: MemoryStore, spec: plan.WindowSpec) -> None:
    """Replace the restart points as version 0.2 stored them: one at each line."""
    keys = keys_of([pa.array([1, 2], pa.int32())], [INT4], 2)
    entries_of, points_of = store.index("w"), store.index("w.out")
    at, found, weights = points_of.scan_many(keys)
    points_of.add_many(keys.take(at), found, -weights)
    at, entries, weights = entries_of.scan_many(keys)
    orders, encoded = order_kernel.split(entries)
    calls, count = Calls(spec, SCHEMA), len(keys)
    none, zeros = np.zeros(0, np.int64), np.zeros(2 * count, np.int64)
    weights = np.concatenate((np.zeros_like(weights), weights))
    begins = np.searchsorted(at, np.arange(count + 1))
    lines = kernel.lines(begins, orders, weights, np.zeros(count, np.uint8), 0)
    before = calls.resumed(packed.empty(0), none, count, packed.empty(0), none)
    done = calls.computed(lines, encoded, weights, zeros, before)
    numbers = done.numbers if calls.numbered else np.zeros_like(lines.entry)
    shown = entries.take(lines.entry)
    rows = restart_points.stored(Points(shown, lines.copy, done.encoded(), numbers))
    points_of.add_many(keys.take(lines.half - count), rows, np.ones_like(lines.half))


@pytest.mark.parametrize("seed", range(60))
def test_restart_points_of_each_line_are_read_and_become_fewer(seed) -> None:
    dice = random.Random(seed)
    names = dice.sample(sorted(CALLS), dice.randint(1, 3))
    spec = node(names, dice.choice([(), (UP,), (UP,)]), dice.choice([("",), (ROWS,)]))
    made, store = make(spec)

    def points() -> int:
        keys = keys_of([pa.array([1, 2], pa.int32())], [INT4], 2)
        return len(store.index("w.out").scan_many(keys)[0])

    now: Counter = Counter()
    shown: Counter = Counter()
    for txid in range(6):
        changes = [
            ((dice.choice((1, 2)), dice.randrange(40), "1", None, True), dice.choice((-1, 1, 2)))
            for _ in range(dice.choice((1, 3, 60)))
        ]
        if txid == 5:
            changes = [((part, -1, "1", None, True), 1) for part in (1, 2)]
        rows = [line(*one) for one in fitting(now, changes)]
        made.apply(0, diffs(SCHEMA, *rows))
        for batch in made.time_end(txid):
            for *values, weight in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                shown[tuple(values)] += weight
        assert +shown == expected(now, spec)
        assert not -shown
        if txid in (2, 3):
            with_a_point_at_each_line(store, spec)
            assert points() == now.total()
    if "row_number" in names:
        assert points() <= now.total() // restart_points.LEAST


def test_each_row_is_sent_once() -> None:
    """``plan.emits_once`` relies on it."""
    made, _ = make(node(["rank"], keys=()))
    for sign in "+-":
        made.apply(0, diffs(SCHEMA, *[f"{sign} 1 2 1 a t"] * 3, f"{sign} 1 3 1 a t"))
        weight = 3 if sign == "+" else -3
        (batch,) = made.time_end(0)
        assert sorted(batch.column("__weight").to_pylist(), key=abs) == [weight // 3, weight]


class Counting:
    """An index that counts the rows read."""

    def __init__(self, index) -> None:
        self._index = index
        self.read = 0

    def __getattr__(self, name):
        return getattr(self._index, name)

    def first_many(self, *arguments):
        found = self._index.first_many(*arguments)
        self.read += len(found[0])
        return found


def test_only_what_becomes_different_is_read(monkeypatch) -> None:
    monkeypatch.setattr(running, "_PAGE_ROWS", 4)
    made, _ = make(node(["lag", "rank", "max"], keys=()))
    made.apply(0, diffs(SCHEMA, *(f"+ 1 {i} 1 a t" for i in range(500))))
    made.time_end(0)
    state = made._state = Counting(made._state)  # type: ignore[assignment]
    made.apply(0, diffs(SCHEMA, "- 1 100 1 a t", "+ 1 100 1 b t"))
    assert lines(*made.time_end(1)) == [
        "+ 1 100 1 b True a 101 100",
        "+ 1 101 1 a True b 102 101",
        "- 1 100 1 a True a 101 100",
        "- 1 101 1 a True a 102 101",
    ]
    assert state.read < restart_points.MOST + 3 * 4


def test_errors() -> None:
    made, _ = make(node(["count"]))
    made.apply(0, diffs(SCHEMA, "- 1 1 1 a t"))
    with pytest.raises(BugError, match="negative"):
        made.time_end(0)
    big = plan.WindowCallSpec("", (), Field("s", INT8), True, plan.RunningSpec("sum", 0))
    wide = (Field("k", INT4), Field("x", INT4))
    other = plan.WindowCallSpec("x", (), Field("s", INT8))
    with pytest.raises(BugError, match="not computed here"):
        Running(plan.WindowSpec("w", "i", (), (), (other,), wide), wide)
    calls = Calls(plan.WindowSpec("w", "i", (), (), (big,), (*wide, big.result)), wide)
    # No line before the change, one after it.
    weights, ends = np.array([0, 1]), np.array([0, 1])
    lines = kernel.lines(ends, packed.empty(1), weights, np.zeros(1, np.uint8), 0)
    row = rows.pack_rows([pa.array([1], pa.int32()), pa.array([None], pa.int32())])
    for before, total in ((2**62, 2**62 + 1), (2**63 - 2, 2**63 - 1), (2**63 - 1, None)):
        both = np.ones(2, np.int64)
        known = Carried(
            [pa.array([before] * 2)], both.astype(np.uint8), packed.empty(0), np.zeros(3, np.int64)
        )
        if total is None:
            with pytest.raises(RowError, match="bigint out of range"):
                calls.computed(lines, row, weights, both, known)
        else:
            assert calls.computed(lines, row, weights, both, known).columns[0].to_pylist() == [
                total
            ]
