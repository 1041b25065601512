"""Disturbances of a running engine: locks, lost connections, kills, and commands meanwhile."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

import psycopg

from headrace.errors import TransientError
from tests.runtime.harness import Running, settle
from tests.runtime.hosted import HostProcess
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


def disturb(
    what: str,
    running: Running,
    source: psycopg.Connection,
    rng: random.Random,
    view: int,
    tables: Sequence[str],
    change: Callable[[int], None],
) -> None:
    """Pause ``view``, lock one of ``tables``, lose a connection, settle, or do nothing.

    ``change`` changes rows in so many transactions.
    """
    if what == "pause":
        told(running, lambda: running.engine.lifecycle.pause(view))
        change(2)
        told(running, lambda: running.engine.lifecycle.resume(view))
    elif what == "lock":
        with locked(source.info.dsn, rng.choice(tables)):
            change(2)
            threading.Event().wait(rng.choice((0.05, 0.3)))
    elif what == "lose":
        source.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE %s",
            (rng.choice(("headrace sink%", "headrace stream%", "headrace%")),),
        )
    elif what == "settle":
        settle(running, source)


def disturb_processes(
    what: str,
    running: Running,
    rng: random.Random,
    victim: HostProcess,
    change: Callable[[int], None],
    start: Callable[[], Running],
    crash: Callable[[Running], None] | None = None,
) -> Running:
    """Kill or halt a worker, stop or crash the engine, both, or do nothing; return the engine."""
    if what in ("kill", "both"):
        victim.kill()
        change(2)
        victim.start()
    if what in ("stop", "both", "crash"):
        running.stop()
        if what == "crash" and crash is not None:
            crash(running)
        running = start()
    if what == "halt":
        victim.kill(signal.SIGSTOP)
        threading.Event().wait(rng.choice((0.05, 0.3)))
        victim.kill(signal.SIGCONT)
    return running
