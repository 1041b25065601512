"""Numeric kernels against Postgres: text-equal, over thousands of random values."""

from __future__ import annotations

import random

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import copytext, decimals, numeric

SPECIAL = ["NaN", "Infinity", "-Infinity", "0", "0.0", "0.000", "1", "-1", "10000", "0.0001"]


def number(rng):
    if rng.random() < 0.05:
        return rng.choice(SPECIAL)
    whole = rng.choice([0, 1, 1, 2, 4, 5, 8, 9, 17, 18, 19, 20, 40, 90])
    part = rng.choice([0, 0, 1, 2, 2, 3, 4, 6, 8, 15, 18, 19, 30])
    digits = "".join(rng.choice("0123456789") for _ in range(whole)).lstrip("0") or "0"
    text = digits + ("." + "".join(rng.choice("00123456789") for _ in range(part)) if part else "")
    if rng.random() < 0.4 and text.strip("0."):
        text = "-" + text
    return text


def numbers(seed, count):
    rng = random.Random(seed)
    return [number(rng) for _ in range(count)]


def ask(dsn, expr, a, b):
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            f"SELECT ({expr})::text FROM unnest(%s::numeric[], %s::numeric[])"
            " WITH ORDINALITY u(a, b, o) ORDER BY o",
            [copytext.array_literal(pa.array(c, pa.string())) for c in (a, b)],
        )
        return [r[0] for r in rows.fetchall()]


FUNCTIONS = {
    "a + b": numeric.add,
    "a - b": numeric.sub,
    "a * b": numeric.mul,
    "a / b": numeric.div,
    "-a": lambda a, b: numeric.neg(a),
    "abs(a)": lambda a, b: numeric.absolute(a),
    "CASE WHEN a < b THEN -1 WHEN a = b THEN 0 ELSE 1 END": lambda a, b: pa.array(
        map(str, numeric.compare(a, b).tolist())
    ),
}


@pytest.mark.parametrize("expr", FUNCTIONS)
def test_random_values_equal_postgres(postgres, expr):
    a, b = numbers(1, 4000), numbers(2, 4000)
    if "/" in expr:
        b = [v if v.strip("-0.") else "3" for v in b]
    got = FUNCTIONS[expr](pa.array(a, pa.string()), pa.array(b, pa.string()))
    expected = ask(postgres, expr, a, b)
    for x, y, mine, theirs in zip(a, b, got.to_pylist(), expected, strict=True):
        assert mine == theirs, (x, y)


def test_nulls_and_slices():
    a = pa.array(["x", "1.5", None, "2"], pa.string())[1:]
    b = pa.array(["1", None, "2.25"], pa.string())
    assert numeric.add(a, b).to_pylist() == ["2.5", None, "4.25"]
    assert numeric.neg(a).to_pylist() == ["-1.5", None, "-2"]


def test_division_by_zero():
    one, zero = pa.array(["1"]), pa.array(["0.00"])
    with pytest.raises(ZeroDivisionError):
        numeric.div(one, zero)


def test_quotients_of_few_digits_equal_those_of_any_size():
    rng = random.Random(3)
    whole = [rng.randrange(-(10 ** rng.randrange(1, 19)), 10**18) for _ in range(20_000)]
    scaled = [decimals.write((decimals.SMALL, m, rng.choice([0, 0, 1, 2, 6, 18]))) for m in whole]
    a = ["1", "2", "-1", "0.5", "0", "0.00", "999999999999999999", "1", *scaled[:10_000]]
    b = [
        "3",
        "3",
        "8",
        "0.000000000000000001",
        "7",
        "-7",
        "1",
        "-999999999999999999",
        *scaled[10_000:],
    ]
    b = [v if v.strip("-0.") else "3" for v in b]
    got = numeric.div(pa.array(a), pa.array(b)).to_pylist()
    for x, y, mine in zip(a, b, got, strict=True):
        assert mine == decimals.write(decimals.divided(decimals.read(x), decimals.read(y)))


def test_a_value_postgres_cannot_hold_is_refused():
    big = pa.array(["1" + "0" * 100_000])
    with pytest.raises(OverflowError):
        numeric.mul(big, big)
    assert numeric.add(big, big)[0].as_py() == "2" + "0" * 100_000


@pytest.mark.parametrize("text", ["", "-", "1e5", "1.", "abc", "Inf", "--1", "1.2.3"])
def test_malformed_text(text):
    with pytest.raises(ValueError, match="malformed"):
        numeric.parse(pa.array([text]))


@given(st.integers(), st.integers(0, 40), st.integers(), st.integers(0, 40))
def test_addition_is_undone_by_subtraction(m, s, n, t):
    a, b = (decimals.write((decimals.SMALL, *x)) for x in ((m, s), (n, t)))
    total = numeric.add(pa.array([a]), pa.array([b]))
    back = numeric.sub(total, pa.array([b]))
    assert numeric.compare(back, pa.array([a])).tolist() == [0]
