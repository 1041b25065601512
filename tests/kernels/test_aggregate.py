"""Exact sums and the bytes of a group's numbers."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import aggregate, packed, strings, sums

int64 = st.integers(-(2**63), 2**63 - 1)
weight = st.one_of(st.integers(-3, 3), st.integers(-(2**40), 2**40))


@pytest.mark.parametrize("kind", [sums.IntSums, sums.SquareSums])
@given(st.lists(st.tuples(st.integers(0, 3), int64, weight)), st.integers(1, 5))
def test_integer_sums_are_exact(kind, rows, pieces):
    found = kind()
    expected = [0] * 5
    for i in range(pieces):
        part = rows[i::pieces]
        arrays = [np.array([r[c] for r in part], np.int64) for c in range(3)]
        found.add(*arrays, 5)
        for slot, value, times in part:
            expected[slot] += value**kind.power * times
    found.end(5)
    assert found.take(np.arange(5)) == expected
    assert found.take(np.array([3, 1])) == [expected[3], expected[1]]
    fitting, fits = found.fitting(1, 4)
    for sum_, fit, exact in zip(fitting.tolist(), fits.tolist(), expected[1:4], strict=True):
        assert sum_ == exact if fit else True
        assert fit or abs(exact) >= 2**59 or found._folded or pieces > 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.floats(allow_nan=False, allow_infinity=False), st.integers(-3, 3)
        )
    )
)
def test_float_sums_are_exact(rows):
    found = sums.FloatSums()
    slots = np.array([r[0] for r in rows], np.int64)
    values = np.array([r[1] for r in rows], np.float64)
    weights = np.array([r[2] for r in rows], np.int64)
    found.add(slots, values, weights, 3)
    expected = [Fraction(0)] * 3
    for slot, value, times in rows:
        expected[slot] += Fraction(value) * times
    unit = 2**sums.FLOAT_UNIT_BITS
    assert [Fraction(total, unit) for total in ended(found)] == expected


def ended(found):
    found.end(3)
    return found.take(np.arange(3))


@given(st.lists(st.one_of(st.integers(), st.just(2**2100), st.just(-(2**5000)))), st.binary())
def test_numbers_survive_encoding(numbers, rest):
    data = b"x" + aggregate.encode_numbers(numbers) + rest
    decoded, at = aggregate.decode_numbers(data, 1)
    assert decoded == numbers
    assert data[at:] == rest


def test_many_numbers_survive_encoding():
    numbers = list(range(1000))
    assert aggregate.decode_numbers(aggregate.encode_numbers(numbers), 0)[0] == numbers


@given(st.lists(st.none() | st.tuples(st.binary(), st.binary())))
def test_ordered_rows_give_their_value_back(pairs):
    there = [pair for pair in pairs if pair is not None]
    orders, values = packed.pack([o for o, _ in there]), packed.pack([v for _, v in there])
    rows = aggregate.join_ordered(orders, values).strings()
    assert all(row.startswith(order) for row, (order, _) in zip(rows, there, strict=True))
    left = iter(rows)
    found = packed.nullable([None if pair is None else next(left) for pair in pairs])
    wanted = [b"none" if pair is None else pair[1] for pair in pairs]
    assert aggregate.ordered_values(found, b"none").strings() == wanted


ROW = st.none() | st.sampled_from([b"", b"a", b"a\0", b"b"])


@given(st.lists(st.tuples(ROW, ROW)))
def test_rows_that_changed_are_listed_old_before_new(pairs):
    olds, news = [old for old, _ in pairs], [new for _, new in pairs]
    wanted = [
        (group, number, weight)
        for group, (old, new) in enumerate(pairs)
        if old != new
        for number, row, weight in ((group, old, -1), (group + len(pairs), new, 1))
        if row is not None
    ]
    found = aggregate.turned(packed.nullable(olds), packed.nullable(news))
    assert list(zip(*(part.tolist() for part in found), strict=True)) == wanted


NUMBERS = st.lists(st.one_of(st.integers(-3, 3), st.integers(-(2**70), 2**70)), max_size=4)


@given(st.lists(st.tuples(NUMBERS, st.binary(max_size=9), st.none() | st.binary(max_size=9))))
def test_groups_are_decoded_as_encoded(groups):
    rows, shown = (
        packed.pack([key for _, key, _ in groups]),
        packed.nullable([r for *_, r in groups]),
    )
    heads = aggregate.encode_heads([numbers for numbers, _, _ in groups], rows)
    values = aggregate.encoded(heads, rows, shown)
    assert [v is None for v in values.strings()] == [r is None for *_, r in groups]
    found, keys, results = aggregate.decode_groups(packed.nullable(values.strings()))
    assert found == [numbers if r is not None else [] for numbers, _, r in groups]
    assert keys.strings() == [key if r is not None else None for _, key, r in groups]
    assert results.strings() == [r for *_, r in groups]


SCALED = st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 2, 2]), st.integers(-(10**20), 10**20))


@given(st.lists(st.lists(st.tuples(SCALED, st.booleans()), max_size=5), max_size=5), st.booleans())
def test_sums_of_numerics_are_those_of_decimals(txids, average):
    there: list[tuple[int, int, int]] = []
    olds: list[list[int]] = [[] for _ in range(3)]
    for chosen in txids:
        changes: dict[tuple[int, int], list[int]] = {}
        for value, goes in chosen:
            if goes and value not in there:
                continue
            _ = there.remove(value) if goes else there.append(value)
            group, scale, mantissa = value
            change = changes.setdefault((group, scale), [0, 0])
            change[0] += -1 if goes else 1
            change[1] += -mantissa if goes else mantissa
        gathered: list[list[int]] = [[0, 0, 0, 0] for _ in range(3)]
        for (group, scale), change in sorted(changes.items()):
            gathered[group] += [scale, *change]
        news: list[list[int]] = [[] for _ in range(3)]
        found = aggregate.advance_numerics(olds, [0] * 3, gathered, news, average)
        olds = news
        for group in range(3):
            values = [(scale, mantissa) for g, scale, mantissa in there if g == group]
            assert news[group][0] == len({scale for scale, _ in values})
            if not values:
                assert found[group] is None
                continue
            with localcontext() as context:
                context.prec = 80
                exact = sum(Decimal(mantissa).scaleb(-scale) for scale, mantissa in values)
                assert exact is not None and found[group] is not None
                if average:
                    error = abs(Decimal(found[group]) - exact / len(values))
                    assert error <= Decimal(1).scaleb(-10) or error <= abs(exact).scaleb(-15)
                else:
                    scale = max(scale for scale, _ in values)
                    assert found[group] == f"{exact:.{scale}f}".replace("-0.00", "0.00")


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-(2**70), 2**70))))
def test_changes_of_one_scale_are_listed_where_there_are_some(changes):
    columns = [count for count, _ in changes], [total for _, total in changes]
    wanted = [[0, 0, 0, 0, 2, *pair] if any(pair) else [0, 0, 0, 0] for pair in changes]
    assert aggregate.of_one_scale(2, list(columns)) == wanted


TEXTS = st.lists(st.tuples(st.integers(0, 4), st.text(max_size=3), st.integers(1, 3)))


@given(TEXTS, st.sampled_from(["", ",", "é, "]))
def test_texts_of_groups_are_concatenated(rows, delimiter):
    rows = sorted(rows, key=lambda row: row[0])
    at, texts, weights = (list(part) for part in zip(*rows, strict=True)) if rows else ([], [], [])
    parts = {group: [] for group in range(5)}
    for group, text, weight in rows:
        parts[group] += [text] * weight
    found = strings.concatenated(
        np.array(at, np.int64),
        pa.array(["before", *texts], pa.string())[1:],
        np.array(weights, np.int64),
        delimiter.encode(),
        5,
    )
    wanted = [delimiter.join(some) if some else None for some in parts.values()]
    assert found.to_pylist() == wanted
