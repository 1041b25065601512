import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import packed
from headrace.kernels.packed import Packed

ALIKE = st.sampled_from([b"", b"\0", b"\0\0\0\0\0\0\0\0", b"\xff" * 7, b"common beginning"])
STRINGS = st.lists(st.builds(bytes.__add__, ALIKE, st.binary(max_size=10)))
GROUPED = st.lists(
    st.builds(
        lambda group, alike, rest: bytes([group]) + alike + rest,
        st.integers(0, 3), ALIKE, st.binary(max_size=10),
    )
)  # fmt: skip


@given(STRINGS)
def test_what_was_packed_comes_out(strings):
    found = packed.pack(strings)
    assert len(found) == len(strings)
    assert found.strings() == strings
    order = np.arange(len(strings))[::-1].copy()
    assert found.taken(order) == strings[::-1]


@given(st.lists(STRINGS, min_size=1))
def test_pieces_are_joined_in_their_order(pieces):
    found = packed.joined([packed.pack(piece) for piece in pieces])
    assert found.strings() == [one for piece in pieces for one in piece]


def test_a_piece_that_does_not_begin_at_its_buffer_is_joined():
    some = Packed(np.frombuffer(b"xxabcyy", np.uint8), np.array([2, 4, 5]))
    assert packed.joined([some, packed.pack([b"d"])]).strings() == [b"ab", b"c", b"d"]


@given(GROUPED)
def test_the_order_is_that_of_bytes_and_keeps_equal_ones_in_theirs(strings):
    order = packed.sorted_order(packed.pack(strings)).tolist()
    assert order == sorted(range(len(strings)), key=strings.__getitem__)


def test_many_strings_that_begin_alike_are_ordered():
    strings = [b"g" + b"long and common" * (i % 3) + bytes([i % 251]) for i in range(5000)]
    order = packed.sorted_order(packed.pack(strings)).tolist()
    assert [strings[i] for i in order] == sorted(strings)


def test_few_ties_among_many_strings_are_ordered():
    strings = [b"g" + i.to_bytes(8, "big") for i in range(500)]
    strings += [b"g" + bytes(8) + bytes([i]) for i in (3, 1, 2)]
    order = packed.sorted_order(packed.pack(strings)).tolist()
    assert order == sorted(range(len(strings)), key=strings.__getitem__)


@given(GROUPED)
def test_a_repeated_string_is_seen(strings):
    some = packed.pack(strings + strings[:2])
    order = packed.sorted_order(some)
    ordered = [some.strings()[i] for i in order.tolist()]
    wanted = [i > 0 and one == ordered[i - 1] for i, one in enumerate(ordered)]
    assert packed.repeated(some, order).astype(bool).tolist() == wanted
