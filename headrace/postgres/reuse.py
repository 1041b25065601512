"""Connection pool of the builder.

A new connection costs Postgres a process with empty caches: some 20 ms of processor time, more than
most calls need.  So a connection that was used without an error is kept for a few seconds and
given to the next caller.

* No session state passes to the next caller: ``DISCARD ALL`` resets settings, roles, temporary
  objects and locks.  A connection that is not idle, or had any error, is closed.
* A late cancel cannot hit another caller: a canceled caller must not ``keep`` the connection.
* Connections are short-lived, so new settings of a database or role take effect soon.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from headrace import clock
from headrace.postgres import connect
from headrace.postgres.connect import Connection

KEPT_S: Final = 5.0
"""Seconds after which an unused connection is closed."""
_AGE_S: Final = 60.0
"""Age in seconds from which a connection is not used again."""
_FLUSHES_SINCE: Final = 150_000
_KEPT_MOST: Final = 4
"""Idle connections that are kept at once, of all keys together."""


@dataclass(frozen=True, slots=True, eq=False)
class _IdleConnection:
    key: Hashable
    conn: Connection
    made: float
    kept: float

    @property
    def old(self) -> bool:
        """Whether the connection must be closed; all times are from the monotonic clock."""
        now = clock.monotonic()
        return now >= self.kept + KEPT_S or now >= self.made + _AGE_S


Keep = Callable[[], bool]


def always() -> bool:
    """Return True: keep each connection that had no error."""
    return True


@contextlib.contextmanager
def lent(dsn: str, keep: Keep = always, *, what: str = "builder") -> Iterator[Connection]:
    """Lend a connection of the builder, in autocommit mode; ``keep`` decides whether to keep it.

    ``what``: see ``connect.for_job``.

    Raises:
        HeadraceError: as ``connect.for_job``.
    """
    with _lent((what, dsn), lambda: connect.for_job(dsn, what=what), keep) as conn:
        yield conn


@contextlib.contextmanager
def beside(conn: Connection, keep: Keep) -> Iterator[Connection]:
    """Lend another connection with the parameters of ``conn``, as ``lent`` does.

    Raises:
        TransientError: the server cannot be reached, or refuses connections for now.
    """
    key = ("beside", conn.info.password, *sorted(conn.info.get_parameters().items()))
    with _lent(key, lambda: connect.duplicate(conn), keep) as other:
        yield other


@contextlib.contextmanager
def _lent(key: Hashable, make: Callable[[], Connection], keep: Keep) -> Iterator[Connection]:
    found = _IDLE.take(key)
    conn, made = (make(), clock.monotonic()) if found is None else (found.conn, found.made)
    kept = False
    try:
        yield conn
        kept = keep() and _clean(conn)
    finally:
        if not kept:
            conn.close()
    if kept:
        _IDLE.put(_IdleConnection(key, conn, made, clock.monotonic()))


def _clean(conn: Connection) -> bool:
    """Reset the session; return whether it can be used again."""
    if conn.closed or not conn.autocommit:
        return False
    if conn.info.transaction_status != TransactionStatus.IDLE:
        return False
    try:
        if conn.info.server_version >= _FLUSHES_SINCE:
            # Flush the session's statistics, as its end would.
            conn.execute("SELECT pg_catalog.pg_stat_force_next_flush()")
        conn.execute("DISCARD ALL")
        connect.unlimited(conn)
    except psycopg.Error:
        return False
    return True


class _Idle:
    """Idle connections of this process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[_IdleConnection] = []
        """Least recently used first."""
        self._awaited = False
        """Whether a timer is set to close old ones."""

    def take(self, key: Hashable) -> _IdleConnection | None:
        """Return the most recently used connection that still answers."""
        while True:
            with self._lock:
                found = next((kept for kept in reversed(self._kept) if kept.key == key), None)
                if found is None:
                    return None
                self._kept.remove(found)
            if not found.old:
                with contextlib.suppress(psycopg.Error):
                    found.conn.execute("SELECT")
                    return found
            found.conn.close()

    def put(self, kept: _IdleConnection) -> None:
        """Add a connection; if there are too many, close the least recently used."""
        with self._lock:
            self._kept.append(kept)
            surplus = [self._kept.pop(0)] if len(self._kept) > _KEPT_MOST else []
            self._look_later()
        for one in surplus:
            one.conn.close()

    def _look_later(self) -> None:
        if self._kept and not self._awaited:
            self._awaited = True
            timer = threading.Timer(KEPT_S, self._close_old)
            timer.daemon = True
            timer.start()

    def _close_old(self) -> None:
        with self._lock:
            old = [kept for kept in self._kept if kept.old]
            self._kept = [kept for kept in self._kept if not kept.old]
            self._awaited = False
            self._look_later()
        for kept in old:
            kept.conn.close()


_IDLE: Final = _Idle()
