"""Join: bilinear, over NULLs, duplicates and negative weights (E-12)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.collections import join as module
from headrace.collections import plan
from headrace.collections.base import Diffed
from headrace.collections.join import Join
from headrace.errors import BugError
from headrace.state.memory import MemoryStore
from headrace.types import INT4, NUMERIC, TEXT, Field
from tests.ledger import diffs, lines
from tests.plans import col, native

LEFT = (Field("k", INT4), Field("l", TEXT))
RIGHT = (Field("k", INT4), Field("r", TEXT))


def make(left=LEFT, right=RIGHT, keys=((0,), (0,)), residual=()):
    store = MemoryStore()
    node = plan.JoinSpec("j", "l", "r", *keys, residual, (*left, *right))
    made = Join(node, left, right, None)
    made.open(store)
    return made, store


def test_each_side_meets_the_other_as_it_is() -> None:
    made, store = make()
    assert lines(*made.apply(0, diffs(LEFT, "+ 1 a"))) == []
    assert lines(*made.apply(1, diffs(RIGHT, "+ 1 x", "+ 1 y"))) == ["+ 1 a 1 x", "+ 1 a 1 y"]
    assert lines(*made.apply(1, diffs(RIGHT, "- 1 x"))) == ["- 1 a 1 x"]
    assert lines(*made.apply(0, diffs(LEFT, "- 1 a"))) == ["- 1 a 1 y"]
    made.apply(1, diffs(RIGHT, "- 1 y"))
    assert store.dump() == {"j.left": [], "j.right": []}
    assert made.describe() == "Join (k = k)"


def test_weights_multiply() -> None:
    made, _ = make()
    made.apply(0, diffs(LEFT, "+2 1 a", "+ 1 b"))
    assert lines(*made.apply(1, diffs(RIGHT, "+3 1 x", "-1 1 y"))) == [
        "+3 1 b 1 x",
        "+6 1 a 1 x",
        "- 1 b 1 y",
        "-2 1 a 1 y",
    ]


def test_null_keys_meet_nothing_and_are_not_kept() -> None:
    made, store = make()
    made.apply(0, diffs(LEFT, "+ . a"))
    assert made.apply(1, diffs(RIGHT, "+ . x")) == []
    assert store.dump() == {"j.left": [], "j.right": []}


def test_numeric_keys_are_equal_whatever_their_scale() -> None:
    left, right = (Field("n", NUMERIC),), (Field("m", NUMERIC),)
    made, _ = make(left, right)
    made.apply(0, diffs(left, "+ 1.0", "+ 1", "+ 2"))
    assert lines(*made.apply(1, diffs(right, "+ 1.00"))) == ["+ 1 1.00", "+ 1.0 1.00"]


def test_residual_predicates_filter_pairs() -> None:
    made, _ = make(residual=(native("<", col(1, TEXT), col(3, TEXT)),))
    made.apply(0, diffs(LEFT, "+ 1 a", "+ 1 c"))
    assert lines(*made.apply(1, diffs(RIGHT, "+ 1 b"))) == ["+ 1 a 1 b"]


def test_a_cross_product_of_rows_without_columns() -> None:
    made, store = make((), RIGHT, ((), ()))
    made.apply(0, diffs((), "+2"))
    assert lines(*made.apply(1, diffs(RIGHT, "+ . x"))) == ["+2 . x"]
    made.apply(0, diffs((), "-"))
    made.apply(1, diffs(RIGHT, "- . x"))
    made.apply(0, diffs((), "-"))
    assert made.describe() == "Join (cross product)"
    assert not any(store.dump().values())


@pytest.mark.parametrize("lookup_rows_max", [1, 4096])
def test_large_outputs_come_in_pieces(monkeypatch, lookup_rows_max) -> None:
    monkeypatch.setattr(module.base, "ROWS_PER_BATCH_MAX", 4)
    monkeypatch.setattr(module, "_LOOKUP_ROWS_MAX", lookup_rows_max)
    made, _ = make()
    made.apply(0, diffs(LEFT, *(f"+ 1 a{i}" for i in range(5))))
    out = made.apply(1, diffs(RIGHT, "+ 2 w", "+ 1 x", "+ 1 y", "+ 2 z"))
    assert max(batch.num_rows for batch in out) <= 4
    assert lines(*out) == sorted(f"+ 1 a{i} 1 {r}" for i in range(5) for r in "xy")


side = st.lists(
    st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from("ab"), st.sampled_from([-1, 1, 2])),
    max_size=5,
)


@given(st.lists(st.tuples(st.integers(0, 1), side), max_size=5))
def test_it_is_bilinear(steps) -> None:
    made, store = make()
    sums: tuple[Counter, Counter] = (Counter(), Counter())
    total = Diffed(made.schema)
    # Then all rows are retracted: output and state end empty.
    back = [(port, [(k, v, -w) for k, v, w in rows]) for port, rows in steps]
    for at, (port, rows) in enumerate(steps + back):
        words = [f"{w:+d} {'.' if k is None else k} {v}" for k, v, w in rows]
        for batch in made.apply(port, diffs((LEFT, RIGHT)[port], *words)):
            total.add(batch)
        for k, v, w in rows:
            sums[port][k, v] += w
        if at + 1 == len(steps):
            product = Counter()
            for (k, v), w in sums[0].items():
                for (k2, v2), w2 in sums[1].items():
                    if k is not None and k == k2:
                        product[k, v, k2, v2] += w * w2
            seen = Diffed(made.schema)
            for batch in total.take():
                seen.add(batch)
                total.add(batch)
            found = {}
            for batch in seen.take():
                for row in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                    found[row[:-1]] = row[-1]
            assert found == {row: w for row, w in product.items() if w}
    assert total.take() == []
    assert not any(store.dump().values())


def outer(op, residual=(), **more):
    store = MemoryStore()
    fields = LEFT if op in ("semi", "anti") else (*LEFT, *RIGHT)
    node = plan.JoinSpec("j", "l", "r", (0,), (0,), residual, fields, op, **more)
    made = Join(node, LEFT, RIGHT, None)
    made.open(store)
    return made, store


@pytest.mark.parametrize("residual", [(), (native("<>", col(1, TEXT), col(3, TEXT)),)])
def test_a_row_is_alone_until_its_first_partner_comes(residual) -> None:
    made, store = outer("left", residual)
    assert made.apply(0, diffs(LEFT, "+ 1 a", "+2 1 b", "+ . n"))
    assert lines(*made.time_end(0)) == ["+ 1 a . .", "+2 1 b . ."]
    made.apply(1, diffs(RIGHT, "+ 1 x"))
    assert lines(*made.time_end(1)) == ["- 1 a . .", "-2 1 b . ."]
    # A second partner comes, and one goes: the match stays.
    made.apply(1, diffs(RIGHT, "+ 1 y"))
    made.apply(1, diffs(RIGHT, "- 1 x"))
    assert lines(*made.time_end(2)) == []
    # The last one goes and comes back within a txid.
    made.apply(1, diffs(RIGHT, "- 1 y"))
    made.apply(1, diffs(RIGHT, "+ 1 y"))
    assert lines(*made.time_end(3)) == []
    made.apply(1, diffs(RIGHT, "- 1 y"))
    made.apply(0, diffs(LEFT, "- 1 a"))
    assert lines(*made.time_end(4)) == ["+2 1 b . ."]
    made.apply(0, diffs(LEFT, "-2 1 b", "- . n"))
    assert lines(*made.time_end(5)) == ["-2 1 b . ."]
    assert not any(store.dump().values())


def test_null_keys_have_no_partner_and_are_not_kept() -> None:
    for op, shown in (
        ("left", ["+ . a . ."]),
        ("full", ["+ . . . x", "+ . a . ."]),
        ("semi", []),
        ("anti", ["+ . a"]),
    ):
        made, store = outer(op)
        out = made.apply(0, diffs(LEFT, "+ . a")) + made.apply(1, diffs(RIGHT, "+ . x"))
        assert lines(*out, *made.time_end(0)) == shown
        assert not any(store.dump().values())


def test_null_meets_null_where_it_is_safe() -> None:
    made, _ = outer("semi", null_safe=(True,))
    made.apply(0, diffs(LEFT, "+ . a", "+ 1 b"))
    made.apply(1, diffs(RIGHT, "+ . x"))
    assert lines(*made.time_end(0)) == ["+ . a"]


def test_a_semi_join_counts_its_right_side() -> None:
    made, store = outer("semi")
    made.apply(1, diffs(RIGHT, "+ 1 x", "+2 1 y", "+ 2 z"))
    assert len(store.dump()["j.right"]) == 2
    assert made.describe() == "SemiJoin (k = k)"


@pytest.mark.parametrize("residual", [(), (native("<>", col(1, TEXT), col(3, TEXT)),)])
def test_a_negative_weight_is_found(residual) -> None:
    made, _ = outer("anti", residual)
    made.apply(1, diffs(RIGHT, "+ 1 x"))
    made.time_end(0)
    made.apply(0, diffs(LEFT, "- 1 a"))
    made.apply(1, diffs(RIGHT, "- 1 x"))
    with pytest.raises(BugError, match="negative weight"):
        made.time_end(1)


def test_population_shows_at_its_end_what_is_alone() -> None:
    made, _ = outer("full")
    made.insert_only = True
    made.apply(0, diffs(LEFT, "+ 1 a", "+ 2 b"))
    assert lines(*made.apply(1, diffs(RIGHT, "+ 1 x", "+ 3 y"))) == ["+ 1 a 1 x"]
    assert lines(*made.time_end(0)) == ["+ . . 3 y", "+ 2 b . ."]
