"""Sort keys have the order of ORDER BY, and entries decode to the values they encode."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import order, rows
from headrace.kernels.packed import pack
from headrace.types import INT4, NUMERIC, TEXT

VALUES = {
    INT4: pa.array([None, -5, 0, 7, 2**31 - 1], pa.int32()),
    TEXT: pa.array([None, "", "\x01", "a", "a\x01", "ab", "b"], pa.string()),
    NUMERIC: pa.array([None, "-1e3", "-0.5", "0", "0.97", "12"], pa.string()),
}
pieces = st.binary(max_size=6)


@pytest.mark.parametrize("oid", [INT4, TEXT])
@pytest.mark.parametrize(
    ("descending", "nulls_first"), [*itertools.product((False, True), repeat=2)]
)
def test_directions_and_nulls(oid, descending, nulls_first) -> None:
    column = VALUES[oid]
    keys = rows.encode_keys([column], [oid], nulls=True)
    directed = order.directed(pack(keys), descending=descending, nulls_first=nulls_first)
    found = directed.strings()
    places = list(range(1, len(column)))
    if descending:
        places.reverse()
    places = [0, *places] if nulls_first else [*places, 0]
    assert sorted(range(len(column)), key=found.__getitem__) == places
    # Keys are prefix-free, so that bytes behind them do not matter.
    for one, two in itertools.permutations(found, 2):
        assert not two.startswith(one)


@given(st.lists(st.tuples(pieces, pieces, pieces), max_size=5))
def test_entries_round_trip(parts) -> None:
    orders, rests, encoded = ([p[i] for p in parts] for i in range(3))
    made = order.entries(pack(orders), pack(rests), pack(encoded))
    assert [found.strings() for found in order.split(made)] == [orders, encoded]
    for entry, part in zip(made.strings(), parts, strict=True):
        assert entry.startswith(b"".join(part))


def test_parts_are_joined_per_row() -> None:
    assert order.joined([pack([b"a", b"b"]), pack([b"1", b"2"])], 2).strings() == [b"a1", b"b2"]
    assert order.joined([], 2).strings() == [b"", b""]
    with pytest.raises(ValueError, match="differ"):
        order.entries(pack([b"a"]), pack([]), pack([b"b"]))
