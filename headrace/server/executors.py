"""Asks for the load every few seconds, and has executors started and ended as it demands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.process import shares, tasks
from headrace.server.load_history import LoadHistory, Reading, Verdict
from headrace.server.supervisor import Supervisor
from headrace.sql import nodes

LOOK_S: Final = 5.0
_ASK_S: Final = 10.0
_log = structlog.get_logger(__name__)


class Executors:
    """The executors of one server."""

    def __init__(
        self,
        settings: Settings,
        supervisor: Supervisor,
        now: Callable[[], float] = clock.monotonic,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take ``now`` and ``rest``, the clock that the history of the load goes by."""
        self._most = shares.processes_max(settings) - 1
        self._supervisor = supervisor
        self._now = now
        self._rest = rest
        self._history = LoadHistory()
        self._cpu_s: dict[int, float] = {}
        """Processor seconds at the last reading, by process id."""
        self._read_at = now()
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to look."""
        self._main = asyncio.create_task(tasks.forever("executors", self._serve, LOOK_S))

    async def stop(self) -> None:
        """Stop to look; the executors end with the supervisor."""
        await tasks.end(self._main)

    async def _serve(self) -> None:
        while True:
            try:
                await self.look()
            except (HeadraceError, TimeoutError) as error:
                _log.info("load unknown", reason=str(error))
            await self._rest(LOOK_S)

    async def look(self) -> None:
        """Read the load once, and do what it calls for.

        Raises:
            HeadraceError, TimeoutError: the worker or the builder does not answer.
        """
        names = [n for n in self._supervisor.others if n.startswith(f"worker {nodes.EXECUTOR}")]
        if self._most <= 0:
            # The setting was larger before.
            verdict = Verdict.GATHER if names else Verdict.STAY
        else:
            verdict = self._history.judge(await self._reading(names))
        if verdict is Verdict.STAY or (verdict is Verdict.GATHER and not names):
            return
        answer = await self._adjust(verdict)
        if "added" in answer and f"worker {answer['added']}" in self._supervisor.others:
            await self._adjust(verdict)

    async def _adjust(self, verdict: Verdict) -> dict[str, Any]:
        builder = await self._supervisor.builder.peer()
        answer: dict[str, Any] = await builder.call(verdict.value, {"count_max": self._most})
        if "others" in answer:
            slow = await self._supervisor.see(answer["others"])
            if slow is not None:
                _log.warning("executor is not up", reason=slow)
        return answer

    async def _reading(self, names: list[str]) -> Reading:
        async with asyncio.timeout(_ASK_S):
            load = await (await self._supervisor.worker.peer()).call(
                "load", {"executors": len(names)}
            )
            told = [load]
            for name in names:
                child = self._supervisor.others[name]
                if child.up:
                    told.append(await (await child.peer()).call("status", {}))
        now, before = self._now(), self._cpu_s
        passed, self._read_at = max(now - self._read_at, 1e-3), now
        self._cpu_s = {each["pid"]: each["cpu_s"] for each in told}
        # A process that was not there at the last reading has used nothing that is known.
        used = [(cpu - before.get(pid, cpu)) / passed for pid, cpu in self._cpu_s.items()]
        known = load["pid"] in before
        return Reading(now, bool(load["overloaded"]) and known, used[0], sum(used))
