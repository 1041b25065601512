"""Limits for one client: memory, time of the event loop, sockets, lines of the log."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys

import psycopg
import pytest
import structlog

from headrace.process.admission import Noise, network
from headrace.server.flow import Rules
from headrace.server.protocol import Session
from headrace.server.remembered import BYTES_MAX
from headrace.server.statements import STEPS_MAX, parse
from tests.security import wire as w
from tests.server.conftest import Running
from tests.waiting import PATIENCE_S, wait_until


def closed(sock: socket.socket) -> bool:
    """Return whether the peer has closed the connection."""
    sock.settimeout(PATIENCE_S)
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def connect(commander: Running, **options: object) -> psycopg.Connection:
    return psycopg.connect(commander.dsn, autocommit=True, **options)


# --- sockets


def test_silent_sockets_are_no_sessions_and_make_room(start):
    commander = start(connections_max=3, logins_per_address_max=10)
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", commander.port)))
            for _ in range(40)
        ]
        for _ in range(3):
            conn = stack.enter_context(connect(commander))
            assert conn.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            connect(commander)
        # The oldest connection had to make room.
        assert closed(silent[0])
        assert len(commander.listener.port.sessions) == 3
        assert len(commander.listener.port.admission) <= 10


def test_sockets_are_watched(start):
    commander = start(client_timeout_ms=123_000)
    with connect(commander):
        (client,) = commander.listener.port.sessions
        for transport in (client._transport, client._upstream.transport):
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        sock = client._transport.get_extra_info("socket")
        option = socket.TCP_USER_TIMEOUT
        assert sock.getsockopt(socket.IPPROTO_TCP, option) == 123_000


def test_an_ipv6_network_counts_as_one_address():
    assert network("2001:db8::1") == network("2001:db8::2:3") != network("2001:db9::1")
    assert network("::ffff:10.0.0.1") == network("10.0.0.1") != network("10.0.0.2")
    assert network("fe80::1%eth0") == network("fe80::2")


# --- memory


@pytest.mark.parametrize("what", ["statements", "portals", "copies"])
def test_what_a_session_has_prepared_is_bounded(commander, database, what):
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    call = "CALL headrace.create_view('v', $1)"
    padding = "/*" + "x" * 30_000 + "*/"
    with w.Wire(commander.port, user="postgres", database=name) as conn:
        (client,) = commander.listener.port.sessions
        conn.send(w.parse(call, "s"), w.SYNC)
        conn.until("Z")
        for number in range(100):
            if what == "statements":
                conn.send(w.parse(call + padding, f"s{number}"), w.FLUSH)
                conn.until("1")
            elif what == "portals":
                conn.send(w.bind(b"x" * 30_000, portal=f"p{number}", name="s"), w.FLUSH)
                conn.until("2")
            else:
                conn.send(w.parse("COPY t FROM STDIN" + padding, f"c{number}"), w.FLUSH)
                conn.until("1")
            assert client.session._queries._calls.size <= 2 * BYTES_MAX
        # Forgotten calls are executed by the database, by way of the command table.
        last = {"statements": "s99", "portals": "s", "copies": "s"}[what]
        conn.send(w.SYNC)
        conn.until("Z")
        conn.send(w.bind(b"SELECT 1", name=last), w.execute(), w.SYNC)
        assert "C" in w.kinds(conn.until("Z"))
    assert len(commander.builder.calls) == 1


# --- time


def test_texts_beyond_the_limit_are_not_read(commander):
    """A call that is too long is executed by the database."""
    with connect(commander) as conn:
        query = "SELECT 1 /*" + "x" * 100_000 + "*/"
        conn.execute(f"CALL headrace.create_view('v', $${query}$$)")
    assert commander.builder.calls[0][1]["query"] == query


def test_only_texts_that_name_us_are_taken_apart(monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr("headrace.server.queries.parse", lambda text, **_: seen.append(text))
    rules = Rules(database="db", nonce=lambda: "n", allow_trust=True)
    session = Session(rules)
    session.receive_client(w.startup(user="u", database="db"))
    session.receive_server(w.message("R", struct.pack("!i", 0)) + w.message("Z", b"I"))
    session.receive_client(w.query("SELECT 1") + w.query("SELECT 'HeadRace'"))
    session.receive_client(w.query("SELECT 'headrace'" + " " * 70_000))
    assert seen == ["SELECT 'HeadRace'"]


LONG = 65_536
WORST = {
    "string": "CALL headrace.create_view('v', '" + "a" * LONG,
    "quotes": "CALL headrace.x('" + "''" * LONG,
    "escapes": "CALL headrace.x(E'" + "\\a" * LONG,
    "unicode escapes": "CALL headrace.x(E'" + "\\u0041" * LONG,
    "strings": "CALL headrace.x(" + "'a'," * LONG,
    "continued": "CALL headrace.x(" + "'a'\n--\n--\n" * LONG,
    "names": "CALL headrace.x(" + "a=>1," * LONG,
    "casts": "CALL headrace.x(" + "'a'::text," * LONG,
    "nested comments": "/*headrace " + "/*" * 16_000 + "*/" * 16_000,
    "comments": "/*headrace*/" + "/**/" * LONG,
    "lines": "--headrace" + "\n--" * LONG,
    "identifier": 'CALL headrace."' + '""' * LONG,
    "identifiers": 'CALL headrace."' + 'a"."' * LONG,
    "symbols": "headrace " + "((" * LONG,
    "words": "headrace " + "a," * LONG,
    "word": "headrace " + "A" * LONG,
    "letters": "headrace " + "Aä" * LONG,
    "long words": "headrace " + ("A" * 60 + "ä ") * 2_000,
    "dollars": "headrace " + "$a$ " * LONG,
    "empty dollars": "headrace " + "$$$$" * LONG,
    "no dollar": "headrace $" + "a" * LONG,
    "numbers": "headrace " + "1 " * LONG,
    "spaces": "headrace " + " -" * LONG,
}


@pytest.mark.parametrize("what", WORST)
def test_a_text_is_read_in_few_steps(what):
    """Any text is read in a bounded number of steps; longer ones are left to the database.

    The test counts profiling events, several for each step. (On one busy core of 2020 the allowed
    maximum takes 4 ms.)
    """
    text = WORST[what][:LONG]
    for standard in (True, False):
        count = 0

        def trace(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(trace)
        try:
            parse(text, standard_strings=standard)
        finally:
            sys.setprofile(None)
        assert count < 60 * STEPS_MAX


def test_a_call_of_many_pieces_is_read_up_to_the_limit():
    """One of the steps is spent on the beginning of each lexeme."""

    def call(pieces: int) -> str:
        return "CALL headrace.create_view('v', '" + "''" * pieces + "')"

    found = parse(call(STEPS_MAX // 2))
    assert found is not None
    assert found.arguments[1].value == "'" * (STEPS_MAX // 2)
    assert parse(call(STEPS_MAX)) is None


def test_a_call_that_is_not_read_is_made_by_the_database(commander):
    query = "SELECT '" + "''" * STEPS_MAX + "'"
    with connect(commander) as conn:
        conn.execute(psycopg.sql.SQL("CALL headrace.create_view('v', {})").format(query))
    assert [p["query"] for _, p in commander.builder.calls] == [query]


# --- noise


def test_rude_clients_are_one_line(start, capfd):
    commander = start()
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" * 20, b"\0" * 64):
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", commander.port)) as conn:
                conn.sendall(data)
                assert not closed(conn)  # an ErrorResponse
    for _ in range(20):
        conn = socket.create_connection(("127.0.0.1", commander.port))
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        conn.sendall(b"\0\0")
        conn.close()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(5):
        with (
            socket.create_connection(("127.0.0.1", commander.port)) as conn,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context.wrap_socket(conn)
    wait_until(lambda: not commander.listener.port.connections, "all are gone")
    with connect(commander) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)
    shown = capfd.readouterr()
    lines = [x for x in (shown.out + shown.err).splitlines() if x.strip()]
    assert len(lines) < 10, lines


def test_noise_counts_what_it_does_not_tell():
    now = 0.0
    noise = Noise(lambda: now)
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            noise.tell("rude")
        now = 11.0
        noise.tell("rude")
    assert [log.get("more_before", 0) for log in logs] == [0, 4]


@pytest.mark.parametrize("size", [70_000, 1_000_000, 8_000_000])
def test_the_last_word_of_a_source_that_stops_listening_arrives(commander, database, size):
    """Postgres may close a connection while we still write: its last message can still be read."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE c (t text)")
        name, role, source = conn.info.dbname, conn.info.user, conn.info.port
    said = []
    for port in (source, commander.port):
        with w.Wire(port, user=role, database=name) as wire:
            wire.send(w.query("COPY c FROM STDIN"))
            wire.until("G")
            with contextlib.suppress(ConnectionError):
                wire.send(w.message("Q", b"x" * size))
            said.append([w.fields(body)["M"] for kind, body in wire.rest() if kind == "E"])
    assert said[0] == said[1]
    assert "protocol synchronization was lost" in said[0][-1]
