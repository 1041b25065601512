"""Compute an answer once for all requests that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """At most one computation runs; used on one event loop.

    A request that comes while a computation runs gets the result of the next one, which begins
    after the request. So no answer is older than its request.
    """

    def __init__(self, compute: Callable[[], Awaitable[T]]) -> None:
        self._compute = compute
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Return a result that was computed after this call. Raise the error of ``compute``."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._run())
            self._next.add_done_callback(_retrieve)
        # A client that leaves must not end the computation of the other clients.
        return await asyncio.shield(self._next)

    async def _run(self) -> T:
        async with self._turn:
            self._next = None
            return await self._compute()


def _retrieve(task: asyncio.Task[T]) -> None:
    """Take the error, in case that every client has left."""
    if not task.cancelled():
        task.exception()
