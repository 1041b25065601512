"""The fast path of a session compared with the slow one: the same bytes and the same state.

Two sessions get the same bytes in the same pieces; one of them has no fast path. The messages of
the client are random. The source answers as Postgres may, or as it never would.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server import messages as m
from headrace.server.actions import Close
from headrace.server.states import SessionState
from tests.amounts import examples
from tests.security import wire as w
from tests.server.test_protocol import CALL, Harness, bind, execute, parse

TEXTS = (
    "SELECT 1", "", "SELECT 'copy'", "COPY t FROM STDIN", "copy t from stdout", CALL,
    "SELECT 'HeadRace'", "BEGIN; " + CALL, "DEALLOCATE ALL", "x" * 300,
)  # fmt: skip
NAMES = (b"", b"s")
LIMIT = 250
ANSWERS = (
    *(m.message(bytes((kind,))) for kind in b"123ntsIcNA"), m.message(b"T", b"\0\0"),
    m.message(b"D", b"\0\0"), m.command_complete("SELECT 1"), m.message(b"G", b"\0\0\0"),
    m.message(b"H", b"\0\0\0"), m.ready_for_query(b"I"), m.ready_for_query(b"T"),
    m.error_response({"C": "22012", "M": "division by zero"}), m.message(b"Z", b""),
    m.message(b"S", b"client_encoding\0LATIN1\0"), m.message(b"\x98"), b"C\0\0\0\3",
    b"Z\0\0\0\5\0",
)  # fmt: skip
BROKEN = (
    m.message(b"P", b"no terminator"), m.message(b"P", b"\0\0"), m.message(b"P", b"\0x\0\0\1"),
    m.message(b"P", b"\0x\0\0\1\0\0\0\0more"), m.message(b"Q"), m.message(b"S", b"x"),
    b"Q" + struct.pack("!i", 3), b"E" + struct.pack("!i", 20_000), m.message(b"\x99"),
)  # fmt: skip
USUAL = {"Q": b"TDCZ", "P": b"1", "B": b"2", "D": b"T", "E": b"DC", "C": b"3", "S": b"Z", "H": b""}


def asked() -> st.SearchStrategy[bytes]:
    """Generate one message of a client, or a few that belong together."""
    text, name = st.sampled_from(TEXTS), st.sampled_from(NAMES)
    return st.one_of(
        st.builds(m.query, text),
        st.builds(parse, name, text),
        st.builds(bind, name, name),
        st.builds(execute, name),
        st.builds(lambda t: parse(b"", t) + bind(b"", b"") + execute(b"") + m.SYNC, text),
        st.sampled_from((m.SYNC, m.FLUSH, m.message(b"D", b"P\0"), m.message(b"C", b"Ss\0"))),
        st.sampled_from((m.message(b"d", b"1\n"), m.message(b"c"), m.message(b"X"), *BROKEN)),
    )


def usual(data: bytes) -> bytes:
    """Return Postgres's answer to plain messages."""
    return b"".join(_usual(data))


def _usual(data: bytes) -> Iterator[bytes]:
    while len(data) >= 5:
        for kind in USUAL.get(chr(data[0]), b""):
            yield next(a for a in ANSWERS if a[0] == kind and a != m.message(b"Z"))
        data = data[1 + struct.unpack("!i", data[1:5])[0] :]


def alike(short: Harness, long: Harness) -> None:
    """Check that both sessions have the same output and the same state."""
    assert (short.server, short.client, short.others) == (long.server, long.client, long.others)
    ours, theirs = short.session, long.session
    assert ours.state is theirs.state
    assert vars(ours.pipeline) == vars(theirs.pipeline)
    assert ours._flow.settings == theirs._flow.settings
    assert (ours._flow.client, ours._flow.source) == (theirs._flow.client, theirs._flow.source)
    assert ours._queries._executes == theirs._queries._executes
    for part in ("_calls", "_copies"):
        assert vars(getattr(ours._queries, part)) == vars(getattr(theirs._queries, part))
    assert ours._outgoing._error_seen == theirs._outgoing._error_seen
    assert ours._outgoing._pass == theirs._outgoing._pass
    assert ours._incoming._pass == theirs._incoming._pass


STEPS = st.lists(
    st.tuples(
        st.lists(asked(), max_size=4),
        st.one_of(st.none(), st.lists(st.sampled_from(ANSWERS), max_size=4)),
        st.sampled_from((10**6, 10**6, 40, 9)),
    ),
    max_size=6,
)


@examples(200)
@given(STEPS, st.booleans())
def test_the_short_way_leads_where_the_long_one_does(steps, ours):
    pair = [Harness(short=short, statement_bytes_max=LIMIT) for short in (True, False)]
    for h in pair:
        h.login()
        h.session._flow.ours = ours
    for messages, answers, size in steps:
        said = b"".join(messages)
        for h in pair:
            h.step = size
            h.from_client(said)
        alike(*pair)
        back = usual(said) if answers is None else b"".join(answers)
        for h in pair:
            h.from_server(back)
        alike(*pair)


FETCH = parse(b"", "SELECT 1") + bind(b"", b"") + execute(b"")
ONE = (parse(b"s", CALL), bind(b"", b"s"), execute(b""))


@pytest.mark.parametrize(
    "chunks",
    [
        ONE,
        (ONE[0] + m.SYNC, *ONE[1:]),
        # The portal of a call ends at the Sync, also if its statement was replaced before.
        (ONE[0] + m.SYNC, ONE[1], parse(b"s", "SELECT 1"), m.SYNC, ONE[0], execute(b"")),
        # Statements executed before matter until a Sync or a Query.
        (FETCH, m.FLUSH, *ONE),
        (FETCH + m.SYNC, *ONE),
        (FETCH + m.query("SELECT 1"), *ONE),
        (FETCH, m.query("SELECT 1"), *ONE),
        (parse(b"", "COPY t FROM STDIN"), bind(b"", b""), execute(b""), m.SYNC),
        (parse(b"", CALL), m.query("SELECT 1"), bind(b"", b""), execute(b"")),
    ],
)
def test_calls_in_many_pieces(chunks):
    pair = [Harness(short=short).login() for short in (True, False)]
    for chunk in chunks:
        for h in pair:
            h.from_client(chunk)
        alike(*pair)
        for h in pair:
            if h.session.state is SessionState.RELAY:
                h.from_server(usual(chunk))
        alike(*pair)


ERROR = m.error_response({"C": "22012", "M": "division by zero"})
BIG = b"D" + struct.pack("!i", 1000) + bytes(40)
GO = m.message(b"G", b"\0\0\0")
SPLIT = m.message(b"E", b"Mno\0" + m.message(b"N", b"\0\0"))


@pytest.mark.parametrize(
    "steps",
    [
        # (Bytes sent, bytes received): pieces of answers, errors, copies and their ends.
        [(m.query("SELECT 1"), ERROR), (b"", m.ready_for_query(b"I")), (m.query(CALL), b"")],
        [(m.query("SELECT 1"), BIG), (b"", bytes(956)), (b"", usual(m.query("")))],
        [(m.query("SELECT 1"), BIG), (b"", m.ready_for_query(b"I") * 2)],
        # Bytes that look like an answer are a part of a row or an error.
        [(m.query("SELECT 1"), BIG), (b"", m.ready_for_query(b"T")), (m.query("BEGIN"), b"")],
        [(m.query("SELECT 1"), SPLIT[:9]), (b"", SPLIT[9:]), (b"", m.ready_for_query(b"I"))],
        [(m.query("SELECT 1"), m.ready_for_query(b"I")[:3]), (b"", m.ready_for_query(b"I")[3:])],
        [(m.query("SELECT 1")[:9], b""), (m.SYNC, b""), (m.query("SELECT 1")[14:], b"")],
        [(b"d" + struct.pack("!i", 9), b""), (m.SYNC, b""), (m.SYNC, b"")],
        [(FETCH, ERROR), (FETCH, b""), (m.SYNC, m.ready_for_query(b"I"))],
        [(m.query("copy t from stdin"), b""), (m.SYNC, GO), (m.SYNC, b""), (m.FLUSH, ERROR)],
        [(m.query("copy t from stdin"), GO), (m.query("SELECT 1"), ERROR), (m.SYNC, b"")],
    ],
)
def test_what_waits_goes_first(steps):
    pair = [Harness(short=short).login() for short in (True, False)]
    for said, back in steps:
        for h in pair:
            h.from_client(said)
        alike(*pair)
        for h in pair:
            h.from_server(back)
        alike(*pair)


@pytest.mark.parametrize(
    "said",
    [
        m.query("SELECT 1"),
        parse(b"", "SELECT $1") + bind(b"", b"", b"x") + execute(b"") + m.SYNC,
        parse(b"s", "SELECT 1") + m.message(b"D", b"Ss\0") + m.FLUSH + m.SYNC,
        m.query("SELECT 'copy'") * 3 + m.message(b"C", b"Ss\0") + m.SYNC,
    ],
)
def test_plain_statements_go_the_short_way(said):
    h = Harness().login()
    h.passed = 0
    assert h.from_client(said) == said
    assert h.from_server(usual(said)) == usual(said)
    assert h.passed == 2
    assert h.session.pipeline.settled


@pytest.mark.parametrize("said", [b for b in BROKEN if b[:1] != b"Q" and not b.endswith(b"more")])
def test_what_is_broken_does_not(said):
    assert not Harness().login().session.passes_client(said)


@pytest.mark.parametrize("said", [*map(m.query, TEXTS), *(parse(b"s", text) for text in TEXTS)])
def test_what_may_be_ours_or_a_copy_does_not(said):
    low = said.lower()
    dull = b"headrace" not in low and b"copy t" not in low
    assert Harness().login().session.passes_client(said) == dull


def test_what_comes_in_pieces_does_not():
    h = Harness().login()
    said = m.query("SELECT 1")
    h.passed = 0
    assert h.from_client(said[:-1]) == b""
    assert h.from_client(said[-1:]) == said
    assert h.passed == 0


def test_an_answer_to_nothing_ends_the_session_on_either_way():
    h = Harness().login()
    h.from_server(m.ready_for_query(b"I"))
    assert h.others == [Close()]


@pytest.mark.parametrize("size", range(LIMIT - 2, LIMIT + 3))
@pytest.mark.parametrize("begun", [m.query(""), parse(b"s", "")], ids=["query", "parse"])
def test_what_is_too_long_to_look_at_goes_the_long_way(begun, size):
    """A longer Query may be a COPY, so the client waits for its answer; a Parse stores its name."""
    text = "x" * (size - len(begun))
    said = m.query(text) if begun[:1] == b"Q" else parse(b"s", text)
    assert len(said) == size
    pair = [Harness(short=short, statement_bytes_max=LIMIT).login() for short in (True, False)]
    for h in pair:
        h.passed = 0
        h.from_client(said)
        assert h.passed == (h.short and size <= LIMIT)
        assert h.session.pipeline.gated == (size > LIMIT and begun[:1] == b"Q")
    alike(*pair)


def test_an_end_of_the_session_is_owed_no_answer():
    pair = [Harness(short=short).login() for short in (True, False)]
    for h in pair:
        h.from_client(m.query("SELECT 1") + m.message(b"X"))
        assert w.ready_owed(h.session.pipeline) == 1
    alike(*pair)
