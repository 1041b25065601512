"""Work of a population that goes on while its own thread does something else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self


class Behind:
    """One thread; leaving it waits until what was begun has ended, in whatever way."""

    def __init__(self) -> None:
        self._pool: Final = ThreadPoolExecutor(1, "headrace-behind")
        self._begun: list[Future[None]] = []

    def __enter__(self) -> Self:
        """Nothing."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """What was begun is over."""
        self._pool.shutdown()

    def begin(self, work: Callable[[], None]) -> None:
        """Have ``work`` done after what was begun before."""
        self._begun.append(self._pool.submit(work))

    def wait(self) -> None:
        """Until all is done; raises the first error."""
        for future in self._begun:
            future.result()
        self._begun = []
