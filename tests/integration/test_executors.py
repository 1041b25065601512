"""Executors: views move there under load with their states, survive its kill, and come home."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.config import Settings
from headrace.errors import UserError
from headrace.process.fork_server import ForkServer
from headrace.process.rpc import SOCKET_BYTES_MAX
from headrace.process.shares import processes_max
from headrace.server import main
from headrace.server.executors import LOOK_S, Executors
from headrace.server.load_history import Reading
from tests.compared import differs
from tests.conftest import environment
from tests.waiting import PATIENCE_S, again_and_again, wait_until

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, g int, x numeric);
CREATE TABLE b (id int PRIMARY KEY, g int, x numeric);
INSERT INTO a SELECT i, i % 50, i * 1.50 FROM generate_series(1, 500) i;
INSERT INTO b SELECT i, i % 50, i * 1.50 FROM generate_series(1, 500) i;
"""
QUERIES = {
    "of_a": "SELECT g, count(*) AS n, sum(x) AS total FROM a GROUP BY g",
    "of_b": "SELECT g, count(*) AS n, sum(x) AS total FROM b GROUP BY g",
}
BUSY, CALM = (True, 1.0, 1.0), (False, 0.1, 0.2)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Yield a folder with a short path: that of a socket in it has a limit."""
    with tempfile.TemporaryDirectory(prefix="hr") as folder:
        yield Path(folder)


class Server:
    """A server in this process, whose readings of the load are given, over a virtual clock."""

    def __init__(self, settings: Settings, fork_server: ForkServer, monkeypatch) -> None:
        prepared, name = main.prepare(settings)
        self.commander = main.Commander(prepared, name, fork_server)
        self.executors = Executors(prepared, self.commander._supervisor)
        self.now = 0.0
        self.load = CALM
        self.read = self.executors._reading
        monkeypatch.setattr(self.executors, "_reading", self._reading)
        # The test itself has it look.
        monkeypatch.setattr(self.commander._executors, "start", lambda: None)

    async def _reading(self, names: list[str]) -> Reading:
        told = await self.read(names)
        assert told.all_cpu >= told.main_cpu >= 0
        return Reading(self.now, *self.load)

    async def passes(self, load: tuple[bool, float, float], seconds: float) -> None:
        """Have the server look every few seconds of virtual time under ``load``."""
        self.load = load
        for _ in range(int(seconds / LOOK_S) + 1):
            self.now += LOOK_S
            await self.executors.look()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def opens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def change(conn: psycopg.Connection, rng: random.Random) -> None:
    for table in "ab":
        for _ in range(40):
            key = rng.randrange(1, 700)
            conn.execute(
                f"INSERT INTO {table} VALUES (%s, %s, %s) ON CONFLICT (id)"
                " DO UPDATE SET g = EXCLUDED.g, x = EXCLUDED.x",
                (key, rng.randrange(50), rng.randrange(1000)),
            )


def listed(conn: psycopg.Connection) -> dict[str, tuple]:
    rows = conn.execute("SELECT worker, state, pid, views, cpu_s, moved FROM headrace.workers()")
    return {name: row for name, *row in rows.fetchall()}


def limit(conn: psycopg.Connection) -> int:
    """Return the limit of the main process's states in memory."""
    rows = conn.execute("SELECT limit_bytes FROM headrace.memory() WHERE part = 'states'")
    return int(rows.fetchone()[0])


def check(conn: psycopg.Connection) -> None:
    for name, query in QUERIES.items():
        conn.execute("CALL headrace.wait_for(%s)", (name,))
        assert differs(conn, name, query) == [], name


def serve(
    database: str,
    data_dir: Path,
    monkeypatch,
    story: Callable[[Server, str], Awaitable[None]],
    processes: int = 2,
) -> None:
    """Run a server on ``data_dir``, with up to ``processes``; ``story`` gets its DSN, too."""
    port = free_port()
    name = str(conninfo_to_dict(database)["dbname"])
    given = {k.removeprefix("HEADRACE_").lower(): v for k, v in environment(name).items()}
    own = {"source": database, "data_dir": str(data_dir), "listen": f"127.0.0.1:{port}"}
    settings = Settings.of(given | own | {"allow_trust": "true", "executors": str(processes)})

    async def run(fork_server: ForkServer) -> None:
        server = Server(settings, fork_server, monkeypatch)
        serving = asyncio.create_task(server.commander.run())
        try:
            await asyncio.wait_for(server.commander._supervisor.ready(), PATIENCE_S)
            await asyncio.wait_for(server.commander._direct.connected.wait(), PATIENCE_S)
            await asyncio.to_thread(wait_until, lambda: opens(port), "an open port")
            await story(server, make_conninfo(database, host="127.0.0.1", port=port))
        finally:
            server.commander._stop.set()
            await serving

    if not data_dir.exists():
        with psycopg.connect(database, autocommit=True) as source:
            source.execute(TABLES)
        data_dir.mkdir(mode=0o700)
    with ForkServer() as fork_server:
        asyncio.run(run(fork_server))


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def begun(dsn: str, rng: random.Random) -> psycopg.Connection:
    """Create the views, and change rows; return a connection."""
    conn = connect(dsn)
    for name, query in QUERIES.items():
        conn.execute("CALL headrace.create_view(%s, %s)", (name, query))
    for _ in range(4):
        change(conn, rng)
    check(conn)
    return conn


async def overloaded(server: Server, conn: psycopg.Connection, rng: random.Random) -> int:
    """Have a view move to an executor; return the process ID of the latter."""
    await server.passes(BUSY, 10)
    assert (await asyncio.to_thread(listed, conn)).keys() == {"main"}
    await server.passes(BUSY, 20)
    found = await asyncio.to_thread(listed, conn)
    for _ in again_and_again(PATIENCE_S):
        state, _, views, *_ = found.get("headrace_1", ("", None, 0))
        if state == "running" and views:
            break  # a slow machine may not answer in time
        # The views' measured loads were too different for a move to be worth it.
        await asyncio.to_thread(change, conn, rng)
        await server.passes(BUSY, 30)
        found = await asyncio.to_thread(listed, conn)
    state, pid, views, cpu_s, moved = found["headrace_1"]
    assert (state, views) == ("running", 1)
    assert cpu_s > 0
    assert "this process was the limit, since 20" in moved
    return int(pid)


def executor(conn: psycopg.Connection) -> int:
    """Return the process ID of the executor, once it answers."""
    return int(
        wait_until(lambda: listed(conn).get("headrace_1", (0, 0))[1], "the executor's answer")
    )


async def at_home(server: Server, conn: psycopg.Connection, rng: random.Random) -> None:
    """Check that all views are in the main process, and follow the changes there."""
    found = await asyncio.to_thread(listed, conn)
    assert {name: row[2] for name, row in found.items()} == {"main": 2}
    await asyncio.to_thread(change, conn, rng)
    await asyncio.to_thread(check, conn)
    assert await asyncio.to_thread(
        lambda: conn.execute("SELECT status FROM headrace.list_views()").fetchall()
    ) == [("running",)] * len(QUERIES)


def test_views_move_under_load_and_come_home(database, short_path, monkeypatch):
    """They survive a kill of their executor, and a restart of the server."""
    rng, whole = random.Random(1), 0

    async def away(server: Server, dsn: str) -> None:
        nonlocal whole
        conn = await asyncio.to_thread(begun, dsn, rng)
        whole = await asyncio.to_thread(limit, conn)
        pid = await overloaded(server, conn, rng)

        def kill() -> None:
            change(conn, rng)
            os.kill(pid, signal.SIGKILL)
            change(conn, rng)
            wait_until(lambda: limit(conn) == whole // 2, "half of the memory")
            wait_until(lambda: listed(conn)["headrace_1"][1] not in (None, pid), "a new process")
            check(conn)

        await server.passes(BUSY, 0)
        await asyncio.to_thread(kill)
        await server.passes(BUSY, 60)  # there are as many processes as may be
        assert (await asyncio.to_thread(listed, conn)).keys() == {"main", "headrace_1"}
        await asyncio.to_thread(change, conn, rng)
        conn.close()

    async def home(server: Server, dsn: str) -> None:
        conn = await asyncio.to_thread(connect, dsn)
        pid = await asyncio.to_thread(executor, conn)
        await asyncio.to_thread(change, conn, rng)
        await asyncio.to_thread(check, conn)
        assert (await asyncio.to_thread(listed, conn))["headrace_1"][2] == 1
        await server.passes(CALM, 590)
        assert await asyncio.to_thread(limit, conn) == whole // 2
        assert (await asyncio.to_thread(listed, conn)).keys() == {"main", "headrace_1"}
        await server.passes(CALM, 10)
        await at_home(server, conn, rng)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await server.passes(CALM, 0)
        await asyncio.to_thread(wait_until, lambda: limit(conn) == whole, "all of the memory")
        conn.close()

    serve(database, short_path / "d", monkeypatch, away)
    serve(database, short_path / "d", monkeypatch, home)


@pytest.mark.slow
def test_views_come_home_when_the_setting_is_smaller(database, short_path, monkeypatch):
    rng = random.Random(3)

    async def away(server: Server, dsn: str) -> None:
        conn = await asyncio.to_thread(begun, dsn, rng)
        await overloaded(server, conn, rng)
        await asyncio.to_thread(change, conn, rng)
        conn.close()

    async def home(server: Server, dsn: str) -> None:
        conn = await asyncio.to_thread(connect, dsn)
        await asyncio.to_thread(executor, conn)
        await asyncio.to_thread(check, conn)
        await server.passes(BUSY, 0)
        await at_home(server, conn, rng)
        conn.close()

    serve(database, short_path / "d", monkeypatch, away)
    serve(database, short_path / "d", monkeypatch, home, processes=1)


def test_no_executor_is_added_whose_sockets_have_too_long_a_path(
    database, short_path, monkeypatch, capfd
):
    """The views stay where they are, and go on; only the server's own sockets fit."""
    rng, said = random.Random(2), [""]

    def is_told() -> bool:
        said[0] += "".join(capfd.readouterr())
        return "executor cannot be added" in said[0]

    async def story(server: Server, dsn: str) -> None:
        conn = await asyncio.to_thread(begun, dsn, rng)
        for _ in again_and_again(PATIENCE_S):
            await server.passes(BUSY, 30)
            assert (await asyncio.to_thread(listed, conn)).keys() == {"main"}
            if is_told():
                break
            # The views' measured loads were too different for a move to be worth it.
            await asyncio.to_thread(change, conn, rng)
        assert is_told()
        await asyncio.to_thread(change, conn, rng)
        await asyncio.to_thread(check, conn)
        conn.close()

    data_dir = short_path / ("d" * (79 - len(str(short_path))))
    assert len(f"{data_dir}/workers/headrace_1/run/worker.sock") > SOCKET_BYTES_MAX
    serve(database, data_dir, monkeypatch, story)


def test_the_names_of_executors_are_reserved(commander):
    with pytest.raises(psycopg.Error) as caught:
        commander.execute("CALL headrace.add_worker('headrace_1')")
    assert caught.value.diag.sqlstate == "42602"
    assert "are reserved" in str(caught.value.diag.message_hint)


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", ""])
def test_the_setting_is_auto_or_a_number(value):
    with pytest.raises(UserError, match="executors"):
        Settings(executors=value)


def test_auto_is_as_many_as_there_are_cores_for_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert processes_max(Settings(executors="auto")) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3})
    assert processes_max(Settings()) == 2, "auto is the default"
    assert processes_max(Settings(executors="1")) == 1


@pytest.mark.parametrize(
    ("memory_mb", "count"), [(100, 1), (500, 1), (512, 2), (1024, 4), (9999, 8)]
)
def test_each_process_has_memory_to_work_with(monkeypatch, memory_mb, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    settings = Settings(executors="auto", memory_bytes=memory_mb << 20)
    assert processes_max(settings) == count
