"""Messages that are passed by, beside a loop that is easy to read."""

from __future__ import annotations

import struct

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
    # Of a part of them it sees as far as headers go.
    del data[max(len(data) - cut, len(before)) :]
    found = wire.pass_by(data, len(before), wire.kinds(b"Dd"))
    assert found == expected or len(data) - 5 < found <= expected


def test_a_length_that_is_none_is_left_to_others():
    for length in (-1, 0, 3, 0x4000_0000):
        data = bytearray(b"D\x00\x00\x00\x04" + struct.pack("!Bi", ord("D"), length))
        assert wire.pass_by(data, 0, wire.kinds(b"D")) == 5
