"""The builder itself: duties of its threads besides the population."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.config import Settings
from headrace.errors import UserError
from headrace.process import memory, rpc, thread_pools
from headrace.sql.verbs import VERBS
from headrace.views import builder, quotas
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("fails", [False, True])
def test_the_thread_of_a_large_command_gives_its_memory_back(tmp_path, monkeypatch, fails):
    """After the work, on its own thread: Arrow gives back only memory of the calling thread."""
    done: list[tuple[str, int]] = []
    monkeypatch.setattr(
        memory, "give_back", lambda: done.append(("gives back", threading.get_ident()))
    )

    def act(context: Any, job: Any, request: Any) -> str:
        done.append(("works", threading.get_ident()))
        if fails:
            raise UserError("it is refused")
        return "answer"

    async def ask(query: str) -> None:
        made = builder.Builder(Settings(source="", data_dir=tmp_path), asyncio.get_running_loop())
        handle = made._handler(VERBS["check_view"], act)
        params = {"query": query, "options": {}, "caller": "somebody", "settings": {}}
        try:
            assert await handle(params, lambda _: None) == "answer"
        except UserError:
            assert fails
        await made.stop()

    asyncio.run(ask("SELECT 1"))
    assert [what for what, _ in done] == ["works"]
    del done[:]
    asyncio.run(ask("SELECT '" + "x" * memory.LARGE_BYTES + "'"))
    assert [what for what, _ in done] == ["works", "gives back"]
    assert len({thread for _, thread in done}) == 1


def test_calls_of_one_role_leave_threads_for_others(tmp_path, monkeypatch):
    """All calls of a role may hang; calls of other roles, and of the engine itself, do not wait."""
    monkeypatch.setattr(quotas.Turns, "_is_exempt", lambda *_: False)
    release = threading.Event()

    def act(context: Any, job: Any, request: Any) -> str:
        if request.caller == "low":
            release.wait()
        return "answer"

    async def ask() -> None:
        made = builder.Builder(Settings(source="", data_dir=tmp_path), asyncio.get_running_loop())
        handle = made._handler(VERBS["check_view"], act)

        def call(caller: str | None) -> Any:
            params = {"query": "SELECT 1", "options": {}, "caller": caller, "settings": {}}
            return handle(params, lambda _: None)

        low = [asyncio.create_task(call("low")) for _ in range(2 * thread_pools.CALLS)]
        try:
            others = [asyncio.create_task(call(caller)) for caller in ("other", None)]
            done, _ = await asyncio.wait(others, timeout=PATIENCE_S)
            assert [task.result() for task in done] == ["answer"] * 2
            assert not any(task.done() for task in low)
            low.pop().cancel()
        finally:
            release.set()
        assert await asyncio.gather(*low) == ["answer"] * len(low)
        await made.stop()

    asyncio.run(ask())


def test_memory_is_given_back():
    """It works on any thread, also if there is nothing to give back."""
    memory.give_back()


def test_a_call_waits_for_a_worker_that_starts_again(tmp_path, monkeypatch):
    """A worker is back half a second after it was killed, so a user's call need not fail."""

    async def answer(params: dict[str, Any], progress: rpc.Progress) -> str:
        return "paused"

    async def ask() -> None:
        settings = Settings(source="", data_dir=tmp_path)
        settings.worker_socket.parent.mkdir(parents=True)
        refused = asyncio.Event()
        connect = rpc.connect

        async def connecting(path: Path) -> rpc.Peer:
            try:
                return await connect(path)
            except OSError:
                refused.set()
                raise

        monkeypatch.setattr(rpc, "connect", connecting)
        link = builder.WorkerLink(settings, asyncio.get_running_loop())
        call = asyncio.create_task(asyncio.to_thread(link.call, "pause", {}))
        await asyncio.wait_for(refused.wait(), PATIENCE_S)
        peers: list[rpc.Peer] = []
        server = await rpc.serve(settings.worker_socket, {"pause": answer}, peers.append)
        assert await asyncio.wait_for(call, PATIENCE_S) == "paused"
        for peer in peers:
            await peer.close()
        server.close()

    asyncio.run(ask())
