import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import packed, packed_order
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
    assert found.take(order).strings() == strings[::-1]


@given(STRINGS, st.data())
def test_a_part_and_a_choice_are_those_of_a_list(strings, data):
    high = data.draw(st.integers(0, len(strings)))
    low = data.draw(st.integers(0, high))
    found = packed.pack(strings).part(low, high)
    assert found.strings() == strings[low:high]
    chosen = data.draw(st.lists(st.integers(-1, high - low - 1)))
    wanted = [None if i < 0 else strings[low:high][i] for i in chosen]
    assert packed.take_nullable(found, np.array(chosen, np.int64)).strings() == wanted


NULLABLE = st.lists(st.none() | st.sampled_from([b"", b"a", b"a\0", b"ab", b"b"]))


@given(NULLABLE)
def test_what_is_none_stays_none(strings):
    assert packed.nullable(strings).strings() == strings
    kept = [one for one in strings if one is not None]
    assert packed.all_valid(packed.pack(kept)).strings() == kept


@given(st.lists(st.tuples(*[st.none() | st.sampled_from([b"", b"a", b"a\0", b"ab", b"b"])] * 2)))
def test_pairs_are_chosen_and_appended(pairs):
    left, right = [one for one, _ in pairs], [other for _, other in pairs]
    second = [one or b"" for one in right]
    found = packed.either(packed.nullable(left), packed.pack(second)).strings()
    assert found == [b if a is None else a for a, b in zip(left, second, strict=True)]
    both = np.arange(2 * len(pairs))[::-1].copy()
    first = packed.pack([one or b"-" for one in left])
    assert packed.take_two(packed.pack(second), first, both).strings() == [
        *first.strings()[::-1],
        *second[::-1],
    ]
    whole = packed.appended(packed.pack(second), packed.pack([one or b"-" for one in left]))
    assert whole.strings() == [b + (a or b"-") for a, b in zip(left, second, strict=True)]


def test_strings_of_one_length_and_of_spans():
    assert packed.fixed(np.array([1, -1], ">i2")).strings() == [b"\0\1", b"\xff\xff"]
    assert packed.repeat(b"ab", 3).strings() == [b"ab"] * 3
    assert packed.repeat(b"", 2).strings() == packed.empty(2).strings() == [b"", b""]
    data = np.frombuffer(b"abcdef", np.uint8)
    assert packed.spans(data, np.array([4, 0, 6]), np.array([6, 0, 6])).strings() == [
        b"ef",
        b"",
        b"",
    ]
    with pytest.raises(ValueError, match="number"):
        packed.appended(packed.empty(1), packed.empty(2))


@given(st.lists(STRINGS, min_size=1))
def test_pieces_are_joined_in_their_order(pieces):
    found = packed.joined([packed.pack(piece) for piece in pieces])
    assert found.strings() == [one for piece in pieces for one in piece]


def test_a_piece_that_does_not_begin_at_its_buffer_is_joined():
    some = Packed(np.frombuffer(b"xxabcyy", np.uint8), np.array([2, 4, 5]))
    assert packed.joined([some, packed.pack([b"d"])]).strings() == [b"ab", b"c", b"d"]


@given(GROUPED)
def test_the_order_is_that_of_bytes_and_keeps_equal_ones_in_theirs(strings):
    order = packed_order.sorted_order(packed.pack(strings)).tolist()
    assert order == sorted(range(len(strings)), key=strings.__getitem__)


def test_many_strings_that_begin_alike_are_ordered():
    strings = [b"g" + b"long and common" * (i % 3) + bytes([i % 251]) for i in range(5000)]
    order = packed_order.sorted_order(packed.pack(strings)).tolist()
    assert [strings[i] for i in order] == sorted(strings)


def test_few_ties_among_many_strings_are_ordered():
    strings = [b"g" + i.to_bytes(8, "big") for i in range(500)]
    strings += [b"g" + bytes(8) + bytes([i]) for i in (3, 1, 2)]
    order = packed_order.sorted_order(packed.pack(strings)).tolist()
    assert order == sorted(range(len(strings)), key=strings.__getitem__)


@given(GROUPED)
def test_a_repeated_string_is_seen(strings):
    some = packed.pack(strings + strings[:2])
    order = packed_order.sorted_order(some)
    ordered = [some.strings()[i] for i in order.tolist()]
    wanted = [i > 0 and one == ordered[i - 1] for i, one in enumerate(ordered)]
    assert packed_order.repeated(some, order).astype(bool).tolist() == wanted
