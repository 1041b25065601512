"""The fork server forks children and reports their exit; they never outlive the engine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import psycopg

from headrace.config import Settings
from headrace.process.fork_server import ForkServer
from tests.waiting import PATIENCE_S, wait_until

PROCESSES = ("fork server", "worker", "builder")


def test_how_children_end_is_told(tmp_path):
    # There is no server: the worker retries until it is killed.
    settings = Settings(source="host=127.0.0.1 port=1 dbname=x", data_dir=tmp_path)

    async def main(fork_server: ForkServer) -> None:
        numbers = (signal.SIGKILL, signal.SIGTERM)
        both = await asyncio.gather(*(fork_server.begin("worker", settings) for _ in numbers))
        assert both[0].pid != both[1].pid
        for born, number in zip(both, numbers, strict=True):
            born.signal(number)  # at once: the signal waits until the process can take it
            await born.wait()
            born.signal(number)  # the pid may belong to another process: nothing is sent
        assert both[0].returncode == -signal.SIGKILL
        assert both[1].returncode in (0, -signal.SIGTERM)

    with ForkServer() as fork_server:
        asyncio.run(asyncio.wait_for(main(fork_server), PATIENCE_S))


def test_another_takes_its_place(tmp_path):
    settings = Settings(source="host=127.0.0.1 port=1 dbname=x", data_dir=tmp_path)

    async def main(fork_server: ForkServer) -> None:
        born = await fork_server.begin("builder", settings)
        born.signal(signal.SIGSTOP)
        os.kill(fork_server.pid, signal.SIGKILL)
        await born.wait()
        assert born.returncode == -signal.SIGKILL
        again = await fork_server.begin("worker", settings)
        assert (again.pid != born.pid, again.returncode) == (True, None)

    with ForkServer() as fork_server:
        asyncio.run(asyncio.wait_for(main(fork_server), PATIENCE_S))


def test_its_end_is_noticed_also_while_a_child_keeps_the_line(tmp_path, monkeypatch):
    settings = Settings(source="host=127.0.0.1 port=1 dbname=x", data_dir=tmp_path)
    kept, real = [], socket.socketpair

    def pair(*words):
        made = real(*words)
        kept.append(made[1].dup())
        return made

    monkeypatch.setattr(socket, "socketpair", pair)

    async def main(fork_server: ForkServer) -> None:
        born = await fork_server.begin("builder", settings)
        os.kill(fork_server.pid, signal.SIGKILL)
        await born.wait()
        assert born.returncode == -signal.SIGKILL
        assert (await fork_server.begin("worker", settings)).returncode is None

    with ForkServer() as fork_server:
        asyncio.run(asyncio.wait_for(main(fork_server), PATIENCE_S))
    assert kept


def test_engine_goes_on_without_its_nursery(database, start_engine):
    with psycopg.connect(database, autocommit=True) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY)")
        engine = start_engine(database)
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            conn.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")
            before = [engine.child(name) for name in PROCESSES]
            # The fork server survives Ctrl-C of the group, and SIGTERM.
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(engine.child("fork server"), number)
            source.execute("INSERT INTO t VALUES (1)")
            count = "SELECT count(*) FROM v"
            wait_until(lambda: source.execute(count).fetchone() == (1,), "the row")
            assert [engine.child(name) for name in PROCESSES] == before
            os.kill(engine.child("fork server"), signal.SIGKILL)
            # The children notice a moment later; a call in between may fail with them.
            wait_until(
                lambda: not {engine.child(name) for name in PROCESSES} & {*before, None},
                "new children",
            )
            source.execute("INSERT INTO t VALUES (2)")
            wait_until(lambda: source.execute(count).fetchone() == (2,), "the row")
            conn.execute("CALL headrace.create_view('w', 'SELECT id FROM t')")
        after = [engine.child(name) for name in PROCESSES]
        assert None not in after
        assert not {*after} & {*before}
        os.kill(engine.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(engine.child, PROCESSES)), "nobody outlives it")
