"""Exact sums and the bytes of a group's numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import aggregate

int64 = st.integers(-(2**63), 2**63 - 1)
weight = st.one_of(st.integers(-3, 3), st.integers(-(2**40), 2**40))


@given(st.lists(st.tuples(st.integers(0, 3), int64, weight)), st.integers(1, 5))
def test_integer_sums_are_exact(rows, pieces):
    sums = aggregate.IntSums()
    expected = [0] * 5
    for i in range(pieces):
        part = rows[i::pieces]
        arrays = [np.array([r[c] for r in part], np.int64) for c in range(3)]
        sums.add(*arrays, 5)
        for slot, value, times in part:
            expected[slot] += value * times
    assert sums.take(5) == expected


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.floats(allow_nan=False, allow_infinity=False), st.integers(-3, 3)
        )
    )
)
def test_float_sums_are_exact(rows):
    sums = aggregate.FloatSums()
    slots = np.array([r[0] for r in rows], np.int64)
    values = np.array([r[1] for r in rows], np.float64)
    weights = np.array([r[2] for r in rows], np.int64)
    sums.add(slots, values, weights, 3)
    expected = [Fraction(0)] * 3
    for slot, value, times in rows:
        expected[slot] += Fraction(value) * times
    unit = 2**aggregate.FLOAT_UNIT_BITS
    assert [Fraction(total, unit) for total in sums.take(3)] == expected


@given(st.lists(st.one_of(st.integers(), st.just(2**2100), st.just(-(2**5000)))), st.binary())
def test_numbers_survive_encoding(numbers, rest):
    data = b"x" + aggregate.encode_numbers(numbers) + rest
    decoded, at = aggregate.decode_numbers(data, 1)
    assert decoded == numbers
    assert data[at:] == rest


def test_many_numbers_survive_encoding():
    numbers = list(range(1000))
    assert aggregate.decode_numbers(aggregate.encode_numbers(numbers), 0)[0] == numbers


@given(st.binary(), st.binary())
def test_ordered_rows_give_their_value_back(order, value):
    (row,) = aggregate.join_ordered([order], [value])
    assert row.startswith(order)
    assert aggregate.ordered_value(row) == value
