"""The builder itself: duties of its threads besides the population."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headrace.config import Settings
from headrace.errors import UserError
from headrace.process import memory
from headrace.sql.verbs import VERBS
from headrace.views import builder


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


def test_memory_is_given_back():
    """It works on any thread, also if there is nothing to give back."""
    memory.give_back()
