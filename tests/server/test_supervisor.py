"""Pauses before a process that has ended is started again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.errors import TransientError
from headrace.server import supervisor
from headrace.server.supervisor import Child


class Peer:
    async def close(self) -> None:
        pass


class Ending(Child):
    """A process that ends at once, after it was up or before."""

    def __init__(self, lives: list[bool]) -> None:
        super().__init__("worker", None, Path(), None, None)
        self.lives = lives

    async def _run_once(self) -> None:
        if not self.lives:
            self._stopping = True
        elif self.lives.pop(0):
            self._peer = Peer()
        else:
            raise TransientError("it did not listen")


@pytest.mark.parametrize(
    ("lives", "pauses"),
    [
        ([False] * 7, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
        ([True] * 5, [0.2, 0.4, 0.8, 1.0, 1.0]),
        ([False] * 5 + [True] * 2, [0.2, 0.4, 0.8, 1.6, 3.2, 1.0, 1.0]),
    ],
)
def test_pauses_grow_less_for_a_process_that_was_up(lives, pauses, monkeypatch):
    seen = []

    async def sleep(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(supervisor.asyncio, "sleep", sleep)
    asyncio.run(Ending(list(lives))._supervise())
    assert seen == pytest.approx(pauses)
