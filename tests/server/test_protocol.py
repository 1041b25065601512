"""The session's state machine, without sockets: bytes in, actions out."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server import messages as m
from headrace.server.actions import Cancel, Close, Connect, Ready, Run, StartTls, ToClient, ToServer
from headrace.server.context import CONTEXT_QUERY
from headrace.server.flow import Rules
from headrace.server.protocol import Session
from headrace.server.states import TRANSITIONS, SessionState

KEY = struct.pack("!ii", 77, 99)
CALL = "CALL headrace.create_view('v', 'SELECT 1')"
NONCE = "f00d"
CONTEXT = m.extended_query(b"__headrace_f00d", CONTEXT_QUERY.encode(), NONCE.encode())


def read_report(body: bytes) -> dict[str, str]:
    """Return the fields of an ErrorResponse or NoticeResponse."""
    parts = [part for part in body.split(b"\x00") if part]
    return {chr(part[0]): part[1:].decode("utf-8", "replace") for part in parts}


def startup(**parameters: str) -> bytes:
    body = struct.pack("!i", 0x30000)
    for name, value in {"user": "u", "database": "db", **parameters}.items():
        body += f"{name}\0{value}\0".encode()
    return struct.pack("!i", len(body) + 5) + body + b"\0"


LOGIN_ANSWER = (
    m.message(b"R", struct.pack("!i", 0))
    + m.message(b"S", b"client_encoding\0UTF8\0")
    + m.message(b"K", KEY)
    + m.ready_for_query(b"I")
)


def data_row(*values: bytes) -> bytes:
    body = struct.pack("!h", len(values))
    for value in values:
        body += struct.pack("!i", len(value)) + value
    return m.message(b"D", body)


CONTEXT_ANSWER = (
    m.message(b"1")
    + m.message(b"2")
    + data_row(NONCE.encode(), b"joe", b'{"search_path": "public"}', b"off", b"0", b"0")
    + m.command_complete("SELECT 1")
    + m.message(b"3")
    + m.message(b"3")
    + m.ready_for_query(b"I")
)


def parse(name: bytes, query: str) -> bytes:
    return m.message(b"P", name + b"\0" + query.encode() + b"\0\0\0")


def bind(portal: bytes, name: bytes, *values: bytes) -> bytes:
    body = portal + b"\0" + name + b"\0" + b"\0\0" + struct.pack("!h", len(values))
    for value in values:
        body += struct.pack("!i", len(value)) + value
    return m.message(b"B", body + b"\0\0")


def execute(portal: bytes) -> bytes:
    return m.message(b"E", portal + b"\0\0\0\0\0")


DESCRIBE = m.message(b"D", b"P\0")


def session(**options) -> Session:
    given = {"database": "db", "nonce": lambda: NONCE, "allow_trust": True}
    return Session(Rules(**given | options))


class Harness:
    """Feeds a session in pieces of ``step`` bytes and collects its output.

    Like the listener, it uses the fast path where possible, unless ``short`` is false.
    """

    def __init__(self, step: int = 10**9, *, short: bool = True, **options) -> None:
        self.session = session(**options)
        self.short = short
        self.passed = 0
        self.step = step
        self.client = b""
        self.server = b""
        self.others: list = []

    def take(self, actions) -> None:
        for action in actions:
            if isinstance(action, ToClient):
                self.client += action.data
            elif isinstance(action, ToServer):
                self.server += action.data
            else:
                self.others.append(action)

    def from_client(self, data: bytes) -> bytes:
        """Return the bytes that the source got in response."""
        before = len(self.server)
        for at in range(0, len(data), self.step):
            part = data[at : at + self.step]
            if self.short and self.session.passes_client(part):
                self.passed += 1
                self.server += part
            else:
                self.take(self.session.receive_client(part))
        return self.server[before:]

    def from_server(self, data: bytes) -> bytes:
        """Return the bytes that the client got in response."""
        before = len(self.client)
        for at in range(0, len(data), self.step):
            part = data[at : at + self.step]
            if self.short and self.session.passes_server(part):
                self.passed += 1
                self.client += part
            else:
                self.take(self.session.receive_server(part))
        return self.client[before:]

    def login(self) -> Harness:
        assert self.from_client(startup()) == startup()
        assert self.from_server(LOGIN_ANSWER) == LOGIN_ANSWER
        assert self.session.state is SessionState.RELAY
        self.others.clear()
        return self


@pytest.fixture(params=[1, 2, 7, 10**9], ids="in pieces of {}".format)
def h(request) -> Harness:
    return Harness(request.param)


def kinds(data: bytes) -> str:
    out = ""
    while data:
        out += chr(data[0])
        data = data[1 + struct.unpack("!i", data[1:5])[0] :]
    return out


# --- start


def test_startup_connects_and_relays(h):
    h.login()
    assert h.session.key == KEY


def test_ready_is_told_before_the_client_sees_it():
    h = Harness()
    h.from_client(startup())
    actions = h.session.receive_server(LOGIN_ANSWER)
    assert actions.index(Ready(KEY)) < len(actions) - 1


def test_ssl_and_gss_are_declined_without_configuration(h):
    h.from_client(struct.pack("!ii", 8, m.GSS_CODE))
    h.from_client(struct.pack("!ii", 8, m.SSL_CODE))
    assert h.client == b"NN"
    assert h.from_client(startup()) == startup()


def test_tls_is_begun_once():
    h = Harness(tls=True)
    h.from_client(struct.pack("!ii", 8, m.SSL_CODE))
    assert h.others == [StartTls()]
    h.take(h.session.tls_started())
    h.from_client(struct.pack("!ii", 8, m.SSL_CODE))
    assert h.client == b"N"
    h.from_client(startup())
    assert h.others == [StartTls(), Connect()]


def test_tls_from_the_first_byte_on():
    h = Harness(tls=True)
    assert h.from_client(b"\x16\x03\x01") == b""
    assert h.others == [StartTls(b"\x16\x03\x01")]
    h.take(h.session.tls_started())
    assert h.from_client(startup()) == startup()
    assert h.others == [StartTls(b"\x16\x03\x01"), Connect()]


def test_tls_within_tls_is_no_packet():
    h = Harness(tls=True)
    h.from_client(struct.pack("!ii", 8, m.SSL_CODE))
    h.take(h.session.tls_started())
    h.from_client(b"\x16\x03\x01\0")
    assert h.others == [StartTls(), Close()]


def test_a_handshake_without_configuration_is_no_packet(h):
    h.from_client(b"\x16\x03\x01\0")
    assert h.others == [Close()]


def test_bytes_behind_the_ssl_request_end_the_session():
    h = Harness(tls=True)
    h.from_client(struct.pack("!ii", 8, m.SSL_CODE) + b"x")
    assert h.others == [Close()]
    assert h.client[:1] == b"E"


def test_cancel_request(h):
    packet = struct.pack("!ii", 16, m.CANCEL_CODE) + KEY
    h.from_client(packet)
    assert h.others == [Cancel(KEY, packet), Close()]
    assert (h.client, h.server) == (b"", b"")


def test_full_server_answers_at_startup(h):
    h.session = session(full=lambda: True)
    h.from_client(struct.pack("!ii", 8, m.SSL_CODE))
    h.from_client(startup())
    assert h.client[:1] == b"N"
    assert read_report(h.client[6:])["C"] == "53300"
    assert h.others == [Close()]


@pytest.mark.parametrize("length", [-1, 0, 7, 10_001, 2**31 - 1])
def test_startup_length_is_checked_at_once(length):
    h = Harness()
    h.from_client(struct.pack("!i", length))
    assert h.others == [Close()]
    assert read_report(h.client[5:])["C"] == "08P01"


def test_channel_binding_is_not_offered_behind_tls():
    offer = struct.pack("!i", 10) + b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0"
    h = Harness()
    h.from_client(startup())
    plain = m.message(b"R", struct.pack("!i", 10) + b"SCRAM-SHA-256\0\0")
    assert h.from_server(m.message(b"R", offer)) == plain


def test_trust_for_this_computer_is_not_lent_to_others():
    h = Harness(allow_trust=False)
    h.from_client(startup())
    h.from_server(LOGIN_ANSWER)
    assert read_report(h.client[5:])["C"] == "28000"
    assert Close() in h.others


# --- relaying


def test_everything_else_is_relayed_byte_for_byte(h):
    h.login()
    data = (
        m.query("SELECT 1")
        + parse(b"s", "SELECT $1")
        + bind(b"", b"s", b"x" * 100)
        + DESCRIBE
        + execute(b"")
        + m.message(b"H")
        + m.SYNC
        + m.message(b"d", b"copy data")
        + m.message(b"c")
        + m.message(b"f", b"no\0")
        + m.message(b"\x99", b"who knows")
        + m.message(b"X")
    )
    assert h.from_client(data) == data
    answer = (
        m.message(b"T", b"\0\0")
        + data_row(b"1") * 3
        + m.command_complete("SELECT 3")
        + m.ready_for_query(b"T")
        + m.message(b"A", b"....x\0y\0")
        + m.message(b"\x98", b"a message of the future")
    )
    assert h.from_server(answer) == answer


def test_a_streamed_message_is_passed_on_before_it_is_complete():
    h = Harness().login()
    head = b"d" + struct.pack("!i", 1_000_000)
    assert h.from_client(head + b"abc") == head + b"abc"
    assert h.session.buffered_bytes == 0
    row = b"D" + struct.pack("!i", 1_000_000)
    assert h.from_server(row + b"abc") == row + b"abc"


def test_a_statement_over_the_limit_is_relayed_unread():
    h = Harness(statement_bytes_max=1000).login()
    big = m.query(CALL + " " * 2000)
    assert h.from_client(big[:500]) == big[:500]
    assert h.from_client(big[500:]) == big[500:]


@pytest.mark.parametrize(
    "data",
    [
        b"Q" + struct.pack("!i", 3),
        b"Q" + struct.pack("!i", -5),
        b"Q" + struct.pack("!i", 0x7FFFFFFF),
        b"S" + struct.pack("!i", 5) + b"x",
        b"E" + struct.pack("!i", 20_000),
        m.message(b"P", b"no terminator"),
    ],
)
def test_malformed_messages_end_the_session(data):
    h = Harness().login()
    h.from_client(data)
    assert h.others == [Close()]
    report = read_report(h.client[h.client.rindex(b"E\0") + 5 :])
    assert (report["S"], report["C"]) == ("FATAL", "08P01")
    assert h.session.receive_client(b"more") == []


def test_malformed_bind_of_a_call_ends_the_session():
    h = Harness().login()
    h.from_client(parse(b"", CALL) + m.message(b"B", b"\0\0\0\x05\0"))
    assert h.others == [Close()]


# --- calls in the simple protocol


def test_simple_call(h):
    h.login()
    assert h.from_client(m.query(CALL)) == CONTEXT
    assert h.session.state is SessionState.CONTEXT
    assert h.from_server(CONTEXT_ANSWER) == b""
    (run,) = h.others
    assert isinstance(run, Run)
    assert run.invocation.arguments == {
        "name": "v",
        "query": "SELECT 1",
        "options": {},
        "replace": False,
    }
    assert (run.context.caller, run.context.settings) == ("joe", {"search_path": "public"})
    h.client = b""
    h.take(h.session.notice("half"))
    h.take(h.session.finish(None))
    assert h.client == m.notice_response("half") + m.command_complete("CALL") + m.ready_for_query(
        b"I"
    )
    assert h.session.state is SessionState.RELAY


def test_a_running_call_keeps_the_source_awake(h):
    """The client does not see the answer to a keep-alive Sync; the call's end waits for it."""
    h.login()
    later = m.query("SELECT 2")
    h.from_client(m.query(CALL) + later)
    h.from_server(CONTEXT_ANSWER)
    for _ in range(2):
        h.client = h.server = b""
        h.take(h.session.keep_alive())
        h.take(h.session.keep_alive())
        assert h.server == m.SYNC, "one at a time"
        assert h.from_server(m.ready_for_query(b"I")) == b""
    h.server = b""
    h.take(h.session.keep_alive())
    h.take(h.session.notice("half"))
    h.take(h.session.finish(None))
    assert (h.client, h.server) == (m.notice_response("half"), m.SYNC)
    h.client = h.server = b""
    assert kinds(h.from_server(m.ready_for_query(b"I"))) == "CZ"
    assert (h.server, h.session.state) == (later, SessionState.RELAY)
    answer = m.command_complete("SELECT 1") + m.ready_for_query(b"I")
    assert h.from_server(answer) == answer
    assert h.take(h.session.keep_alive()) is None, "nothing runs"


def test_client_bytes_wait_for_the_call(h):
    h.login()
    later = m.query("SELECT 2")
    assert h.from_client(m.query(CALL) + later) == CONTEXT
    h.from_server(CONTEXT_ANSWER)
    assert h.session.buffered_bytes == len(later)
    h.server = b""
    h.take(h.session.finish(None))
    assert h.server == later


def test_call_waits_for_what_the_source_still_owes(h):
    h.login()
    first = m.query("SELECT pg_sleep(1)")
    # The Flush makes the source send answers that only a Query would have brought otherwise.
    assert h.from_client(first + m.query(CALL)) == first + m.FLUSH
    assert h.session.state is SessionState.BARRIER
    answer = m.command_complete("SELECT 1") + m.ready_for_query(b"I")
    h.server = b""
    assert h.from_server(answer) == answer
    assert h.server == CONTEXT


def test_error_fields_and_position(h):
    h.login()
    h.from_client(m.query(CALL))
    h.from_server(CONTEXT_ANSWER)
    h.client = b""
    h.take(h.session.fail({"C": "0A000", "M": "no", "P": "8"}))
    assert kinds(h.client) == "EZ"
    report = read_report(h.client[5:])
    assert report["P"] == str(CALL.index("SELECT 1") + 8)
    assert (report["S"], report["V"], report["C"], report["M"]) == ("ERROR", "ERROR", "0A000", "no")


def test_call_in_a_transaction_block_goes_to_postgres(h):
    h.login()
    h.from_client(m.query("BEGIN"))
    h.from_server(m.command_complete("BEGIN") + m.ready_for_query(b"T"))
    assert h.from_client(m.query(CALL)) == m.query(CALL)
    done = m.command_complete("CALL") + m.ready_for_query(b"T")
    assert h.from_server(done) == done


def test_context_that_fails_is_the_answer(h):
    h.login()
    h.from_client(m.query(CALL))
    error = m.error_response({"C": "57014", "M": "timeout"})
    assert h.from_server(error + m.ready_for_query(b"I")) == error + m.ready_for_query(b"I")
    assert h.session.state is SessionState.RELAY
    assert h.from_client(m.query("SELECT 1")) == m.query("SELECT 1")


def test_another_database_is_left_alone(h):
    data = startup(database="other")
    h.from_client(data)
    h.from_server(LOGIN_ANSWER)
    assert h.from_client(m.query(CALL)) == m.query(CALL)


def test_unknown_encoding_is_left_to_the_database(h):
    h.login()
    h.from_server(m.message(b"S", b"client_encoding\0MULE_INTERNAL\0"))
    assert h.from_client(m.query(CALL)) == m.query(CALL)


# --- calls in the extended protocol


EXTENDED = "CALL headrace.create_view($1, $2)"


def extended_call(h: Harness, tail: bytes = b"") -> None:
    head = parse(b"", EXTENDED) + bind(b"", b"", b"v", b"SELECT 1") + DESCRIBE
    got = h.from_client(head + execute(b"") + m.SYNC + tail)
    assert got == head + m.FLUSH
    answers = m.message(b"1") + m.message(b"2") + m.message(b"n")
    h.server = b""
    assert h.from_server(answers) == answers
    assert h.server == m.SYNC
    assert h.from_server(m.ready_for_query(b"I")) == b""
    assert h.server == m.SYNC + CONTEXT
    assert h.from_server(CONTEXT_ANSWER) == b""
    h.client = h.server = b""


def test_extended_call(h):
    h.login()
    extended_call(h)
    (run,) = h.others
    assert run.invocation.arguments["query"] == "SELECT 1"
    h.take(h.session.finish(None))
    assert h.client == m.command_complete("CALL")
    assert h.server == m.SYNC
    assert h.from_server(m.ready_for_query(b"I")) == m.ready_for_query(b"I")


def test_extended_error_skips_to_sync(h):
    h.login()
    head = parse(b"s", EXTENDED) + bind(b"", b"s", b"v", b"q")
    h.from_client(head + execute(b""))
    h.from_server(m.message(b"1") + m.message(b"2") + m.ready_for_query(b"I") + CONTEXT_ANSWER)
    h.client = h.server = b""
    h.take(h.session.fail({"C": "0A000", "M": "no", "P": "1"}))
    assert kinds(h.client) == "E"
    assert read_report(h.client[5:])["q"] == "q"
    assert h.session.state is SessionState.SKIP
    skipped = m.query("SELECT 1") + parse(b"", "x") + m.message(b"d", b"x" * 5000) + DESCRIBE
    assert h.from_client(skipped) == b""
    assert h.from_client(m.SYNC + m.query("SELECT 2")) == m.SYNC + m.query("SELECT 2")


def test_error_of_the_source_before_the_execute(h):
    h.login()
    h.from_client(parse(b"", EXTENDED) + bind(b"", b"", b"v") + execute(b"") + m.SYNC)
    error = m.error_response({"C": "08P01", "M": "bind message supplies 1 parameters"})
    h.server = b""
    got = h.from_server(m.message(b"1") + error + m.ready_for_query(b"I"))
    # Not a call: a parameter is missing, so Postgres was asked.
    assert kinds(got) in ("1EZ", "1E")
    assert not h.others


def test_parse_error_of_the_source_skips_the_execute(h):
    h.login()
    h.from_client(parse(b"s", EXTENDED) + bind(b"", b"s", b"v", b"q") + execute(b"") + m.SYNC)
    error = m.error_response({"C": "42P05", "M": 'prepared statement "s" already exists'})
    h.server = b""
    assert h.from_server(error) == error
    # The source skips it, like everything up to the Sync.
    assert h.server == execute(b"") + m.SYNC
    assert h.from_server(m.ready_for_query(b"I")) == m.ready_for_query(b"I")
    # The name no longer belongs to our statement.
    again = bind(b"", b"s") + execute(b"") + m.SYNC
    assert h.from_client(again) == again


def test_execute_after_another_execute_goes_to_postgres(h):
    h.login()
    data = (
        parse(b"", "INSERT INTO t VALUES (1)") + bind(b"", b"") + execute(b"")
        + parse(b"", CALL) + bind(b"", b"") + execute(b"") + m.SYNC
    )  # fmt: skip
    assert h.from_client(data) == data


def test_a_call_with_an_answer_gives_a_row():
    h = Harness().login()
    h.from_client(m.query("CALL headrace.check_view('SELECT 1')"))
    h.from_server(CONTEXT_ANSWER)
    h.client = b""
    h.take(h.session.finish(m.ResultSet(("plan",), [("a",)])))
    assert kinds(h.client) == "TDCZ"


# --- COPY and its ignored Syncs


def test_syncs_that_copy_swallows_are_not_waited_for(h):
    h.login()
    h.from_client(parse(b"", "COPY t FROM STDIN") + bind(b"", b"") + execute(b"") + m.SYNC)
    h.from_server(m.message(b"1") + m.message(b"2") + m.message(b"G", b"\0\0\0"))
    h.from_client(m.message(b"d", b"1\n") + m.message(b"c") + m.SYNC)
    h.from_server(m.command_complete("COPY 1") + m.ready_for_query(b"I"))
    assert h.from_client(m.query(CALL)) == CONTEXT


def test_simple_copy_is_counted_once(h):
    h.login()
    h.from_client(m.query("COPY t FROM STDIN"))
    h.from_server(m.message(b"G", b"\0\0\0"))
    h.from_client(m.message(b"d", b"1\n") + m.message(b"c"))
    h.from_server(m.command_complete("COPY 1") + m.ready_for_query(b"I"))
    assert h.from_client(m.query(CALL)) == CONTEXT


# --- properties


def test_transitions_name_every_state():
    reached = {SessionState.START, *(t for edges in TRANSITIONS.values() for t in edges.values())}
    assert reached | {SessionState.CLOSED} == set(SessionState)


@given(st.lists(st.binary(max_size=60), max_size=8), st.booleans())
def test_any_bytes_are_answered_or_ended(parts, logged_in):
    h = Harness()
    if logged_in:
        h.login()
    for part in parts:
        h.from_client(part)
    if h.session.state is SessionState.CLOSED:
        assert Close() in h.others


MESSAGES = st.sampled_from(
    [
        m.query("SELECT 1"), m.query(CALL), m.query("BEGIN; " + CALL), m.SYNC,
        parse(b"", EXTENDED), parse(b"s", CALL), parse(b"s", "SELECT 1"),
        bind(b"", b"", b"v", b"q"), bind(b"", b"s"), bind(b"p", b"s"), DESCRIBE,
        execute(b""), execute(b"p"), m.message(b"H"), m.message(b"d", b"x" * 30),
        m.message(b"c"), m.message(b"C", b"Ss\0"),
    ]
)  # fmt: skip


@given(st.lists(MESSAGES, max_size=12), st.lists(st.integers(1, 200), max_size=10))
def test_splitting_makes_no_difference(sequence, cuts):
    """The same bytes in other pieces give the same output, as long as no answer arrives."""
    data = b"".join(sequence)
    whole, split = Harness().login(), Harness().login()
    whole.from_client(data)
    points = sorted({0, *(c for c in cuts if c < len(data)), len(data)})
    for a, b in pairwise(points):
        split.from_client(data[a:b])
    assert split.server == whole.server
    assert split.client == whole.client
    assert split.session.state is whole.session.state


@given(st.binary(max_size=200))
def test_any_bytes_of_the_source_raise_nothing(data):
    h = Harness().login()
    h.from_server(data)


def test_what_came_before_a_broken_answer_is_delivered():
    h = Harness().login()
    h.from_client(m.query("SELECT 1"))
    rows = m.message(b"D", b"\0\0") * 3
    shown = h.from_server(rows + m.message(b"Z", b"I") + m.message(b"Z", b"I"))
    assert shown.startswith(rows + m.message(b"Z", b"I"))
    assert kinds(shown)[-1] == "E"
    assert h.session.state is SessionState.CLOSED
