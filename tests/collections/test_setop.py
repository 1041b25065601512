"""SetOp: INTERSECT and EXCEPT, also ALL, over NULLs, duplicates and equal but distinct texts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections import plan
from headrace.collections.setop import SetOp
from headrace.errors import BugError
from headrace.state.memory import MemoryStore
from headrace.types import INT4, NUMERIC, TEXT, Field
from tests.disturbed import WAYS, Disturbed, fitting
from tests.ledger import diffs, lines

SCHEMA = (Field("k", INT4), Field("v", TEXT))
NUMBERS = (Field("n", NUMERIC),)
KINDS = [("intersect", False), ("intersect", True), ("except", False), ("except", True)]


def make(kind: str, every: bool, schema=SCHEMA) -> tuple[SetOp, MemoryStore]:
    store = MemoryStore()
    made = SetOp(plan.SetOpSpec("s", "l", "r", kind, every, schema))
    made.open(store)
    return made, store


def send(made: SetOp, txid: int, left=(), right=()) -> list[str]:
    for port, rows in enumerate((left, right)):
        for row in rows:
            assert made.apply(port, diffs(made.schema, row)) == []
    return lines(*made.time_end(txid))


@pytest.mark.parametrize(
    ("kind", "every", "expected"),
    [
        ("intersect", False, ["+ . .", "+ 1 a"]),
        ("intersect", True, ["+ . .", "+2 1 a"]),
        ("except", False, ["+ 2 b"]),
        ("except", True, ["+ 2 b", "+ 1 a"]),
    ],
)
def test_how_often_a_row_comes(kind, every, expected) -> None:
    made, store = make(kind, every)
    left = ["+3 1 a", "+ 2 b", "+ . ."]
    right = ["+2 1 a", "+ . .", "+ 3 c"]
    assert send(made, 0, left, right) == sorted(expected)
    gone = [row.replace("+", "-") for row in left]
    taken = [row.replace("+", "-") for row in expected]
    assert send(made, 1, gone) == sorted(taken)
    assert send(made, 2, (), [row.replace("+", "-") for row in right]) == []
    assert store.dump() == {"s.left": [], "s.right": []}


def test_the_right_side_takes_away_and_gives_back() -> None:
    made, _ = make("except", False)
    assert send(made, 0, ["+2 1 a"]) == ["+ 1 a"]
    assert send(made, 1, (), ["+ 1 a"]) == ["- 1 a"]
    assert send(made, 2, (), ["+ 1 a"]) == []
    assert send(made, 3, (), ["-2 1 a"]) == ["+ 1 a"]
    assert send(made, 4, ["- 1 a", "- 1 a"], ["+ 1 a"]) == ["- 1 a"]


def test_equal_rows_are_shown_as_the_least_of_the_left_side() -> None:
    made, _ = make("except", True, NUMBERS)
    assert send(made, 0, ["+ 1.00", "+2 1.0"], ["+ 1"]) == ["+2 1.0"]
    assert send(made, 1, ["+ 1"]) == ["+ 1"]
    assert send(made, 2, (), ["+ 1.000"]) == ["- 1.0"]
    made, _ = make("intersect", False, NUMBERS)
    assert send(made, 0, ["+ 1.00"], ["+ 1"]) == ["+ 1.00"]


def test_rows_without_columns() -> None:
    made, _ = make("except", True, ())
    assert send(made, 0, ["+3"], ["+"]) == ["+2"]


def test_a_negative_weight_is_a_bug() -> None:
    for left, right in ((["- 1 a"], []), ([], ["- 1 a"])):
        made, _ = make("intersect", True)
        with pytest.raises(BugError, match="negative"):
            send(made, 0, left, right)


ROWS = ("1 a", "1 b", ". .", "2 a")
sides = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(-2, 3)), max_size=6)


def wanted(kind: str, every: bool, left: Counter, right: Counter) -> Counter:
    """Compute the result with Python's multisets or sets."""
    if not every:
        left, right = Counter(left.keys()), Counter(right.keys())
    return left & right if kind == "intersect" else left - right


@pytest.mark.parametrize(("kind", "every"), KINDS)
@given(txids=st.lists(st.tuples(sides, st.sampled_from(WAYS)), max_size=5))
def test_equals_python_multisets_after_every_txid(kind, every, txids) -> None:
    node = plan.SetOpSpec("s", "l", "r", kind, every, SCHEMA)
    made = Disturbed(lambda: SetOp(node), SCHEMA, SCHEMA)
    now: Counter[tuple[int, str]] = Counter()
    shown: Counter[str] = Counter()

    def step(txid: int, changes, way: str) -> None:
        rows = [(port, f"{weight:+d} {row}") for (port, row), weight in changes]
        for found, weight in made.txid(txid, rows, way).items():
            shown[" ".join("." if x is None else str(x) for x in found)] += weight
        left, right = (
            Counter({row: w for (p, row), w in now.items() if p == port and w}) for port in (0, 1)
        )
        assert not -shown
        assert +shown == wanted(kind, every, left, right)

    for txid, (chosen, way) in enumerate(txids):
        step(txid, fitting(now, [((p, ROWS[at]), w) for p, at, w in chosen]), way)
    back = [(at, -weight) for at, weight in now.items() if weight]
    now.clear()
    step(99, back, "rows")
    assert made.left() == {}
