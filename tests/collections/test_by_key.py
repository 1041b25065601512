"""The driver of touched keys: diffs are differences of multisets for any touched keys."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections import by_key
from headrace.collections.base import columns_of, encode, weights_of
from headrace.collections.by_key import ByKey, Found, Touched, difference, least, nothing
from headrace.collections.listed import listed, scanned
from headrace.kernels import packed
from headrace.kernels.packed import Packed
from headrace.state.memory import MemoryStore
from headrace.types import INT4, Field
from tests.disturbed import WAYS, Disturbed, fitting, line
from tests.ledger import diffs, lines

SCHEMA = (Field("k", INT4), Field("v", INT4))
entries = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([b"a", b"b", b"ab"]), st.integers(1, 3)),
    max_size=8,
)


def found(chosen) -> Found:
    chosen = sorted(chosen, key=lambda item: item[0])
    return scanned([e[0] for e in chosen], [e[1] for e in chosen], [e[2] for e in chosen])


def counted(shown: Found) -> Counter:
    out: Counter = Counter()
    for at, row, weight in zip(*listed(shown), strict=True):
        out[at, row] += weight
    return out


@given(before=entries, after=entries)
def test_a_difference_is_that_of_multisets(before, after) -> None:
    old, new = found(before), found(after)
    out = difference(old, new)
    wanted = counted(new)
    wanted.subtract(counted(old))
    assert counted(out) == {entry: weight for entry, weight in wanted.items() if weight}
    at, rows, weights = listed(out)
    assert at == sorted(at)
    assert len(set(zip(at, rows, strict=True))) == len(at)
    assert 0 not in weights


@given(chosen=entries, wanted=st.lists(st.integers(-1, 4), min_size=3, max_size=3))
def test_the_least_are_by_length_then_bytes(chosen, wanted) -> None:
    rows = counted(found(chosen))
    expected: Counter = Counter()
    for key, count in enumerate(wanted):
        mine = [row for (at, row), w in rows.items() if at == key for _ in range(w)]
        mine.sort(key=lambda row: (len(row), row))
        expected.update((key, row) for row in mine[: max(count, 0)])
    assert counted(least(found(chosen), np.array(wanted, np.int64))) == expected


def test_a_key_is_asked_about_once_and_before() -> None:
    asked: list[list[bytes]] = []

    def shown(keys: Packed) -> Found:
        asked.append(keys.strings())
        return scanned(list(range(len(keys))), keys.strings(), [1] * len(keys))

    touched = Touched(shown)
    assert touched.touch(packed.pack([b"x", b"y", b"x"])).tolist() == [0, 1]
    assert touched.touch(packed.pack([b"y"])).tolist() == []
    assert touched.touch(packed.pack([b"z", b"x"])).tolist() == [0]
    assert asked == [[b"x", b"y"], [b"z"]]
    names = [b"x", b"y", b"z"]
    keys, before = touched.take()
    assert (keys.strings(), listed(before)) == (names, ([0, 1, 2], names, [1, 1, 1]))
    keys, before = touched.take()
    assert (keys.strings(), listed(before)) == ([], listed(nothing()))


class Whole(ByKey):
    """A tactic that shows all rows of a key with two rows at least."""

    def __init__(self) -> None:
        super().__init__("x", SCHEMA, SCHEMA, (0,))

    def open(self, store) -> None:
        self._state = store.index("x")

    def describe(self) -> str:
        return "Whole"

    def add(self, port: int, keys: Packed, batch: pa.RecordBatch) -> None:
        rows = encode(columns_of(batch), batch.num_rows)
        self._state.add_many(keys, rows, weights_of(batch))

    def shown(self, keys: Packed) -> Found:
        found = self._state.scan_many(keys)
        by_key.demand_none_negative(found[2], "x")
        at, rows, weights = listed(found)
        sums = Counter()
        for key, weight in zip(at, weights, strict=True):
            sums[key] += weight
        kept = [i for i, key in enumerate(at) if sums[key] > 1]
        return scanned([at[i] for i in kept], [rows[i] for i in kept], [weights[i] for i in kept])


class Stepping(Whole):
    """The same, in steps of two keys."""

    step = 2


changes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(-2, 2)), max_size=12)


@given(txids=st.lists(st.tuples(changes, st.sampled_from(WAYS)), max_size=4))
def test_the_driver_sends_what_became_different(txids) -> None:
    made = Disturbed(Stepping, SCHEMA)
    whole = Disturbed(Whole, SCHEMA)
    now: Counter = Counter()
    shown: Counter = Counter()
    for txid, (chosen, way) in enumerate(txids):
        fits = fitting(now, [((k, v), weight) for k, v, weight in chosen])
        rows = [(0, line(row, weight)) for row, weight in fits]
        sent = made.txid(txid, rows, way)
        assert sent == whole.txid(txid, rows, "whole")
        shown.update(sent)
        sizes: Counter = Counter()
        for (key, _), weight in now.items():
            sizes[key] += weight
        assert +shown == +Counter({r: w for r, w in now.items() if sizes[r[0]] > 1})
        assert not -shown


def test_nothing_is_sent_for_what_is_as_it_was() -> None:
    made = Whole()
    made.open(MemoryStore())
    made.apply(0, diffs(SCHEMA, "+2 1 1", "+ 2 1"))
    assert lines(*made.time_end(0)) == ["+2 1 1"]
    made.apply(0, diffs(SCHEMA, "- 1 1"))
    made.apply(0, diffs(SCHEMA, "+ 1 1", "+ 3 1"))
    assert made.time_end(1) == []
    assert made.time_end(2) == []
