"""Logins of the console: on a server that asks for passwords, and with roles that it trusts."""

from __future__ import annotations

import asyncio
import socket
import time

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.config import Settings
from headrace.console import event_page, sql_page
from headrace.console import graph_collector as lookout
from headrace.console.access import ENGINE, Access, Refused, let_go
from headrace.console.graph_collector import Full, GraphCollector
from headrace.console.host_interface import HostInterface
from headrace.console.port import HttpPort
from headrace.console.sql_page import RUNNING_MAX, Busy, SqlBody, SqlPage
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.sql import install, seen
from tests.console.test_port import Health, post
from tests.waiting import eventually

HBA = """
local all all trust
host all joe,ann,closed 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""


@pytest.fixture(scope="module")
def source():
    """A server that trusts ``postgres`` and ``trusted``, and asks other roles for passwords."""
    with EmbeddedPostgres(None, 16, durable=False) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("CREATE ROLE joe LOGIN PASSWORD 's3cret'")
            conn.execute("CREATE ROLE ann LOGIN PASSWORD 'other'")
            conn.execute("CREATE ROLE closed LOGIN PASSWORD 's3cret'")
            conn.execute("CREATE ROLE trusted LOGIN PASSWORD 's3cret'")
            conn.execute("ALTER ROLE joe SET row_security = off")
            conn.execute("ALTER ROLE joe SET search_path = evil")
            install.install(conn)
            (server.data_dir / "pg_hba.conf").write_text(HBA)
            conn.execute("SELECT pg_reload_conf()")
        yield server.dsn()


@pytest.fixture
def settings(source, tmp_path):
    return Settings(source=source, data_dir=tmp_path)


def entered(settings, *login):
    async def main():
        access = Access(settings)
        identity = await (
            access.by_token(*login) if len(login) == 1 else access.by_password(*login)
        )
        cursor = await identity.conn.execute(
            "SELECT session_user::text AS s, current_setting('row_security') AS rows,"
            " current_setting('search_path') AS path, current_setting('statement_timeout') AS ends"
        )
        found = await cursor.fetchone()
        await let_go(identity.conn)
        return identity, found

    return asyncio.run(main())


def test_a_role_gets_in_by_its_password_and_is_itself(settings):
    identity, found = entered(settings, "joe", "s3cret")
    assert identity.role == found["s"] == "joe"
    assert identity.key.isdigit()
    # As for every role: the role's own settings must not affect the page.
    assert found["rows"] == "on"
    assert found["path"] == "pg_catalog, pg_temp"
    assert found["ends"] == "10s"


@pytest.mark.parametrize(
    "login",
    [
        *(("joe", "wrong"), ("joe", ""), ("", "s3cret"), ("nobody", "x"), ("ann", "s3cret")),
        *(("joe' host=example", "s3cret"), ("joe user=postgres", "s3cret")),
        ("joe", "s3cret options='-c role=postgres'"),
    ],
)
def test_nobody_else_does(settings, login):
    with pytest.raises(Refused):
        entered(settings, *login)


@pytest.mark.parametrize("role", ["trusted", "postgres"])
def test_who_is_trusted_by_the_source_has_proved_nothing(settings, role):
    """The source trusts Headrace's computer, so it would accept any password."""
    for password in ("s3cret", "anything"):
        with pytest.raises(Refused):
            entered(settings, role, password)
    open_to_all = settings.replace(allow_trust=True)
    assert entered(open_to_all, role, "anything")[0].role == role


def test_what_the_engine_logs_in_with_lets_in_nobody_else(settings, source, monkeypatch, tmp_path):
    """The engine's own passwords and the options of its DSN help no role to log in."""
    files = tmp_path / "pgpass"
    files.write_text("*:*:*:*:s3cret\n")
    files.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(files))
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    dsn = make_conninfo(source, user="joe", password="s3cret", options="-c work_mem=7MB")
    other = settings.replace(source=dsn, allow_trust=True)
    for password in ("", "wrong"):
        with pytest.raises(Refused):
            entered(other, "closed", password)

    async def setting():
        identity = await Access(other).by_password("ann", "other")
        cursor = await identity.conn.execute("SELECT current_setting('work_mem') AS m")
        found = await cursor.fetchone()
        await let_go(identity.conn)
        return found["m"]

    assert asyncio.run(setting()) != "7MB"


@pytest.mark.parametrize("login", [("", "s3cret"), ("joe", ""), ("", "")])
def test_what_is_left_out_is_not_made_up(settings, login):
    with pytest.raises(Refused, match="are required"):
        entered(settings, *login)


def test_the_token_is_the_engine(settings, tmp_path):
    Access(settings)
    token = (tmp_path / "console.token").read_text().strip()
    identity, _ = entered(settings, token)
    assert (identity.key, identity.role) == (ENGINE, "postgres")
    for wrong in ("", token[:-1], token + "x"):
        with pytest.raises(Refused):
            entered(settings, wrong)


def test_calls_are_made_with_the_settings_of_the_role(settings, source):
    """A view is planned as in a session of the role's own, not as the console's queries."""
    identity, _ = entered(settings, "joe", "s3cret")
    with psycopg.connect(make_conninfo(source, user="joe", password="s3cret")) as conn:
        own = {
            name: conn.execute("SELECT current_setting(%s)", (name,)).fetchone()[0]
            for name in identity.own.captured
        }
    assert identity.own.captured == own
    assert own["search_path"] == "evil"
    assert not identity.own.read_only
    with psycopg.connect(source, autocommit=True) as conn:
        conn.execute("ALTER ROLE joe SET default_transaction_read_only = on")
        try:
            identity, _ = entered(settings, "joe", "s3cret")
        finally:
            conn.execute("ALTER ROLE joe RESET default_transaction_read_only")
    assert identity.own.read_only


def test_a_slow_query_of_events_does_not_keep_the_connection(settings, monkeypatch):
    """It is cancelled at the server, and the connection goes on: the login depends on it."""
    monkeypatch.setattr(event_page, "QUERY_S", 0.3)
    monkeypatch.setattr(seen, "_EVENTS", "SELECT pg_sleep(600) WHERE %(text)s = '' LIMIT %(most)s")

    async def main():
        person = await Access(settings).by_password("joe", "s3cret")
        page, filters = event_page.EventPage(), event_page.filters_of({})
        asking = [page.answer(person, filters) for _ in range(event_page.ASKING_MAX + 2)]
        told = await asyncio.gather(*asking, return_exceptions=True)
        me = await seen.me(person.conn)
        left = len(page._turns)
        await let_go(person.conn)
        return [type(error) for error in told], me["role"], left

    told, role, left = asyncio.run(main())
    assert told.count(Full) == 2
    assert told.count(TimeoutError) == event_page.ASKING_MAX
    assert (role, left) == ("joe", 0)


@pytest.mark.parametrize("ends", ["the browser goes", "it takes too long"])
def test_a_call_of_the_sql_page_ends_with_its_request(settings, monkeypatch, ends):
    begun, cancelled = [], []

    async def endless(procedure, arguments, caller, settings, report, later):
        begun.append((procedure, caller, settings["search_path"]))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(procedure)
            raise

    async def main():
        page = SqlPage(HostInterface(settings, None, endless, None, "1"))
        person = await Access(settings).by_password("joe", "s3cret")
        gone = asyncio.Event()
        body = SqlBody("check", "SELECT 1")
        asking = [
            asyncio.create_task(page.answer(person, body, gone.wait)) for _ in range(RUNNING_MAX)
        ]
        if ends == "the browser goes":
            await eventually(lambda: len(begun) == RUNNING_MAX, "they run")
            with pytest.raises(Busy):
                await page.answer(person, body, gone.wait)
            gone.set()
        told = await asyncio.gather(*asking)
        await eventually(lambda: len(cancelled) == len(begun), "they are cancelled")
        await eventually(lambda: not page._running, "they are not counted any more")
        await let_go(person.conn)
        return told

    if ends == "it takes too long":
        monkeypatch.setattr(sql_page, "SQL_S", 0.2)
    told = asyncio.run(main())
    assert {answer["error"]["sqlstate"] for answer in told} == {"57014"}
    assert set(begun) <= {("check_view", "joe", "evil")}


@pytest.mark.parametrize(("plain", "status"), [(True, b"200"), (False, b"403")])
def test_a_login_from_outside_a_container(settings, plain, status):
    """As in docker-compose.yml: the client's address is not the computer's own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this computer has no address but the loopback's")
        address = probe.getsockname()[0]

    async def main():
        outer = settings.replace(console_plain=plain, http="0.0.0.0:0")
        server = HttpPort(outer.http, HostInterface(outer, Health(), ask, None, "1"))
        _, number = await server.start()
        try:
            reader, writer = await asyncio.open_connection(address, number)
            writer.write(post("/api/login", {"role": "joe", "password": "s3cret"}))
            answer = await reader.read()
            writer.close()
            return answer, server.login
        finally:
            await server.close()

    answer, login = asyncio.run(main())
    assert answer.split(b" ")[1] == status, answer
    assert (b"set-cookie: headrace-" in answer) == plain
    assert ("console_plain" in login) != plain


async def ask(procedure, arguments, caller):
    return [{"asked": caller}]


def outside(settings):
    return HostInterface(settings, None, ask, None, "1")


def test_many_tabs_ask_once(settings, monkeypatch):
    monkeypatch.setattr(lookout, "LOOK_S", 0.2)
    asked = []

    async def counted(procedure, arguments, caller):
        asked.append((procedure, caller))
        return []

    async def main():
        access = Access(settings)
        person = await access.by_password("joe", "s3cret")
        looker = GraphCollector(person, HostInterface(settings, None, counted, None, "1"), None)
        other = GraphCollector(await access.by_password("ann", "other"), outside(settings), None)
        other.follow(None)

        async def meanwhile():
            """Wait until the other collector has polled three times."""
            seen = other.looks
            await eventually(lambda: other.looks > seen + 3, "he looks")

        await meanwhile()
        before = looker.looks, len(asked)  # without a tab no queries are sent
        tabs = [looker.follow(None) for _ in range(40)]
        began = time.monotonic()
        await eventually(lambda: looker.looks >= 5, "it looks")
        passed = time.monotonic() - began
        told = [tab.frames(looker.topics) for tab in tabs]
        looks = looker.looks
        for tab in tabs:
            looker.leave(tab, None)
        await meanwhile()
        rested = looker.looks
        await meanwhile()
        idle = looker.looks
        await looker.close("")
        await other.close("")
        return before, looks, passed, told, rested, idle

    before, looks, passed, told, rested, idle = asyncio.run(main())
    assert before == (0, 0)
    assert looks <= passed / 0.2 + 2
    assert {caller for _, caller in asked} == {"joe"}
    assert len(asked) <= (idle + 1) * 4
    assert all(frames == told[0] for frames in told)
    # The frames are the same objects: they are made once.
    assert len({id(frame) for frames in told for frame in frames}) == len(told[0]) == 2
    assert idle == rested <= looks + 1


def test_tabs_and_views_of_one_role_are_bounded(settings):
    async def main():
        looker = GraphCollector(
            await Access(settings).by_password("joe", "s3cret"), outside(settings), None
        )
        try:
            views = [f"v{n}" for n in range(lookout.VIEWS_OPEN_MAX)]
            streams = [(looker.follow(v), v) for v in views]
            with pytest.raises(Full):
                looker.follow("one more")
            streams.append((looker.follow("v3"), "v3"))
            while len(streams) < lookout.STREAMS_MAX:
                streams.append((looker.follow(None), None))
            with pytest.raises(Full):
                looker.follow(None)
            for stream, view in streams:
                looker.leave(stream, view)
            return set(looker.topics)
        finally:
            await looker.close("")

    assert asyncio.run(main()) == {
        *(lookout.OVERVIEW, lookout.SAMPLES),
        *(lookout.FINE, lookout.COARSE, lookout.LOG),
    }


@pytest.mark.parametrize(
    ("done", "undone"),
    [
        ("ALTER ROLE joe NOLOGIN", "ALTER ROLE joe LOGIN"),
        ("ALTER ROLE joe VALID UNTIL 'yesterday'", "ALTER ROLE joe VALID UNTIL 'infinity'"),
        (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'joe'",
            "SELECT 1",
        ),
    ],
)
def test_who_may_not_log_in_any_more_is_out(settings, source, done, undone, monkeypatch):
    monkeypatch.setattr(lookout, "LOOK_S", 0.1)

    async def main(conn):
        looker = GraphCollector(
            await Access(settings).by_password("joe", "s3cret"), outside(settings), None
        )
        looker.follow(None)
        await eventually(lambda: looker.looks > 1, "it looks")
        conn.execute(done)
        await eventually(lambda: looker.gone, "it ends")
        assert looker.identity.conn is None
        await looker.close("")

    with psycopg.connect(source, autocommit=True) as conn:
        try:
            asyncio.run(main(conn))
        finally:
            conn.execute(undone)


def test_another_role_of_the_same_name_is_somebody_else(settings, source):
    with psycopg.connect(source, autocommit=True) as conn:
        conn.execute("DROP ROLE ann")
        conn.execute("CREATE ROLE ann LOGIN PASSWORD 'other'")
        first, _ = entered(settings, "ann", "other")
        conn.execute("DROP ROLE ann")
        conn.execute("CREATE ROLE ann LOGIN PASSWORD 'other'")
        second, _ = entered(settings, "ann", "other")
    assert first.key != second.key


def test_the_engine_comes_again_after_its_connection_was_lost(
    settings, source, tmp_path, monkeypatch
):
    monkeypatch.setattr(lookout, "LOOK_S", 0.1)

    async def main(conn):
        access = Access(settings)
        token = (tmp_path / "console.token").read_text().strip()
        looker = GraphCollector(await access.by_token(token), outside(settings), access.engine)
        looker.follow(None)
        await eventually(lambda: looker.looks > 1, "it looks")
        pid = looker.identity.conn.info.backend_pid
        conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
        looks = looker.looks
        await eventually(lambda: looker.looks > looks + 3, "it looks again")
        assert not looker.gone
        assert looker.identity.conn.info.backend_pid != pid
        await looker.close("")

    with psycopg.connect(source, autocommit=True) as conn:
        asyncio.run(main(conn))
