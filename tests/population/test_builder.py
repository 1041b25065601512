"""The builder as a process: its RPC, the queue of populations, cancellation, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.errors import HeadraceError
from headrace.population import staging
from headrace.process import rpc
from headrace.types import parse_lsn
from tests.engines import Child
from tests.waiting import PATIENCE_S, eventually, wait_until

QUERY = "SELECT region, count(*) AS n FROM customers GROUP BY region"
CALLER = {"caller": "postgres", "settings": {"search_path": "public"}}

SLOTS = (
    "SELECT slot_name FROM pg_replication_slots WHERE temporary AND database = current_database()"
)


def slots(bench) -> list[tuple]:
    return bench.conn.execute(SLOTS).fetchall()


class Process:
    """A builder process, and a worker's socket that answers like a worker."""

    def __init__(self, bench, kill=None) -> None:
        self.bench = bench
        self.settings = bench.settings.replace(spark_warm=False)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.child: Child | None = None

    async def __aenter__(self):
        self.settings.run_dir.mkdir(parents=True, exist_ok=True)
        self.server = await rpc.serve(
            self.settings.worker_socket,
            {name: self._answer(name) for name in ("start", "hold", "release", "adopt", "drop")},
        )
        await self.start()
        return self

    async def start(self) -> None:
        if self.child is not None:
            self.child.close()
        self.child = await asyncio.to_thread(Child, "headrace.views.builder", self.settings)

        async def connect():
            assert self.child.process.poll() is None
            with contextlib.suppress(OSError):
                return await rpc.connect(self.settings.builder_socket)

        self.peer = await eventually(connect, "it listens")

    async def __aexit__(self, *_) -> None:
        await asyncio.to_thread(self.child.close)
        await self.peer.close()
        self.server.close()

    def _answer(self, name: str):
        async def handle(params, progress):
            self.calls.append((name, params))
            if name == "hold":
                row = self.bench.conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                return {"txid": 3, "lsn": parse_lsn(row[0])}
            return {}

        return handle

    async def create(self, name: str, query: str = QUERY, progress=None, **options) -> Any:
        params = {"name": name, "query": query, "options": options, **CALLER}
        return await self.peer.call("create_view", params, progress, linger_s=PATIENCE_S)


def test_side_by_side(bench):
    async def main() -> None:
        async with Process(bench) as builder:
            await asyncio.gather(*(builder.create(n) for n in "ab"))
            assert await builder.peer.call("check") == {"jobs": [], "spark": "cold"}
            assert await builder.peer.call("holds") == []
            assert builder.calls[0][0] == "start", "what it holds by then may be among it"
            plan = await builder.peer.call("explain_view", {"name_or_query": "a", **CALLER})
            stored = bench.conn.execute(
                "SELECT explain ->> 'physical' FROM headrace.views WHERE view_name = 'a'"
            )
            assert ("\n".join(plan["lines"]),) == stored.fetchone()
            params = {"name_or_query": QUERY, "stage": "logical", **CALLER}
            assert "customers" in str(await builder.peer.call("explain_view", params))
            await builder.peer.call("create_index", {"view": "a", "definition": "(n)", **CALLER})
            await builder.peer.call("drop_view", {"name": "a", "if_exists": False, **CALLER})
            with pytest.raises(HeadraceError) as caught:
                await builder.create("b")
            assert caught.value.code == "42P07"

    asyncio.run(main())
    assert bench.rows("TABLE b") == bench.rows(QUERY)


def test_cancel_through_the_socket(bench):
    async def main() -> None:
        async with Process(bench) as builder:
            with psycopg.connect(bench.dsn) as writer:
                writer.execute("INSERT INTO customers VALUES (9000, '', '')")
                reached = asyncio.Event()
                task = asyncio.create_task(
                    builder.create(
                        "v", progress=lambda m: m["phase"] == "snapshot" and reached.set()
                    )
                )
                await asyncio.wait_for(reached.wait(), PATIENCE_S)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                bench.worker.calls = builder.calls[1:]
                bench.nothing_left()
            await builder.create("v")

    asyncio.run(main())
    assert bench.rows("TABLE v") == bench.rows(QUERY)


def test_cancel_while_spark_starts(bench):
    async def main() -> None:
        async with Process(bench) as builder:
            reached = asyncio.Event()
            task = asyncio.create_task(
                builder.create(
                    "v",
                    population="spark",
                    progress=lambda m: m["phase"] == "starting" and reached.set(),
                )
            )
            await asyncio.wait_for(reached.wait(), PATIENCE_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            answer = await builder.peer.call("check")
            assert answer["spark"] == "warming", "the cancel does not wait for Spark"
            bench.worker.calls = builder.calls[1:]
            bench.nothing_left()
            builder.child.process.terminate()
            assert await asyncio.to_thread(builder.child.process.wait, PATIENCE_S) == 0

    asyncio.run(main())


@pytest.mark.parametrize("how", [signal.SIGTERM, "stdin"])
def test_clean_end_in_the_middle(bench, how):
    async def main() -> None:
        async with Process(bench) as builder:
            with psycopg.connect(bench.dsn) as writer:
                writer.execute("INSERT INTO customers VALUES (9000, '', '')")
                reached = asyncio.Event()
                task = asyncio.create_task(
                    builder.create(
                        "v", progress=lambda m: m["phase"] == "snapshot" and reached.set()
                    )
                )
                await asyncio.wait_for(reached.wait(), PATIENCE_S)
                if how == "stdin":
                    builder.child.hang_up()
                else:
                    builder.child.process.send_signal(how)
                assert await asyncio.to_thread(builder.child.process.wait, PATIENCE_S) == 0
                with pytest.raises(HeadraceError):
                    await task
                bench.worker.calls = builder.calls[1:]
                bench.nothing_left()

    asyncio.run(main())


def test_kill_in_the_middle_is_cleaned_up_at_the_next_start(bench):
    async def main() -> None:
        async with Process(bench) as builder:
            with psycopg.connect(bench.dsn) as writer:
                writer.execute("INSERT INTO customers VALUES (9000, '', '')")
                reached = asyncio.Event()
                task = asyncio.create_task(
                    builder.create(
                        "v", progress=lambda m: m["phase"] == "snapshot" and reached.set()
                    )
                )
                await asyncio.wait_for(reached.wait(), PATIENCE_S)
                await eventually(lambda: slots(bench), "it has a slot")
                builder.child.process.kill()
                with pytest.raises(HeadraceError):
                    await task
                await asyncio.to_thread(builder.child.process.wait)
                folder = staging.of_view(builder.settings.staging_dir, 1)
                folder.make()
                builder.calls.clear()
                await builder.start()
                await eventually(lambda: not slots(bench), "its slot is gone")
                assert not folder.path.exists()
                await eventually(
                    lambda: ("start", {"holds": []}) in builder.calls, "it has started"
                )
            # The commander's janitor removes the row, and so does a new call for the name.
            done = await builder.create("v")
            assert done["rows"] == 7

    asyncio.run(main())
    assert bench.rows("TABLE v") == bench.rows(QUERY)


def test_states_that_cannot_be_written_leave_no_view(bench, monkeypatch):
    """The states are written while the view's rows are copied into the table."""
    there = []

    def full(self, part, states):
        wait_until(lambda: not there.append(self.row_files()) and there[-1], "rows are staged")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(staging.Staging, "write_states", full)
        with pytest.raises(OSError, match="No space left"):
            bench.create("v", QUERY)
    left = "SELECT to_regclass('v'), (SELECT count(*) FROM headrace.views)"
    assert bench.conn.execute(left).fetchone() == (None, 0)
    assert not [*bench.settings.staging_dir.iterdir()]
    bench.create("v", QUERY)
    assert bench.rows("TABLE v") == bench.rows(QUERY)


def test_staged_state_of_a_running_view_is_handed_over_again(bench):
    done = bench.create("v", QUERY)
    folder = staging.of_view(bench.settings.staging_dir, done["view_id"])
    folder.make()
    folder.seal({"view_id": done["view_id"], "txid": 1, "lsn": 1, "start_lsn": 1})

    async def main() -> None:
        async with Process(bench) as builder:
            await eventually(lambda: not folder.path.exists(), "it is handed over")
            assert ("adopt", {"view_id": done["view_id"]}) in builder.calls

    asyncio.run(main())


def children(pid: int) -> list[str]:
    """Return the names of the processes below ``pid``; they and their threads may end meanwhile."""
    found: list[str] = []
    for file in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in file.read_text().split():
                found += [Path(f"/proc/{child}/comm").read_text().strip(), *children(int(child))]
    return found


@pytest.mark.slow
def test_spark_is_let_go_when_nobody_uses_it(bench):
    """Spark starts again for the next population."""

    async def main() -> None:
        async with Process(bench) as builder:

            async def gone():
                status = (await builder.peer.call("check"))["spark"]
                return status == "cold" and "java" not in children(builder.child.process.pid)

            assert await gone(), "the first population has not begun"
            for name in "ab":
                await builder.create(name, population="spark")
                await eventually(gone, "the JVM has ended")

    bench.settings = bench.settings.replace(spark_idle_ms=100)
    asyncio.run(main())
    assert bench.rows("TABLE a") == bench.rows("TABLE b") == bench.rows(QUERY)
