"""Disturbances of a running engine: table locks, and commands while connections fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psycopg

from headrace.errors import TransientError
from tests.runtime.harness import Running
from tests.waiting import PATIENCE_S, again_and_again


@contextlib.contextmanager
def locked(dsn: str, table: str) -> Iterator[None]:
    """Lock a table against writes."""
    with psycopg.connect(dsn) as conn:
        conn.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield


def told(running: Running, command: Callable[[], None]) -> None:
    """Submit a command until it succeeds, also while the database is unreachable."""
    for _ in again_and_again(PATIENCE_S):
        if running.error is not None:
            raise running.error
        with contextlib.suppress(TransientError, TimeoutError):
            running.engine.submit(command).result(1)
            return
