"""Calls about clients of the port: output, sessions that they end, and rights."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace import clock
from headrace.server.clients import is_own
from headrace.server.facts import Facts
from headrace.sql import install
from tests.security.roles import PASSWORD, role
from tests.server.conftest import Running
from tests.waiting import PATIENCE_S, wait_until

PSQL = shutil.which("psql")


def connect(dsn: str, **options: object) -> psycopg.Connection:
    return psycopg.connect(dsn, **{"autocommit": True, **options})


def shown(conn: psycopg.Connection, what: str) -> list[dict[str, object]]:
    cursor = conn.cursor(row_factory=psycopg.rows.dict_row)
    return cursor.execute(f"SELECT * FROM headrace.{what}()").fetchall()


def number(conn: psycopg.Connection, pid: int) -> int:
    """Return the number of a client, by its process on the source."""
    [found] = [r["id"] for r in shown(conn, "clients") if r["server_pid"] == pid]
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
    """One commander for all tests; no test leaves a session."""
    wait_until(lambda: not running.listener.port.connections, "nobody is left of before")
    return running


@pytest.fixture
def database(request, databases) -> str:
    """The commander's database, if the test uses one."""
    if "commander" in request.fixturenames:
        return request.getfixturevalue("commander").source
    return make_conninfo(databases.server, dbname=request.getfixturevalue("fresh"))


@pytest.fixture
def fresh(databases) -> Iterator[str]:
    name = databases.take(installed=True)
    yield name
    databases.give_back(name)


# --- what is shown


def test_a_client_is_shown(commander):
    with (
        connect(commander.dsn, application_name="shop") as client,
        connect(commander.dsn) as other,
    ):
        client.execute("SELECT 1")
        [row] = [r for r in shown(other, "clients") if r["application_name"] == "shop"]
        assert row["server_pid"] == client.info.backend_pid
        assert (row["state"], row["transaction"], row["call"]) == ("idle", "idle", None)
        assert (row["queries"], row["tls"], row["server_tls"]) == (1, None, None)
        assert row["database"] == client.info.dbname
        client.execute("BEGIN")
        [row] = [r for r in shown(other, "clients") if r["application_name"] == "shop"]
        assert row["transaction"] == "open"
        [own] = [r for r in shown(other, "clients") if r["state"] == "active"]
        assert (own["server_pid"], own["call"]) == (other.info.backend_pid, None)


def test_what_went_through_is_counted_by_database(commander):
    with connect(commander.dsn) as other, connect(commander.dsn) as client:
        name = client.info.dbname
        [before] = shown(other, "client_stats")
        client.execute("SELECT repeat('x', 100000)")
        client.execute("CALL headrace.drop_view('nothing', if_exists => true)")
        [after] = shown(other, "client_stats")
        assert before["database"] == after["database"] == name
        assert (after["clients"], after["clients_total"]) == (2, before["clients_total"])
        assert after["queries"] > before["queries"]
        assert after["calls"] == before["calls"] + 1
        assert 100_000 < after["sent_bytes"] - before["sent_bytes"] < 103_000
        assert 30 < after["received_bytes"] - before["received_bytes"] < 500
        client.close()
        wait_until(lambda: shown(other, "client_stats")[0]["clients"] == 1, "it has gone")
        assert shown(other, "client_stats")[0]["clients_total"] == after["clients_total"]


def test_the_same_on_a_direct_connection(commander, database):
    with connect(commander.dsn, application_name="shop") as client, connect(database) as direct:
        [(rows,)] = direct.execute("CALL headrace.show_clients()").fetchall()
        [row] = [r for r in rows if r["application_name"] == "shop"]
        assert row["server_pid"] == client.info.backend_pid
        [row] = [r for r in shown(direct, "clients") if r["application_name"] == "shop"]
        assert row["server_pid"] == client.info.backend_pid
        direct.execute("CALL headrace.end_client(%s)", (row["id"],))
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")


def test_a_client_that_has_not_logged_in_is_shown_as_such(commander):
    with (
        connect(commander.dsn) as other,
        socket.create_connection(("127.0.0.1", commander.port)) as silent,
    ):
        port = silent.getsockname()[1]
        wait_until(lambda: port in {r["port"] for r in shown(other, "clients")}, "it is there")
        [row] = [r for r in shown(other, "clients") if r["port"] == port]
        assert (row["state"], row["role"], row["database"]) == ("login", None, None)
        other.execute("CALL headrace.end_client(%s)", (row["id"],))
        assert silent.recv(200).startswith(b"E")


def test_settings_are_shown_without_passwords(commander, monkeypatch):
    source = make_conninfo(commander.source, password="hidden-word")
    settings = commander.settings.replace(source=source)
    monkeypatch.setattr(commander.listener.port, "settings", settings)
    with connect(commander.dsn) as conn:
        rows = {r["name"]: r for r in shown(conn, "settings")}
        assert "hidden-word" not in str(rows)
        assert rows["connections_max"]["value"] == "500"
        assert rows["connections_max"]["reloads"]
        assert not rows["data_dir"]["reloads"]


def test_a_call_under_way_is_shown_and_ended(commander):
    with connect(commander.dsn) as other, connect(commander.dsn) as client:
        failed: list[psycopg.Error] = []

        def call() -> None:
            try:
                client.execute("CALL headrace.create_view('slow', 'SELECT 1 AS a')")
            except psycopg.Error as error:
                failed.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        assert commander.builder.started.wait(PATIENCE_S)
        [row] = [r for r in shown(other, "clients") if r["call"] == "create_view"]
        assert row["state"] == "active"
        other.execute("CALL headrace.end_client(%s)", (row["id"],))
        thread.join(PATIENCE_S)
        assert failed[0].sqlstate == "57P01"
        assert commander.builder.cleaned.wait(PATIENCE_S), "the call is cancelled"


@pytest.mark.skipif(PSQL is None, reason="psql is not installed")
def test_psql(commander):
    words = [str(PSQL), commander.dsn, "-X", "-A", "-t"]
    for text in ("SELECT * FROM headrace.clients()", "CALL headrace.end_client(999)"):
        words += ["-c", text]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, timeout=PATIENCE_S,
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    assert "|psql|active|" in done.stdout
    assert "there is no client 999" in done.stderr


# --- end_client


ASLEEP = (
    "SELECT pid FROM pg_stat_activity WHERE query LIKE '%%a long %' AND pid <> pg_backend_pid()"
)


def test_the_running_statement_of_an_ended_client_is_cancelled(commander, database):
    with connect(commander.dsn) as other, connect(database) as direct:
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
        assert {r["server_pid"]: r["state"] for r in shown(other, "clients")}[pid] == "active"
        other.execute("CALL headrace.end_client(%s)", (number(other, pid),))
        thread.join(PATIENCE_S)
        assert failed[0].sqlstate == "57P01", "it is told why"
        wait_until(lambda: not direct.execute(ASLEEP).fetchall(), "it is cancelled")
        assert pid not in {r["server_pid"] for r in shown(other, "clients")}


def test_a_client_that_is_not_there(commander):
    with connect(commander.dsn) as conn:
        with pytest.raises(psycopg.errors.UndefinedObject, match="no client 123456789"):
            conn.execute("CALL headrace.end_client(%s)", (123_456_789,))
        with pytest.raises(psycopg.Error) as failed:
            conn.execute("CALL headrace.end_client(NULL)")
        assert failed.value.sqlstate == "22004"


def test_where_the_port_is_full_a_direct_connection_ends_clients(start, database):
    commander = start(connections_max=1)
    with connect(commander.dsn), connect(database) as direct:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            connect(commander.dsn)
        [(rows,)] = direct.execute("CALL headrace.show_clients()").fetchall()
        direct.execute("CALL headrace.end_client(%s)", (rows[0]["id"],))
        wait_until(lambda: connect(commander.dsn).close() is None, "there is room")


# --- who may do what


def test_an_ordinary_role_sees_and_ends_its_own_clients_only(commander, database):
    with connect(database) as server, role(server, "some") as some:
        own = make_conninfo(commander.dsn, user=some, password=PASSWORD)
        with (
            connect(commander.dsn, application_name="boss's") as other,
            connect(own) as client,
            connect(own) as conn,
        ):
            pid = other.info.backend_pid
            assert {r["role"] for r in shown(conn, "clients")} == {some}
            assert {r["role"] for r in shown(other, "clients")} > {some}
            [stats] = shown(conn, "client_stats")
            assert stats["clients"] == 2
            for text in (
                *("SELECT * FROM headrace.settings()", "CALL headrace.reload()"),
                f"CALL headrace.end_client({number(other, pid)})",
                "CALL headrace.end_client(123456789)",  # nor is its existence revealed
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(text)
            assert other.execute("SELECT 1").fetchone() == (1,)
            conn.execute("CALL headrace.end_client(%s)", (number(conn, client.info.backend_pid),))
            with pytest.raises(psycopg.OperationalError):
                client.execute("SELECT 1")


def test_members_of_the_engines_role_see_all(commander, database):
    with connect(database) as server, role(server, "member") as name:
        engine = server.execute("SELECT current_user").fetchone()[0]
        granted = [sql.Identifier(engine), sql.Identifier(name)]
        with connect(make_conninfo(commander.dsn, user=name, password=PASSWORD)) as conn:
            assert {r["role"] for r in shown(conn, "clients")} == {name}
            server.execute(sql.SQL("GRANT {} TO {}").format(*granted))
            try:
                assert shown(conn, "settings"), "rights are asked for each call"
            finally:
                server.execute(sql.SQL("REVOKE {} FROM {}").format(*granted))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                shown(conn, "settings")


def test_names_are_nothing_but_values(commander, database):
    """A role with a name like SQL, an application with a name like an escape sequence."""
    wild = "x'; DROP TABLE t; --\n\"é"
    with connect(database) as server:
        server.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(wild), PASSWORD)
        )
        try:
            with connect(
                make_conninfo(commander.dsn, user=wild, password=PASSWORD),
                application_name="\x1b[31m'",
            ) as conn:
                [row] = shown(conn, "clients")
                assert row["role"] == wild
        finally:
            server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(wild)))


def test_a_name_that_is_only_claimed_is_nobodys():
    """Before its login a client only claims a name; the role of that name must not see it."""
    facts = Facts(
        id=1, let_in=False, user="some", database="d", application="", state="login",
        transaction=None, call=None, call_ms=None, since=clock.now(), quiet_ms=0, pid=None,
        client=(("", 0), ("", 0)), server=None, client_tls="", server_tls="",
    )  # fmt: skip
    assert not is_own(facts, "some")
    assert is_own(dataclasses.replace(facts, let_in=True), "some")
    assert not is_own(dataclasses.replace(facts, let_in=True), "other")
