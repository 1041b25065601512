"""What one role may have of what is for all: views, calls under way, calls that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.config import Settings
from headrace.embedded.engine import EmbeddedEngine
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
    """On the port and on direct connections; others are not concerned."""
    request.node.stash.setdefault(ENGINES, []).append(running)
    explain = "CALL headrace.check_view('SELECT id FROM t', NULL)"
    with (
        psycopg.connect(running.source, autocommit=True) as server,
        roles.role(server, "low") as low,
    ):
        server.execute(f"GRANT SELECT ON t TO {low}")
        ways = [roles.connect(dsn, low) for dsn in (running.dsn, running.source)]
        # No snapshot is taken while a transaction is open that writes: the calls wait for it.
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
    """Else roles that may act as one another have as many as they have views in all."""
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
    settings = Settings(data_dir=tmp_path, populations_per_role_max=2)

    async def story() -> list[str]:
        turns, told, release = Turns(settings), [], asyncio.Event()
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
