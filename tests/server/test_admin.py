"""The admin database: its commands by every protocol and driver, who may do what, and no more."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace import clock
from headrace.errors import HeadraceError, SyntaxUserError, UnsupportedError
from headrace.server import messages as m
from headrace.server import orders
from headrace.server.desk import is_own
from headrace.server.facts import Facts
from headrace.server.orders import EMPTY, Order, read
from headrace.sql import install
from tests.security.roles import PASSWORD, role
from tests.server.conftest import Running
from tests.waiting import PATIENCE_S, time_passes, wait_until

PSQL = shutil.which("psql")


def connect(dsn: str, **options: object) -> psycopg.Connection:
    return psycopg.connect(dsn, **{"autocommit": True, **options})


def shown(conn: psycopg.Connection, what: str) -> list[dict[str, object]]:
    cursor = conn.cursor(row_factory=psycopg.rows.dict_row)
    return cursor.execute(f"SHOW {what}").fetchall()


def number(admin: psycopg.Connection, pid: int) -> int:
    """The number of a session, by its process on the source."""
    [found] = [r["id"] for r in shown(admin, "sessions") if r["remote_pid"] == pid]
    return int(found)


@pytest.fixture(scope="module")
def running(databases, tmp_path_factory) -> Iterator[Running]:
    name = databases.take()
    source = make_conninfo(databases.server, dbname=name)
    with connect(source) as conn:
        install.install(conn)
    one = Running(source, tmp_path_factory.mktemp("commander"))
    yield one
    one.stop()
    databases.give_back(name)


@pytest.fixture
def commander(running) -> Running:
    """One for all tests, which leave no session."""
    wait_until(lambda: not running.listener.port.connections, "nobody is left of before")
    return running


@pytest.fixture
def database(request, databases) -> str:
    """The commander's, where there is one."""
    if "commander" in request.fixturenames:
        return request.getfixturevalue("commander").source
    return make_conninfo(databases.server, dbname=request.getfixturevalue("fresh"))


@pytest.fixture
def fresh(databases) -> Iterator[str]:
    name = databases.take()
    yield name
    databases.give_back(name)


# --- texts


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("SHOW clients", Order("show", "clients")),
        ("  show\tSTATS ; ;", Order("show", "stats")),
        ("/* who */ SHOW -- is here\n sessions;", Order("show", "sessions")),
        ("KILL 12", Order("kill", number=12)),
        ("KILL_CLIENT 12;", Order("kill", number=12)),
        ("KILL '12'", Order("kill", number=12)),
        ("KILL $1", Order("kill")),
        ("reload", Order("reload")),
        ("BEGIN", Order("begin")),
        ("START TRANSACTION READ ONLY", Order("start")),
        ("SET extra_float_digits = 3", Order("set", "extra_float_digits")),
        ("SET SESSION application_name TO 'x; KILL 1'", Order("set", "application_name")),
        ("DEALLOCATE ALL", Order("deallocate")),
        ("DEALLOCATE p1", Order("deallocate", "p1")),
        ("DISCARD ALL", Order("discard")),
        (" ; ", EMPTY),
        ("", EMPTY),
    ],
)
def test_what_a_text_asks_for(text, order):
    assert read(text) == order


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "SHOW",
        "SHOW pools",
        'SHOW "Clients"',
        "SHOW clients, servers",
        "SHOW clients; KILL 1",
        "KILL",
        "KILL -1",
        "KILL 1.5",
        "KILL 1 2",
        "KILL 'a'",
        "KILL $2",
        "KILL 99999999999999999999999",
        "RELOAD now",
        "COMMIT; KILL 1",
        "SET",
        "DISCARD PLANS",
        "SHOW clients'",
    ],
)
def test_what_is_no_command(text):
    with pytest.raises(SyntaxUserError):
        read(text)


def test_settings_are_not_set_here():
    for text in ("SET log_level = debug", "SET client_encoding TO LATIN1"):
        with pytest.raises(UnsupportedError):
            read(text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(HeadraceError):
        assert read(text) is not None


def test_columns_and_help_are_of_the_same_commands():
    told = {line.split()[1] for line, _ in orders.HELP if line.startswith("SHOW")}
    assert told == set(orders.SHOWN)


# --- drivers


def test_psycopg(commander):
    with (
        connect(commander.dsn, application_name="shop") as client,
        connect(commander.admin) as admin,
    ):
        client.execute("SELECT 1")
        assert admin.execute("SHOW version").fetchall() == [("Headrace 0.of.a.test",)]
        [row] = [r for r in shown(admin, "sessions") if r["application_name"] == "shop"]
        assert row["remote_pid"] == client.info.backend_pid
        assert (row["state"], row["transaction"], row["call"]) == ("idle", "idle", None)
        assert row["queries"] == 1
        client.execute("BEGIN")
        assert [
            r["transaction"] for r in shown(admin, "sessions") if r["application_name"] == "shop"
        ] == ["open"]
        with pytest.raises(psycopg.errors.SyntaxError, match="no command of the admin database"):
            admin.execute("SELECT 1")
        assert admin.execute("SHOW help").fetchall() == list(orders.HELP)


def test_a_driver_that_begins_transactions(commander):
    with connect(commander.admin, autocommit=False) as admin:
        assert admin.execute("SHOW version").fetchone()
        assert admin.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
        with pytest.raises(psycopg.errors.SyntaxError):
            admin.execute("nonsense")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            admin.execute("SHOW version")
        admin.rollback()
        assert admin.execute("SHOW version").fetchone()


def test_prepared_portals_and_binary(commander):
    with connect(commander.admin, prepare_threshold=0) as admin:
        for _ in range(3):
            rows = admin.execute("SHOW clients", binary=True).fetchall()
            assert [type(value) for value in rows[0]].count(int) >= 3
        with admin.pipeline():
            cursors = [admin.execute("SHOW version") for _ in range(5)]
        assert [c.fetchone() for c in cursors] == [("Headrace 0.of.a.test",)] * 5
        with pytest.raises(psycopg.errors.UndefinedObject, match="no session 123456789"):
            admin.execute("KILL %s", (123_456_789,))
        with pytest.raises(psycopg.errors.SyntaxError):
            admin.execute("KILL %s", ("1; SHOW clients",))
        with pytest.raises(psycopg.errors.NullValueNotAllowed):
            admin.execute("KILL %s", (None,))
        with pytest.raises(psycopg.errors.DatatypeMismatch):
            admin.execute("KILL %b", (1.5,))
        assert admin.execute("SHOW version").fetchone()


def test_asyncpg(commander):
    async def main() -> None:
        parts = psycopg.conninfo.conninfo_to_dict(commander.admin)
        conn = await asyncpg.connect(
            host="127.0.0.1", port=commander.port, user=parts["user"], database="headrace"
        )
        rows = await conn.fetch("SHOW clients")
        assert [r["database"] for r in rows] == ["headrace"]
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await conn.fetch("SHOW nothing")
        async with conn.transaction():
            assert await conn.fetchval("SHOW version") == "Headrace 0.of.a.test"
        await conn.close()

    asyncio.run(main())


@pytest.mark.skipif(PSQL is None, reason="psql is not installed")
def test_psql(commander):
    words = [str(PSQL), commander.admin, "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
    for text in ("SHOW version;", "SHOW servers", "KILL 999"):
        words += ["-c", text]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, timeout=PATIENCE_S,
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    assert done.stdout == "Headrace 0.of.a.test\n"
    assert "there is no session 999" in done.stderr


# --- what is shown


def test_clients_servers_and_stats_as_in_pgbouncer(commander):
    with connect(commander.admin) as admin, connect(commander.dsn) as client:
        pid, name = client.info.backend_pid, client.info.dbname
        before = {r["database"]: r for r in shown(admin, "stats")}[name]
        client.execute("SELECT repeat('x', 100000)")
        clients = {r["database"]: r for r in shown(admin, "clients")}
        servers = {r["database"]: r for r in shown(admin, "servers")}
        after = {r["database"]: r for r in shown(admin, "stats")}[name]
        assert set(clients) == {"headrace", name}
        assert set(servers) == {name}, "who is in the admin database has no server connection"
        assert (servers[name]["remote_pid"], servers[name]["type"]) == (pid, "S")
        assert clients[name]["link"] == servers[name]["id"]
        assert clients["headrace"]["link"] is None
        assert clients[name]["local_port"] == commander.port
        assert clients[name]["tls"] == ""
        assert after["total_query_count"] == before["total_query_count"] + 1
        assert 100_000 < after["total_sent"] - before["total_sent"] < 101_000
        assert 30 < after["total_received"] - before["total_received"] < 200
        assert after["sessions"] == 1
        assert after["total_session_count"] == before["total_session_count"]
        client.close()
        wait_until(lambda: shown(admin, "stats")[0]["sessions"] == 0, "it has gone")
        ended = {r["database"]: r for r in shown(admin, "stats")}[name]
        assert ended["total_query_count"] == after["total_query_count"]
        assert ended["total_session_count"] == after["total_session_count"]


def test_who_is_not_let_in_yet_is_shown_as_such(commander):
    with (
        connect(commander.admin) as admin,
        socket.create_connection(("127.0.0.1", commander.port)) as silent,
    ):
        port = silent.getsockname()[1]
        wait_until(lambda: port in {r["port"] for r in shown(admin, "clients")}, "it is there")
        [row] = [r for r in shown(admin, "clients") if r["port"] == port]
        assert (row["state"], row["user"], row["database"]) == ("login", None, None)
        assert row["id"] not in {r["id"] for r in shown(admin, "sessions")}
        admin.execute(f"KILL {row['id']}")
        assert silent.recv(200).startswith(b"E")


def test_settings_are_shown_without_passwords(commander, monkeypatch):
    source = make_conninfo(commander.source, password="hidden-word")
    settings = commander.settings.replace(source=source)
    monkeypatch.setattr(commander.listener.port, "settings", settings)
    with connect(commander.admin) as admin:
        rows = {r["key"]: r for r in shown(admin, "config")}
        assert "hidden-word" not in str(rows)
        assert rows["connections_max"]["value"] == "500"
        assert rows["connections_max"]["changeable"] == "yes"
        assert rows["data_dir"]["changeable"] == "no"


def test_a_call_under_way_is_shown_and_killed(commander):
    with connect(commander.admin) as admin, connect(commander.dsn) as client:
        failed: list[psycopg.Error] = []

        def call() -> None:
            try:
                client.execute("CALL headrace.create_view('slow', 'SELECT 1 AS a')")
            except psycopg.Error as error:
                failed.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        assert commander.builder.started.wait(PATIENCE_S)
        [row] = [r for r in shown(admin, "sessions") if r["call"] == "create_view"]
        assert row["state"] == "active"
        admin.execute(f"KILL {row['id']}")
        thread.join(PATIENCE_S)
        assert failed[0].sqlstate == "57P01"
        assert commander.builder.cleaned.wait(PATIENCE_S), "the call is cancelled"


# --- KILL


ASLEEP = (
    "SELECT pid FROM pg_stat_activity WHERE query LIKE '%%a long %' AND pid <> pg_backend_pid()"
)


def test_kill_ends_what_the_source_is_at(commander, database):
    with connect(commander.admin) as admin, connect(database) as direct:
        failed: list[psycopg.Error] = []
        client = connect(commander.dsn)

        def sleep() -> None:
            try:
                client.execute("SELECT pg_sleep(600) /* a long one */")
            except psycopg.Error as error:
                failed.append(error)

        thread = threading.Thread(target=sleep)
        thread.start()
        [[pid]] = wait_until(lambda: direct.execute(ASLEEP).fetchall(), "it sleeps")
        assert {r["remote_pid"]: r["state"] for r in shown(admin, "servers")}[pid] == "active"
        assert admin.execute("KILL %s", (number(admin, pid),)).statusmessage == "KILL"
        thread.join(PATIENCE_S)
        assert failed[0].sqlstate == "57P01", "it is told why"
        wait_until(lambda: not direct.execute(ASLEEP).fetchall(), "it is cancelled")
        assert pid not in {r["remote_pid"] for r in shown(admin, "sessions")}


# --- who may do what


def test_who_is_nobody_sees_and_ends_his_own_alone(commander, database):
    with connect(database) as server, role(server, "some") as some:
        own = make_conninfo(commander.admin, user=some, password=PASSWORD)
        with (
            connect(commander.dsn, application_name="boss's") as other,
            connect(make_conninfo(commander.dsn, user=some, password=PASSWORD)) as client,
            connect(commander.admin) as boss,
            connect(own) as admin,
        ):
            pid = other.info.backend_pid
            for what in ("clients", "servers", "sessions"):
                assert {r["user"] for r in shown(admin, what)} == {some}, what
            assert {r["user"] for r in shown(boss, "clients")} > {some}
            [stats] = shown(admin, "stats")
            assert stats["sessions"] == 1
            for text in ("SHOW config", "RELOAD", f"KILL {number(boss, pid)}"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    admin.execute(text)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                admin.execute("KILL 123456789")  # nor whether there is one
            assert other.execute("SELECT 1").fetchone() == (1,)
            admin.execute(f"KILL {number(admin, client.info.backend_pid)}")
            with pytest.raises(psycopg.OperationalError):
                client.execute("SELECT 1")


def test_members_of_the_engines_role_see_all(commander, database):
    with connect(database) as server, role(server, "member") as name:
        engine = server.execute("SELECT current_user").fetchone()[0]
        with connect(make_conninfo(commander.admin, user=name, password=PASSWORD)) as admin:
            assert {r["user"] for r in shown(admin, "sessions")} == {name}
            server.execute(
                sql.SQL("GRANT {} TO {}").format(sql.Identifier(engine), sql.Identifier(name))
            )
            try:
                assert shown(admin, "config"), "rights are asked for each command"
            finally:
                server.execute(
                    sql.SQL("REVOKE {} FROM {}").format(
                        sql.Identifier(engine), sql.Identifier(name)
                    )
                )
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                admin.execute("SHOW config")


def test_a_role_that_is_gone_has_no_rights(commander, database):
    with connect(database) as server:
        with role(server, "gone") as name:
            admin = connect(make_conninfo(commander.admin, user=name, password=PASSWORD))
        with pytest.raises(psycopg.errors.InvalidAuthorizationSpecification):
            admin.execute("SHOW clients")
        admin.close()


def test_who_cannot_log_in_to_the_source_is_not_let_in(commander, database):
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        connect(make_conninfo(commander.admin, user="nobody_at_all"))
    with connect(database) as server, role(server, "locked") as name:
        server.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(sql.Identifier(name)))
        with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
            connect(make_conninfo(commander.admin, user=name, password=PASSWORD))


def test_names_are_nothing_but_values(commander, database):
    """A role called like SQL, an application called like a terminal's escape."""
    wild = "x'; DROP TABLE t; --\n\"é"
    with connect(database) as server:
        server.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(wild), PASSWORD)
        )
        try:
            with connect(
                make_conninfo(commander.admin, user=wild, password=PASSWORD),
                application_name="\x1b[31m'",
            ) as admin:
                [row] = shown(admin, "clients")
                assert row["user"] == wild
        finally:
            server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(wild)))


def test_a_name_that_is_only_said_is_nobodys():
    """Who has not logged in yet says who he is; what he does is not told to whom he names."""
    facts = Facts(
        id=1, let_in=False, admin=False, user="some", database="d", application="", state="login",
        transaction=None, call=None, call_ms=None, since=clock.now(), quiet_ms=0, pid=None,
        client=(("", 0), ("", 0)), server=None, client_tls="", server_tls="",
    )  # fmt: skip
    assert not is_own(facts, "some")
    assert is_own(dataclasses.replace(facts, let_in=True), "some")
    assert not is_own(dataclasses.replace(facts, let_in=True), "other")


# --- where its name leads


def test_a_database_of_the_name_goes_before(start, database):
    [name] = [psycopg.conninfo.conninfo_to_dict(database)["dbname"]]
    commander = start(admin_database=str(name))
    with connect(make_conninfo(commander.dsn, dbname=name)) as conn:
        assert conn.execute("SELECT current_database()").fetchone() == (name,)


def test_another_database_of_the_name_goes_before(start, database, databases):
    taken = databases.take()
    try:
        commander = start(admin_database=taken)
        with connect(make_conninfo(commander.dsn, dbname=taken)) as conn:
            assert conn.execute("SELECT current_database()").fetchone() == (taken,)
    finally:
        databases.give_back(taken)


def test_another_name_and_none(start):
    commander = start(admin_database="bureau")
    with connect(make_conninfo(commander.dsn, dbname="bureau")) as conn:
        assert conn.execute("SHOW version").fetchone()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        connect(commander.admin)


def test_there_is_room_for_it_where_the_port_is_full(start):
    commander = start(connections_max=1)
    with connect(commander.dsn) as client:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            connect(commander.dsn)
        with connect(commander.admin) as admin:
            admin.execute(f"KILL {number(admin, client.info.backend_pid)}")
        wait_until(lambda: connect(commander.dsn).close() is None, "there is room")


# --- bounds


def test_long_messages_and_many_names_are_refused(commander):
    with connect(commander.admin, prepare_threshold=None) as admin:
        for count in range(120):
            result = admin.pgconn.prepare(f"s{count}".encode(), b"SHOW version")
            if count >= 100:
                assert result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"53400"
    admin = connect(commander.admin)
    with pytest.raises(psycopg.OperationalError, match="too long"):
        admin.execute("SHOW " + "x" * 70_000)
    admin.close()


@pytest.mark.slow
def test_who_does_not_read_is_not_answered_on(commander):
    """Commands that come in one piece are carried out as far as their answers are taken."""
    parts = psycopg.conninfo.conninfo_to_dict(commander.admin)
    packet = f"user\0{parts['user']}\0database\0headrace\0\0".encode()
    with socket.create_connection(("127.0.0.1", commander.port)) as client:
        client.sendall((len(packet) + 8).to_bytes(4, "big") + b"\0\3\0\0" + packet)
        seen = b""
        while not seen.endswith(b"Z\0\0\0\5I"):
            seen += client.recv(10_000)
        client.sendall(m.query("SHOW config") * 4_000)
        with connect(commander.admin) as admin:
            size = wait_until(lambda: _steady(admin), "it has come to rest")
        assert size < 8_000_000


def _steady(admin: psycopg.Connection) -> int:
    """How much the other session was sent, once that stays as it is."""

    def sent() -> int:
        mine = len(shown(admin, "sessions"))
        assert mine == 2
        return max(int(str(r["sent"])) for r in shown(admin, "sessions"))

    before = sent()
    time_passes(0.3)
    return before if before == sent() and before > 100_000 else 0
