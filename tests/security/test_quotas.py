"""The share of one role in common resources: views, running calls, waiting calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.config import Settings
from headrace.embedded.engine import EmbeddedEngine
from headrace.errors import UserError
from headrace.server.commands import Commands
from headrace.server.context import CallContext
from headrace.server.procedures import Invocation
from headrace.sql import install
from headrace.views.quotas import Turns
from tests.conftest import ENGINES
from tests.databases import Databases
from tests.security import roles, servers
from tests.waiting import wait_until

VIEWS_MAX = 3
SCHEMA = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);"
FLOOD = """
INSERT INTO headrace.commands (procedure, arguments, settings)
SELECT 'explain_view', '{}', '{}' FROM generate_series(1, 1100)
"""


@pytest.fixture(scope="module")
def running(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedEngine]:
    more = {
        "HEADRACE_VIEWS_PER_ROLE_MAX": str(VIEWS_MAX),
        "HEADRACE_COMMANDS_PER_ROLE_MAX": str(VIEWS_MAX),
    }
    with servers.running(databases, tmp_path_factory, SCHEMA, **more) as engine:
        yield engine


def create(conn: psycopg.Connection, name: str) -> None:
    conn.execute(f"CALL headrace.create_view('{name}', 'SELECT id FROM t')")


def populating(server: psycopg.Connection) -> int:
    row = server.execute(
        "SELECT count(*) FROM headrace.views WHERE status = 'populating'"
    ).fetchone()
    assert row is not None
    return row[0]


def refused(conn: psycopg.Connection, call: str, setting: str) -> None:
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded) as caught:
        conn.execute(call)
    assert setting in (caught.value.diag.message_hint or "")


def test_a_role_has_its_share_and_no_more(running, request):
    """The limits hold on the port and on direct connections; other roles are not affected."""
    request.node.stash.setdefault(ENGINES, []).append(running)
    explain = "CALL headrace.check_view('SELECT id FROM t', NULL)"
    with (
        psycopg.connect(running.source, autocommit=True) as server,
        roles.role(server, "low") as low,
    ):
        server.execute(f"GRANT SELECT ON t TO {low}")
        ways = [roles.connect(dsn, low) for dsn in (running.dsn, running.source)]
        # A snapshot waits for open transactions that write, and so do these calls.
        with psycopg.connect(running.source) as writer:
            writer.execute("INSERT INTO t VALUES (2)")
            sessions = [roles.connect(running.dsn, low) for _ in range(VIEWS_MAX)]
            threads = [
                threading.Thread(target=create, args=(session, f"v{number}"))
                for number, session in enumerate(sessions)
            ]
            for thread in threads:
                thread.start()
            wait_until(lambda: populating(server) == VIEWS_MAX, "all are under way")
            for way in ways:
                refused(way, explain, "commands_per_role_max")
            server.execute(explain)
        for thread in threads:
            thread.join()
        for way in ways:
            call = "CALL headrace.create_view('more', 'SELECT id FROM t')"
            refused(way, call, "views_per_role_max")
            way.execute(explain)
        for number in range(VIEWS_MAX + 1):
            create(server, f"own{number}")
        for number in range(VIEWS_MAX + 1):
            server.execute(f"CALL headrace.drop_view('own{number}')")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            ways[0].execute(FLOOD)
        ways[1].execute(explain)
        for view in range(VIEWS_MAX):
            ways[0].execute(f"CALL headrace.drop_view('{low}.v{view}')")
        ways[0].execute("CALL headrace.create_view('more', 'SELECT id FROM t')")
        ways[0].execute("CALL headrace.drop_view('more')")
        for each in (*ways, *sessions):
            each.close()


def test_a_view_is_given_to_nobody_who_has_his_share(running, request):
    """Otherwise roles that may act as one another could pool their shares."""
    request.node.stash.setdefault(ENGINES, []).append(running)
    with (
        psycopg.connect(running.source, autocommit=True) as server,
        roles.role(server, "full") as full,
        roles.role(server, "giver", f"IN ROLE {full}") as giver,
    ):
        server.execute(f"GRANT SELECT ON t TO {full}, {giver}")
        with roles.connect(running.dsn, full) as conn:
            for number in range(VIEWS_MAX):
                create(conn, f"f{number}")
        give = f"CALL headrace.set_owner('{giver}.g', '{full}')"
        with roles.connect(running.dsn, giver) as conn:
            create(conn, "g")
            server.execute(f"GRANT CREATE ON SCHEMA {giver} TO {full}")
            refused(conn, give, "views_per_role_max")
        with psycopg.connect(running.dsn, autocommit=True) as boss:
            boss.execute(give)
            boss.execute(f"CALL headrace.drop_view('{giver}.g')")
        with roles.connect(running.dsn, full) as conn:
            for number in range(VIEWS_MAX):
                conn.execute(f"CALL headrace.drop_view('f{number}')")


def test_populations_of_one_role_leave_places_for_others(tmp_path: Path):
    settings = Settings(data_dir=tmp_path)

    async def story() -> list[str]:
        turns, told, release = Turns(settings, 2), [], asyncio.Event()
        turns._is_exempt = lambda caller: caller == "boss"  # type: ignore[method-assign]

        async def one(caller: str) -> None:
            async with turns.turn(caller, lambda: told.append(f"{caller} waits")):
                told.append(caller)
                await release.wait()

        tasks = []
        for caller in ("low", "low", "low", "other", "boss", "boss", "boss"):
            tasks.append(asyncio.create_task(one(caller)))
            while len(told) < len(tasks):
                await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*tasks)
        return told

    assert asyncio.run(story()) == [
        *("low", "low", "low waits", "other", "boss", "boss", "boss", "low")
    ]


def call(size: int) -> str:
    """Return the insert of a command with ``size`` bytes of arguments that is never executed."""
    return (
        "INSERT INTO headrace.commands (procedure, arguments, settings) SELECT 'explain_view',"
        f" jsonb_build_object('q', repeat('x', {size} - 11)), '{{}}'"
    )


def test_the_text_of_a_roles_calls_is_bounded(database):
    """The text is bounded in any form: a call, a row, many rows, or a compressed value."""
    with psycopg.connect(database, autocommit=True) as server:
        install.install(server)
        with roles.role(server, "low") as low, roles.connect(database, low) as conn:
            for size in (1 << 20 | 1, 9_000_000):
                with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                    conn.execute(call(size))
            conn.execute("CREATE TABLE stored (a jsonb)")
            conn.execute("INSERT INTO stored VALUES (to_jsonb(repeat('x', 9000000)))")
            [(small,)] = conn.execute("SELECT pg_column_size(a) < 200000 FROM stored").fetchall()
            assert small, "it is compressed"
            with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                conn.execute(
                    "INSERT INTO headrace.commands (procedure, arguments, settings)"
                    " SELECT 'explain_view', a, '{}' FROM stored"
                )
            with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
                conn.execute(f"{call(1 << 20)} FROM generate_series(1, 5)")
            conn.execute(f"{call(1 << 20)} FROM generate_series(1, 4)")
            with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
                conn.execute(call(1000))
            server.execute("UPDATE headrace.commands SET status = 'done'")
            conn.execute(call(1000))
            [(most, whole)] = server.execute(
                "SELECT max(n), sum(n) FROM (SELECT octet_length(arguments::text) + 2 AS n"
                " FROM headrace.commands) s"
            ).fetchall()
            assert (most, whole) == (1 << 20, (4 << 20) + 1000)


def test_the_commander_counts_the_text_of_calls_that_came_at_once():
    """The command table cannot count them: transactions do not see each other's rows."""
    asked, answer = [], asyncio.Event()

    class Builder:
        async def call(self, method, params=None, progress=None, *, linger_s=0.0):
            asked.append(method)
            await answer.wait()
            return {"lines": []}

    async def builder() -> Builder:
        return Builder()

    async def run() -> list[object]:
        commands = Commands(Settings(), builder)
        query = "x" * ((1 << 20) - 100)
        work = [
            asyncio.create_task(
                commands.run(
                    Invocation("explain_view", {"name_or_query": query}),
                    CallContext(role, {}),
                    lambda _: None,
                )
            )
            for role in (*["a"] * 6, "b")
        ]
        while len(asked) + sum(task.done() for task in work) < len(work):
            await asyncio.sleep(0)
        answer.set()
        ends = await asyncio.gather(*work, return_exceptions=True)
        # When they have ended, there is room again.
        await commands.run(
            Invocation("explain_view", {"name_or_query": query}),
            CallContext("a", {}),
            lambda _: None,
        )
        return ends

    ends = asyncio.run(run())
    refused = [number for number, end in enumerate(ends) if isinstance(end, UserError)]
    assert refused == [4, 5]
    assert [end.code for end in ends if isinstance(end, UserError)] == ["53400"] * 2
    assert len(asked) == 6


@pytest.mark.shared_engine
def test_a_raised_time_limit_is_for_a_group_of_ones_own(engine):
    """Views of a group wait for each other: no role may join or make a slow one of another role."""
    raised = '{"commit_group": "%s", "view_time_ms_max": 60000}'
    with (
        psycopg.connect(engine.source, autocommit=True) as server,
        roles.role(server, "a") as a,
        roles.role(server, "b") as b,
    ):
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        server.execute("GRANT SELECT ON t TO PUBLIC")
        first, second = (roles.connect(engine.dsn, name) for name in (a, b))

        def create(conn: psycopg.Connection, name: str, options: str) -> str:
            try:
                conn.execute("CALL headrace.create_view(%s, 'TABLE t', %s)", (name, options))
            except psycopg.Error as error:
                return str(error.sqlstate)
            return ""

        with first, second:
            assert create(first, "alone", '{"view_time_ms_max": 60000}') == "22023"
            assert create(first, "alone", raised % "slow") == ""
            assert create(first, "more", '{"commit_group": "slow"}') == ""
            assert create(second, "joins", '{"commit_group": "slow"}') == "22023"
            assert create(second, "joins", '{"commit_group": "quick"}') == ""
            assert create(first, "slows", raised % "quick") == "22023"
            assert create(first, "slows", '{"commit_group": "quick"}') == ""
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                first.execute(
                    "CALL headrace.alter_view('slows', 'TABLE t', %s)", (raised % "quick",)
                )
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                server.execute(f"CALL headrace.set_owner('{a}.more', '{b}')")
            for conn, name in (
                (first, "alone"),
                (first, "more"),
                (first, "slows"),
                (second, "joins"),
            ):
                conn.execute("CALL headrace.drop_view(%s)", (name,))
