"""Pairs of a join, in pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections.join import pairs


@given(
    st.lists(st.integers(0, 3), max_size=6),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.integers(1, 7),
)
def test_every_pair_once_in_order(groups, counts, rows_max) -> None:
    starts = np.cumsum(counts) - counts
    expected = [
        (row, int(starts[group]) + at)
        for row, group in enumerate(groups)
        for at in range(counts[group])
    ]
    pieces = list(pairs(np.array(groups, np.int64), starts, np.array(counts), rows_max))
    assert [len(left) for left, _ in pieces[:-1]] == [rows_max] * (len(pieces) - 1)
    got = [pair for a, b in pieces for pair in zip(a.tolist(), b.tolist(), strict=True)]
    assert got == expected


@pytest.mark.parametrize("rows_max", [1, 3, 100])
def test_one_row_with_many_matches_is_cut(rows_max) -> None:
    zero, ten = np.array([0]), np.array([10])
    pieces = list(pairs(zero, zero, ten, rows_max))
    assert np.concatenate([right for _, right in pieces]).tolist() == list(range(10))
    assert all(len(right) <= rows_max for _, right in pieces)
