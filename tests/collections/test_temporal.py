"""Temporal: rows against the clock equal a comparison at that timestamp, at every timestamp."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections import plan
from headrace.collections.temporal import Temporal
from headrace.expressions.ir import Column, Expr, Literal, Native
from headrace.expressions.native import TypeRef, resolve
from headrace.state.memory import MemoryStore
from headrace.types import BOOL, INT4, TIMESTAMPTZ, Field, diff_batch
from tests.amounts import examples

IN = (Field("ts", TIMESTAMPTZ), Field("k", INT4), Field("later", TIMESTAMPTZ))
OUT = (*IN, Field("c0", BOOL), Field("c1", BOOL), Field("c2", BOOL), Field("c3", BOOL))
TURN = 9 << 22
"""Timestamp at which the bounds below jump."""
BACK = 2 << 22
SHIFT = 3 << 21
INFINITY = (1 << 63) - 1


def call(symbol: str, *args: Expr) -> Native:
    op = resolve(symbol, [TypeRef(a.oid) for a in args])
    assert op is not None
    return Native(op.name, args, op.oid)


def at(micros: int) -> Literal:
    days, rest = divmod(micros, 86_400_000_000)
    assert days == 0
    seconds, fraction = divmod(rest, 1_000_000)
    return Literal(f"2000-01-01 00:00:{seconds:02}.{fraction:06}+00", TIMESTAMPTZ)


def comparisons() -> tuple[plan.TimeTestSpec, ...]:
    """Return later > now(), ts < back(now()), k = era(now()), ts <> back(now())."""
    ts, k, later = (Column(i, f.oid) for i, f in enumerate(IN))

    def back(now: Expr) -> Expr:
        return call("case", call("<", now, at(TURN)), now, at(BACK))

    def era(now: Expr) -> Expr:
        return call("case", call("<", now, at(TURN)), Literal("1", INT4), Literal("2", INT4))

    now, alone = Column(3, TIMESTAMPTZ), Column(0, TIMESTAMPTZ)
    return (
        plan.TimeTestSpec(call("<", now, later), ts, alone, TIMESTAMPTZ, -SHIFT, slack=0),
        plan.TimeTestSpec(
            call("<", ts, back(now)), ts, back(alone), TIMESTAMPTZ, slack=TURN - 1 - BACK
        ),
        plan.TimeTestSpec(call("=", k, era(now)), k, era(alone), INT4, ordered=False, ranged=False),
        plan.TimeTestSpec(call("<>", ts, back(now)), ts, back(alone), TIMESTAMPTZ, ranged=False),
    )


def after(ts: int | None) -> int | None:
    """Return the column ``later`` of a row."""
    return ts if ts is None or abs(ts) >= INFINITY else ts + SHIFT


def wanted(ts: int | None, k: int | None, now: int) -> tuple[bool | None, ...]:
    back = now if now < TURN else BACK
    return (
        None if ts is None else now < after(ts),
        None if ts is None else ts < back,
        None if k is None else k == (1 if now < TURN else 2),
        None if ts is None else ts != back,
    )


def make(store: MemoryStore) -> Temporal:
    made = Temporal(plan.TemporalSpec("t", "in", comparisons(), OUT), IN, None)
    made.open(store)
    return made


Row = tuple[int | None, int | None]


def batch(changes: list[tuple[Row, int]]) -> pa.RecordBatch:
    columns = [
        pa.array([row[0] for row, _ in changes], pa.int64()),
        pa.array([row[1] for row, _ in changes], pa.int32()),
        pa.array([after(row[0]) for row, _ in changes], pa.int64()),
    ]
    return diff_batch(IN, columns, pa.array([w for _, w in changes], pa.int64()))


def take(made: Temporal, txid: int, shown: Counter) -> None:
    for out in made.time_end(txid):
        for *row, weight in zip(*(c.to_pylist() for c in out.columns), strict=True):
            shown[tuple(row)] += weight
    assert min(shown.values(), default=0) >= 0


INSTANTS = sorted(
    {edge + d for edge in (1 << 22, BACK, 5 << 21, TURN, 11 << 22) for d in (-1, 0, 1)}
)
rows = st.tuples(
    st.sampled_from([*INSTANTS, None, INFINITY, -INFINITY - 1]), st.sampled_from([1, 2, 3, None])
)
steps = st.lists(
    st.tuples(
        st.sampled_from(INSTANTS),
        st.lists(st.tuples(rows, st.integers(-2, 2)), max_size=6),
        st.sampled_from(["", "reopen", "rollback", "split"]),
    ),
    max_size=8,
)


@examples(150)
@given(stream=steps, first=st.lists(rows, max_size=6))
def test_equals_comparing_every_row_at_every_instant(stream, first) -> None:
    store = MemoryStore()
    made = make(store)
    table: Counter[Row] = Counter(first)
    shown: Counter = Counter()
    now = made.instant = INSTANTS[0]
    made.insert_only = True
    for out in made.apply(0, batch([(row, 1) for row in first])):
        for *row, weight in zip(*(c.to_pylist() for c in out.columns), strict=True):
            shown[tuple(row)] += weight
    made.insert_only = False
    take(made, 0, shown)
    for txid, (instant, chosen, how) in enumerate(stream, 1):
        store.checkpoint() if how == "reopen" else None
        changes = []
        for row, weight in chosen:
            change = max(weight, -table[row])
            table[row] += change
            changes.append((row, change))
        changes = [c for c in changes if c[1]]
        now = max(now, instant)
        expected = made.crossing(instant)
        if how == "reopen":
            made = make(store)
        made.instant = instant
        before = Counter(shown)
        for part in [[c] for c in changes] if how == "split" else [changes]:
            assert made.apply(0, batch(part)) == []
        take(made, txid, shown)
        correct: Counter = Counter()
        for row, weight in table.items():
            correct[(*row, after(row[0]), *wanted(*row, now))] += weight
        assert +shown == +correct
        assert made.now == now
        if not changes:
            assert expected == len(+shown - +before)
            assert (expected == 0) == (+shown == +before)
    gone = [(row, -weight) for row, weight in table.items() if weight]
    made.apply(0, batch(gone))
    take(made, len(stream) + 1, shown)
    assert not +shown
    assert store.dump()["t"] == []
    assert store.dump()["t.pages"] == []


def test_rows_that_can_change_no_more_are_not_kept() -> None:
    store = MemoryStore()
    now = Column(2, TIMESTAMPTZ)
    test = plan.TimeTestSpec(
        call("<", Column(0, TIMESTAMPTZ), now), Column(0, TIMESTAMPTZ),
        Column(0, TIMESTAMPTZ), TIMESTAMPTZ, slack=5,
    )  # fmt: skip
    schema = (*IN[:2], Field("test", BOOL))

    def opened() -> Temporal:
        made = Temporal(plan.TemporalSpec("t", "in", (test,), schema), IN[:2], None)
        made.open(store)
        return made

    def rows_kept() -> int:
        return len(store.dump()["t"])

    def send(made: Temporal, instant: int, changes: dict[int, int]) -> int:
        columns = [pa.array(list(changes), pa.int64()), pa.array([1] * len(changes), pa.int32())]
        weights = pa.array(list(changes.values()), pa.int64())
        made.instant = instant
        assert made.apply(0, diff_batch(IN[:2], columns, weights)) == []
        return sum(b.num_rows for b in made.time_end(instant))

    made = opened()
    assert send(made, 1000, dict.fromkeys((10, 994, 995, 1000, 1 << 40), 1)) == 5
    assert rows_kept() == 3
    made = opened()
    assert send(made, 1006, {}) == 2  # from here on, 1000 is before now
    assert rows_kept() == 1
    assert send(made, 1006, {10: -1, 994: -1, 1000: -1, 995: -1}) == 4
    assert send(made, 1 << 41, {7: 1}) == 3
    assert rows_kept() == 0
    assert store.dump()["t.pages"] == []
    assert send(made, 1 << 41, {7: -1, 1 << 40: -1}) == 2


def test_time_never_goes_back() -> None:
    made = make(MemoryStore())
    shown: Counter = Counter()
    made.instant = TURN
    made.apply(0, batch([((TURN - 1, 2), 1)]))
    take(made, 0, shown)
    made.instant = BACK
    take(made, 1, shown)
    assert made.now == TURN
    assert +shown == Counter({(TURN - 1, 2, after(TURN - 1), *wanted(TURN - 1, 2, TURN)): 1})
    assert made.crossing(BACK) == 0


def test_only_rows_whose_time_has_come_are_sent() -> None:
    made = make(MemoryStore())
    made.instant = 0
    made.apply(0, batch([((i << 23, 5), 1) for i in range(2, 1000)]))
    assert sum(b.num_rows for b in made.time_end(0)) == 998
    made.instant = 3 << 23
    sent = made.time_end(1)
    # Rows 2 and 3 have passed; rows up to TURN were before a bound that has moved past them.
    assert 0 < sum(b.num_rows for b in sent) <= 12


@examples(150)
@given(first=st.lists(rows, max_size=6), later=st.lists(rows, max_size=3), split=st.data())
def test_it_is_known_until_when_no_row_changes(first, later, split) -> None:
    """Of a bound that is the clock itself; of any other the next timestamp is asked again."""
    specs = (*comparisons()[:1], *comparisons()[:1])
    out = (*IN, Field("c0", BOOL), Field("c1", BOOL))
    made = Temporal(plan.TemporalSpec("t", "in", specs, out), IN, None)
    made.open(MemoryStore())
    made.instant = INSTANTS[0]
    made.insert_only = True
    made.apply(0, batch([(row, 1) for row in first]))
    made.insert_only = False
    made.time_end(0)
    made.instant = split.draw(st.sampled_from(INSTANTS))
    made.apply(0, batch([(row, 1) for row in later]))
    made.time_end(1)
    now = made.now
    assert now is not None
    ends = [at for row in (*first, *later) if (at := after(row[0])) is not None and at < INFINITY]
    for instant in (i for i in INSTANTS if i > now):
        until = made.until(instant)
        assert (until == instant) == (made.near(instant) > 0)
        if until > instant:
            some = [i for i in (*INSTANTS, until - 1) if instant <= i < until]
            assert not any(map(made.near, some))
        if until > instant and not any(end >= instant for end in ends):
            assert until > instant + (1 << 37), "it is not asked again for days"
