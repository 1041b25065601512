"""Messages that are passed through, against a loop that is easy to read."""

from __future__ import annotations

import struct
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from headrace.kernels import wire

LETTERS = b"DdcZET"
MESSAGES = st.lists(st.tuples(st.sampled_from(LETTERS), st.binary(max_size=300)), max_size=12)


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("!Bi", kind, len(body) + 4) + body


@given(MESSAGES, st.binary(max_size=8), st.integers(0, 400))
def test_passes_by_whole_messages(messages, before, cut):
    data = bytearray(before + b"".join(message(*one) for one in messages))
    expected = len(before)
    for kind, body in messages:
        if kind not in b"Dd":
            break
        expected += 5 + len(body)
    assert wire.pass_by(data, len(before), wire.kinds(b"Dd")) == expected
    # The kernel passes a partial message up to its headers.
    del data[max(len(data) - cut, len(before)) :]
    found = wire.pass_by(data, len(before), wire.kinds(b"Dd"))
    assert found == expected or len(data) - 5 < found <= expected


def test_a_length_that_is_none_is_left_to_others():
    for length in (-1, 0, 3, 0x4000_0000):
        data = bytearray(b"D\x00\x00\x00\x04" + struct.pack("!Bi", ord("D"), length))
        assert wire.pass_by(data, 0, wire.kinds(b"D")) == 5


MOST = tuple({ord("Q"): 60, ord("P"): 60, ord("S"): 4, ord("B"): 300}.get(k, 0) for k in range(256))
BODIES = st.one_of(
    st.binary(max_size=70),
    st.builds(
        lambda name, text, count, rest: (
            name + b"\0" + text + b"\0" + struct.pack("!H", count) + rest
        ),
        st.sampled_from((b"", b"s")),
        st.sampled_from((b"SELECT", b"", b"Dear")),
        st.integers(0, 3),
        st.sampled_from((b"", b"\0" * 4, b"\0" * 12)),
    ),
    st.just(b""),
)
ASKED = st.lists(st.tuples(st.sampled_from(b"QPSSBBX"), BODIES), max_size=5)


def dull(low: bytes) -> bool:
    return b"dear" not in low


def plain(kind: int, body: bytes) -> bool:
    """Return whether a complete message is plain (the reference)."""
    if len(body) + 4 > MOST[kind]:
        return False
    if kind == ord("Q"):
        return dull(message(kind, body).lower())
    if kind != ord("P"):
        return True
    parts = body.split(b"\0", 2)
    if len(parts) < 3 or len(parts[2]) < 2:
        return False
    declared = int.from_bytes(parts[2][:2], "big")
    return len(parts[2]) - 2 >= 4 * declared and dull(parts[1].lower())


@given(ASKED, st.binary(max_size=6))
def test_what_asks_plainly(messages, rest):
    data = b"".join(message(*one) for one in messages)
    expected = None
    if all(plain(*one) for one in messages):
        expected = bytes(kind for kind, _ in messages)
    assert wire.asks(data, MOST, dull) == expected
    if rest:
        # An incomplete message, or one with an invalid length, is not plain.
        assert wire.asks(data + (b"S\0\0\0\4"[: len(rest)] if len(rest) < 5 else b"S\0\0\0\3"),
                         MOST, dull) is None  # fmt: skip


LAST = bytes(
    {ord("1"): ord("P"), ord("C"): ord("E"), ord("Z"): ord("Z"), ord("D"): ord("d")}.get(k, 0)
    for k in range(256)
)
SAID = st.lists(st.sampled_from((b"1", b"C", b"D", b"Z", b"Z", b"E")), max_size=8)


def taken(said: list[bytes], owed: list[int]) -> tuple[int, list[int]] | None:
    """Return the last status, and the answers owed then (the reference)."""
    status, left = 0, list(owed)
    for kind in said:
        head = left[0] if left else 0
        if kind == b"Z" and head in b"QFS" and head:
            status = left.pop(0) and ord("T")
        elif kind in (b"1", b"C") and head == LAST[kind[0]]:
            left.pop(0)
        elif kind not in b"1CD" or (kind != b"D" and (not head or head not in b"QF")):
            return None
    return status, left


@given(SAID, st.lists(st.sampled_from(b"QPEESF"), max_size=5), st.integers(0, 6))
def test_what_answers_plainly(said, owed, cut):
    data = b"".join(message(kind[0], b"T" if kind == b"Z" else b"") for kind in said)
    expected, left = taken(said, owed) or (-1, owed), deque(owed)
    assert wire.answers(data, left, LAST, wire.kinds(b"QF")) == expected[0]
    assert list(left) == expected[1]
    if 0 < cut < 5 and data:
        left = deque(owed)
        assert wire.answers(data[:-cut], left, LAST, wire.kinds(b"QF")) == -1
        assert list(left) == owed
