"""What happens to engines: locks, and commands amid trouble."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psycopg

from headrace.errors import TransientError
from tests.runtime.harness import Running
from tests.waiting import PATIENCE_S, again_and_again


@contextlib.contextmanager
def locked(dsn: str, table: str) -> Iterator[None]:
    """Nobody writes a table."""
    with psycopg.connect(dsn) as conn:
        conn.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield


def told(running: Running, command: Callable[[], None]) -> None:
    """A command is done, now or when the database can be reached again."""
    for _ in again_and_again(PATIENCE_S):
        if running.error is not None:
            raise running.error
        with contextlib.suppress(TransientError, TimeoutError):
            running.engine.submit(command).result(1)
            return
