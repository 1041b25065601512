"""Numbers of distinct strings, and sums of their weights, against dictionaries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import packed
from headrace.kernels.numbering import Consolidator, Numbering, consolidate, group

STRING = st.one_of(
    st.binary(max_size=1),
    st.sampled_from(
        [b"", b"\0" * 7, b"\0" * 8, b"\0" * 9, b"common beginning", b"common beginnings"]
    ),
    st.binary(max_size=20),
)
STRINGS = st.lists(STRING)


def int64s(numbers) -> np.ndarray:
    return np.array(numbers, np.int64)


@given(st.lists(STRINGS))
def test_strings_are_numbered_in_first_seen_order(pieces):
    made = Numbering()
    known: dict[bytes, int] = {}
    for strings in pieces:
        before = len(known)
        wanted = [known.setdefault(one, len(known)) for one in strings]
        ids, firsts = made.add(packed.pack(strings))
        assert ids.tolist() == wanted
        new = [*known][before:]
        assert [strings[i] for i in firsts.tolist()] == new
        assert firsts.tolist() == [strings.index(one) for one in new]
        assert len(made) == len(known)
        assert made.strings().strings() == list(known)


def test_many_strings_in_many_calls():
    made = Numbering()
    strings = [b"%d" % (i * i % 5003) for i in range(30_000)]
    distinct = list(dict.fromkeys(strings))
    held = []
    for low in range(0, 30_000, 777):
        made.add(packed.pack(strings[low : low + 777]))
        held.append(made.strings())
    assert made.strings().strings() == distinct
    assert all(some.strings() == distinct[: len(some)] for some in held), "earlier ones stay"
    ids, firsts = made.add(packed.pack(distinct))
    assert (ids.tolist(), firsts.tolist()) == (list(range(len(distinct))), [])


@given(st.lists(st.tuples(st.binary(max_size=1), st.integers(-3, 3))), st.integers(0, 5))
def test_weights_are_summed_and_zeros_dropped(diffs, cut):
    want: dict[bytes, int] = {}
    for row, weight in diffs:
        want[row] = want.get(row, 0) + weight
    rows, weights = [row for row, _ in diffs], [weight for _, weight in diffs]
    kept = [(row, weight) for row, weight in want.items() if weight]
    found, sums = consolidate(packed.pack(rows), int64s(weights))
    assert list(zip(found.strings(), sums.tolist(), strict=True)) == kept
    together = Consolidator()
    together.add(packed.pack(rows[:cut]), int64s(weights[:cut]))
    together.add(packed.pack(rows[cut:]), int64s(weights[cut:]))
    assert len(together) == len(want)
    found, sums = together.items()
    assert list(zip(found.strings(), sums.tolist(), strict=True)) == kept


def test_a_weight_is_needed_for_each_row():
    with pytest.raises(ValueError, match="length"):
        consolidate(packed.pack([b"a"]), int64s([1, 2]))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_beyond_64_bits_is_an_error(sign):
    largest = sign * (2**63 - 1)
    found, sums = consolidate(packed.pack([b"a"] * 2), int64s([largest, 0]))
    assert (found.strings(), sums.tolist()) == ([b"a"], [largest])
    with pytest.raises(OverflowError):
        consolidate(packed.pack([b"a", b"b", b"a"]), int64s([largest, 1, sign]))


@given(STRINGS)
def test_groups_are_in_first_seen_order(keys):
    distinct, ids = group(packed.pack(keys))
    assert distinct.strings() == list(dict.fromkeys(keys))
    assert [distinct.strings()[i] for i in ids] == keys
    assert ids.dtype == np.int64
