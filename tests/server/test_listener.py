"""Real drivers through the commander's port: sessions, COPY, calls, cancels."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading

import asyncpg
import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.waiting import PATIENCE_S, wait_until

PSQL = shutil.which("psql")
NODE = shutil.which("node")


def connect(commander, **options) -> psycopg.Connection:
    return psycopg.connect(commander.dsn, autocommit=True, **options)


def psql(commander, *commands: str, stop=True) -> subprocess.CompletedProcess:
    words = [str(PSQL), commander.dsn, "-X", "-A", "-t"]
    for command in commands:
        words += ["-c", command]
    if stop:
        words += ["-v", "ON_ERROR_STOP=1"]
    return subprocess.run(
        words,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "LC_ALL": "C"},
    )


# --- relaying


def test_psycopg_queries_copy_and_prepared_statements(commander):
    with connect(commander, prepare_threshold=0) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, s text)")
        with conn.cursor().copy("COPY t FROM STDIN") as copy:
            for i in range(20_000):
                copy.write_row((i, "x" * (i % 50)))
        for i in (1, 2, 3):
            assert conn.execute("SELECT length(s) FROM t WHERE id = %s", (i,)).fetchone() == (i,)
        with conn.cursor().copy("COPY t TO STDOUT") as copy:
            assert sum(1 for _ in copy.rows()) == 20_000
        with conn.pipeline():
            cursors = [conn.execute("SELECT %s::int", (i,)) for i in range(50)]
        assert [c.fetchone()[0] for c in cursors] == list(range(50))
        with pytest.raises(psycopg.errors.DivisionByZero):
            conn.execute("SELECT 1/0")
        with conn.transaction():
            conn.execute("INSERT INTO t VALUES (-1, 'a')")
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (20_001,)


COPY_EXTENDED = """
import sys, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    conn.execute("CREATE TABLE t (id int)")
    for _ in range(3):
        conn.pgconn.send_query_params(b"COPY t FROM STDIN", None)
        conn.pgconn.get_result()
        conn.pgconn.put_copy_data(b"1\\n2\\n")
        conn.pgconn.put_copy_end()
        while conn.pgconn.get_result():
            pass
        conn.execute("CALL headrace.drop_view('x')")
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (6,)
"""


def test_call_after_copy_in_extended_protocol(commander):
    """libpq sends a Sync that the server ignores; the count of answers must stay right.

    A separate process, because libpq's blocking calls would stop the commander's thread.
    """
    subprocess.run(
        [sys.executable, "-c", COPY_EXTENDED, commander.dsn], check=True, timeout=PATIENCE_S
    )
    assert len(commander.builder.calls) == 3


def test_large_values_are_streamed(commander):
    text = "ä" * 3_000_000
    with connect(commander) as conn:
        assert conn.execute("SELECT %s::text", (text,)).fetchone() == (text,)
        assert conn.execute(f"SELECT '{text}'").fetchone() == (text,)


def test_notifications_and_notices_pass(commander):
    with connect(commander) as conn:
        notices = []
        conn.add_notice_handler(lambda d: notices.append(d.message_primary))
        conn.execute("LISTEN x")
        conn.execute("DO $$BEGIN RAISE NOTICE 'hello'; END$$")
        with psycopg.connect(commander.source, autocommit=True) as other:
            other.execute("NOTIFY x, 'news'")
        got = [n.payload for n in conn.notifies(timeout=PATIENCE_S, stop_after=1)]
        assert got == ["news"]
        assert notices == ["hello"]


def cancel_when_asleep(commander, conn) -> None:
    sql = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
    with psycopg.connect(commander.source, autocommit=True) as source:
        pid = (conn.info.backend_pid,)
        wait_until(lambda: source.execute(sql, pid).fetchone(), "it sleeps")
    conn.cancel_safe()


def test_cancel_reaches_the_source(commander):
    with connect(commander) as conn:
        canceller = threading.Thread(target=cancel_when_asleep, args=(commander, conn))
        canceller.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("SELECT pg_sleep(600)")
        canceller.join()
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_wrong_password_and_unknown_database_are_postgres_own_errors(commander):
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(commander.dsn, dbname="no_such_database")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(commander.dsn, user="no_such_role")


def test_session_ends_on_both_sides(commander):
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leaver'"
    with psycopg.connect(commander.source, autocommit=True) as source:
        conn = connect(commander, application_name="leaver")
        assert source.execute(sql).fetchone() == (1,)
        conn.close()
        wait_until(lambda: source.execute(sql).fetchone() == (0,), "the session's end")
        wait_until(lambda: not commander.listener.port.keys, "its key is forgotten")


def test_source_ends_the_session(commander):
    with connect(commander) as conn:
        pid = conn.info.backend_pid
        with psycopg.connect(commander.source, autocommit=True) as source:
            source.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(psycopg.errors.AdminShutdown):
            conn.execute("SELECT 1")


def test_too_many_clients(start):
    commander = start(connections_max=1)
    with connect(commander) as conn:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            connect(commander)
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_slow_login_is_ended_and_hurts_nobody(start):
    commander = start(login_timeout_ms=300)

    def connected():
        # On a busy machine the test's own login may be too slow as well.
        with contextlib.suppress(psycopg.OperationalError):
            return connect(commander)
        return None

    with (
        wait_until(connected, "a login in time") as conn,
        socket.create_connection(("127.0.0.1", commander.port)) as slow,
    ):
        slow.sendall(b"\0")
        assert conn.execute("SELECT 1").fetchone() == (1,)
        slow.settimeout(PATIENCE_S)
        assert slow.recv(10) == b""
        assert conn.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!i", 7),
        struct.pack("!i", 0x7FFFFFFF),
        struct.pack("!i", -1),
        struct.pack("!ii", 8, 0x00020000),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_malformed_startup_gets_an_error(commander, data):
    with socket.create_connection(("127.0.0.1", commander.port)) as conn:
        conn.sendall(data)
        conn.settimeout(PATIENCE_S)
        answer = b""
        while part := conn.recv(1000):
            answer += part
    assert answer[:1] == b"E"
    assert b"08P01" in answer


def test_asyncpg(commander):
    async def main() -> None:
        conn = await asyncpg.connect(commander.dsn_url)
        notices = []
        conn.add_log_listener(lambda _, m: notices.append(m.message))
        assert await conn.fetchval("SELECT $1::int + 1", 41) == 42
        await conn.execute("CREATE TABLE a (i int, s text)")
        await conn.copy_records_to_table("a", records=[(1, "x"), (2, None)])
        assert await conn.fetchval("SELECT count(*) FROM a") == 2
        await conn.execute("CALL headrace.create_view('v', 'SELECT i FROM a')")
        call = "CALL headrace.create_view($1, $2, $3)"
        for _ in range(2):
            await conn.execute(call, "w", "SELECT 1", json.dumps({"sharing": False}))
        with pytest.raises(asyncpg.FeatureNotSupportedError):
            await conn.execute(call, "refused", "SELECT 1", "{}")
        await conn.execute("CALL headrace.drop_view($1, $2)", "w", True)
        async with conn.transaction():
            assert await conn.fetchval("SELECT 1") == 1
            checked = await conn.fetchval("CALL headrace.check_view($1)", "SELECT 1")
            assert checked == "plan of SELECT 1"
        assert any("25 %" in n for n in notices)
        assert re.fullmatch(r"ready: 4 rows in \d+\.\d s", notices[-1])
        await conn.close()

    commander.dsn_url = commander.dsn
    info = psycopg.conninfo.conninfo_to_dict(commander.dsn)
    commander.dsn_url = f"postgresql://{info['user']}@127.0.0.1:{commander.port}/{info['dbname']}"
    asyncio.run(main())
    calls = [c for c in commander.builder.calls if c[0] == "create_view"]
    assert calls[1][1]["options"] == {"sharing": False}
    assert commander.builder.calls[-2][1]["if_exists"] is True


@pytest.mark.skipif(NODE is None, reason="no Node")
def test_node_pg(commander, tmp_path):
    script = """
    const { Client } = require('pg');
    (async () => {
      const c = new Client({ host: '127.0.0.1', port: +process.argv[2], user: process.argv[3], database: process.argv[4] });
      await c.connect();
      const r = await c.query('SELECT $1::int + 1 AS n', [41]);
      await c.query("CALL headrace.create_view($1, $2)", ['v', 'SELECT 1']);
      await c.query("CALL headrace.drop_view('v')");
      console.log(r.rows[0].n);
      await c.end();
    })().catch(e => { console.error(e); process.exit(1); });
    """
    (tmp_path / "t.js").write_text(script)
    probe = subprocess.run(  # noqa: PLW1510
        [str(NODE), "-e", "require('pg')"], cwd=tmp_path, capture_output=True
    )
    if probe.returncode:
        pytest.skip("no module pg for Node")
    info = psycopg.conninfo.conninfo_to_dict(commander.dsn)
    done = subprocess.run(  # noqa: PLW1510
        [str(NODE), "t.js", str(commander.port), info["user"], info["dbname"]],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.stdout.strip() == "42", done.stderr
    assert [c[0] for c in commander.builder.calls] == ["create_view", "drop_view"]


# --- calls


@pytest.mark.skipif(PSQL is None, reason="no psql")
def test_psql_call_progress_and_error_with_caret(commander):
    done = psql(commander, "CALL headrace.create_view('v', $$SELECT 1$$)", "SELECT 5")
    assert done.returncode == 0, done.stderr
    assert 'NOTICE:  populating "v": 250000 of 1000000 rows (25 %), 3 s left' in done.stderr
    assert done.stdout.splitlines() == ["CALL", "5"]
    done = psql(commander, "CALL headrace.create_view('refused', $$SELECT * FROM a$$)")
    lines = done.stderr.splitlines()
    # Planning reports no progress: its error comes without a notice before it.
    assert lines[0] == "ERROR:  LEFT JOIN is not supported"
    assert lines[1].startswith("LINE 1: ")
    # Position 8 of the query is its asterisk.
    assert lines[1][lines[2].index("^")] == "*"
    assert "DETAIL:  A detail." in lines
    assert "HINT:  A hint." in lines


def test_arguments_in_both_protocols_are_the_same(commander):
    query = "SELECT 'it''s' AS \"ä\", $x$ -- no comment $x$"
    text = query.replace("'", "''")
    with connect(commander) as conn:
        conn.execute(f"CALL headrace.create_view('v', '{text}', '{{\"block\": true}}')")
        conn.execute(
            f'/* c */ call "headrace".Create_View( -- x\n query => $q${query}$q$, '
            "options := '{\"block\": true}'::jsonb, name => E'\\x76' )".replace(
                "E'\\x76'", "E'\\u0076'"
            )
            + " ; "
        )
        conn.execute("CALL headrace.create_view(%s, %s, %s)", ("v", query, Jsonb({"block": True})))
        conn.execute(
            "CALL headrace.create_view(query => %s, name => %s, options => %s)",
            (query, "v", Jsonb({"block": True})), binary=True, prepare=True,
        )  # fmt: skip
        conn.execute("SET client_encoding = 'LATIN1'")
        conn.execute("CALL headrace.create_view('v', %s, '{\"block\": true}')", (query,))
    calls = [c[1] for c in commander.builder.calls]
    assert len(calls) == 5
    for call in calls:
        assert call["name"] == "v"
        assert call["query"] == query
        assert call["options"] == {"block": True}
        assert call["caller"] == "postgres"
        assert call["settings"]["search_path"] == '"$user", public'


def test_session_context_is_passed_on(commander):
    with connect(commander) as conn:
        conn.execute("DROP ROLE IF EXISTS f_caller")
        conn.execute("CREATE ROLE f_caller")
        conn.execute("CREATE SCHEMA s; SET search_path = s, pg_temp; SET TimeZone = 'Asia/Tokyo'")
        conn.execute("SET ROLE f_caller")
        conn.execute("CALL headrace.create_view('v', 'SELECT 1')")
        assert conn.execute("SELECT current_user").fetchone() == ("f_caller",)
        conn.execute("RESET ROLE")
        conn.execute("DROP ROLE f_caller")
    params = commander.builder.calls[0][1]
    assert params["caller"] == "f_caller"
    assert params["settings"]["search_path"] == "s, pg_temp"
    assert params["settings"]["TimeZone"] == "Asia/Tokyo"


def test_in_a_transaction_block_a_call_that_makes_a_secret_is_refused(commander):
    with connect(commander) as conn:
        for call in (
            ("CALL headrace.create_worker_token('w')", None),
            ("CALL headrace.create_worker_token(%s)", ("w",)),
        ):
            conn.execute("BEGIN")
            with pytest.raises(psycopg.errors.ActiveSqlTransaction) as caught:
                conn.execute(*call)
            assert "cannot run inside a transaction block" in str(caught.value)
            assert "psycopg: conn.autocommit = True" in caught.value.diag.message_hint
            assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                conn.execute(*call)
            conn.execute("ROLLBACK")
        with pytest.raises(psycopg.errors.ActiveSqlTransaction):
            conn.execute("SELECT 1; CALL headrace.create_worker_token('w')")
        assert conn.execute("SELECT 1").fetchone() == (1,)
    assert not commander.builder.calls


def test_in_a_transaction_that_nobody_asked_for_a_call_waits_for_its_end(commander):
    """Several statements in one text, and a driver that begins a transaction by itself."""
    call = "CALL headrace.create_view('v', 'SELECT 1')"
    for number, (autocommit, text, params) in enumerate(
        (
            (True, f"SELECT 1; {call}", None),
            (False, call, None),
            (False, call.replace("'v'", "%s"), ("v",)),
        ),
        1,
    ):
        with psycopg.connect(commander.dsn, autocommit=autocommit) as conn:
            conn.execute(text, params)
            if not autocommit:
                assert len(commander.builder.calls) < number
            conn.commit()
            wait_until(lambda n=number: len(commander.builder.calls) == n, "it is carried out")


def test_error_in_extended_protocol_skips_to_sync(commander):
    with connect(commander) as conn, pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        conn.execute("CALL headrace.create_view(%s, %s)", ("refused", "SELECT * FROM a"))
    diag = caught.value.diag
    assert diag.statement_position is None
    assert (diag.internal_position, diag.internal_query) == ("8", "SELECT * FROM a")
    with connect(commander) as conn:
        with conn.pipeline() as pipeline:
            conn.execute("CALL headrace.create_view('refused', %s)", ("SELECT * FROM a",))
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                pipeline.sync()
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_unknown_procedures(commander):
    with connect(commander) as conn:
        with pytest.raises(psycopg.errors.UndefinedFunction):
            conn.execute("CALL headrace.nonsense('v')")
        with pytest.raises(psycopg.errors.UndefinedFunction):
            conn.execute("CALL headrace.create_view('v')")
        with pytest.raises(psycopg.errors.NullValueNotAllowed):
            conn.execute("CALL headrace.create_view(NULL, 'SELECT 1')")
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            conn.execute("CALL headrace.create_view('v', 'SELECT 1', '{')")
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            conn.execute("CALL headrace.create_view('v', 'SELECT 1', '[]')")
        assert conn.execute("SELECT 1").fetchone() == (1,)
    assert not commander.builder.calls


def test_a_call_with_an_answer(commander):
    want = [("plan of SELECT 1",)]
    with connect(commander) as conn:
        assert conn.execute("CALL headrace.check_view('SELECT 1')").fetchall() == want
        sql = "CALL headrace.check_view(query => %s)"
        for binary in (False, True):
            cursor = conn.execute(sql, ("SELECT 1",), binary=binary)
            assert cursor.fetchall() == want
            assert cursor.description[0].name == "plan"
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_cancel_of_a_call_waits_for_the_cleaning_up(commander):
    with connect(commander) as conn:
        for parameters in (None, ()):
            commander.builder.cleaned.clear()
            commander.builder.started.clear()
            canceller = commander.cancel_when_started(conn)
            with pytest.raises(psycopg.errors.QueryCanceled) as caught:
                conn.execute("CALL headrace.create_view('slow', 'SELECT 1')", parameters)
            canceller.join()
            assert commander.builder.cleaned.is_set()
            assert "canceling statement due to user request" in str(caught.value)
            assert conn.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.skipif(PSQL is None, reason="no psql")
def test_psql_interrupt(commander):
    process = subprocess.Popen(
        [str(PSQL), commander.dsn, "-X", "-c", "CALL headrace.create_view('slow', 'SELECT 1')"],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert commander.builder.started.wait(PATIENCE_S)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE_S)
    assert "canceling statement due to user request" in error
    assert commander.builder.cleaned.is_set()


def test_client_that_goes_away_cancels_its_call(commander):
    conn = connect(commander)
    conn.pgconn.send_query(b"CALL headrace.create_view('slow', 'SELECT 1')")
    assert commander.builder.started.wait(PATIENCE_S)
    conn.close()
    assert commander.builder.cancelled.wait(PATIENCE_S)


def test_a_wrong_cancel_key_does_nothing(commander):
    conn = connect(commander)
    conn.pgconn.send_query(b"CALL headrace.create_view('slow', 'SELECT 1')")
    assert commander.builder.started.wait(PATIENCE_S)
    with socket.create_connection(("127.0.0.1", commander.port)) as other:
        packet = struct.pack("!iiii", 16, 80877102, conn.info.backend_pid, 12345)
        other.sendall(packet)
        other.settimeout(PATIENCE_S)
        assert other.recv(1) == b""
    assert not commander.builder.cancelled.is_set()
    conn.close()


def test_block_false_returns_before_the_end(commander):
    with connect(commander) as conn:
        conn.execute("CALL headrace.create_view('slow', 'SELECT 1', '{\"block\": false}')")
        assert not commander.builder.cancelled.is_set()
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            conn.execute("CALL headrace.create_view('refused', 'SELECT 1', '{\"block\": false}')")


# --- TLS


@pytest.fixture
def certificate(tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(cert), str(key)


def test_tls(start, certificate):
    commander = start(tls_cert=certificate[0], tls_key=certificate[1])
    with connect(commander, sslmode="require") as conn:
        assert conn.pgconn.ssl_in_use
        assert conn.execute("SELECT repeat('x', 1000000)").fetchone() == ("x" * 1_000_000,)
        conn.execute("CALL headrace.drop_view('v')")
    with connect(commander, sslmode="disable") as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_bytes_before_the_tls_handshake_end_the_session(start, certificate):
    commander = start(tls_cert=certificate[0], tls_key=certificate[1])
    with socket.create_connection(("127.0.0.1", commander.port)) as conn:
        conn.sendall(struct.pack("!ii", 8, 80877103) + b"\0\0\0\x08early")
        conn.settimeout(PATIENCE_S)
        answer = b""
        while part := conn.recv(1000):
            answer += part
        assert answer[:1] == b"E"
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", commander.port)) as conn:
        conn.sendall(struct.pack("!ii", 8, 80877103))
        assert conn.recv(1) == b"S"
        with context.wrap_socket(conn) as secure:
            # Another SSLRequest inside TLS: answered N.
            secure.sendall(struct.pack("!ii", 8, 80877103))
            assert secure.recv(1) == b"N"


def test_tls_needs_the_server_when_not_configured(commander):
    with pytest.raises(psycopg.OperationalError, match="does not support SSL"):
        connect(commander, sslmode="require")
